//! What can go wrong for a client.

use tonic::{Code, Status};

/// An error of a client.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no such topic.
    #[error("there is no topic {0}")]
    NoSuchTopic(String),
    /// A request that is wrong and stays wrong.
    #[error("{0}")]
    Invalid(String),
    /// A broker that does not take connections.
    #[error("cannot reach the broker at {url}: {cause}")]
    Unreachable {
        /// The broker.
        url: String,
        /// Why.
        cause: String,
    },
    /// The broker refused, or could not be reached for long.
    #[error("{}", text(.0))]
    Refused(Box<Status>),
}

/// What the broker said, and what helps where that is always the same.
fn text(status: &Status) -> String {
    match status.code() {
        Code::Unauthenticated => format!("{}; the broker asks for an access key", status.message()),
        _ => status.message().to_owned(),
    }
}

impl From<Status> for ClientError {
    fn from(status: Status) -> ClientError {
        ClientError::Refused(Box::new(status))
    }
}
