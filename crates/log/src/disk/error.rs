//! Errors of the disk layer, and what each means for writers and readers.

use std::io::{self, ErrorKind};
use std::path::Path;

use capstan_meta::Remedy;

use crate::entry::Offset;
use crate::keys::LogName;

/// An error of the disk layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// No space. Nothing was appended; retry when there is space.
    #[error("the disk is full; free some space and try again ({0})")]
    Full(String),
    /// The data on disk is not what was written.
    #[error("log {log} is damaged at offset {offset}: {what}")]
    Damaged {
        /// Which log.
        log: LogName,
        /// The first entry that cannot be read.
        offset: Offset,
        /// What is wrong.
        what: String,
    },
    /// The owner dropped these entries.
    #[error("log {log} begins at offset {start}")]
    Truncated {
        /// Which log.
        log: LogName,
        /// The first offset that is still there.
        start: Offset,
    },
    /// The entries do not continue the log: an earlier write failed, and this one with it.
    #[error("log {log} ends at offset {end}: an earlier write failed")]
    OutOfOrder {
        /// Which log.
        log: LogName,
        /// Where it ends.
        end: Offset,
    },
    /// No such log in this directory.
    #[error("no such log on this host")]
    NoSuchLog,
    /// Another process has the directory open.
    #[error("{0} is open in another process")]
    Locked(String),
    /// The directory as a whole is not trustworthy.
    #[error("{dir} is damaged: {what}")]
    Corrupt {
        /// The directory.
        dir: String,
        /// What is wrong with it.
        what: String,
    },
    /// The disk failed. Nothing is trusted until the directory is opened again.
    #[error("the disk failed: {0}")]
    Failed(String),
    /// The disk was closed.
    #[error("the log directory is closed")]
    Closed,
}

impl DiskError {
    /// What the caller can do about the error.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            DiskError::Full(_) | DiskError::Closed => Remedy::Retry,
            DiskError::Truncated { .. } | DiskError::OutOfOrder { .. } => Remedy::Refresh,
            DiskError::NoSuchLog => Remedy::Reject,
            DiskError::Damaged { .. }
            | DiskError::Locked(_)
            | DiskError::Corrupt { .. }
            | DiskError::Failed(_) => Remedy::Report,
        }
    }

    /// Classifies an I/O error at this path: no space, or a failure.
    pub(crate) fn io(path: &Path, error: &io::Error) -> DiskError {
        let text = format!("{}: {error}", path.display());
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                DiskError::Full(text)
            }
            _ => DiskError::Failed(text),
        }
    }

    /// Classifies a failed sync at this path: a failure, also if the disk is full. What was written since the last sync
    /// may be lost, and a repeated sync succeeds without it; only writing it again helps.
    pub(crate) fn sync(path: &Path, error: &io::Error) -> DiskError {
        DiskError::Failed(format!("{}: cannot sync: {error}", path.display()))
    }

    /// The error as a failure that lasts until the directory is opened again: free space alone does not end it.
    pub(crate) fn lasting(self) -> DiskError {
        match self {
            DiskError::Full(text) => DiskError::Failed(text),
            other @ (DiskError::Damaged { .. }
            | DiskError::Truncated { .. }
            | DiskError::OutOfOrder { .. }
            | DiskError::NoSuchLog
            | DiskError::Locked(_)
            | DiskError::Corrupt { .. }
            | DiskError::Failed(_)
            | DiskError::Closed) => other,
        }
    }
}

/// Result of a disk operation.
pub type DiskResult<T> = Result<T, DiskError>;
