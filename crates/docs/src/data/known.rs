//! What a token has that hardly ever changes, remembered between reads: the records of its collections, and which indexes
//! have no document with several values. Without it every read would look both up in every token.
//!
//! A stamp counts the changes of these keys. It is odd while one is being written. A view that was opened between two
//! equal, even stamps has all changes up to that stamp and none behind it, so what one such view has, every other view
//! with the same stamp has too. A view that was opened while they changed remembers nothing and looks everything up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::index::is_of_several_values;
use super::state::Collection;
use crate::spec::CollectionId;
use crate::storage::{Change, layout};

/// Which version of the keys a view has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(u64);

/// What is remembered of one token.
#[derive(Debug, Default)]
pub(super) struct Known {
    stamp: AtomicU64,
    memory: Mutex<Memory>,
}

/// What views with one stamp have found.
#[derive(Debug, Default)]
struct Memory {
    stamp: u64,
    collections: BTreeMap<CollectionId, Option<Arc<Collection>>>,
    /// Indexes without a document with several values.
    single: BTreeSet<(CollectionId, u32)>,
}

impl Known {
    /// The stamp, unless a change is being written.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        let stamp = self.stamp.load(Ordering::SeqCst);
        stamp.is_multiple_of(2).then_some(Stamp(stamp))
    }

    /// Begins a change of what is remembered; it has ended when the answer is dropped. One at a time.
    pub(super) fn change(&self) -> Changing<'_> {
        self.stamp.fetch_add(1, Ordering::SeqCst);
        Changing(self)
    }

    /// What is remembered for this stamp. Older findings are forgotten; nothing if there are newer ones.
    fn memory(&self, Stamp(stamp): Stamp) -> Option<MutexGuard<'_, Memory>> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if memory.stamp < stamp {
            *memory = Memory { stamp, ..Memory::default() };
        }
        (memory.stamp == stamp).then_some(memory)
    }

    /// The record of a collection, if it was looked up before; nothing in it if there is no record.
    pub(super) fn collection(&self, stamp: Stamp, id: CollectionId) -> Option<Option<Arc<Collection>>> {
        self.memory(stamp)?.collections.get(&id).cloned()
    }

    pub(super) fn note_collection(&self, stamp: Stamp, id: CollectionId, found: Option<Arc<Collection>>) {
        if let Some(mut memory) = self.memory(stamp) {
            memory.collections.insert(id, found);
        }
    }

    /// Whether it was found that an index has no document with several values.
    pub(super) fn is_single(&self, stamp: Stamp, id: CollectionId, index: u32) -> bool {
        self.memory(stamp).is_some_and(|memory| memory.single.contains(&(id, index)))
    }

    pub(super) fn note_single(&self, stamp: Stamp, id: CollectionId, index: u32) {
        if let Some(mut memory) = self.memory(stamp) {
            memory.single.insert((id, index));
        }
    }
}

/// A change that is being written.
pub(super) struct Changing<'k>(&'k Known);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.stamp.fetch_add(1, Ordering::SeqCst);
    }
}

/// Whether a change of a token's data is one of what is remembered.
pub(super) fn is_remembered(change: &Change) -> bool {
    match change {
        Change::Put(key, _) | Change::Delete(key) => {
            key.starts_with(layout::COLLECTIONS) || is_of_several_values(key)
        }
        Change::DeletePrefix(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use bson::Bson;
    use bytes::Bytes;

    use super::*;

    const ID: CollectionId = CollectionId(7);

    #[test]
    fn what_was_found_counts_until_the_next_change() {
        let known = Known::default();
        let before = known.stamp().unwrap();
        known.note_collection(before, ID, None);
        known.note_single(before, ID, 1);
        assert_eq!(known.collection(before, ID), Some(None));
        assert!(known.is_single(before, ID, 1) && !known.is_single(before, ID, 2));
        let changing = known.change();
        assert_eq!(known.stamp(), None, "a view that is opened now may have half of the change");
        drop(changing);
        let after = known.stamp().unwrap();
        assert_ne!(before, after);
        assert!(known.collection(after, ID).is_none() && !known.is_single(after, ID, 1));
        known.note_single(before, ID, 1);
        assert!(!known.is_single(after, ID, 1), "an old view says nothing about new ones");
        assert!(!known.is_single(before, ID, 1), "and is not believed any more");
    }

    #[test]
    fn records_and_several_values_are_remembered_and_documents_are_not() {
        let put = |key: Vec<u8>| Change::Put(key.into(), Bytes::new());
        let entry = |value: &Bson| layout::entry(ID, 1, value, &Bson::Int32(1));
        assert!(is_remembered(&put(layout::collection(ID))));
        assert!(is_remembered(&put(entry(&super::super::index::several_values()))));
        assert!(is_remembered(&Change::Delete(entry(&super::super::index::several_values()).into())));
        assert!(is_remembered(&Change::DeletePrefix(layout::index(ID, 1).into())));
        assert!(!is_remembered(&put(entry(&Bson::Int32(5)))));
        assert!(!is_remembered(&put(layout::document(ID, &Bson::Int32(5)))));
    }
}
