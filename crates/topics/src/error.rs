//! What can go wrong, and what each of it is on the wire.

use capstan_log::{Fate, LogError};
use capstan_meta::record::RecordError;
use capstan_meta::settle::Contended;
use capstan_meta::{MetaError, Remedy};
use capstan_steward::StewardError;
use prost::Message as _;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::wire::danube::{ErrorMessage, ErrorType};

/// The trailer in which clients up to 0.7.1 look for details.
const TRAILER: &str = "error-message-bin";

/// An error of the broker.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicsError {
    /// Not a name of a topic.
    #[error("{0:?} is not a topic: write /namespace/topic with letters, digits, _ and -")]
    InvalidTopic(String),
    /// A request that is wrong and stays wrong.
    #[error("{0}")]
    Invalid(String),
    /// A request without a credential, or with one that is not good.
    #[error("{0}")]
    Unauthenticated(String),
    /// What the caller may not do.
    #[error("{0}")]
    Denied(String),
    /// There is no such topic.
    #[error("there is no topic {0}")]
    NoSuchTopic(String),
    /// There is no such namespace.
    #[error("there is no namespace {0}; create it with `capstan namespaces create {0}`")]
    NoSuchNamespace(String),
    /// There is no such subscription.
    #[error("topic {topic} has no subscription {subscription}")]
    NoSuchSubscription {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// A client that the broker does not know: it has to register again.
    #[error("{0} is not registered with this broker; create it again")]
    NotRegistered(String),
    /// It exists, in another form.
    #[error("{0}")]
    Exists(String),
    /// What is asked for contradicts what is there.
    #[error("{0}")]
    Mismatch(String),
    /// Another consumer has the subscription.
    #[error("{0}")]
    Taken(String),
    /// A limit of the namespace.
    #[error("{0}")]
    Limit(String),
    /// A message that does not fit its topic's schema.
    #[error("{0}")]
    Schema(String),
    /// Another broker serves the topic, or none does at the moment.
    #[error("topic {topic} is not served here{}", at.as_ref().map(|at| format!(", but at {at}")).unwrap_or_default())]
    NotHere {
        /// The topic.
        topic: String,
        /// The broker that serves it, if there is one.
        at: Option<String>,
    },
    /// Try again in a moment.
    #[error("{0}; try again")]
    NotReady(String),
    /// The log refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The steward refused.
    #[error(transparent)]
    Steward(#[from] StewardError),
    /// The metadata store.
    #[error(transparent)]
    Store(#[from] MetaError),
    /// Others kept changing the same records.
    #[error(transparent)]
    Contended(#[from] Contended),
    /// The object storage failed.
    #[error("object storage: {0}")]
    Tier(String),
    /// An object that is not there.
    #[error("object storage: there is no {0}")]
    NoSuchObject(String),
    /// A record or an entry that cannot be read.
    #[error("{0}")]
    Corrupt(String),
}

impl From<RecordError> for TopicsError {
    fn from(error: RecordError) -> TopicsError {
        match error {
            RecordError::Store(error) => TopicsError::Store(error),
            RecordError::BadValue(bad) => TopicsError::Corrupt(bad.to_string()),
        }
    }
}

impl TopicsError {
    /// What the caller may do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            TopicsError::InvalidTopic(_)
            | TopicsError::Invalid(_)
            | TopicsError::Unauthenticated(_)
            | TopicsError::Denied(_)
            | TopicsError::NoSuchTopic(_)
            | TopicsError::NoSuchNamespace(_)
            | TopicsError::NoSuchSubscription { .. }
            | TopicsError::Exists(_)
            | TopicsError::Mismatch(_)
            | TopicsError::Taken(_)
            | TopicsError::Schema(_)
            | TopicsError::Limit(_) => Remedy::Reject,
            TopicsError::NotRegistered(_) | TopicsError::NotHere { .. } => Remedy::Refresh,
            TopicsError::NotReady(_)
            | TopicsError::Contended(_)
            | TopicsError::Tier(_)
            | TopicsError::NoSuchObject(_) => Remedy::Retry,
            TopicsError::Log(error) => error.remedy(),
            TopicsError::Steward(error) => error.remedy(),
            TopicsError::Store(error) => error.remedy(),
            TopicsError::Corrupt(_) => Remedy::Report,
        }
    }

    /// Whether a publish that failed with this may be in the topic after all.
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        matches!(self, TopicsError::Log(error) if error.fate() == Fate::Unknown)
    }

    /// What metrics call it when a publication is refused.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            TopicsError::Schema(_) => "schema",
            TopicsError::InvalidTopic(_) | TopicsError::Invalid(_) => "invalid",
            TopicsError::Limit(_) => "limit",
            TopicsError::NotHere { .. } | TopicsError::NotRegistered(_) => "elsewhere",
            TopicsError::Unauthenticated(_)
            | TopicsError::Denied(_)
            | TopicsError::NoSuchTopic(_)
            | TopicsError::NoSuchNamespace(_)
            | TopicsError::NoSuchSubscription { .. }
            | TopicsError::Exists(_)
            | TopicsError::Mismatch(_)
            | TopicsError::Taken(_)
            | TopicsError::NotReady(_)
            | TopicsError::Log(_)
            | TopicsError::Steward(_)
            | TopicsError::Store(_)
            | TopicsError::Contended(_)
            | TopicsError::Tier(_)
            | TopicsError::NoSuchObject(_)
            | TopicsError::Corrupt(_) => "other",
        }
    }

    fn code(&self) -> Code {
        match self {
            TopicsError::InvalidTopic(_) | TopicsError::Invalid(_) => Code::InvalidArgument,
            TopicsError::NoSuchTopic(_) | TopicsError::NoSuchSubscription { .. } => Code::NotFound,
            TopicsError::Exists(_) => Code::AlreadyExists,
            TopicsError::Mismatch(_) => Code::FailedPrecondition,
            TopicsError::Unauthenticated(_) => Code::Unauthenticated,
            TopicsError::Taken(_) | TopicsError::Schema(_) | TopicsError::Denied(_) => Code::PermissionDenied,
            TopicsError::Limit(_) => Code::ResourceExhausted,
            // Clients try again, look the topic up and register anew.
            TopicsError::NotHere { .. }
            | TopicsError::NotReady(_)
            | TopicsError::NotRegistered(_)
            | TopicsError::NoSuchNamespace(_)
            | TopicsError::Tier(_)
            | TopicsError::NoSuchObject(_)
            | TopicsError::Contended(_) => Code::Unavailable,
            TopicsError::Log(LogError::TooLong(_)) => Code::InvalidArgument,
            TopicsError::Log(_) | TopicsError::Steward(_) | TopicsError::Store(_) => match self.remedy() {
                Remedy::Report => Code::Internal,
                Remedy::Reject => Code::FailedPrecondition,
                Remedy::Retry | Remedy::Refresh | Remedy::Fenced => Code::Unavailable,
            },
            TopicsError::Corrupt(_) => Code::Internal,
        }
    }

    fn old_type(&self) -> ErrorType {
        match (self, self.code()) {
            (TopicsError::InvalidTopic(_), _) => ErrorType::InvalidTopicName,
            (TopicsError::NoSuchTopic(_), _) => ErrorType::TopicNotFound,
            (TopicsError::NoSuchSubscription { .. }, _) => ErrorType::SubscriptionNotFound,
            (TopicsError::Taken(_), _) => ErrorType::SubscribePermissionDenied,
            (_, Code::Unavailable) => ErrorType::ServiceNotReady,
            _ => ErrorType::UnknownError,
        }
    }
}

impl From<TopicsError> for Status {
    fn from(error: TopicsError) -> Status {
        let message = error.to_string();
        let redirect_to = match &error {
            TopicsError::NotHere { at: Some(at), .. } => at.clone(),
            _ => String::new(),
        };
        let details =
            ErrorMessage { error_type: error.old_type().into(), error_message: message.clone(), redirect_to };
        let mut trailers = MetadataMap::new();
        trailers.insert_bin(TRAILER, MetadataValue::from_bytes(&details.encode_to_vec()));
        Status::with_metadata(error.code(), message, trailers)
    }
}
