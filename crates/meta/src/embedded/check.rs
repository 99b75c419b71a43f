//! Which requests are refused before anything is looked up? Etcd's rules, as pure functions of the request.

use std::collections::HashSet;

use bytes::Bytes;

use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, LeaseId};
use crate::request::{Delete, Op, Put, Range, Txn};

/// Compares, operations of one branch, operations of the other: each list at most this long, nested ones counted in.
pub const MAX_TXN_OPS: usize = 128;

/// Keys and values of one request together, unless the options say otherwise; what etcd allows by default.
pub const MAX_REQUEST_BYTES: usize = 1536 * 1024;

/// Refuses a malformed operation (a transaction with everything inside it), and one of too many bytes.
pub fn check(op: &Op, max_bytes: usize) -> Result<()> {
    if bytes_of(op) > max_bytes {
        return Err(MetaError::TooLarge);
    }
    check_op(op, MAX_TXN_OPS)
}

fn check_op(op: &Op, max_ops: usize) -> Result<()> {
    match op {
        Op::Range(range) => check_range(range),
        Op::Put(put) => check_put(put),
        Op::Delete(delete) => check_key(&delete.keys.start),
        Op::Txn(txn) => {
            check_txn(txn, max_ops)?;
            Writes::of_branch(&txn.success)?;
            Writes::of_branch(&txn.failure).map(drop)
        }
    }
}

/// Refuses a malformed read.
pub fn check_range(range: &Range) -> Result<()> {
    check_key(&range.keys.start)
}

fn check_put(put: &Put) -> Result<()> {
    check_key(&put.key)?;
    if put.ignore_value && !put.value.is_empty() {
        return Err(MetaError::ValueProvided);
    }
    if put.ignore_lease && put.lease != LeaseId::NONE {
        return Err(MetaError::LeaseProvided);
    }
    Ok(())
}

fn check_key(key: &Bytes) -> Result<()> {
    if key.is_empty() { Err(MetaError::EmptyKey) } else { Ok(()) }
}

fn check_txn(txn: &Txn, max_ops: usize) -> Result<()> {
    let longest = txn.compares.len().max(txn.success.len()).max(txn.failure.len());
    if longest > max_ops {
        return Err(MetaError::TooManyOps);
    }
    for compare in &txn.compares {
        check_key(&compare.keys.start)?;
    }
    for op in txn.success.iter().chain(&txn.failure) {
        match op {
            Op::Txn(nested) => check_txn(nested, max_ops - longest)?,
            Op::Range(_) | Op::Put(_) | Op::Delete(_) => check_op(op, 0)?,
        }
    }
    Ok(())
}

/// The keys that a branch may put and the ranges that it may delete, nested transactions included.
#[derive(Default)]
struct Writes {
    puts: HashSet<Bytes>,
    deletes: Vec<KeyRange>,
}

impl Writes {
    /// Collects a branch; fails if it may write one key twice. The two branches of a nested transaction exclude each
    /// other, so they may put the same key.
    fn of_branch(ops: &[Op]) -> Result<Writes> {
        let mut writes = Writes::default();
        for op in ops {
            if let Op::Delete(Delete { keys, .. }) = op {
                writes.deletes.push(keys.clone());
            }
        }
        for op in ops {
            if let Op::Txn(nested) = op {
                writes.absorb(nested)?;
            }
        }
        for op in ops {
            if let Op::Put(put) = op {
                writes.add_put(&put.key)?;
            }
        }
        Ok(writes)
    }

    fn absorb(&mut self, nested: &Txn) -> Result<()> {
        let success = Writes::of_branch(&nested.success)?;
        let failure = Writes::of_branch(&nested.failure)?;
        for key in &success.puts {
            self.add_put(key)?;
        }
        for key in failure.puts.difference(&success.puts) {
            self.add_put(key)?;
        }
        self.deletes.extend(success.deletes);
        self.deletes.extend(failure.deletes);
        Ok(())
    }

    fn add_put(&mut self, key: &Bytes) -> Result<()> {
        let deleted = self.deletes.iter().any(|range| range.contains(key));
        if deleted || !self.puts.insert(key.clone()) {
            return Err(MetaError::DuplicateKey);
        }
        Ok(())
    }
}

