//! An engine whose power can be cut: what was not synced is lost from the end on, batch by batch.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::storage::{Change, Engine, MemoryEngine, StorageError, View};

#[derive(Default)]
struct Disk {
    synced: MemoryEngine,
    unsynced: Vec<Vec<Change>>,
    /// Batches that are still written before the power is cut.
    left: Option<usize>,
}

/// An engine that keeps apart what is durable and what is not.
#[derive(Default)]
pub(super) struct CrashEngine {
    now: MemoryEngine,
    disk: Mutex<Disk>,
}

impl CrashEngine {
    fn disk(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power after so many batches: from then on nothing is written.
    pub(super) fn cut_after(&self, batches: usize) {
        self.disk().left = Some(batches);
    }

    /// Does not cut the power after all.
    pub(super) fn keep_on(&self) {
        self.disk().left = None;
    }

    /// Whether the power was cut.
    pub(super) fn is_off(&self) -> bool {
        self.disk().left == Some(0)
    }

    /// Batches that a power cut may lose.
    pub(super) fn unsynced(&self) -> usize {
        self.disk().unsynced.len()
    }

    /// What a crash leaves: everything that was synced, and so many of the batches that were not.
    pub(super) fn after_crash(&self, kept: usize) -> Arc<CrashEngine> {
        let left = CrashEngine::default();
        let all = |engine: &MemoryEngine| -> Vec<Change> {
            let pairs = engine.snapshot().range(&[], &[u8::MAX; 2]);
            pairs.map(|pair| pair.unwrap()).map(|(key, value)| Change::Put(key, value)).collect()
        };
        let disk = self.disk();
        let batches = std::iter::once(all(&disk.synced)).chain(disk.unsynced.iter().take(kept).cloned());
        for batch in batches {
            left.now.write(batch.clone()).unwrap();
            left.disk().synced.write(batch).unwrap();
        }
        Arc::new(left)
    }

    fn commit(&self, batch: Vec<Change>) -> Result<(), StorageError> {
        let mut disk = self.disk();
        match &mut disk.left {
            Some(0) => return Err(StorageError("the power is off".to_owned())),
            Some(left) => *left -= 1,
            None => {}
        }
        self.now.write(batch.clone())?;
        disk.unsynced.push(batch);
        Ok(())
    }
}

impl Engine for CrashEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.now.get(key)
    }

    /// As on disk: ranges are deleted first, each in a step of its own.
    fn write(&self, changes: Vec<Change>) -> Result<(), StorageError> {
        let is_range = |change: &Change| matches!(change, Change::DeletePrefix(_));
        let (ranges, rest): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_range);
        for range in ranges {
            self.commit(vec![range])?;
        }
        if rest.is_empty() { Ok(()) } else { self.commit(rest) }
    }

    fn snapshot(&self) -> Box<dyn View> {
        self.now.snapshot()
    }

    fn sync(&self) -> Result<(), StorageError> {
        let mut disk = self.disk();
        if disk.left == Some(0) {
            return Err(StorageError("the power is off".to_owned()));
        }
        for batch in std::mem::take(&mut disk.unsynced) {
            disk.synced.write(batch)?;
        }
        Ok(())
    }
}
