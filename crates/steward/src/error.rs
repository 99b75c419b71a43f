//! Errors of creating, deleting and moving logs.

use capstan_control::keys::ServiceName;
use capstan_log::{HolderId, LogError, LogName, Refused};
use capstan_meta::record::RecordError;
use capstan_meta::settle::Contended;
use capstan_meta::{MetaError, Remedy};

/// An error of the steward.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StewardError {
    /// A log of this name exists with another spec.
    #[error("log {0} exists with another specification")]
    Exists(LogName),
    /// No log of this name exists.
    #[error("there is no log {0}")]
    NoSuchLog(LogName),
    /// No holder of this name exists.
    #[error("there is no holder {0}")]
    NoSuchHolder(HolderId),
    /// A number of copies that no log can have.
    #[error("invalid number of copies: {copies}, of which {min_copies} must be in sync")]
    Impossible {
        /// The requested copies.
        copies: usize,
        /// The requested in-sync copies.
        min_copies: usize,
    },
    /// Not enough holders are up.
    #[error("log {log}: needs {needed} holders of service {service}; {up} are up, not drained and not full")]
    TooFewHolders {
        /// The log.
        log: LogName,
        /// The service of the holders.
        service: ServiceName,
        /// How many are available.
        up: usize,
        /// How many are required.
        needed: usize,
    },
    /// A holder that cannot get a copy or the lead.
    #[error("holder {holder} cannot take log {log}: {why}")]
    Unfit {
        /// The holder.
        holder: HolderId,
        /// The log.
        log: LogName,
        /// Why not.
        why: String,
    },
    /// Rejected by the rules of the log.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// An error of the log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// An error of the metadata store.
    #[error(transparent)]
    Store(#[from] MetaError),
    /// Other processes kept changing the same records.
    #[error(transparent)]
    Contended(#[from] Contended),
    /// A record in the metadata store cannot be parsed.
    #[error("{0}")]
    BadRecord(String),
    /// An error of a holder's directory or disk.
    #[error("{0}")]
    Io(String),
}

impl StewardError {
    /// What the caller can do about the error.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            StewardError::Exists(_)
            | StewardError::NoSuchLog(_)
            | StewardError::NoSuchHolder(_)
            | StewardError::Impossible { .. }
            | StewardError::Unfit { .. }
            | StewardError::Refused(_) => Remedy::Reject,
            StewardError::TooFewHolders { .. } | StewardError::Contended(_) => Remedy::Retry,
            StewardError::Log(error) => error.remedy(),
            StewardError::Store(error) => error.remedy(),
            StewardError::BadRecord(_) | StewardError::Io(_) => Remedy::Report,
        }
    }
}

impl From<RecordError> for StewardError {
    fn from(error: RecordError) -> StewardError {
        match error {
            RecordError::Store(error) => StewardError::Store(error),
            RecordError::BadValue(bad) => StewardError::BadRecord(bad.to_string()),
        }
    }
}
