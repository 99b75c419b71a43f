//! What does an operation answer, and what does it change? Etcd's transaction semantics over the tree.
//!
//! An operation first chooses its branches and checks everything that can fail, against the state before it; carrying
//! it out afterwards cannot fail. So a refused transaction has no effect at all.

use std::sync::Arc;

use bytes::Bytes;

use super::tree::Tree;
use super::{codec, read};
use crate::error::{MetaError, Result};
use crate::kv::{KeyValue, LeaseId, Revision};
use crate::request::*;

/// What an operation needs to know besides the tree.
pub struct Context<'a> {
    /// The state that the operation meets: its compares and its checks read at this revision.
    pub head: Revision,
    /// What has been compacted.
    pub compacted: Revision,
    /// Whether a lease exists.
    pub lease_exists: &'a dyn Fn(LeaseId) -> bool,
}

/// An operation's answer and its changes; no changes, no new revision.
#[derive(Debug)]
pub struct Outcome {
    /// The answer.
    pub result: OpResult,
    /// What changed, in order, all at `head + 1`. Already in the tree.
    pub events: Vec<Event>,
}

/// Evaluates an operation, adding its changes to the tree at the revision after the context's head.
pub fn evaluate(tree: &mut Tree, op: Op, context: &Context<'_>) -> Result<Outcome> {
    let choice = choose(tree, &op, context.head);
    check(tree, &op, &choice, context)?;
    let mut execution = Execution { tree, head: context.head, events: Vec::new() };
    let result = execution.run(op, &choice);
    Ok(Outcome { result, events: execution.events })
}

/// Evaluates an operation that cannot change anything.
pub fn evaluate_read_only(tree: &Tree, op: &Op, context: &Context<'_>) -> Result<OpResult> {
    let choice = choose(tree, op, context.head);
    check(tree, op, &choice, context)?;
    answer_read_only(tree, op, &choice, context)
}

/// Which branch each transaction takes; nested ones in the order of the operations of the chosen branch.
struct Choice {
    succeeded: bool,
    nested: Vec<Choice>,
}

fn choose(tree: &Tree, op: &Op, at: Revision) -> Choice {
    let Op::Txn(txn) = op else { return Choice { succeeded: true, nested: Vec::new() } };
    let succeeded = txn.compares.iter().all(|compare| holds(tree, compare, at));
    let branch = if succeeded { &txn.success } else { &txn.failure };
    Choice { succeeded, nested: branch.iter().map(|op| choose(tree, op, at)).collect() }
}

fn holds(tree: &Tree, compare: &Compare, at: Revision) -> bool {
    let mut found = false;
    let mut all = true;
    tree.visit(&compare.keys, at, |kv| {
        found = true;
        all = all && holds_for(compare, Some(kv));
    });
    if found { all } else { holds_for(compare, None) }
}

fn holds_for(compare: &Compare, kv: Option<&KeyValue>) -> bool {
    use std::cmp::Ordering;
    let ordering = match &compare.target {
        CompareTarget::Version(version) => kv.map_or(0, |kv| kv.version).cmp(version),
        CompareTarget::CreateRevision(revision) => {
            kv.map_or(Revision::ZERO, |kv| kv.create_revision).cmp(revision)
        }
        CompareTarget::ModRevision(revision) => kv.map_or(Revision::ZERO, |kv| kv.mod_revision).cmp(revision),
        CompareTarget::Lease(lease) => kv.map_or(LeaseId::NONE, |kv| kv.lease).cmp(lease),
        CompareTarget::Value(value) => match kv {
            Some(kv) => kv.value.cmp(value),
            None => return false,
        },
    };
    match compare.relation {
        Relation::Equal => ordering == Ordering::Equal,
        Relation::NotEqual => ordering != Ordering::Equal,
        Relation::Greater => ordering == Ordering::Greater,
        Relation::Less => ordering == Ordering::Less,
    }
}

/// Finds whatever would make the chosen path fail: first in all puts, then in all reads, as etcd does.
fn check(tree: &Tree, op: &Op, choice: &Choice, context: &Context<'_>) -> Result<()> {
    check_path(op, choice, &mut |op| match op {
        Op::Put(put) => check_put(tree, put, context),
        Op::Range(_) | Op::Delete(_) | Op::Txn(_) => Ok(()),
    })?;
    check_path(op, choice, &mut |op| match op {
        Op::Range(range) => read::check_revision(range.revision, context.head, context.compacted),
        Op::Put(_) | Op::Delete(_) | Op::Txn(_) => Ok(()),
    })
}

