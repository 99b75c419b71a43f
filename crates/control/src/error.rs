//! Errors of the kernel, and what the caller can do about each.

use capstan_meta::record::{BadValue, InvalidName, RecordError};
use capstan_meta::{MetaError, Remedy};

use crate::keys::HostId;

/// An error of the control kernel. Messages say what happened, to which object, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The host is not up and was never seen.
    #[error("host {0} is not registered; `capstan hosts list` shows the hosts that are")]
    UnknownHost(HostId),
    /// A host without services has nothing to drain, so no answer would ever arrive.
    #[error("host {0} runs no service that could be drained")]
    NothingToDrain(HostId),
    /// A host that is up cannot be removed.
    #[error("host {0} is up; drain it and stop its daemon, then remove it")]
    StillUp(HostId),
    /// A host that holds data cannot be removed.
    #[error("host {host} holds data: {}; drain it, or move that away first", .what.join(", "))]
    HoldsData {
        /// The host.
        host: HostId,
        /// What it holds.
        what: Vec<String>,
    },
    /// Other processes kept changing the same record.
    #[error("{what} is being changed by others; try again")]
    Contended {
        /// The record.
        what: String,
    },
    /// An invalid name.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// The store holds an unreadable value.
    #[error(transparent)]
    BadValue(#[from] BadValue),
    /// An error of the store.
    #[error(transparent)]
    Store(#[from] MetaError),
}

impl ControlError {
    /// What the caller can do about the error.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            ControlError::UnknownHost(_)
            | ControlError::NothingToDrain(_)
            | ControlError::StillUp(_)
            | ControlError::HoldsData { .. }
            | ControlError::InvalidName(_) => Remedy::Reject,
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
