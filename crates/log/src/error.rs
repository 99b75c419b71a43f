//! Errors of a log, and what a caller can do about each.

use capstan_meta::record::RecordError;
use capstan_meta::settle::Contended;
use capstan_meta::{MetaError, Remedy};

use crate::config::Refused;
use crate::disk::DiskError;
use crate::entry::{LogEpoch, Offset};
use crate::keys::LogName;

/// The outcome of a failed append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The append is not in the log and never will be: repeating it cannot duplicate it.
    NotThere,
    /// The append may be in the log now or later: read the log to find out.
    Unknown,
}

/// An error of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// Another holder is the primary. Nothing was appended; read the configuration.
    #[error("this holder is not the primary of log {0}")]
    NotPrimary(LogName),
    /// The lease of this holder has expired; another holder may be the primary. Nothing was appended or read.
    #[error("this holder's lease has expired: another one may be the primary of log {0}")]
    NoLease(LogName),
    /// This holder leads in another epoch than the append was for. Nothing was appended.
    #[error("log {log} is in epoch {present}, not in epoch {wanted}")]
    OtherEpoch {
        /// Which log.
        log: LogName,
        /// The epoch that the append was for.
        wanted: LogEpoch,
        /// The present epoch.
        present: LogEpoch,
    },
    /// This holder is the primary and does not serve yet: the first entry of its epoch is not committed. Nothing was
    /// read.
    #[error("the primary of log {0} has not begun its epoch yet; try again")]
    Beginning(LogName),
    /// The primary is handing over or sealing the log. Nothing was appended; read the configuration and retry.
    #[error("log {0} is being handed over or sealed; try again")]
    Draining(LogName),
    /// A handover or seal did not complete in time. The log continues as before, or the configuration changed later:
    /// read it.
    #[error("log {0} was not handed over or sealed in time")]
    NotDrained(LogName),
    /// The log was sealed. Nothing was appended.
    #[error("log {0} is sealed")]
    Sealed(LogName),
    /// Too many appends are waiting. Nothing was appended; retry.
    #[error("too many appends are waiting for log {0}; try again")]
    Busy(LogName),
    /// The append got an offset, and this copy cannot determine its outcome.
    #[error("log {log}: {why}; the append may or may not be there")]
    Uncertain {
        /// Which log.
        log: LogName,
        /// What happened.
        why: String,
    },
    /// The append was written and then the primary changed: it may or may not be committed.
    #[error("the primary of log {0} changed: the append may or may not be there")]
    Deposed(LogName),
    /// Too few copies acknowledged in time: the append may or may not be committed.
    #[error(
        "log {log}: not committed in time ({in_sync} copies in sync, {min_copies} required); it may be committed later"
    )]
    NotCommitted {
        /// Which log.
        log: LogName,
        /// How many copies are in sync.
        in_sync: usize,
        /// How many copies are required.
        min_copies: usize,
    },
    /// Entries before this offset were dropped.
    #[error("the log begins at offset {0}")]
    Truncated(Offset),
    /// An entry or batch exceeds the size limit.
    #[error("an append of {0} bytes is too long")]
    TooLong(usize),
    /// A batch without entries.
    #[error("an append without entries")]
    Empty,
    /// No such log in the metadata.
    #[error("there is no log {0}")]
    NoSuchLog(LogName),
    /// An unsafe change of the configuration.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Other processes kept changing the same records.
    #[error(transparent)]
    Contended(#[from] Contended),
    /// The local copy belongs to a log without record and tombstone; it is kept.
    #[error("the copy of log {0} has neither a record nor a tombstone: it is kept")]
    Orphan(LogName),
    /// The local copy belongs to a later log of this name than the record: the metadata store was rolled back.
    #[error("the copy of log {0} is newer than its record: was the metadata store rolled back?")]
    FromTheFuture(LogName),
    /// A disk error.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// An error of the metadata store.
    #[error(transparent)]
    Store(#[from] MetaError),
    /// The record in the metadata store cannot be parsed.
    #[error("{0}")]
    BadRecord(String),
    /// The log was closed on this host.
    #[error("log {0} is closed on this host")]
    Closed(LogName),
}

impl LogError {
    /// What the caller can do about the error.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            LogError::NotPrimary(_) | LogError::NoLease(_) | LogError::OtherEpoch { .. } => Remedy::Fenced,
            LogError::Deposed(_)
            | LogError::NotCommitted { .. }
            | LogError::Uncertain { .. }
            | LogError::NotDrained(_)
            | LogError::Truncated(_) => Remedy::Refresh,
            LogError::Contended(_)
            | LogError::Closed(_)
            | LogError::Busy(_)
            | LogError::Beginning(_)
            | LogError::Draining(_) => Remedy::Retry,
            LogError::TooLong(_)
            | LogError::Empty
            | LogError::NoSuchLog(_)
            | LogError::Sealed(_)
            | LogError::Refused(_) => Remedy::Reject,
            LogError::Disk(error) => error.remedy(),
            LogError::Store(error) => error.remedy(),
            LogError::BadRecord(_) | LogError::Orphan(_) | LogError::FromTheFuture(_) => Remedy::Report,
        }
    }

    /// The outcome of an append that failed with this error.
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self {
            LogError::Deposed(_)
            | LogError::NotCommitted { .. }
            | LogError::Uncertain { .. }
            | LogError::NotDrained(_)
            | LogError::Contended(_)
            | LogError::Store(_)
            | LogError::BadRecord(_) => Fate::Unknown,
            LogError::NotPrimary(_)
            | LogError::NoLease(_)
            | LogError::OtherEpoch { .. }
            | LogError::Beginning(_)
            | LogError::Draining(_)
            | LogError::Sealed(_)
            | LogError::Busy(_)
            | LogError::Truncated(_)
            | LogError::TooLong(_)
            | LogError::Empty
            | LogError::NoSuchLog(_)
            | LogError::Refused(_)
            | LogError::Orphan(_)
            | LogError::FromTheFuture(_)
            // Rejected before it got an offset; later failures are `Uncertain`.
            | LogError::Disk(_)
            | LogError::Closed(_) => Fate::NotThere,
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
