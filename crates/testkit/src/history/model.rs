//! The model: a store of keys with modification revisions, as small as possible.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Change, Datum, Guard};

/// A key's value and the revision that wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen<V> {
    /// The value.
    pub value: V,
    /// The revision of the write that set it.
    pub modified: u64,
}

#[derive(Debug)]
pub(super) struct Model<K, V> {
    entries: BTreeMap<K, Seen<V>>,
}

impl<K: Datum, V: Datum> Model<K, V> {
    pub(super) fn new() -> Self {
        Self { entries: BTreeMap::new() }
    }

    pub(super) fn get(&self, key: &K) -> Vec<(K, Seen<V>)> {
        self.entries.get_key_value(key).map(|(k, seen)| (k.clone(), seen.clone())).into_iter().collect()
    }

    pub(super) fn range(&self, range: &Range<K>) -> Vec<(K, Seen<V>)> {
        if range.start >= range.end {
            return Vec::new();
        }
        self.entries.range(range.clone()).map(|(k, seen)| (k.clone(), seen.clone())).collect()
    }

    pub(super) fn holds(&self, guard: &Guard<K, V>) -> bool {
        match guard {
            Guard::Value(key, value) => self.entries.get(key).is_some_and(|seen| seen.value == *value),
            Guard::Modified(key, revision) => {
                self.entries.get(key).map_or(0, |seen| seen.modified) == *revision
            }
        }
    }

    /// Whether this change has an effect. A delete of a missing key has none.
    pub(super) fn is_effective(&self, change: &Change<K, V>) -> bool {
        match change {
            Change::Put(..) => true,
            Change::Delete(key) => self.entries.contains_key(key),
        }
    }

    pub(super) fn apply(&mut self, revision: u64, change: &Change<K, V>) {
        match change {
            Change::Put(key, value) => {
                self.entries.insert(key.clone(), Seen { value: value.clone(), modified: revision });
            }
            Change::Delete(key) => {
                self.entries.remove(key);
            }
        }
    }
}
