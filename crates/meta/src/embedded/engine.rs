//! What the durable side of the store must be able to do: five calls, and what they carry.

use std::collections::{HashMap, hash_map};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::error::MetaError;
use crate::kv::{KeyValue, LeaseId, Revision};
use crate::request::Event;

use super::history::Change;

/// Keeps the store durable. Only the writer calls it, so it needs no locks; every call may block.
pub trait Engine: Send + 'static {
    /// Everything that was kept, once, at the beginning.
    fn load(&mut self) -> Result<Loaded, EngineError>;
    /// Makes entries durable, all or none of them, and folds old history if asked to. They are when it returns.
    fn append(&mut self, entries: &[Entry], fold: Option<Fold<'_>>) -> Result<(), EngineError>;
    /// Gives unused space on disk back.
    fn defragment(&mut self) -> Result<(), EngineError>;
    /// How much space is taken, and how much of it is in use.
    fn size(&self) -> DiskSize;
    /// Ends: a store that was closed opens faster.
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
}

/// Old history that is no longer needed as history: the engine keeps only what it left behind.
pub struct Fold<'a> {
    /// Consecutive changes, going on from the last fold.
    pub changes: &'a [Arc<Change>],
}

impl Fold<'_> {
    /// For each key the version before the fold and the one after it.
    pub fn net(&self) -> Vec<(Option<&KeyValue>, &KeyValue)> {
        let mut net: Vec<(Option<&KeyValue>, &KeyValue)> = Vec::new();
        let mut position: HashMap<&Bytes, usize> = HashMap::new();
        for Event { kv, prev } in self.changes.iter().flat_map(|change| &change.events) {
            match position.entry(&kv.key) {
                hash_map::Entry::Occupied(at) => net[*at.get()].1 = kv,
                hash_map::Entry::Vacant(at) => {
                    at.insert(net.len());
                    net.push((prev.as_deref(), kv));
                }
            }
        }
        net
    }
}

/// A revision and the versions that it wrote, as read back: what the keys held before is not kept on disk.
pub type LoggedChange = (Revision, Vec<Arc<KeyValue>>);

/// What an engine found when it was opened.
#[derive(Debug)]
pub struct Loaded {
    /// Names this store among all that ever were.
    pub cluster_id: u64,
    /// Everything that lived at `base_revision`, in key order.
    pub base: Vec<Arc<KeyValue>>,
    /// The revision of `base`.
    pub base_revision: Revision,
    /// What happened after it: each revision's new versions, in order and without a gap.
    pub log: Vec<LoggedChange>,
    /// The leases that live.
    pub leases: Vec<(LeaseId, Duration)>,
    /// History before this may not be read.
    pub compacted: Revision,
    /// What a torn write left behind and was cut off, if there was any.
    pub torn: Option<String>,
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
}

impl From<EngineError> for MetaError {
    fn from(error: EngineError) -> MetaError {
        match error {
            EngineError::Full => MetaError::NoSpace,
            EngineError::Corrupt(what) => MetaError::Corrupt(what),
            EngineError::Failed(what) => MetaError::Storage(what),
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
            EngineError::Full | EngineError::Failed(_) => {
                OpenError::Unusable { dir, what: error.to_string() }
            }
        }
    }
}

/// The engine of a store that lives only as long as its process: for simulations and tests.
#[derive(Debug)]
pub struct Memory {
    /// The id that the store reports.
    pub cluster_id: u64,
}

impl Engine for Memory {
    fn load(&mut self) -> Result<Loaded, EngineError> {
        Ok(Loaded {
            cluster_id: self.cluster_id,
            base: Vec::new(),
            base_revision: Revision::FIRST,
            log: Vec::new(),
            leases: Vec::new(),
            compacted: Revision(-1),
            torn: None,
        })
    }

    fn append(&mut self, _entries: &[Entry], _fold: Option<Fold<'_>>) -> Result<(), EngineError> {
        Ok(())
    }

    fn defragment(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn size(&self) -> DiskSize {
        DiskSize::default()
    }

    fn close(self: Box<Self>) -> Result<(), EngineError> {
        Ok(())
    }
}
