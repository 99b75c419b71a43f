//! What can go wrong for a client.

use tonic::Status;

/// An error of a client.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no such topic.
    #[error("there is no topic {0}")]
    NoSuchTopic(String),
    /// A request that is wrong and stays wrong.
    #[error("{0}")]
    Invalid(String),
    /// The broker refused, or could not be reached for long.
    #[error("{}", .0.message())]
    Refused(Box<Status>),
}

impl From<Status> for ClientError {
    fn from(status: Status) -> ClientError {
        ClientError::Refused(Box::new(status))
    }
}
