//! What can go wrong with the disk, and what that means for whoever wrote or read.

use std::io::{self, ErrorKind};
use std::path::Path;

use capstan_meta::Remedy;

use crate::entry::Offset;
use crate::keys::LogName;

/// An error of the disk layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// There is no room. Nothing of the append is there; it works again when there is room.
    #[error("the disk is full: nothing was appended; make room and append again ({0})")]
    Full(String),
    /// What is on disk is not what was written.
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
    /// Entries that do not follow on what is there: an earlier write failed, and this one with it.
    #[error("log {log} ends at offset {end}: an earlier write failed")]
    OutOfOrder {
        /// Which log.
        log: LogName,
        /// Where it ends.
        end: Offset,
    },
    /// There is no such log in this directory.
    #[error("no such log on this host")]
    NoSuchLog,
    /// Another process has the directory.
    #[error("{0} is open in another process")]
    Locked(String),
    /// The directory as a whole cannot be trusted.
    #[error("{dir} is damaged: {what}")]
    Corrupt {
        /// The directory.
        dir: String,
        /// What is wrong with it.
        what: String,
    },
    /// The disk failed. Nothing is believed any more until the directory was opened anew.
    #[error("the disk failed: {0}")]
    Failed(String),
    /// The disk was closed.
    #[error("the log directory is closed")]
    Closed,
}

impl DiskError {
    /// What the caller may do about it.
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

    /// An I/O error at this path: no room, or worse.
    pub(crate) fn io(path: &Path, error: &io::Error) -> DiskError {
        let text = format!("{}: {error}", path.display());
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                DiskError::Full(text)
            }
            _ => DiskError::Failed(text),
        }
    }
}

/// Result of a disk operation.
pub type DiskResult<T> = Result<T, DiskError>;
