//! An engine in memory, for tests and simulations. It passes the same suite as the one on disk.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::{Change, Engine, Pairs, StorageError, View, behind};

type Map = BTreeMap<Bytes, Bytes>;

/// An engine that forgets everything with its process.
#[derive(Debug, Default)]
pub struct MemoryEngine(Mutex<Arc<Map>>);

impl MemoryEngine {
    fn map(&self) -> Arc<Map> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Engine for MemoryEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(self.map().get(key).cloned())
    }

    fn write(&self, changes: Vec<Change>) -> Result<(), StorageError> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let map = Arc::make_mut(&mut shared);
        for change in changes {
            match change {
                Change::Put(key, value) => drop(map.insert(key, value)),
                Change::Delete(key) => drop(map.remove(&key)),
                Change::DeletePrefix(prefix) => {
                    let end = Bytes::from(behind(&prefix));
                    map.retain(|key, _| *key < prefix || *key >= end);
                }
            }
        }
        Ok(())
    }

    fn snapshot(&self) -> Box<dyn View> {
        Box::new(MemoryView(self.map()))
    }

    fn sync(&self) -> Result<(), StorageError> {
        Ok(())
    }
}

struct MemoryView(Arc<Map>);

impl View for MemoryView {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        Ok(self.0.get(key).cloned())
    }

    fn range(&self, from: &[u8], before: &[u8]) -> Pairs {
        if from >= before {
            return Box::new(std::iter::empty());
        }
        let (map, before) = (Arc::clone(&self.0), Bytes::copy_from_slice(before));
        let mut next = Some((Bytes::copy_from_slice(from), true));
        Box::new(std::iter::from_fn(move || {
            let (from, inclusive) = next.take()?;
            let start =
                if inclusive { std::ops::Bound::Included(from) } else { std::ops::Bound::Excluded(from) };
            let (key, value) = map.range((start, std::ops::Bound::Excluded(before.clone()))).next()?;
            next = Some((key.clone(), false));
            Some(Ok((key.clone(), value.clone())))
        }))
    }
}
