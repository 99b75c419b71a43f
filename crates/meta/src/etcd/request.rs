//! Our requests in the words of the etcd-client crate, with the prefix put on.

use std::time::Duration;

use etcd_client as etcd;

use super::prefix::Prefix;
use crate::error::{MetaError, Result};
use crate::kv::KeyRange;
use crate::request::*;

/// A request that would be well-formed to etcd only because the prefix hides that it names no key.
fn named(prefix: &Prefix, key: &[u8]) -> Result<()> {
    if key.is_empty() && !prefix.is_empty() { Err(MetaError::EmptyKey) } else { Ok(()) }
}

/// `(key, options)` of a range.
pub(super) fn range(prefix: &Prefix, range: &Range) -> Result<(Vec<u8>, etcd::GetOptions)> {
    named(prefix, &range.keys.start)?;
    let (key, end) = prefix.range(&range.keys);
    let order = match range.order {
        SortOrder::None => etcd::SortOrder::None,
        SortOrder::Ascend => etcd::SortOrder::Ascend,
        SortOrder::Descend => etcd::SortOrder::Descend,
    };
    let sort_by = match range.sort_by {
        SortTarget::Key => etcd::SortTarget::Key,
        SortTarget::Version => etcd::SortTarget::Version,
        SortTarget::CreateRevision => etcd::SortTarget::Create,
        SortTarget::ModRevision => etcd::SortTarget::Mod,
        SortTarget::Value => etcd::SortTarget::Value,
    };
    let options = etcd::GetOptions::new()
        .with_range(end)
        .with_revision(range.revision.0)
        .with_limit(i64::try_from(range.limit).unwrap_or(0))
        .with_sort(sort_by, order)
        .with_min_mod_revision(range.min_mod_revision.0)
        .with_max_mod_revision(range.max_mod_revision.0)
        .with_min_create_revision(range.min_create_revision.0)
        .with_max_create_revision(range.max_create_revision.0);
    let options = match range.detail {
        Detail::Whole => options,
        Detail::KeysOnly => options.with_keys_only(),
        Detail::CountOnly => options.with_count_only(),
    };
    Ok((key, options))
}

/// `(key, value, options)` of a put.
pub(super) fn put(prefix: &Prefix, put: &Put) -> Result<(Vec<u8>, Vec<u8>, etcd::PutOptions)> {
    named(prefix, &put.key)?;
    let mut options = etcd::PutOptions::new().with_lease(put.lease.0);
    if put.prev_kv {
        options = options.with_prev_key();
    }
    if put.ignore_value {
        options = options.with_ignore_value();
    }
    if put.ignore_lease {
        options = options.with_ignore_lease();
    }
    Ok((prefix.key(&put.key), put.value.to_vec(), options))
}

/// `(key, options)` of a deletion.
pub(super) fn delete(prefix: &Prefix, delete: &Delete) -> Result<(Vec<u8>, etcd::DeleteOptions)> {
    named(prefix, &delete.keys.start)?;
    let (key, end) = prefix.range(&delete.keys);
    let options = etcd::DeleteOptions::new().with_range(end);
    Ok((key, if delete.prev_kv { options.with_prev_key() } else { options }))
}

/// A transaction.
pub(super) fn txn(prefix: &Prefix, txn: &Txn) -> Result<etcd::Txn> {
    let compares = txn.compares.iter().map(|one| compare(prefix, one)).collect::<Result<Vec<_>>>()?;
    let ops = |ops: &[Op]| ops.iter().map(|one| op(prefix, one)).collect::<Result<Vec<_>>>();
    // The client takes each of the three lists once, and an empty one is as good as none.
    Ok(etcd::Txn::new().when(compares).and_then(ops(&txn.success)?).or_else(ops(&txn.failure)?))
}

fn compare(prefix: &Prefix, compare: &Compare) -> Result<etcd::Compare> {
    named(prefix, &compare.keys.start)?;
    let (key, end) = prefix.range(&compare.keys);
    let relation = match compare.relation {
        Relation::Equal => etcd::CompareOp::Equal,
        Relation::Greater => etcd::CompareOp::Greater,
        Relation::Less => etcd::CompareOp::Less,
        Relation::NotEqual => etcd::CompareOp::NotEqual,
    };
    let compare = match &compare.target {
        CompareTarget::Version(version) => etcd::Compare::version(key, relation, *version),
        CompareTarget::CreateRevision(revision) => etcd::Compare::create_revision(key, relation, revision.0),
        CompareTarget::ModRevision(revision) => etcd::Compare::mod_revision(key, relation, revision.0),
        CompareTarget::Value(value) => etcd::Compare::value(key, relation, value.to_vec()),
        CompareTarget::Lease(lease) => etcd::Compare::lease(key, relation, lease.0),
    };
    Ok(compare.with_range(end))
}

