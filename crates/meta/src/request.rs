//! What can be asked of the store, and what it answers: reads, writes, transactions, watches, leases.
//!
//! The vocabulary is etcd's, one to one, so that both implementations and the wire server share it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::kv::{KeyRange, KeyValue, LeaseId, Revision};

/// A read of some keys at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// Which keys.
    pub keys: KeyRange,
    /// At which revision; zero or less is the newest.
    pub revision: Revision,
    /// At most so many keys; zero is all of them.
    pub limit: usize,
    /// In which order; applied before the limit.
    pub order: SortOrder,
    /// By what the order goes.
    pub sort_by: SortTarget,
    /// How much of each key is wanted.
    pub detail: Detail,
    /// Leave out what was modified before this revision (zero: off).
    pub min_mod_revision: Revision,
    /// Leave out what was modified after this revision (zero: off).
    pub max_mod_revision: Revision,
    /// Leave out what was created before this revision (zero: off).
    pub min_create_revision: Revision,
    /// Leave out what was created after this revision (zero: off).
    pub max_create_revision: Revision,
}

/// Order of a [`Range`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortOrder {
    /// As stored: by key.
    #[default]
    None,
    /// Smallest first.
    Ascend,
    /// Largest first.
    Descend,
}

/// What a [`Range`] is ordered by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the fields of KeyValue")]
pub enum SortTarget {
    #[default]
    Key,
    Version,
    CreateRevision,
    ModRevision,
    Value,
}

/// How much of each key a [`Range`] brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Keys and values.
    #[default]
    Whole,
    /// Values left empty.
    KeysOnly,
    /// Nothing but the count.
    CountOnly,
}

impl Range {
    /// Reads these keys, whole, in key order, at the newest revision.
    #[must_use]
    pub fn of(keys: KeyRange) -> Range {
        Range {
            keys,
            revision: Revision::ZERO,
            limit: 0,
            order: SortOrder::None,
            sort_by: SortTarget::Key,
            detail: Detail::Whole,
            min_mod_revision: Revision::ZERO,
            max_mod_revision: Revision::ZERO,
            min_create_revision: Revision::ZERO,
            max_create_revision: Revision::ZERO,
        }
    }

    /// Reads one key.
    pub fn one(key: impl Into<Bytes>) -> Range {
        Range::of(KeyRange::one(key))
    }

    /// Reads every key with this prefix.
    pub fn prefix(prefix: impl Into<Bytes>) -> Range {
        Range::of(KeyRange::prefix(prefix))
    }

    /// As it was at this revision.
    #[must_use]
    pub fn at(self, revision: Revision) -> Range {
        Range { revision, ..self }
    }

    /// At most so many keys.
    #[must_use]
    pub fn limit(self, limit: usize) -> Range {
        Range { limit, ..self }
    }

    /// Only this much of each key.
    #[must_use]
    pub fn detail(self, detail: Detail) -> Range {
        Range { detail, ..self }
    }

    /// In this order.
    #[must_use]
    pub fn sorted(self, sort_by: SortTarget, order: SortOrder) -> Range {
        Range { sort_by, order, ..self }
    }
}

/// Answer to a [`Range`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeResult {
    /// The store's revision when it answered (not the revision that was read at).
    pub revision: Revision,
    /// What was found.
    pub kvs: Vec<Arc<KeyValue>>,
    /// Whether the limit cut something off.
    pub more: bool,
    /// How many keys the range holds, whatever limit and filters say.
    pub count: usize,
}

/// A write of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// Its new value.
    pub value: Bytes,
    /// The lease that it dies with; none detaches it from the one it had.
    pub lease: LeaseId,
    /// Answer with the version that was overwritten.
    pub prev_kv: bool,
    /// Keep the old value (then `value` must be empty and the key must exist).
    pub ignore_value: bool,
    /// Keep the old lease (then `lease` must be none and the key must exist).
    pub ignore_lease: bool,
}

