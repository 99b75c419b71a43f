//! The engine on disk: fjall, a log-structured tree. [Why](../../../../docs/adr/docs-0001-engine.md).

use std::path::Path;

use bytes::Bytes;
use fjall::{Database, Guard, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};

use super::{Change, Engine, Pairs, StorageError, View};

/// Keys that one step of a range delete removes: what is in memory at a time.
const DELETE_STEP: usize = 4_096;

/// An engine in a directory. One process at a time may have it open.
pub struct DiskEngine {
    database: Database,
    pairs: Keyspace,
}

impl DiskEngine {
    /// Opens the directory, or makes one. The cache is what it keeps in memory of what it has read.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<DiskEngine, StorageError> {
        let database = Database::builder(dir).cache_size(cache_bytes).open().map_err(failed)?;
        let pairs = database.keyspace("pairs", KeyspaceCreateOptions::default).map_err(failed)?;
        Ok(DiskEngine { database, pairs })
    }

    /// Removes keys in several batches: a crash in between leaves some, and the caller removes them again.
    fn delete_prefix(&self, prefix: &[u8]) -> Result<(), StorageError> {
        loop {
            let keys: Vec<_> = self
                .pairs
                .prefix(prefix)
                .take(DELETE_STEP)
                .map(Guard::key)
                .collect::<Result<_, _>>()
                .map_err(failed)?;
            let done = keys.len() < DELETE_STEP;
            let mut batch = self.database.batch();
            keys.into_iter().for_each(|key| batch.remove(&self.pairs, key));
            batch.commit().map_err(failed)?;
            if done {
                return Ok(());
            }
        }
    }
}

impl std::fmt::Debug for DiskEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DiskEngine")
    }
}

fn failed(error: fjall::Error) -> StorageError {
    StorageError(error.to_string())
}

impl Engine for DiskEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(self.pairs.get(key).map_err(failed)?.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn write(&self, changes: Vec<Change>) -> Result<(), StorageError> {
        // Range deletes come first: doing them twice does no harm, and what the batch puts stays.
        for change in &changes {
            if let Change::DeletePrefix(prefix) = change {
                self.delete_prefix(prefix)?;
            }
        }
        let mut batch = self.database.batch();
        for change in changes {
            match change {
                Change::Put(key, value) => batch.insert(&self.pairs, &key[..], &value[..]),
                Change::Delete(key) => batch.remove(&self.pairs, &key[..]),
                Change::DeletePrefix(_) => {}
            }
        }
        batch.commit().map_err(failed)
    }

    fn snapshot(&self) -> Box<dyn View> {
        Box::new(DiskView { snapshot: self.database.snapshot(), pairs: self.pairs.clone() })
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.database.persist(PersistMode::SyncAll).map_err(failed)
    }
}

struct DiskView {
    snapshot: Snapshot,
    pairs: Keyspace,
}

impl View for DiskView {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let value = self.snapshot.get(&self.pairs, key).map_err(failed)?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn range(&self, from: &[u8], before: &[u8]) -> Pairs {
        if from >= before {
            return Box::new(std::iter::empty());
        }
        let pairs = self.snapshot.range(&self.pairs, from.to_vec()..before.to_vec());
        Box::new(pairs.map(|guard| {
            let (key, value) = guard.into_inner().map_err(failed)?;
            Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
        }))
    }
}