fn op(prefix: &Prefix, op: &Op) -> Result<etcd::TxnOp> {
    Ok(match op {
        Op::Range(one) => {
            let (key, options) = range(prefix, one)?;
            etcd::TxnOp::get(key, Some(options))
        }
        Op::Put(one) => {
            let (key, value, options) = put(prefix, one)?;
            etcd::TxnOp::put(key, value, Some(options))
        }
        Op::Delete(one) => {
            let (key, options) = delete(prefix, one)?;
            etcd::TxnOp::delete(key, Some(options))
        }
        Op::Txn(one) => etcd::TxnOp::txn(txn(prefix, one)?),
    })
}

/// Whether a transaction cannot change anything, so that it may be sent twice.
pub(super) fn only_reads(txn: &Txn) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| match op {
        Op::Range(_) => true,
        Op::Put(_) | Op::Delete(_) => false,
        Op::Txn(inner) => only_reads(inner),
    })
}

/// `(key, options)` of a watch that begins at `from`.
pub(super) fn watch(prefix: &Prefix, watch: &Watch, from: i64) -> (Vec<u8>, etcd::WatchOptions) {
    // To a watch, unlike to a range, no key is the lowest one.
    let lowest = watch.keys.start.is_empty();
    let keys = if lowest { KeyRange::span(vec![0], watch.keys.end.clone()) } else { watch.keys.clone() };
    let (key, end) = prefix.range(&keys);
    let mut filters = Vec::new();
    if watch.no_put {
        filters.push(etcd::WatchFilterType::NoPut);
    }
    if watch.no_delete {
        filters.push(etcd::WatchFilterType::NoDelete);
    }
    let options = etcd::WatchOptions::new()
        .with_range(end)
        .with_start_revision(from)
        .with_filters(filters)
        .with_progress_notify()
        .with_fragment();
    (key, if watch.prev_kv { options.with_prev_key() } else { options })
}

/// Whole seconds, rounded up: a lease never gets less than what was asked for.
pub(super) fn ttl_seconds(ttl: Duration) -> i64 {
    let seconds = ttl.as_secs().saturating_add(u64::from(ttl.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_does_not_turn_no_key_into_one() {
        let (ours, all) = (Prefix::new("/a/"), Prefix::new(""));
        assert_eq!(range(&ours, &Range::one("")).err(), Some(MetaError::EmptyKey));
        assert_eq!(put(&ours, &Put::new("", "v")).err(), Some(MetaError::EmptyKey));
        assert_eq!(delete(&ours, &Delete::one("")).err(), Some(MetaError::EmptyKey));
        assert_eq!(txn(&ours, &Txn::new().when(Compare::absent(""))).err(), Some(MetaError::EmptyKey));
        // Without a prefix the server says it itself.
        assert!(range(&all, &Range::one("")).is_ok());
    }

    #[test]
    fn reading_transactions_are_told_from_writing_ones() {
        let inner = Txn::new().then(Range::one("a"));
        let reads = Txn { success: vec![Op::Txn(inner), Op::Range(Range::one("b"))], ..Txn::new() };
        assert!(only_reads(&reads));
        assert!(!only_reads(&reads.clone().otherwise(Delete::one("a"))));
        let writes = Txn::new().then(Put::new("a", "b"));
        assert!(!only_reads(&Txn { failure: vec![Op::Txn(writes)], ..Txn::new() }));
    }

    #[test]
    fn times_to_live_are_rounded_up_and_do_not_overflow() {
        assert_eq!(ttl_seconds(Duration::from_millis(1)), 1);
        assert_eq!(ttl_seconds(Duration::from_secs(2)), 2);
        assert_eq!(ttl_seconds(Duration::from_millis(2_001)), 3);
        assert_eq!(ttl_seconds(Duration::MAX), i64::MAX);
    }
}