impl Put {
    /// Sets a key to a value.
    pub fn new(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Put {
        Put { key: key.into(), value: value.into(), ..Put::default() }
    }

    /// To be deleted with this lease.
    #[must_use]
    pub fn lease(self, lease: LeaseId) -> Put {
        Put { lease, ..self }
    }
}

/// Answer to a [`Put`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutResult {
    /// The revision that wrote it.
    pub revision: Revision,
    /// The version that was overwritten, if it was asked for and there was one.
    pub prev: Option<Arc<KeyValue>>,
}

/// A deletion of some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delete {
    /// Which keys.
    pub keys: KeyRange,
    /// Answer with what was deleted.
    pub prev_kv: bool,
}

impl Delete {
    /// Deletes one key.
    pub fn one(key: impl Into<Bytes>) -> Delete {
        Delete { keys: KeyRange::one(key), prev_kv: false }
    }

    /// Deletes every key with this prefix.
    pub fn prefix(prefix: impl Into<Bytes>) -> Delete {
        Delete { keys: KeyRange::prefix(prefix), prev_kv: false }
    }
}

/// Answer to a [`Delete`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteResult {
    /// The revision that deleted them, or the present one if there was nothing to delete.
    pub revision: Revision,
    /// How many keys are gone.
    pub deleted: usize,
    /// What they held, if it was asked for.
    pub prev_kvs: Vec<Arc<KeyValue>>,
}

/// One condition of a transaction; it must hold for every key of the range (an empty range is like a missing key).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compare {
    /// Which keys.
    pub keys: KeyRange,
    /// What of them, and with what.
    pub target: CompareTarget,
    /// How the stored side must stand to the given one.
    pub relation: Relation,
}

/// What a [`Compare`] looks at. A missing key counts as zero, except for `Value`, which never holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the fields of KeyValue")]
pub enum CompareTarget {
    Version(i64),
    CreateRevision(Revision),
    ModRevision(Revision),
    Value(Bytes),
    Lease(LeaseId),
}

/// How the stored side of a [`Compare`] must stand to the given one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Relation {
    Equal,
    Greater,
    Less,
    NotEqual,
}

impl Compare {
    /// The key does not exist.
    pub fn absent(key: impl Into<Bytes>) -> Compare {
        Compare::create_revision(key, Revision::ZERO)
    }

    /// The key exists.
    pub fn present(key: impl Into<Bytes>) -> Compare {
        Compare {
            keys: KeyRange::one(key),
            target: CompareTarget::CreateRevision(Revision::ZERO),
            relation: Relation::Greater,
        }
    }

    /// The key's present life began at this revision (zero: it does not exist).
    pub fn create_revision(key: impl Into<Bytes>, revision: Revision) -> Compare {
        Compare {
            keys: KeyRange::one(key),
            target: CompareTarget::CreateRevision(revision),
            relation: Relation::Equal,
        }
    }

    /// The key was last changed at this revision (zero: it does not exist).
    pub fn mod_revision(key: impl Into<Bytes>, revision: Revision) -> Compare {
        Compare {
            keys: KeyRange::one(key),
            target: CompareTarget::ModRevision(revision),
            relation: Relation::Equal,
        }
    }

    /// The key exists with exactly this value.
    pub fn value(key: impl Into<Bytes>, value: impl Into<Bytes>) -> Compare {
        Compare {
            keys: KeyRange::one(key),
            target: CompareTarget::Value(value.into()),
            relation: Relation::Equal,
        }
    }
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants' types say it")]
pub enum Op {
    Range(Range),
    Put(Put),
    Delete(Delete),
    Txn(Txn),
}

impl From<Range> for Op {
    fn from(range: Range) -> Op {
        Op::Range(range)
    }
}

impl From<Put> for Op {
    fn from(put: Put) -> Op {
        Op::Put(put)
    }
}

impl From<Delete> for Op {
    fn from(delete: Delete) -> Op {
        Op::Delete(delete)
    }
}

/// A transaction: if every compare holds then one list of operations, else the other, all in one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// The conditions, all evaluated against the state before the transaction.
    pub compares: Vec<Compare>,
    /// What is done, in order, if all of them hold.
    pub success: Vec<Op>,
    /// What is done otherwise.
    pub failure: Vec<Op>,
}

