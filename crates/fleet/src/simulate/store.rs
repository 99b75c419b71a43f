//! A store for simulations: one revision counter, guarded transactions, leases, and nothing that waits.
//!
//! It evaluates the same transactions as a real store, so that guards are tested and not assumed.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use capstan_meta::record::Key;
use capstan_meta::{Compare, CompareTarget, KeyRange, KeyValue, LeaseId, Op, Put, Relation, Revision, Txn};

use crate::records::Records;

/// The store of a simulated world.
#[derive(Debug, Default)]
pub(super) struct SimStore {
    pub(super) records: Records,
    revision: Revision,
    leases: BTreeMap<LeaseId, Vec<Bytes>>,
}

impl SimStore {
    /// Commits a transaction; the keys that it changed, or nothing if a guard did not hold.
    pub(super) fn commit(&mut self, txn: &Txn) -> Option<Vec<Bytes>> {
        let holds = txn.compares.iter().all(|compare| self.holds(compare));
        self.apply(if holds { &txn.success } else { &txn.failure }).filter(|_| holds)
    }

    fn apply(&mut self, ops: &[Op]) -> Option<Vec<Bytes>> {
        self.revision = self.revision.next();
        let mut changed = Vec::new();
        for op in ops {
            match op {
                Op::Put(put) => changed.push(self.put(put)),
                Op::Delete(delete) => changed.extend(self.delete(&delete.keys)),
                Op::Range(_) | Op::Txn(_) => {}
            }
        }
        Some(changed)
    }

    /// Writes one key, whatever is there.
    pub(super) fn set<K: Key>(&mut self, key: &K, record: &K::Record) -> Bytes {
        self.revision = self.revision.next();
        self.put(&key.put(record))
    }

    /// Writes one key that dies with a lease.
    pub(super) fn set_leased<K: Key>(&mut self, key: &K, record: &K::Record, lease: LeaseId) -> Bytes {
        self.revision = self.revision.next();
        self.put(&key.put(record).lease(lease))
    }

    /// Deletes one key.
    pub(super) fn remove<K: Key>(&mut self, key: &K) -> Vec<Bytes> {
        self.revision = self.revision.next();
        self.delete(&KeyRange::one(key.bytes()))
    }

    /// A lease ends: its keys are gone.
    pub(super) fn expire(&mut self, lease: LeaseId) -> Vec<Bytes> {
        self.revision = self.revision.next();
        let keys = self.leases.remove(&lease).unwrap_or_default();
        let mut gone = Vec::new();
        for key in keys {
            if self.records.raw(&key).is_some_and(|kv| kv.lease == lease) {
                gone.extend(self.delete(&KeyRange::one(key)));
            }
        }
        gone
    }

    fn put(&mut self, put: &Put) -> Bytes {
        let before = self.records.raw(&put.key);
        let kv = KeyValue {
            key: put.key.clone(),
            value: put.value.clone(),
            create_revision: before.map_or(self.revision, |kv| kv.create_revision),
            mod_revision: self.revision,
            version: before.map_or(1, |kv| kv.version + 1),
            lease: put.lease,
        };
        if put.lease != LeaseId::NONE {
            self.leases.entry(put.lease).or_default().push(put.key.clone());
        }
        self.records.apply(Arc::new(kv));
        put.key.clone()
    }

    fn delete(&mut self, keys: &KeyRange) -> Vec<Bytes> {
        let found: Vec<Bytes> = self.records.range(keys).map(|kv| kv.key.clone()).collect();
        for key in &found {
            self.records.apply(Arc::new(KeyValue::tombstone(key.clone(), self.revision)));
        }
        found
    }

    fn holds(&self, compare: &Compare) -> bool {
        let found: Vec<&Arc<KeyValue>> = self.records.range(&compare.keys).collect();
        let absent = KeyValue::default();
        match found.is_empty() {
            true => one_holds(&absent, compare),
            false => found.into_iter().all(|kv| one_holds(kv, compare)),
        }
    }
}

fn one_holds(kv: &KeyValue, compare: &Compare) -> bool {
    let order = match &compare.target {
        CompareTarget::Version(version) => kv.version.cmp(version),
        CompareTarget::CreateRevision(revision) => kv.create_revision.cmp(revision),
        CompareTarget::ModRevision(revision) => kv.mod_revision.cmp(revision),
        CompareTarget::Lease(lease) => kv.lease.cmp(lease),
        CompareTarget::Value(_) if kv.version == 0 => return false,
        CompareTarget::Value(value) => kv.value.cmp(value),
    };
    match compare.relation {
        Relation::Equal => order.is_eq(),
        Relation::NotEqual => order.is_ne(),
        Relation::Greater => order.is_gt(),
        Relation::Less => order.is_lt(),
    }
}
