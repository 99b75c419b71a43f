//! How is a change written? A transaction that carries its guards: every record that it replaces and every
//! epoch that it bumps is compared, and the task that notifies the hosts is part of it.

use std::collections::BTreeSet;

use capstan_control::epoch::Bump;
use capstan_meta::embedded::MAX_TXN_OPS;
use capstan_meta::record::{Key, Prefix};
use capstan_meta::{Compare, CompareTarget, KeyRange, Op, Relation, Revision, Txn};

use crate::address::Address;
use crate::facts::{ClusterTree, Seen, Tree};
use crate::keys::*;
use crate::status::{NodeRecord, Owner, Place, Quarantine};

/// Nodes that one transaction assigns or releases. Each costs up to four operations (owner, both copies,
/// quarantine or the host's epoch twice), and etcd refuses more than 128.
pub const NODES_PER_TXN: usize = 24;

/// A change to the tree, derived from what was read.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What it does, as text.
    pub what: String,
    txn: Txn,
    hosts: BTreeSet<Address>,
}

impl From<Draft> for Txn {
    fn from(draft: Draft) -> Txn {
        draft.txn
    }
}

impl Draft {
    /// An empty change.
    pub fn new(what: impl Into<String>) -> Draft {
        Draft { what: what.into(), txn: Txn::new(), hosts: BTreeSet::new() }
    }

    /// The transaction.
    #[must_use]
    pub fn into_txn(self) -> Txn {
        self.txn
    }

    /// Whether a store accepts it: etcd refuses more than 128 compares or operations.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.txn.compares.len().max(self.txn.success.len()) <= MAX_TXN_OPS
    }

    /// Adds a condition, once.
    pub fn guard(&mut self, compare: Compare) -> &mut Draft {
        if !self.txn.compares.contains(&compare) {
            self.txn.compares.push(compare);
        }
        self
    }

    /// Adds conditions.
    pub fn guard_all(&mut self, compares: impl IntoIterator<Item = Compare>) -> &mut Draft {
        for compare in compares {
            self.guard(compare);
        }
        self
    }

    /// Adds an operation. A second put of the same key replaces the first.
    pub fn then(&mut self, op: impl Into<Op>) -> &mut Draft {
        let op = op.into();
        if let Op::Put(put) = &op {
            self.txn.success.retain(|other| !matches!(other, Op::Put(other) if other.key == put.key));
        }
        self.txn.success.push(op);
        self
    }

    /// Guards that nothing was created under a prefix since the tree was read. Deletions do not matter.
    pub fn nothing_new<P: Prefix>(&mut self, prefix: &P, tree: &Tree) -> &mut Draft {
        self.guard(created_before(Prefix::range(prefix), tree.revision))
    }

    /// Bumps the epoch of a host, once, however many of its nodes change.
    pub fn bump_host(&mut self, tree: &Tree, proxy: &Address) -> &mut Draft {
        if self.hosts.insert(proxy.clone()) {
            let key = HostEpochKey { proxy: proxy.clone() };
            let seen = tree.hosts.get(proxy).and_then(|host| host.epoch.clone());
            let bump = Bump::of(&key, seen.as_deref());
            self.guard(bump.guard).then(bump.put);
        }
        self
    }

    /// Bumps the epoch of an existing cluster, and adds the task that notifies its other hosts.
    pub fn bump_cluster(&mut self, name: &ClusterName, cluster: &ClusterTree, now: u64) -> &mut Draft {
        let bump = Bump::of(&ClusterEpochKey { cluster: name.clone() }, cluster.epoch.as_deref());
        let trigger = BumpTaskKey { cluster: name.clone() }.put(&seconds(now));
        self.guard(bump.guard).then(bump.put).then(trigger)
    }

    /// Writes a node of a cluster: its record, guarded by what was read, and the copy.
    pub fn put_node(&mut self, cluster: &ClusterTree, record: &NodeRecord) -> &mut Draft {
        let (truth, copy) = node_keys(record);
        let seen = cluster.nodes.get(&record.address);
        self.guard(truth.as_seen(seen.map(|seen| &**seen))).then(truth.put(record)).then(copy.put(record))
    }

    /// Removes a node of a cluster: its record, guarded by what was read, and the copy.
    pub fn remove_node(&mut self, cluster: &ClusterTree, record: &NodeRecord) -> &mut Draft {
        let (truth, copy) = node_keys(record);
        let seen = cluster.nodes.get(&record.address);
        self.guard(truth.as_seen(seen.map(|seen| &**seen))).then(truth.delete()).then(copy.delete())
    }

    /// Assigns a free node to a cluster, and bumps its host.
    pub fn claim(&mut self, tree: &Tree, place: &Place, name: &ClusterName) -> &mut Draft {
        let key = OwnerKey { proxy: place.proxy.clone(), node: place.node.clone() };
        let quarantine = QuarantineKey { proxy: place.proxy.clone(), node: place.node.clone() };
        let seen = tree.hosts.get(&place.proxy).and_then(|host| host.owners.get(&place.node));
        self.guard(key.as_seen(seen.map(|seen| &**seen)))
            .guard(quarantine.absent())
            .then(key.put(&Owner(Some(name.clone()))))
            .bump_host(tree, &place.proxy)
    }

    /// Releases a node to quarantine, to be emptied before it is used again, and bumps its host. The
    /// cluster's records of it are removed.
    pub fn release(
        &mut self,
        tree: &Tree,
        cluster: &ClusterTree,
        record: &NodeRecord,
        why: &str,
        now: u64,
    ) -> &mut Draft {
        let (proxy, node) = (record.proxy_address.clone(), record.address.clone());
        let host = tree.hosts.get(&proxy);
        self.remove_node(cluster, record);
        // A host that was removed by force has no owner keys; they must not be recreated here.
        let ours = |owner: &&Seen<Owner>| owner.record.0.as_ref() == Some(&record.cluster_name);
        if let Some(owner) = host.and_then(|host| host.owners.get(&node)).filter(ours) {
            let key = OwnerKey { proxy: proxy.clone(), node: node.clone() };
            self.guard(key.unchanged(owner)).then(key.put(&Owner(None)));
            self.bump_host(tree, &proxy);
            let epoch =
                host.and_then(|host| host.epoch.as_ref()).map_or_else(Default::default, |seen| seen.record);
            let quarantine = Quarantine {
                cluster: record.cluster_name.clone(),
                incarnation: record.incarnation,
                epoch: epoch.next(),
                why: why.to_owned(),
                since: now,
            };
            self.then(QuarantineKey { proxy, node }.put(&quarantine));
        }
        self
    }
}

/// Both keys of a node in use.
pub(crate) fn node_keys(record: &NodeRecord) -> (ClusterNodeKey, HostNodeKey) {
    let truth = ClusterNodeKey { cluster: record.cluster_name.clone(), node: record.address.clone() };
    let copy = HostNodeKey { proxy: record.proxy_address.clone(), node: record.address.clone() };
    (truth, copy)
}

/// Guard: every key of a range was created at or before this revision.
pub(crate) fn created_before(keys: KeyRange, revision: Revision) -> Compare {
    Compare { keys, target: CompareTarget::CreateRevision(revision.next()), relation: Relation::Less }
}

/// Seconds since 1970 as the records store them.
pub(crate) fn seconds(now: u64) -> i64 {
    i64::try_from(now).unwrap_or(i64::MAX)
}
