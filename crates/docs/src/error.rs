//! What can go wrong with a request, and what its client may do about it.

use capstan_log::{Fate, LogError};
use capstan_meta::{MetaError, Remedy};
use serde::{Deserialize, Serialize};

use crate::language::Refusal;
use crate::storage::StorageError;

/// An error of the document store. It crosses between nodes as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum DocsError {
    /// The request is not one that can be served. Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// It is not there.
    #[error("{0}")]
    NotFound(String),
    /// It was there, and is not kept any more.
    #[error("{0}")]
    Gone(String),
    /// Another document has the same key or the same unique value. Nothing was changed.
    #[error("{0}")]
    Duplicate(String),
    /// The document or the request is larger than it may be.
    #[error("{0}")]
    TooLarge(String),
    /// The client has stopped in the middle of its request. Nothing was changed.
    #[error("{0}")]
    Stalled(String),
    /// The request has no valid key.
    #[error("{0}")]
    Unauthorized(String),
    /// The key does not open this.
    #[error("{0}")]
    Forbidden(String),
    /// The record of the collection that the request was made with is an old one. Nothing was changed.
    #[error("the collection has changed meanwhile")]
    Stale,
    /// This node does not lead the token. Nothing was changed.
    #[error("this node does not lead token {0}")]
    NotPrimary(String),
    /// It cannot be served now. Nothing was changed; trying again is safe.
    #[error("{0}; try again")]
    Busy(String),
    /// The change may or may not have happened: only reading tells.
    #[error("{0}; the change may or may not have happened")]
    Unknown(String),
    /// Something is broken that an operator has to look at.
    #[error("{0}")]
    Broken(String),
}

impl DocsError {
    /// What the caller may do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            DocsError::Refused(_)
            | DocsError::NotFound(_)
            | DocsError::Gone(_)
            | DocsError::Duplicate(_)
            | DocsError::TooLarge(_)
            | DocsError::Stalled(_)
            | DocsError::Unauthorized(_)
            | DocsError::Forbidden(_) => Remedy::Reject,
            DocsError::Stale | DocsError::NotPrimary(_) | DocsError::Unknown(_) => Remedy::Refresh,
            DocsError::Busy(_) => Remedy::Retry,
            DocsError::Broken(_) => Remedy::Report,
        }
    }

    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            DocsError::Refused(_) => 400,
            DocsError::Unauthorized(_) => 401,
            DocsError::Forbidden(_) => 403,
            DocsError::NotFound(_) => 404,
            DocsError::Stalled(_) => 408,
            DocsError::Duplicate(_) => 409,
            DocsError::Gone(_) => 410,
            DocsError::TooLarge(_) => 413,
            DocsError::Stale | DocsError::NotPrimary(_) | DocsError::Busy(_) | DocsError::Unknown(_) => 503,
            DocsError::Broken(_) => 500,
        }
    }

    pub(crate) fn refused(text: impl Into<String>) -> DocsError {
        DocsError::Refused(text.into())
    }
}

impl From<Refusal> for DocsError {
    fn from(refusal: Refusal) -> DocsError {
        DocsError::Refused(refusal.0)
    }
}

impl From<StorageError> for DocsError {
    fn from(error: StorageError) -> DocsError {
        DocsError::Broken(error.to_string())
    }
}

impl From<MetaError> for DocsError {
    fn from(error: MetaError) -> DocsError {
        match error.remedy() {
            Remedy::Retry => DocsError::Busy(error.to_string()),
            Remedy::Refresh | Remedy::Fenced => DocsError::Unknown(error.to_string()),
            Remedy::Reject | Remedy::Report => DocsError::Broken(error.to_string()),
        }
    }
}

impl From<capstan_meta::record::RecordError> for DocsError {
    fn from(error: capstan_meta::record::RecordError) -> DocsError {
        match error {
            capstan_meta::record::RecordError::Store(error) => error.into(),
            capstan_meta::record::RecordError::BadValue(bad) => DocsError::Broken(bad.to_string()),
        }
    }
}

impl From<capstan_meta::settle::Contended> for DocsError {
    fn from(error: capstan_meta::settle::Contended) -> DocsError {
        DocsError::Busy(error.to_string())
    }
}

impl From<capstan_meta::record::InvalidName> for DocsError {
    fn from(error: capstan_meta::record::InvalidName) -> DocsError {
        DocsError::Refused(error.to_string())
    }
}

impl From<capstan_steward::StewardError> for DocsError {
    fn from(error: capstan_steward::StewardError) -> DocsError {
        match error.remedy() {
            Remedy::Reject => DocsError::Refused(error.to_string()),
            Remedy::Retry => DocsError::Busy(error.to_string()),
            Remedy::Refresh | Remedy::Fenced => DocsError::Unknown(error.to_string()),
            Remedy::Report => DocsError::Broken(error.to_string()),
        }
    }
}

impl From<LogError> for DocsError {
    fn from(error: LogError) -> DocsError {
        match (error.fate(), &error) {
            (Fate::NotThere, LogError::NotPrimary(log) | LogError::NoLease(log)) => {
                DocsError::NotPrimary(log.to_string())
            }
            (Fate::NotThere, LogError::OtherEpoch { log, .. }) => DocsError::NotPrimary(log.to_string()),
            (Fate::NotThere, LogError::TooLong(_)) => DocsError::TooLarge(error.to_string()),
            (Fate::NotThere, _) => DocsError::Busy(error.to_string()),
            (Fate::Unknown, _) => DocsError::Unknown(error.to_string()),
        }
    }
}
