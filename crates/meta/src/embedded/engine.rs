//! What the durable side of the store must be able to do, and what it is handed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::durable::{BaseJob, FORMAT, Written};
use super::history::Change;
use crate::error::MetaError;
use crate::kv::{KeyValue, LeaseId, Revision};

/// Keeps the store durable. Only the writer calls it, so it needs no locks; every call may block.
pub trait Engine: Send + 'static {
    /// Makes entries durable, all or none of them. They are when it returns; `Full` leaves no trace of them.
    fn append(&mut self, entries: &[Entry]) -> Result<(), EngineError>;
    /// Proves that the last entries are durable, so that damage to them cannot be taken for a torn write later.
    fn settle(&mut self) -> Result<(), EngineError>;
    /// Whether it is time to write down what lived at a revision.
    fn base_due(&self, need: Need, revision: Revision) -> bool;
    /// Begins to write down what lived at a revision, unless another base is being written.
    fn begin_base(&mut self, wanted: Base) -> Option<BaseJob>;
    /// A base is on disk: what it makes superfluous can go.
    fn finish_base(&mut self, written: Written);
    /// How much space is taken, and how much of it is in use.
    fn size(&self) -> DiskSize;
    /// Ends; the directory is free when it returns.
    fn close(self: Box<Self>) -> Result<(), EngineError>;
}

/// One thing that must not be forgotten.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A new revision.
    Change(Arc<Change>),
    /// A lease was granted.
    LeaseGranted(LeaseId, Duration),
    /// A lease ended (its keys were deleted by the change before).
    LeaseEnded(LeaseId),
    /// History before this revision may not be read any more.
    Compacted(Revision),
    /// The record of users and roles was replaced.
    Users(Bytes),
    /// The alarm `NOSPACE` was raised or disarmed.
    Alarm(bool),
}

/// An entry as read back: what the keys held before a change is not kept on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Logged {
    /// A revision and the versions that it wrote.
    Change(Revision, Vec<Arc<KeyValue>>),
    /// A lease was granted.
    LeaseGranted(LeaseId, Duration),
    /// A lease ended.
    LeaseEnded(LeaseId),
    /// History before this revision may not be read any more.
    Compacted(Revision),
    /// The record of users and roles was replaced.
    Users(Bytes),
    /// The alarm `NOSPACE` was raised or disarmed.
    Alarm(bool),
}

/// How badly a base is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// If it frees more than it costs.
    WhenWorthIt,
    /// If it frees anything.
    Now,
}

/// What a base is made of, besides the keys.
#[derive(Debug)]
pub struct Base {
    /// What lived at this revision.
    pub revision: Revision,
    /// History before this may not be read.
    pub compacted: Revision,
    /// The change right after `revision`.
    pub undone: Arc<Change>,
    /// The leases that live now.
    pub leases: Vec<(LeaseId, Duration)>,
    /// What is kept beside the keys.
    pub beside: Beside,
}

/// What a store keeps that is not a key: it has no revision and no history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The record of users and roles, as it was handed in; empty if there never was one.
    pub users: Bytes,
    /// Whether the alarm `NOSPACE` is raised.
    pub alarm: bool,
}

/// The base that a store comes back from; the log follows, entry by entry.
#[derive(Debug)]
pub struct Loaded {
    /// Everything that lived at `base_revision`.
    pub base: Vec<Arc<KeyValue>>,
    /// The revision of `base`.
    pub base_revision: Revision,
    /// The leases that lived when the base was made, or a little later.
    pub leases: Vec<(LeaseId, Duration)>,
    /// History before this may not be read.
    pub compacted: Revision,
    /// What was kept beside the keys when the base was made, or a little later.
    pub beside: Beside,
}

/// Bytes on disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskSize {
    /// All of it.
    pub total: u64,
    /// What is in use.
    pub in_use: u64,
}

/// Why an engine could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Nothing was written because there is no room; later calls may succeed.
    #[error("no space left on disk")]
    Full,
    /// What was read is not what was written.
    #[error("{0}")]
    Corrupt(String),
    /// Reading or writing failed; what is on disk is not known any more.
    #[error("{0}")]
    Failed(String),
    /// It has a format that this version does not know.
    #[error("it has format {0}")]
    Newer(i64),
}

impl From<EngineError> for MetaError {
    fn from(error: EngineError) -> MetaError {
        match error {
            EngineError::Full => MetaError::NoSpace,
            EngineError::Corrupt(what) => MetaError::Corrupt(what),
            EngineError::Failed(what) => MetaError::Storage(what),
            EngineError::Newer(_) => MetaError::Corrupt(error.to_string()),
        }
    }
}

/// Why a data directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error(
        "data directory {0} is in use by another process; stop that one, or choose another directory with --dir"
    )]
    Locked(String),
    /// A newer Capstan wrote it.
    #[error(
        "data directory {dir} has format {found}, this version reads up to {known}; run the newer version that wrote it"
    )]
    Newer {
        /// The directory.
        dir: String,
        /// What it has.
        found: i64,
        /// What this version knows.
        known: i64,
    },
    /// What is on disk is not what was written.
    #[error("data directory {dir} is damaged: {what}; restore it from a snapshot (capstan meta restore)")]
    Corrupt {
        /// The directory.
        dir: String,
        /// What was found.
        what: String,
    },
    /// A restore into it was interrupted.
    #[error(
        "data directory {0} is incomplete: a restore into it did not end; run `capstan meta restore` with the same snapshot again"
    )]
    Unfinished(String),
    /// It has data already, where there must be none.
    #[error("data directory {0} is not empty; choose another one, nothing was changed")]
    NotEmpty(String),
    /// The operating system said no.
    #[error("data directory {dir} cannot be used: {what}")]
    Unusable {
        /// The directory.
        dir: String,
        /// What the system said.
        what: String,
    },
}

impl OpenError {
    /// Names the directory that an engine could not open.
    pub fn from_engine(dir: &Path, error: EngineError) -> OpenError {
        let dir = dir.display().to_string();
        match error {
            EngineError::Corrupt(what) => OpenError::Corrupt { dir, what },
            EngineError::Newer(found) => OpenError::Newer { dir, found, known: FORMAT.into() },
            EngineError::Full | EngineError::Failed(_) => {
                OpenError::Unusable { dir, what: error.to_string() }
            }
        }
    }
}

/// The engine of a store that lives only as long as its process: for simulations and tests.
#[derive(Debug)]
pub struct Memory;

impl Engine for Memory {
    fn append(&mut self, _entries: &[Entry]) -> Result<(), EngineError> {
        Ok(())
    }

    fn settle(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn base_due(&self, _need: Need, _revision: Revision) -> bool {
        false
    }

    fn begin_base(&mut self, _wanted: Base) -> Option<BaseJob> {
        None
    }

    fn finish_base(&mut self, _written: Written) {}

    fn size(&self) -> DiskSize {
        DiskSize::default()
    }

    fn close(self: Box<Self>) -> Result<(), EngineError> {
        Ok(())
    }
}