/// Looks at every operation that will be carried out.
fn check_path(op: &Op, choice: &Choice, look: &mut impl FnMut(&Op) -> Result<()>) -> Result<()> {
    let Op::Txn(txn) = op else { return look(op) };
    let branch = if choice.succeeded { &txn.success } else { &txn.failure };
    branch.iter().zip(&choice.nested).try_for_each(|(op, choice)| check_path(op, choice, look))
}

fn check_put(tree: &Tree, put: &Put, context: &Context<'_>) -> Result<()> {
    if (put.ignore_value || put.ignore_lease) && tree.get(&put.key, context.head).is_none() {
        return Err(MetaError::KeyNotFound);
    }
    if put.lease != LeaseId::NONE && !(context.lease_exists)(put.lease) {
        return Err(MetaError::LeaseNotFound);
    }
    Ok(())
}

fn answer_read_only(tree: &Tree, op: &Op, choice: &Choice, context: &Context<'_>) -> Result<OpResult> {
    match op {
        Op::Range(range) => Ok(OpResult::Range(read::range(tree, range, context.head))),
        Op::Txn(txn) => {
            let branch = if choice.succeeded { &txn.success } else { &txn.failure };
            let answers = branch.iter().zip(&choice.nested);
            let responses = answers
                .map(|(op, choice)| answer_read_only(tree, op, choice, context))
                .collect::<Result<_>>()?;
            Ok(OpResult::Txn(TxnResult { revision: context.head, succeeded: choice.succeeded, responses }))
        }
        Op::Put(_) | Op::Delete(_) => Err(MetaError::Rejected("a write was evaluated as a read".into())),
    }
}

/// A transaction being carried out.
struct Execution<'a> {
    tree: &'a mut Tree,
    head: Revision,
    events: Vec<Event>,
}

impl Execution<'_> {
    /// The newest revision as this point of the transaction sees it.
    fn now(&self) -> Revision {
        if self.events.is_empty() { self.head } else { self.head.next() }
    }

    fn run(&mut self, op: Op, choice: &Choice) -> OpResult {
        match op {
            Op::Range(range) => OpResult::Range(read::range(self.tree, &range, self.now())),
            Op::Put(put) => OpResult::Put(self.put(put)),
            Op::Delete(delete) => OpResult::Delete(self.delete(&delete)),
            Op::Txn(txn) => {
                let branch = if choice.succeeded { txn.success } else { txn.failure };
                let runs = branch.into_iter().zip(&choice.nested);
                let responses = runs.map(|(op, choice)| self.run(op, choice)).collect();
                OpResult::Txn(TxnResult { revision: self.now(), succeeded: choice.succeeded, responses })
            }
        }
    }

    fn put(&mut self, put: Put) -> PutResult {
        let revision = self.head.next();
        let prev = self.tree.get(&put.key, revision).cloned();
        let value = if put.ignore_value {
            prev.as_ref().map_or(Bytes::new(), |kv| kv.value.clone())
        } else {
            put.value
        };
        let (key, value) = compacted_bytes(prev.as_ref().map(|kv| &kv.key), &put.key, &value);
        let kv = Arc::new(KeyValue {
            key,
            value,
            create_revision: prev.as_ref().map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: prev.as_ref().map_or(1, |kv| kv.version + 1),
            lease: if put.ignore_lease {
                prev.as_ref().map_or(LeaseId::NONE, |kv| kv.lease)
            } else {
                put.lease
            },
        });
        self.record(kv, prev.clone());
        PutResult { revision, prev: prev.filter(|_| put.prev_kv) }
    }

    fn delete(&mut self, delete: &Delete) -> DeleteResult {
        let revision = self.head.next();
        let mut doomed = Vec::new();
        self.tree.visit(&delete.keys, revision, |kv| doomed.push(kv.clone()));
        for kv in &doomed {
            self.record(Arc::new(KeyValue::tombstone(kv.key.clone(), revision)), Some(kv.clone()));
        }
        DeleteResult {
            revision: self.now(),
            deleted: doomed.len(),
            prev_kvs: if delete.prev_kv { doomed } else { Vec::new() },
        }
    }

    fn record(&mut self, kv: Arc<KeyValue>, prev: Option<Arc<KeyValue>>) {
        self.tree.push(kv.clone());
        self.events.push(Event { kv, prev });
    }
}

/// Gives a version bytes of its own: what came over the wire is a slice of a larger buffer, which must not be kept
/// alive by it. A key that exists already is shared with its former version.
fn compacted_bytes(known_key: Option<&Bytes>, key: &Bytes, value: &Bytes) -> (Bytes, Bytes) {
    if let Some(known) = known_key {
        return (known.clone(), Bytes::copy_from_slice(value));
    }
    codec::own(key, value)
}
