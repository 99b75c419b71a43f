//! How is a snapshot kept so that a change of one key among a million is cheap? Sorted leaves, shared between
//! versions: a new version copies the list of leaves and the leaves that changed.
//!
//! With leaves of at most 512 entries a million keys are some 4,000 pointers to copy per published change. A
//! persistent B-tree would copy less and read slower; this is small, safe code, and comparing two versions skips
//! every leaf that they share.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::kv::{KeyRange, KeyValue};
use crate::record::{BadValue, Key, Stored};

/// A leaf is split when it grows beyond this.
const MAX_LEAF: usize = 512;
/// A leaf that shrinks below this joins its neighbour if both fit.
const MIN_LEAF: usize = 64;

/// A key's present version, and what it was decoded to the first time somebody asked.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) kv: Arc<KeyValue>,
    decoded: OnceLock<Box<dyn Any + Send + Sync>>,
}

type Decoded<K> = Result<Arc<Stored<<K as Key>::Record>>, BadValue>;

impl Entry {
    pub(super) fn new(kv: Arc<KeyValue>) -> Arc<Entry> {
        Arc::new(Entry { kv, decoded: OnceLock::new() })
    }

    /// The typed record; decoded once per version for the first key type that asks.
    pub(super) fn record<K: Key>(&self) -> Decoded<K> {
        let decode = || Stored::decode::<K>(&self.kv).map(Arc::new);
        let kept = self.decoded.get_or_init(|| Box::new(decode()) as Box<dyn Any + Send + Sync>);
        kept.downcast_ref::<Decoded<K>>().cloned().unwrap_or_else(decode)
    }

    fn key(&self) -> &[u8] {
        &self.kv.key
    }
}

type Leaf = Vec<Arc<Entry>>;

/// An immutable ordered map from keys to entries, cheap to clone and to change a little.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    /// Never holds an empty leaf; leaves and their entries are in key order.
    leaves: Arc<Vec<Arc<Leaf>>>,
    len: usize,
}

impl Tree {
    /// From entries in key order.
    pub(super) fn from_sorted(entries: Vec<Arc<Entry>>) -> Tree {
        let len = entries.len();
        let leaves = entries.chunks(MAX_LEAF / 2).map(|leaf| Arc::new(leaf.to_vec())).collect();
        Tree { leaves: Arc::new(leaves), len }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn same_as(&self, other: &Tree) -> bool {
        Arc::ptr_eq(&self.leaves, &other.leaves)
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Arc<Entry>> {
        let leaf = self.leaves.get(self.leaf_of(key))?;
        leaf.binary_search_by(|entry| entry.key().cmp(key)).ok().map(|at| &leaf[at])
    }

    /// Entries of a range, in key order.
    pub(super) fn range<'t>(&'t self, keys: &'t KeyRange) -> impl Iterator<Item = &'t Arc<Entry>> {
        let first = self.leaf_of(&keys.start);
        let leaves = self.leaves.get(first..).unwrap_or(&[]);
        let entries = leaves.iter().enumerate().flat_map(move |(at, leaf)| {
            let skip = if at == 0 { leaf.partition_point(|entry| *entry.key() < *keys.start) } else { 0 };
            leaf[skip..].iter()
        });
        entries.take_while(move |entry| keys.contains(entry.key()))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.leaves.iter().flat_map(|leaf| leaf.iter())
    }

    /// Applies versions: a tombstone removes its key, everything else takes the place of what was there.
    pub(super) fn apply(&mut self, versions: impl IntoIterator<Item = Arc<KeyValue>>) {
        let mut versions = versions.into_iter().peekable();
        if versions.peek().is_none() {
            return;
        }
        let leaves = Arc::make_mut(&mut self.leaves);
        for kv in versions {
            if kv.is_tombstone() {
                self.len -= usize::from(remove(leaves, &kv.key));
            } else {
                self.len += usize::from(insert(leaves, Entry::new(kv)));
            }
        }
    }

    fn leaf_of(&self, key: &[u8]) -> usize {
        leaf_of(&self.leaves, key)
    }

    /// What differs between two versions, in key order: (before, after), at least one of them present.
    pub(super) fn diff<'t>(before: &'t Tree, after: &'t Tree) -> Vec<Difference<'t>> {
        let mut old = Cursor::new(&before.leaves);
        let mut new = Cursor::new(&after.leaves);
        let mut found = Vec::new();
        loop {
            if let (Some(one), Some(two)) = (old.leaf_start(), new.leaf_start())
                && Arc::ptr_eq(one, two)
            {
                old.skip_leaf();
                new.skip_leaf();
                continue;
            }
            let order = match (old.peek(), new.peek()) {
                (None, None) => return found,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(one), Some(two)) => one.key().cmp(two.key()),
            };
            let one = if order.is_le() { old.take() } else { None };
            let two = if order.is_ge() { new.take() } else { None };
            let same =
                matches!((one, two), (Some(one), Some(two)) if one.kv.mod_revision == two.kv.mod_revision);
            if !same {
                found.push((one, two));
            }
        }
    }
}

/// One key that differs: what it was, what it is.
pub(super) type Difference<'t> = (Option<&'t Arc<Entry>>, Option<&'t Arc<Entry>>);

/// Which leaf holds the key, or would.
fn leaf_of(leaves: &[Arc<Leaf>], key: &[u8]) -> usize {
    leaves.partition_point(|leaf| leaf.first().is_some_and(|first| first.key() <= key)).saturating_sub(1)
}

/// Whether the key is new.
fn insert(leaves: &mut Vec<Arc<Leaf>>, entry: Arc<Entry>) -> bool {
    if leaves.is_empty() {
        leaves.push(Arc::new(vec![entry]));
        return true;
    }
    let at = leaf_of(leaves, entry.key());
    let leaf = Arc::make_mut(&mut leaves[at]);
    match leaf.binary_search_by(|other| other.key().cmp(entry.key())) {
        Ok(found) => {
            leaf[found] = entry;
            return false;
        }
        Err(place) => leaf.insert(place, entry),
    }
    if leaf.len() > MAX_LEAF {
        let upper = leaf.split_off(MAX_LEAF / 2);
        leaves.insert(at + 1, Arc::new(upper));
    }
    true
}

/// Whether the key was there.
fn remove(leaves: &mut Vec<Arc<Leaf>>, key: &[u8]) -> bool {
    let at = leaf_of(leaves, key);
    let Some(found) =
        leaves.get(at).and_then(|leaf| leaf.binary_search_by(|entry| entry.key().cmp(key)).ok())
    else {
        return false;
    };
    let leaf = Arc::make_mut(&mut leaves[at]);
    leaf.remove(found);
    let left = leaf.len();
    let beside = leaves.get(at + 1).map(|next| next.len());
    if left == 0 {
        leaves.remove(at);
    } else if left < MIN_LEAF && beside.is_some_and(|beside| left + beside <= MAX_LEAF / 2) {
        let next = leaves.remove(at + 1);
        Arc::make_mut(&mut leaves[at]).extend(next.iter().cloned());
    }
    true
}

/// Walks the entries of a version.
struct Cursor<'t> {
    leaves: &'t [Arc<Leaf>],
    at: usize,
}