fn bytes_of(op: &Op) -> usize {
    match op {
        Op::Range(range) => range.keys.start.len() + range.keys.end.len(),
        Op::Put(put) => put.key.len() + put.value.len(),
        Op::Delete(delete) => delete.keys.start.len() + delete.keys.end.len(),
        Op::Txn(txn) => txn.success.iter().chain(&txn.failure).map(bytes_of).sum(),
    }
}

/// About how much memory the puts of an operation may come to keep.
pub fn cost(op: &Op) -> u64 {
    match op {
        Op::Range(_) | Op::Delete(_) => 0,
        Op::Put(put) => (put.key.len() + put.value.len()) as u64,
        Op::Txn(txn) => {
            let branch = |ops: &[Op]| ops.iter().map(cost).sum::<u64>();
            branch(&txn.success).max(branch(&txn.failure))
        }
    }
}

/// Whether an operation can change nothing, whichever way its compares turn out.
pub fn is_read_only(op: &Op) -> bool {
    match op {
        Op::Range(_) => true,
        Op::Put(_) | Op::Delete(_) => false,
        Op::Txn(txn) => txn.success.iter().chain(&txn.failure).all(is_read_only),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(op: &Op) -> Result<()> {
        super::check(op, MAX_REQUEST_BYTES)
    }
    use crate::request::Compare;

    fn put(key: &'static str) -> Op {
        Op::Put(Put::new(key, "v"))
    }

    fn nested(success: Vec<Op>, failure: Vec<Op>) -> Op {
        Op::Txn(Txn { compares: vec![], success, failure })
    }

    fn branch(ops: Vec<Op>) -> Result<()> {
        check(&nested(ops, vec![]))
    }

    #[test]
    fn one_key_is_written_once_per_branch() {
        assert_eq!(branch(vec![put("a"), put("a")]), Err(MetaError::DuplicateKey));
        assert_eq!(branch(vec![Op::Delete(Delete::prefix("a")), put("ab")]), Err(MetaError::DuplicateKey));
        assert_eq!(branch(vec![put("a"), nested(vec![put("a")], vec![])]), Err(MetaError::DuplicateKey));
        let siblings = vec![nested(vec![put("a")], vec![]), nested(vec![], vec![put("a")])];
        assert_eq!(branch(siblings), Err(MetaError::DuplicateKey));
    }

    #[test]
    fn branches_that_exclude_each_other_may_write_the_same_key() {
        assert_eq!(check(&nested(vec![put("a")], vec![put("a")])), Ok(()));
        assert_eq!(branch(vec![nested(vec![put("a")], vec![put("a")])]), Ok(()));
        assert_eq!(branch(vec![Op::Delete(Delete::prefix("a")), Op::Delete(Delete::one("a"))]), Ok(()));
    }

    #[test]
    fn a_nested_transaction_has_what_its_parent_leaves() {
        let fill = |count: usize, from: usize| -> Vec<Op> {
            (from..from + count).map(|n| Op::Put(Put::new(format!("k{n}"), ""))).collect()
        };
        let with_nested = |outer: usize, inner: usize| {
            let mut ops = fill(outer - 1, 0);
            ops.push(nested(fill(inner, 1000), vec![]));
            branch(ops)
        };
        assert_eq!(with_nested(100, 28), Ok(()));
        assert_eq!(with_nested(100, 29), Err(MetaError::TooManyOps));
        assert_eq!(branch(fill(128, 0)), Ok(()));
        assert_eq!(branch(fill(129, 0)), Err(MetaError::TooManyOps));
    }

    #[test]
    fn every_operation_names_a_key() {
        assert_eq!(check(&Op::Range(Range::one(""))), Err(MetaError::EmptyKey));
        assert_eq!(check(&put("")), Err(MetaError::EmptyKey));
        let txn = Txn::new().when(Compare::absent(""));
        assert_eq!(check(&Op::Txn(txn)), Err(MetaError::EmptyKey));
    }
}
