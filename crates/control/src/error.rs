//! What can go wrong when the kernel is asked for something, and what the caller may do about it.

use capstan_meta::record::{BadValue, InvalidName, RecordError};
use capstan_meta::{MetaError, Remedy};

use crate::keys::HostId;

/// An error of the control kernel. Texts say what happened, to which object, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// No such host is up, and nothing is known about it.
    #[error("host {0} is not registered; `capstan hosts list` shows the hosts that are")]
    UnknownHost(HostId),
    /// A host that runs no service has nothing to drain, so nobody would ever answer.
    #[error("host {0} runs no service that could be drained")]
    NothingToDrain(HostId),
    /// Others kept changing the same record.
    #[error("{what} is being changed by others; try again")]
    Contended {
        /// The record.
        what: String,
    },
    /// A name that cannot be one.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// The store holds something unreadable.
    #[error(transparent)]
    BadValue(#[from] BadValue),
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] MetaError),
}

impl ControlError {
    /// What the caller may do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            ControlError::UnknownHost(_) | ControlError::NothingToDrain(_) | ControlError::InvalidName(_) => {
                Remedy::Reject
            }
            ControlError::Contended { .. } => Remedy::Retry,
            ControlError::BadValue(_) => Remedy::Report,
            ControlError::Store(error) => error.remedy(),
        }
    }
}

impl From<RecordError> for ControlError {
    fn from(error: RecordError) -> ControlError {
        match error {
            RecordError::Store(error) => ControlError::Store(error),
            RecordError::BadValue(bad) => ControlError::BadValue(bad),
        }
    }
}
