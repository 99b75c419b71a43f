//! How are records read? Typed reads on [`Store`]: one key, or everything under a prefix at one revision.

use super::{BadValue, Key, Prefix, RecordError, Stored};
use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, KeyValue, Revision};
use crate::request::Range;
use crate::store::Store;

use std::sync::Arc;

/// Keys per page of a list. A page stays well below gRPC's message limit for values of a few hundred bytes, and etcd
/// counts the whole range for every page, so many small pages would be quadratic.
const PAGE: usize = 5_000;

/// How often a list may begin anew because history was compacted while it was paging.
const LIST_ATTEMPTS: usize = 8;

/// What was found under a prefix at one revision.
#[derive(Clone, Debug)]
pub struct Listing<K: Key> {
    /// The revision that it shows.
    pub revision: Revision,
    /// The records, in key order.
    pub entries: Vec<(K, Arc<Stored<K::Record>>)>,
    /// Keys of this type whose value could not be read; never hidden, never in the way of the others.
    pub bad: Vec<BadValue>,
}

impl<K: Key> Listing<K> {
    /// Nothing yet, at this revision.
    #[must_use]
    pub fn at(revision: Revision) -> Listing<K> {
        Listing { revision, entries: Vec::new(), bad: Vec::new() }
    }

    /// Keys and records in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &Stored<K::Record>)> {
        self.entries.iter().map(|(key, stored)| (key, &**stored))
    }

    pub(crate) fn push(&mut self, key: K, found: Result<Arc<Stored<K::Record>>, BadValue>) {
        match found {
            Ok(stored) => self.entries.push((key, stored)),
            Err(bad) => self.bad.push(bad),
        }
    }
}

impl Store {
    /// The record at a key, as it is now.
    pub async fn read<K: Key>(&self, key: &K) -> Result<Option<Stored<K::Record>>, RecordError> {
        match self.get(key.bytes()).await? {
            Some(kv) => Ok(Some(Stored::decode::<K>(&kv)?)),
            None => Ok(None),
        }
    }

    /// Everything under a prefix, at one revision however many pages it takes.
    pub async fn list<P: Prefix>(&self, prefix: &P) -> Result<Listing<P::Key>, RecordError> {
        let (revision, kvs) = list_all(self, &Prefix::range(prefix)).await?;
        Ok(decode_all(revision, &kvs))
    }

    /// Everything under a prefix as it was at this revision, to go with another list of the same revision.
    pub async fn list_at<P: Prefix>(
        &self,
        prefix: &P,
        revision: Revision,
    ) -> Result<Listing<P::Key>, RecordError> {
        let (revision, kvs) = list_pages(self, &Prefix::range(prefix), revision).await?;
        Ok(decode_all(revision, &kvs))
    }
}

fn decode_all<K: Key>(revision: Revision, kvs: &[Arc<KeyValue>]) -> Listing<K> {
    let mut listing = Listing::at(revision);
    for kv in kvs {
        if let Some(key) = std::str::from_utf8(&kv.key).ok().and_then(K::parse) {
            listing.push(key, Stored::decode::<K>(kv).map(Arc::new));
        }
    }
    listing
}

/// Every key of a range at one revision. Begins anew if that revision is compacted away in between.
pub(crate) async fn list_all(store: &Store, keys: &KeyRange) -> Result<(Revision, Vec<Arc<KeyValue>>)> {
    let mut attempt = 1;
    loop {
        match list_pages(store, keys, Revision::ZERO).await {
            Err(MetaError::Compacted { .. }) if attempt < LIST_ATTEMPTS => attempt += 1,
            listed => return listed,
        }
    }
}

/// Every key of a range at this revision (zero: at the one that the first page answers with).
pub(crate) async fn list_pages(
    store: &Store,
    keys: &KeyRange,
    at: Revision,
) -> Result<(Revision, Vec<Arc<KeyValue>>)> {
    let first = store.range(Range::of(keys.clone()).at(at).limit(PAGE)).await?;
    let at = if at == Revision::ZERO { first.revision } else { at };
    let (mut kvs, mut more) = (first.kvs, first.more);
    while let (true, Some(last)) = (more, kvs.last()) {
        let page = store.range(Range::of(behind(keys, &last.key)).at(at).limit(PAGE)).await?;
        more = page.more;
        kvs.extend(page.kvs);
    }
    Ok((at, kvs))
}

/// The part of a range that lies behind a key of it.
fn behind(keys: &KeyRange, last: &[u8]) -> KeyRange {
    let mut start = Vec::with_capacity(last.len() + 1);
    start.extend_from_slice(last);
    start.push(0);
    KeyRange { start: start.into(), end: keys.end.clone() }
}
