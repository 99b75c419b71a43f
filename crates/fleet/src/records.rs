//! Records by their keys, as they were at one revision: read from the store in one go, or kept by a simulation.

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use capstan_meta::record::{BadValue, Key, Listing, Prefix, Stored};
use capstan_meta::{KeyRange, KeyValue, MetaError, Range, Revision, Store};

use crate::facts::{Facts, Source};
use crate::keys::Tree;

use bytes::Bytes;

/// Keys in one answer of the store: well below the largest message for values of a few hundred bytes.
const PAGE: usize = 5_000;
/// How often reading begins anew because history was compacted in between.
const ATTEMPTS: usize = 8;

/// A value, with its lazily decoded form and that of its key.
#[derive(Debug)]
struct Entry {
    kv: Arc<KeyValue>,
    decoded: OnceLock<Box<dyn Any + Send + Sync>>,
    parsed: OnceLock<Box<dyn Any + Send + Sync>>,
}

type Decoded<K> = Result<Arc<Stored<<K as Key>::Record>>, BadValue>;

impl Entry {
    fn record<K: Key>(&self) -> Decoded<K> {
        let decode = || Stored::decode::<K>(&self.kv).map(Arc::new);
        let kept = self.decoded.get_or_init(|| Box::new(decode()) as Box<dyn Any + Send + Sync>);
        kept.downcast_ref::<Decoded<K>>().cloned().unwrap_or_else(decode)
    }

    /// The key, if it is one of this type. A text is a key of one type only: as soon as somebody knows which, others of
    /// its prefix need not read it.
    fn key<K: Key>(&self) -> Option<K> {
        if let Some(kept) = self.parsed.get() {
            return kept.downcast_ref::<K>().cloned();
        }
        let key = std::str::from_utf8(&self.kv.key).ok().and_then(K::parse)?;
        // Another thread may have been first, with the same.
        let _ = self.parsed.set(Box::new(key.clone()));
        Some(key)
    }
}

/// Records by their keys.
#[derive(Debug, Default)]
pub struct Records {
    revision: Revision,
    entries: BTreeMap<Bytes, Entry>,
}

impl Records {
    /// The newest revision that is in here.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Takes over a version of a key; a tombstone removes it.
    pub fn apply(&mut self, kv: Arc<KeyValue>) {
        self.revision = self.revision.max(kv.mod_revision);
        if kv.is_tombstone() {
            self.entries.remove(&kv.key);
        } else {
            self.entries
                .insert(kv.key.clone(), Entry { kv, decoded: OnceLock::new(), parsed: OnceLock::new() });
        }
    }

    /// One key as it is stored.
    #[must_use]
    pub fn raw(&self, key: &[u8]) -> Option<&Arc<KeyValue>> {
        self.entries.get(key).map(|entry| &entry.kv)
    }

    /// The keys of a range, as they are stored.
    pub fn range<'r>(&'r self, keys: &'r KeyRange) -> impl Iterator<Item = &'r Arc<KeyValue>> {
        self.span(keys).map(|entry| &entry.kv)
    }

    fn span<'r>(&'r self, keys: &'r KeyRange) -> impl Iterator<Item = &'r Entry> {
        let start = &keys.start;
        let end = match keys.upper() {
            _ if keys.is_one() => Bound::Included(start),
            // A map has no range from high to low.
            Some(end) => Bound::Excluded(end.max(start)),
            None => Bound::Unbounded,
        };
        self.entries.range::<Bytes, _>((Bound::Included(start), end)).map(|(_, entry)| entry)
    }
}

impl Source for Records {
    fn get<K: Key>(&self, key: &K) -> Result<Option<Arc<Stored<K::Record>>>, BadValue> {
        self.entries.get(key.path().as_bytes()).map(Entry::record::<K>).transpose()
    }

    fn list<P: Prefix>(&self, prefix: &P) -> Listing<P::Key> {
        let mut listing = Listing::at(self.revision);
        for entry in self.span(&Prefix::range(prefix)) {
            let Some(key) = entry.key::<P::Key>() else { continue };
            match entry.record::<P::Key>() {
                Ok(stored) => listing.entries.push((key, stored)),
                Err(bad) => listing.bad.push(bad),
            }
        }
        listing
    }
}

/// Everything that a decision looks at, read from the store at one revision.
pub async fn fetch(store: &Store, tree: &Tree) -> Result<Records, MetaError> {
    let mut attempt = 1;
    loop {
        match fetch_once(store, &Facts::key_ranges(tree)).await {
            Err(MetaError::Compacted { .. }) if attempt < ATTEMPTS => attempt += 1,
            fetched => return fetched,
        }
    }
}

async fn fetch_once(store: &Store, ranges: &[KeyRange]) -> Result<Records, MetaError> {
    let mut records = Records::default();
    for keys in ranges {
        let mut rest = keys.clone();
        loop {
            let page = store.range(Range::of(rest.clone()).at(records.revision).limit(PAGE)).await?;
            if records.revision == Revision::ZERO {
                records.revision = page.revision;
            }
            let last = page.kvs.last().map(|kv| kv.key.clone());
            let at = records.revision;
            page.kvs.into_iter().for_each(|kv| records.apply(kv));
            records.revision = at;
            match last.filter(|_| page.more) {
                Some(last) => rest.start = [&last[..], &[0]].concat().into(),
                None => break,
            }
        }
    }
    Ok(records)
}