impl<'t> Cursor<'t> {
    fn new(leaves: &'t [Arc<Leaf>]) -> Cursor<'t> {
        Cursor { leaves, at: 0 }
    }

    /// The leaf that begins here, if one does.
    fn leaf_start(&self) -> Option<&'t Arc<Leaf>> {
        if self.at == 0 { self.leaves.first() } else { None }
    }

    fn skip_leaf(&mut self) {
        self.leaves = self.leaves.get(1..).unwrap_or(&[]);
        self.at = 0;
    }

    fn peek(&self) -> Option<&'t Arc<Entry>> {
        self.leaves.first().and_then(|leaf| leaf.get(self.at))
    }

    fn take(&mut self) -> Option<&'t Arc<Entry>> {
        let entry = self.peek()?;
        self.at += 1;
        if self.leaves.first().is_some_and(|leaf| self.at == leaf.len()) {
            self.skip_leaf();
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::kv::Revision;

    fn version(key: u16, revision: i64, present: bool) -> Arc<KeyValue> {
        let key = bytes::Bytes::from(format!("{key:05}"));
        let version = i64::from(present);
        Arc::new(KeyValue { key, version, mod_revision: Revision(revision), ..KeyValue::default() })
    }

    fn revisions(tree: &Tree) -> BTreeMap<Vec<u8>, i64> {
        tree.iter().map(|entry| (entry.kv.key.to_vec(), entry.kv.mod_revision.0)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A tree does what an ordered map does, versions never disturb each other, and a diff turns one into another.
        #[test]
        fn behaves_like_an_ordered_map(
            first in 0_u16..3000,
            batches in prop::collection::vec(prop::collection::vec((0_u16..3000, any::<bool>()), 0..400), 1..12),
        ) {
            let start: Vec<_> = (0..first).map(|key| Entry::new(version(key, 1, true))).collect();
            let mut tree = Tree::from_sorted(start);
            let mut revision = 1;
            for batch in batches {
                let before = tree.clone();
                let mut model = revisions(&before);
                let frozen = model.clone();
                let mut versions = Vec::new();
                for (key, present) in batch {
                    revision += 1;
                    let kv = version(key, revision, present);
                    match present {
                        true => model.insert(kv.key.to_vec(), revision),
                        false => model.remove(&kv.key.to_vec()),
                    };
                    versions.push(kv);
                }
                tree.apply(versions);
                prop_assert_eq!(revisions(&tree), model.clone());
                prop_assert_eq!(tree.len(), model.len());
                prop_assert_eq!(&revisions(&before), &frozen);
                let mut patched = frozen;
                for (old, new) in Tree::diff(&before, &tree) {
                    match (old, new) {
                        (_, Some(new)) => patched.insert(new.kv.key.to_vec(), new.kv.mod_revision.0),
                        (Some(old), None) => patched.remove(&old.kv.key.to_vec()),
                        (None, None) => unreachable!("nothing differs"),
                    };
                }
                prop_assert_eq!(patched, model.clone());
                let keys = KeyRange::span("00100", "00200");
                let part: Vec<_> = tree.range(&keys).map(|entry| entry.kv.key.to_vec()).collect();
                let expected: Vec<_> =
                    model.range(b"00100".to_vec()..b"00200".to_vec()).map(|(key, _)| key.clone()).collect();
                prop_assert_eq!(part, expected);
            }
        }
    }

    #[test]
    fn a_small_change_shares_almost_everything() {
        let tree = Tree::from_sorted((0..10_000).map(|key| Entry::new(version(key, 1, true))).collect());
        let mut changed = tree.clone();
        changed.apply([version(77, 2, true)]);
        let shared =
            tree.leaves.iter().zip(changed.leaves.iter()).filter(|(one, two)| Arc::ptr_eq(one, two)).count();
        assert_eq!(shared, tree.leaves.len() - 1);
        assert_eq!(Tree::diff(&tree, &changed).len(), 1);
    }
}
