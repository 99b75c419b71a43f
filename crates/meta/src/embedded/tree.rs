//! Every key's versions, newest last, readable at any revision that has not been compacted.
//!
//! The writer adds versions above the visible revision before they are durable; readers name the revision that they
//! read at and never see those. So one structure serves both, and nothing is copied to be read.

use std::collections::{BTreeMap, HashSet};
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
    /// About how much memory all versions keep, without those that only a base needs.
    bytes: u64,
    pin: Option<Pin>,
}

/// What must stay readable at one revision while a base is written, whatever is compacted meanwhile.
#[derive(Debug)]
struct Pin {
    at: Revision,
    /// Keys whose first version is kept for it only.
    kept: HashSet<Bytes>,
}

impl Tree {
    /// Builds a tree from one version per key: fast, and with full nodes.
    pub fn from_versions(kvs: Vec<Arc<KeyValue>>) -> Tree {
        let bytes = kvs.iter().map(|kv| kv.cost()).sum();
        let pairs = kvs.into_iter().map(|kv| (kv.key.clone(), Versions::from_buf([kv])));
        Tree { keys: pairs.collect(), bytes, pin: None }
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

    /// Drops the versions of a key that no read at `at` or later can see, and the key with them if nothing is left. What can
    /// be seen at a pinned revision stays.
    pub fn compact(&mut self, key: &[u8], at: Revision) {
        let Some(versions) = self.keys.get_mut(key) else { return };
        let mut newest_at = versions.partition_point(|kv| kv.mod_revision <= at).saturating_sub(1);
        let mut first = 0;
        if let Some(pin) = &mut self.pin {
            let read = versions.partition_point(|kv| kv.mod_revision <= pin.at).checked_sub(1);
            if let Some(read) = read.filter(|read| *read < newest_at && !versions[*read].is_tombstone()) {
                self.bytes -= versions.drain(..read).map(|kv| kv.cost()).sum::<u64>();
                newest_at -= read;
                first = 1;
                if pin.kept.insert(versions[0].key.clone()) {
                    self.bytes -= versions[0].cost();
                }
            }
        }
        self.bytes -= versions.drain(first..newest_at).map(|kv| kv.cost()).sum::<u64>();
        // A deletion behind a version that stays hides that one from readers.
        if first == 0 && is_gone(versions, at) {
            self.bytes -= versions.remove(0).cost();
        }
        versions.shrink_to_fit();
        if versions.is_empty() {
            self.keys.remove(key);
        }
    }

    /// Keeps what lived at a revision until [`Tree::unpin`], beside what may be read from it on. It is not counted: it is at
    /// most what lived then.
    pub fn pin(&mut self, at: Revision) {
        self.unpin(at);
        self.pin = Some(Pin { at, kept: HashSet::new() });
    }

    /// Drops what was kept for the pinned revision only; `compacted` is where reading begins.
    pub fn unpin(&mut self, compacted: Revision) {
        for key in self.pin.take().map(|pin| pin.kept).unwrap_or_default() {
            let Some(versions) = self.keys.get_mut(&key) else { continue };
            versions.remove(0);
            if is_gone(versions, compacted) {
                self.bytes -= versions.remove(0).cost();
            }
            versions.shrink_to_fit();
            if versions.is_empty() {
                self.keys.remove(&key);
            }
        }
    }

    /// About how much memory all versions keep, without those that only a base needs.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many keys there are, deleted but uncompacted ones included.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.keys.len()
    }
}

/// Whether the oldest version is a deletion that no reader needs any more.
fn is_gone(versions: &Versions, compacted: Revision) -> bool {
    versions.first().is_some_and(|kv| kv.is_tombstone() && kv.mod_revision <= compacted)
}

/// The version that was the newest at a revision, unless it was a deletion.
fn live_at(versions: &Versions, at: Revision) -> Option<&Arc<KeyValue>> {
    let newest = versions.iter().rev().find(|kv| kv.mod_revision <= at)?;
    (!newest.is_tombstone()).then_some(newest)
}

#[cfg(test)]
mod tests {
    use rand::RngExt as _;

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

    /// Random lives with and without a pin: what may be read is the same, what was pinned stays, and nothing is left of it.
    #[test]
    fn a_pinned_revision_stays_readable_and_leaves_nothing() {
        const KEYS: [&str; 4] = ["a", "b", "c", "d"];
        capstan_testkit::seed::seeds(100, |seed| {
            let mut rng = capstan_testkit::seed::rng(seed);
            let (mut pinned, mut plain) = (Tree::default(), Tree::default());
            let (mut head, mut compacted) = (1, 1);
            let mut pin: Option<(i64, Vec<Option<Arc<KeyValue>>>)> = None;
            let compact_all = |tree: &mut Tree, at| {
                KEYS.iter().for_each(|key| tree.compact(key.as_bytes(), Revision(at)));
            };
            let read = |tree: &Tree, at| KEYS.map(|key| tree.get(key.as_bytes(), Revision(at)).cloned());
            for _ in 0..60 {
                head += 1;
                let key = KEYS[rng.random_range(0..KEYS.len())];
                let lives = plain.get(key.as_bytes(), Revision(head)).is_some();
                let kv = if lives && rng.random_bool(0.4) { deletion(key, head) } else { version(key, head) };
                [&mut pinned, &mut plain].into_iter().for_each(|tree| tree.push(kv.clone()));
                if rng.random_bool(0.3) {
                    compacted = rng.random_range(compacted..=head);
                    compact_all(&mut pinned, compacted);
                    compact_all(&mut plain, compacted);
                }
                match &pin {
                    None if rng.random_bool(0.1) => {
                        pinned.pin(Revision(compacted));
                        pin = Some((compacted, read(&pinned, compacted).to_vec()));
                    }
                    Some((at, before)) => {
                        assert_eq!(read(&pinned, *at).to_vec(), *before, "what the base reads has changed");
                        if rng.random_bool(0.1) {
                            pinned.unpin(Revision(compacted));
                            pin = None;
                        }
                    }
                    None => {}
                }
                (compacted..=head).for_each(|at| assert_eq!(read(&pinned, at), read(&plain, at)));
            }
            pinned.unpin(Revision(compacted));
            compact_all(&mut pinned, compacted);
            compact_all(&mut plain, compacted);
            assert_eq!((pinned.len(), pinned.bytes()), (plain.len(), plain.bytes()));
            let counted: u64 = pinned.keys.values().flatten().map(|kv| kv.cost()).sum();
            assert_eq!(counted, pinned.bytes());
        });
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
