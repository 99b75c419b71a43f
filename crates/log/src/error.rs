//! What can go wrong with a log, and what a caller may do about it.

use capstan_meta::record::RecordError;
use capstan_meta::{MetaError, Remedy};

use crate::config::Refused;
use crate::disk::DiskError;
use crate::entry::Offset;
use crate::keys::LogName;

/// An error of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Another holder is the primary. Nothing was appended; look at the configuration.
    #[error("this holder is not the primary of log {0}")]
    NotPrimary(LogName),
    /// The lease of this holder has run out; somebody else may be the primary. Nothing was appended or read.
    #[error("this holder's lease has run out: another one may be the primary of log {0}")]
    NoLease(LogName),
    /// The append was written and the primary has changed: it may or may not stay.
    #[error("the primary of log {0} changed: the append may or may not be there")]
    Deposed(LogName),
    /// Not enough copies acknowledged in time: the append may or may not stay.
    #[error(
        "log {log}: not committed in time, {in_sync} copies in sync and {min_copies} needed; it may yet be"
    )]
    NotCommitted {
        /// Which log.
        log: LogName,
        /// How many copies are in sync.
        in_sync: usize,
        /// How many are needed.
        min_copies: usize,
    },
    /// Entries before this offset were dropped.
    #[error("the log begins at offset {0}")]
    Truncated(Offset),
    /// One entry or one batch is longer than it may be.
    #[error("an append of {0} bytes is too long")]
    TooLong(usize),
    /// A batch without entries.
    #[error("an append without entries")]
    Empty,
    /// There is no such log in the metadata.
    #[error("there is no log {0}")]
    NoSuchLog(LogName),
    /// A change of the configuration that is not safe.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Somebody else kept changing the configuration.
    #[error("the configuration of log {0} keeps changing")]
    Contended(LogName),
    /// The disk.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The metadata store.
    #[error(transparent)]
    Store(#[from] MetaError),
    /// The record in the metadata store cannot be read.
    #[error("{0}")]
    BadRecord(String),
    /// The log was closed on this host.
    #[error("log {0} is closed on this host")]
    Closed(LogName),
}

impl LogError {
    /// What the caller may do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            LogError::NotPrimary(_) | LogError::NoLease(_) => Remedy::Fenced,
            LogError::Deposed(_) | LogError::NotCommitted { .. } | LogError::Truncated(_) => Remedy::Refresh,
            LogError::Contended(_) | LogError::Closed(_) => Remedy::Retry,
            LogError::TooLong(_) | LogError::Empty | LogError::NoSuchLog(_) | LogError::Refused(_) => {
                Remedy::Reject
            }
            LogError::Disk(error) => error.remedy(),
            LogError::Store(error) => error.remedy(),
            LogError::BadRecord(_) => Remedy::Report,
        }
    }
}

impl From<RecordError> for LogError {
    fn from(error: RecordError) -> LogError {
        match error {
            RecordError::Store(error) => LogError::Store(error),
            RecordError::BadValue(bad) => LogError::BadRecord(bad.to_string()),
        }
    }
}
