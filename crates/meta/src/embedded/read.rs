//! What does a read answer? Filters, order, limit and count over the tree at one revision.

use std::sync::Arc;

use super::tree::Tree;
use crate::error::{MetaError, Result};
use crate::kv::{KeyValue, Revision};
use crate::request::{Detail, Range, RangeResult, SortOrder, SortTarget};

/// Whether a read may ask for a revision.
pub fn check_revision(asked: Revision, head: Revision, compacted: Revision) -> Result<()> {
    if asked > head {
        return Err(MetaError::FutureRevision);
    }
    if asked.0 > 0 && asked < compacted {
        return Err(MetaError::Compacted { oldest: compacted });
    }
    Ok(())
}

/// The revision that a read is made at.
pub fn effective(asked: Revision, head: Revision) -> Revision {
    if asked.0 <= 0 { head } else { asked }
}

/// Reads in one go.
pub fn range(tree: &Tree, range: &Range, head: Revision) -> RangeResult {
    let mut collector = Collector::new(range);
    tree.visit(&range.keys, effective(range.revision, head), |kv| collector.add(kv));
    collector.finish(head)
}

/// Gathers what a range asks for, key by key.
pub struct Collector<'r> {
    range: &'r Range,
    sorts: bool,
    kvs: Vec<Arc<KeyValue>>,
    more: bool,
    count: usize,
}

impl<'r> Collector<'r> {
    /// Nothing gathered yet.
    pub fn new(range: &'r Range) -> Collector<'r> {
        let sorts = range.order == SortOrder::Descend || range.sort_by != SortTarget::Key;
        Collector { range, sorts, kvs: Vec::new(), more: false, count: 0 }
    }

    /// The next live key of the range, in key order.
    pub fn add(&mut self, kv: &Arc<KeyValue>) {
        self.count += 1;
        if self.range.detail == Detail::CountOnly || !self.passes(kv) {
            return;
        }
        if !self.sorts && self.range.limit > 0 && self.kvs.len() == self.range.limit {
            self.more = true;
            return;
        }
        self.kvs.push(kv.clone());
    }

    fn passes(&self, kv: &KeyValue) -> bool {
        let within = |revision: Revision, min: Revision, max: Revision| {
            (min.0 == 0 || revision >= min) && (max.0 == 0 || revision <= max)
        };
        within(kv.mod_revision, self.range.min_mod_revision, self.range.max_mod_revision)
            && within(kv.create_revision, self.range.min_create_revision, self.range.max_create_revision)
    }

    /// Puts it in order and cuts it to the limit.
    pub fn finish(mut self, head: Revision) -> RangeResult {
        if self.sorts {
            sort(&mut self.kvs, self.range);
            if self.range.limit > 0 && self.kvs.len() > self.range.limit {
                self.kvs.truncate(self.range.limit);
                self.more = true;
            }
        }
        if self.range.detail == Detail::KeysOnly {
            self.kvs.iter_mut().for_each(|kv| *kv = without_value(kv));
        }
        RangeResult { revision: head, kvs: self.kvs, more: self.more, count: self.count }
    }
}

fn sort(kvs: &mut [Arc<KeyValue>], range: &Range) {
    match range.sort_by {
        SortTarget::Key => kvs.sort_by(|a, b| a.key.cmp(&b.key)),
        SortTarget::Version => kvs.sort_by_key(|kv| kv.version),
        SortTarget::CreateRevision => kvs.sort_by_key(|kv| kv.create_revision),
        SortTarget::ModRevision => kvs.sort_by_key(|kv| kv.mod_revision),
        SortTarget::Value => kvs.sort_by(|a, b| a.value.cmp(&b.value)),
    }
    if range.order == SortOrder::Descend {
        kvs.reverse();
    }
}

fn without_value(kv: &KeyValue) -> Arc<KeyValue> {
    Arc::new(KeyValue { value: bytes::Bytes::new(), ..kv.clone() })
}