impl Txn {
    /// A transaction that does nothing yet.
    #[must_use]
    pub fn new() -> Txn {
        Txn::default()
    }

    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, compare: Compare) -> Txn {
        self.compares.push(compare);
        self
    }

    /// Adds conditions.
    #[must_use]
    pub fn when_all(mut self, compares: impl IntoIterator<Item = Compare>) -> Txn {
        self.compares.extend(compares);
        self
    }

    /// Adds an operation for the case that all conditions hold.
    #[must_use]
    pub fn then(mut self, op: impl Into<Op>) -> Txn {
        self.success.push(op.into());
        self
    }

    /// Adds an operation for the case that a condition does not hold.
    #[must_use]
    pub fn otherwise(mut self, op: impl Into<Op>) -> Txn {
        self.failure.push(op.into());
        self
    }
}

/// Answer to a [`Txn`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnResult {
    /// The revision that it made, or the present one if it changed nothing.
    pub revision: Revision,
    /// Whether every condition held.
    pub succeeded: bool,
    /// An answer for each operation of the branch that was taken.
    pub responses: Vec<OpResult>,
}

/// Answer to one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants' types say it")]
pub enum OpResult {
    Range(RangeResult),
    Put(PutResult),
    Delete(DeleteResult),
    Txn(TxnResult),
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum EventKind {
    Put,
    Delete,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The new version; a tombstone for a deletion.
    pub kv: Arc<KeyValue>,
    /// The version before it, if it was asked for and is still known.
    pub prev: Option<Arc<KeyValue>>,
}

impl Event {
    /// Put or delete.
    #[must_use]
    pub fn kind(&self) -> EventKind {
        if self.kv.is_tombstone() { EventKind::Delete } else { EventKind::Put }
    }
}

/// Asks for every change of some keys, from a revision on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Which keys.
    pub keys: KeyRange,
    /// The first revision wanted; zero is "whatever comes after now".
    pub from: Revision,
    /// Bring the version before each change along.
    pub prev_kv: bool,
    /// Leave out puts.
    pub no_put: bool,
    /// Leave out deletions.
    pub no_delete: bool,
}

impl Watch {
    /// Everything that happens to these keys from this revision on.
    #[must_use]
    pub fn from(keys: KeyRange, from: Revision) -> Watch {
        Watch { keys, from, prev_kv: false, no_put: false, no_delete: false }
    }
}

/// What a watch brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchMessage {
    /// Whole revisions, in order, none left out and none twice; `revision` is the newest one among them.
    Events {
        /// Everything of the watched keys up to here has been delivered.
        revision: Revision,
        /// The changes in order of (revision, position in the transaction).
        events: Arc<[Event]>,
    },
    /// Everything of the watched keys up to this revision has been delivered.
    Progress(Revision),
}

/// A lease just granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// Its time to live, which may be longer than what was asked for.
    pub ttl: Duration,
}

/// What is known about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Time to live as granted.
    pub granted_ttl: Duration,
    /// What is left of it, in whole seconds rounded down.
    pub remaining: Duration,
    /// The keys that die with it, in key order.
    pub keys: Vec<Bytes>,
}

/// What a store says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// Newest revision.
    pub revision: Revision,
    /// Revision up to which history has been dropped (-1: never).
    pub compacted: Revision,
    /// The version it reports to clients.
    pub version: String,
    /// Bytes on disk (in memory, where there is no disk).
    pub db_size: u64,
    /// Bytes of it that are in use.
    pub db_size_in_use: u64,
    /// Bytes after which puts are refused; zero: not known, or no bound.
    pub db_size_quota: u64,
    /// Names this store among all that ever were.
    pub cluster_id: u64,
    /// Names the member that answered.
    pub member_id: u64,
    /// Term of its leader, never falling.
    pub term: u64,
}
