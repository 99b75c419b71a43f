//! Every key's versions, newest last, readable at any revision that has not been compacted.
//!
//! The writer adds versions above the visible revision before they are durable; readers name the revision that they
//! read at and never see those. So one structure serves both, and nothing is copied to be read.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::kv::{KeyRange, KeyValue, Revision};

/// The versions of one key, oldest first. Nearly all keys have one.
type Versions = SmallVec<[Arc<KeyValue>; 1]>;

/// All keys.
#[derive(Debug, Default)]
pub struct Tree {
    keys: BTreeMap<Bytes, Versions>,
    /// About how much memory all versions keep.
    bytes: u64,
}

impl Tree {
    /// Builds a tree from one version per key: fast, and with full nodes.
    pub fn from_versions(kvs: Vec<Arc<KeyValue>>) -> Tree {
        let bytes = kvs.iter().map(|kv| kv.cost()).sum();
        let pairs = kvs.into_iter().map(|kv| (kv.key.clone(), Versions::from_buf([kv])));
        Tree { keys: pairs.collect(), bytes }
    }

    /// The version of a key that was live at a revision.
    pub fn get(&self, key: &[u8], at: Revision) -> Option<&Arc<KeyValue>> {
        self.keys.get(key).and_then(|versions| live_at(versions, at))
    }

    /// Visits what was live at a revision, in key order, until the visitor is done.
    pub fn visit<'a>(&'a self, range: &KeyRange, at: Revision, mut visitor: impl FnMut(&'a Arc<KeyValue>)) {
        self.visit_from(range, None, usize::MAX, at, &mut visitor);
    }

    /// Visits at most `budget` keys behind `after`; answers with the key to go on behind, if there may be more.
    pub fn visit_from<'a>(
        &'a self,
        range: &KeyRange,
        after: Option<&Bytes>,
        budget: usize,
        at: Revision,
        visitor: &mut impl FnMut(&'a Arc<KeyValue>),
    ) -> Option<Bytes> {
        if range.is_one() {
            if let Some(kv) = self.get(&range.start, at) {
                visitor(kv);
            }
            return None;
        }
        if range.is_empty() {
            return None;
        }
        let lower = after.map_or(Bound::Included(&range.start[..]), |key| Bound::Excluded(&key[..]));
        let upper = range.upper().map_or(Bound::Unbounded, |end| Bound::Excluded(&end[..]));
        let mut last: Option<&Bytes> = None;
        for (visited, (key, versions)) in self.keys.range::<[u8], _>((lower, upper)).enumerate() {
            if visited == budget {
                return last.cloned();
            }
            if let Some(kv) = live_at(versions, at) {
                visitor(kv);
            }
            last = Some(key);
        }
        None
    }

    /// Adds the newest version of a key.
    pub fn push(&mut self, kv: Arc<KeyValue>) {
        self.bytes += kv.cost();
        match self.keys.get_mut(&kv.key) {
            Some(versions) => versions.push(kv),
            None => {
                self.keys.insert(kv.key.clone(), Versions::from_buf([kv]));
            }
        }
    }

    /// Takes the newest version of a key away again, because it never became durable.
    pub fn pop(&mut self, key: &[u8]) {
        if let Some(versions) = self.keys.get_mut(key) {
            self.bytes -= versions.pop().map_or(0, |kv| kv.cost());
            if versions.is_empty() {
                self.keys.remove(key);
            }
        }
    }

    /// Drops the versions of a key that no read at `at` or later can see, and the key with them if nothing is left.
    pub fn compact(&mut self, key: &[u8], at: Revision) {
        let Some(versions) = self.keys.get_mut(key) else { return };
        let newest_at = versions.partition_point(|kv| kv.mod_revision <= at).saturating_sub(1);
        self.bytes -= versions.drain(..newest_at).map(|kv| kv.cost()).sum::<u64>();
        if versions.first().is_some_and(|kv| kv.is_tombstone() && kv.mod_revision <= at) {
            self.bytes -= versions.remove(0).cost();
        }
        versions.shrink_to_fit();
        if versions.is_empty() {
            self.keys.remove(key);
        }
    }

    /// About how much memory all versions keep.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many keys there are, deleted but uncompacted ones included.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.keys.len()
    }
}

/// The version that was the newest at a revision, unless it was a deletion.
fn live_at(versions: &Versions, at: Revision) -> Option<&Arc<KeyValue>> {
    let newest = versions.iter().rev().find(|kv| kv.mod_revision <= at)?;
    (!newest.is_tombstone()).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(key: &'static str, revision: i64) -> Arc<KeyValue> {
        Arc::new(KeyValue {
            key: key.into(),
            value: format!("{key}@{revision}").into(),
            create_revision: Revision(revision),
            mod_revision: Revision(revision),
            version: 1,
            ..KeyValue::default()
        })
    }

    fn deletion(key: &'static str, revision: i64) -> Arc<KeyValue> {
        Arc::new(KeyValue::tombstone(key.into(), Revision(revision)))
    }

    fn tree(versions: Vec<Arc<KeyValue>>) -> Tree {
        let mut tree = Tree::default();
        versions.into_iter().for_each(|kv| tree.push(kv));
        tree
    }

    #[test]
    fn a_read_sees_the_newest_version_not_above_its_revision() {
        let tree = tree(vec![version("a", 2), version("a", 4), deletion("a", 6), version("a", 8)]);
        let seen = |at| tree.get(b"a", Revision(at)).map(|kv| kv.mod_revision.0);
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 7, 8, 9].map(seen),
            [None, Some(2), Some(2), Some(4), Some(4), None, None, Some(8), Some(8)]
        );
    }

    #[test]
    fn a_scan_goes_on_where_it_stopped() {
        let tree = tree(vec![version("a", 2), version("b", 3), version("c", 4), version("d", 5)]);
        let mut seen = Vec::new();
        let mut after = None;
        loop {
            let next = tree.visit_from(&KeyRange::all(), after.as_ref(), 1, Revision(9), &mut |kv| {
                seen.push(kv.key.clone());
            });
            match next {
                Some(key) => after = Some(key),
                None => break,
            }
        }
        assert_eq!(seen, ["a", "b", "c", "d"].map(Bytes::from));
    }

    #[test]
    fn compaction_keeps_what_can_still_be_read() {
        let mut tree = tree(vec![version("a", 2), version("a", 4), version("a", 6)]);
        tree.compact(b"a", Revision(5));
        assert_eq!(tree.get(b"a", Revision(5)).map(|kv| kv.mod_revision.0), Some(4));
        assert_eq!(tree.get(b"a", Revision(9)).map(|kv| kv.mod_revision.0), Some(6));
    }

    #[test]
    fn a_deletion_takes_its_key_along() {
        let mut tree = tree(vec![version("a", 2), deletion("a", 4), version("b", 5), deletion("b", 6)]);
        tree.compact(b"a", Revision(4));
        tree.compact(b"b", Revision(5));
        assert_eq!(tree.len(), 1);
    }

    #[test]
    fn what_never_became_durable_is_taken_back() {
        let mut tree = tree(vec![version("a", 2), version("a", 4), version("b", 4)]);
        tree.pop(b"a");
        tree.pop(b"b");
        assert_eq!(tree.get(b"a", Revision(9)).map(|kv| kv.mod_revision.0), Some(2));
        assert_eq!(tree.len(), 1);
    }
}
