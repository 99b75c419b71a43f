//! What does a view show? Some ranges of keys exactly as the store had them at one revision.

use std::sync::Arc;

use super::tree::{Entry, Tree};
use crate::kv::{KeyRange, KeyValue, Revision};
use crate::record::{BadValue, Key, Listing, Prefix, Stored};

/// Some ranges of the store at one revision. Immutable; cheap to clone and to keep.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(super) ranges: Arc<[KeyRange]>,
    pub(super) revision: Revision,
    pub(super) resyncs: u64,
    pub(super) tree: Tree,
}

impl Snapshot {
    /// Everything here is as the store had it at this revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// How often the view had to list anew because history was gone. If it differs between two snapshots, changes in
    /// between are known by their result only.
    #[must_use]
    pub fn resyncs(&self) -> u64 {
        self.resyncs
    }

    /// Whether two snapshots of one view show the same, whatever their revisions. Cheap.
    #[must_use]
    pub fn same_as(&self, other: &Snapshot) -> bool {
        self.tree.same_as(&other.tree)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The record at a key. A key outside of the view is an error, not an absent key.
    pub fn get<K: Key>(&self, key: &K) -> Result<Option<Arc<Stored<K::Record>>>, BadValue> {
        let path = key.path();
        if !self.ranges.iter().any(|range| range.contains(path.as_bytes())) {
            return Err(outside(path));
        }
        self.tree.get(path.as_bytes()).map(|entry| entry.record::<K>()).transpose()
    }

    /// Everything under a prefix. A prefix outside of the view is listed as bad, not as empty.
    pub fn list<P: Prefix>(&self, prefix: &P) -> Listing<P::Key> {
        let mut listing = Listing::at(self.revision);
        let keys = Prefix::range(prefix);
        if !self.ranges.iter().any(|range| encloses(range, &keys)) {
            listing.bad.push(outside(prefix.path()));
        }
        for entry in self.tree.range(&keys) {
            if let Some(key) = typed_key::<P::Key>(entry) {
                listing.push(key, entry.record::<P::Key>());
            }
        }
        listing
    }

    /// One key as it is stored.
    #[must_use]
    pub fn raw(&self, key: &[u8]) -> Option<&Arc<KeyValue>> {
        self.tree.get(key).map(|entry| &entry.kv)
    }

    /// Everything as it is stored, in key order.
    pub fn iter_raw(&self) -> impl Iterator<Item = &Arc<KeyValue>> {
        self.tree.iter().map(|entry| &entry.kv)
    }
}

fn typed_key<K: Key>(entry: &Entry) -> Option<K> {
    std::str::from_utf8(&entry.kv.key).ok().and_then(K::parse)
}

fn outside(key: String) -> BadValue {
    BadValue { key, reason: "this view does not cover it".to_owned() }
}

/// Whether one range holds all keys of another.
pub(super) fn encloses(outer: &KeyRange, inner: &KeyRange) -> bool {
    if inner.is_one() {
        return outer.contains(&inner.start);
    }
    let starts_inside = !outer.is_one() && outer.start <= inner.start;
    let ends_inside = match (outer.upper(), inner.upper()) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(outer), Some(inner)) => inner <= outer,
    };
    starts_inside && ends_inside
}

/// What happened between two snapshots of one view.
#[derive(Clone, Debug)]
pub struct Delta {
    /// What was shown before.
    pub before: Arc<Snapshot>,
    /// What is shown now.
    pub after: Arc<Snapshot>,
}

/// One key that differs between two snapshots.
#[derive(Clone, Debug)]
pub struct Change<'d> {
    /// Its version before; nothing if it was absent.
    pub before: Option<&'d Arc<KeyValue>>,
    /// Its version now; nothing if it is absent.
    pub after: Option<&'d Arc<KeyValue>>,
}

impl Delta {
    /// Whether history was lost in between: the changes show the result, not how it came about.
    #[must_use]
    pub fn resynced(&self) -> bool {
        self.before.resyncs != self.after.resyncs
    }

    /// The keys that differ, in key order. Several changes of one key count as one.
    #[must_use]
    pub fn changes(&self) -> Vec<Change<'_>> {
        let differences = Tree::diff(&self.before.tree, &self.after.tree).into_iter();
        differences
            .map(|(before, after)| Change {
                before: before.map(|entry| &entry.kv),
                after: after.map(|entry| &entry.kv),
            })
            .collect()
    }
}
