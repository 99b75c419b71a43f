//! What is the input of every decision? The whole tree of this service, at one revision.
//!
//! All reads of the service happen here, either from the store or from a view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_control::drain::Intent;
use capstan_control::epoch::Epoch;
use capstan_control::keys::{DrainKey, Drains, HostId, HostKey, Hosts};
use capstan_meta::record::{BadValue, Key, Listing, Prefix, RecordError, Stored};
use capstan_meta::view::{Ranges, Snapshot};
use capstan_meta::{MetaError, Revision, Store};

use crate::address::Address;
use crate::keys::*;
use crate::shard::ShardRecord;
use crate::spec::ClusterConfig;
use crate::status::{MoveId, MoveProgress, MoveRecord, NodeRecord, Owner, Place, Quarantine, Rebalance};

/// How often a read may restart because its revision was compacted.
const READ_ATTEMPTS: usize = 8;

/// A record as read.
pub type Seen<R> = Arc<Stored<R>>;

/// Everything about one cluster name.
#[derive(Clone, Debug, Default)]
pub struct ClusterTree {
    /// Its epoch; the cluster exists as long as this does.
    pub epoch: Option<Seen<Epoch>>,
    /// The last epoch of the previous cluster of this name.
    pub last_epoch: Option<Seen<Epoch>>,
    /// The desired number of primaries.
    pub node_number: Option<Seen<u32>>,
    /// Bytes of data that a node may hold.
    pub max_memory: Option<Seen<u64>>,
    /// The desired number of replicas per primary.
    pub replicas: Option<Seen<u32>>,
    /// How it is served.
    pub config: Option<Seen<ClusterConfig>>,
    /// Its nodes, by address.
    pub nodes: BTreeMap<Address, Seen<NodeRecord>>,
    /// Its shards, by primary.
    pub shards: BTreeMap<Address, Seen<ShardRecord>>,
    /// Its moves.
    pub moves: BTreeMap<MoveId, Seen<MoveRecord>>,
    /// The progress of its moves.
    pub progress: BTreeMap<MoveId, Seen<MoveProgress>>,
    /// The task to bump its hosts.
    pub bump: Option<Seen<i64>>,
    /// The task to create missing nodes.
    pub creating: Option<Seen<i64>>,
    /// The task to spread slots.
    pub rebalance: Option<Seen<Rebalance>>,
    /// The task to release the nodes of a deleted cluster.
    pub removing: Option<Seen<ClusterName>>,
    /// Set while its name is not free yet.
    pub deleting: Option<Seen<i64>>,
}

impl ClusterTree {
    /// Whether the cluster exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.epoch.is_some()
    }

    /// The incarnation of its name.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.config.as_ref().map_or(0, |config| config.record.incarnation)
    }

    /// Its primaries.
    pub fn primaries(&self) -> impl Iterator<Item = &Seen<NodeRecord>> {
        self.nodes.values().filter(|node| node.record.is_primary())
    }

    /// The replicas of one of its nodes.
    pub fn replicas_of<'t>(&'t self, primary: &'t Address) -> impl Iterator<Item = &'t Seen<NodeRecord>> {
        self.nodes.values().filter(move |node| node.record.replica_of.as_ref() == Some(primary))
    }

    /// The proxies in front of its nodes.
    #[must_use]
    pub fn proxies(&self) -> BTreeSet<&Address> {
        self.nodes.values().map(|node| &node.record.proxy_address).collect()
    }

    /// The desired number of primaries.
    #[must_use]
    pub fn wanted_primaries(&self) -> usize {
        self.node_number.as_ref().map_or(0, |number| number.record as usize)
    }

    /// The desired number of replicas of each.
    #[must_use]
    pub fn wanted_replicas(&self) -> usize {
        self.replicas.as_ref().map_or(0, |number| number.record as usize)
    }
}

/// Everything about one host.
#[derive(Clone, Debug, Default)]
pub struct HostTree {
    /// Its epoch; the host exists as long as this does.
    pub epoch: Option<Seen<Epoch>>,
    /// Its epoch when it was last removed.
    pub last_epoch: Option<Seen<Epoch>>,
    /// Its nodes and their owners.
    pub owners: BTreeMap<Address, Seen<Owner>>,
    /// Copies of its nodes' records.
    pub copies: BTreeMap<Address, Seen<NodeRecord>>,
    /// Its nodes that must be emptied.
    pub quarantine: BTreeMap<Address, Seen<Quarantine>>,
}

/// The tree of this service at one revision.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The revision.
    pub revision: Revision,
    /// By name.
    pub clusters: BTreeMap<ClusterName, ClusterTree>,
    /// By the address of the proxy.
    pub hosts: BTreeMap<Address, HostTree>,
    /// The last move id.
    pub task_epoch: Option<Seen<Epoch>>,
    /// Live coordinators.
    pub coordinators: Vec<(CoordinatorKey, Seen<ReportId>)>,
    /// Failure reports.
    pub failures: Vec<(FailureKey, Seen<i64>)>,
    /// The coordinators that may grant without the store, with the report id of their present process.
    pub granters: BTreeMap<HostId, Seen<ReportId>>,
    /// The reports of coordinators that the reported proxy has been granted by.
    pub acknowledged: BTreeSet<(Address, ReportId)>,
    /// Proxies of hosts that are being drained.
    pub draining: BTreeSet<Address>,
    /// Which host each proxy is on, for hosts that are up.
    pub daemons: BTreeMap<Address, HostId>,
    /// Values that could not be parsed.
    pub bad: Vec<BadValue>,
}

/// The name under which a host's daemon registers its proxy's address.
pub const PROXY_ADDRESS: &str = "redis";

fn draining(drains: &Listing<DrainKey>, daemons: &Listing<HostKey>) -> BTreeSet<Address> {
    let asked: BTreeSet<_> = drains
        .iter()
        .filter(|(_, drain)| drain.record.intent == Intent::Drain)
        .map(|(key, _)| &key.host)
        .collect();
    let drained = daemons.iter().filter(|(key, _)| asked.contains(&key.host));
    drained.filter_map(|(_, daemon)| daemon.record.addresses.get(PROXY_ADDRESS)?.parse().ok()).collect()
}

fn daemons(daemons: &Listing<HostKey>) -> BTreeMap<Address, HostId> {
    let found = daemons.iter().filter_map(|(key, daemon)| {
        let proxy = daemon.record.addresses.get(PROXY_ADDRESS)?.parse().ok()?;
        Some((proxy, key.host.clone()))
    });
    found.collect()
}

/// Everything that a [`Tree`] is built from.
macro_rules! every_prefix {
    ($visit:ident) => {
        $visit! {
            host_epochs: HostEpochs, last_host_epochs: LastHostEpochs, owners: Owners, host_nodes: HostNodes,
            quarantines: Quarantines, cluster_epochs: ClusterEpochs, last_cluster_epochs: LastClusterEpochs,
            node_numbers: NodeNumbers, max_memories: MaxMemories, replica_numbers: ReplicaNumbers, configs: Configs,
            cluster_nodes: ClusterNodes, shards: Shards, task_epochs: TaskEpochs, moves: Moves, progresses: Progresses,
            bumps: BumpTasks, creations: CreateNodesTasks, rebalances: RebalanceTasks, removals: RemoveNodesTasks,
            deletions: DeletingClusters, coordinators: Coordinators, failures: Failures, granters: Granters,
            acknowledgments: Acknowledgments, drains: Drains, daemons: Hosts
        }
    };
}

macro_rules! declare_listings {
    ($($field:ident: $prefix:ident),*) => {
        struct Listings { $($field: Listing<<$prefix as Prefix>::Key>),* }

        impl Listings {
            fn of(snapshot: &Snapshot) -> Listings {
                Listings { $($field: snapshot.list(&$prefix {})),* }
            }

            async fn read(store: &Store) -> Result<Listings, RecordError> {
                let at = store.list(&HostEpochs {}).await?.revision;
                let ($($field),*) = tokio::try_join!($(store.list_at(&$prefix {}, at)),*)?;
                Ok(Listings { $($field),* })
            }

            fn bad(&self) -> Vec<BadValue> {
                let mut bad: Vec<BadValue> = Vec::new();
                $(bad.extend(self.$field.bad.iter().cloned());)*
                bad.sort_by(|a, b| a.key.cmp(&b.key));
                bad.dedup();
                bad
            }
        }
    };
}
every_prefix!(declare_listings);

impl Tree {
    /// The ranges that a view must cover to build a tree from it.
    #[must_use]
    pub fn ranges() -> Ranges {
        macro_rules! add_all {
            ($($field:ident: $prefix:ident),*) => { Ranges::new()$(.with(&$prefix {}))* };
        }
        every_prefix!(add_all)
    }

    /// The tree in a view's snapshot.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Tree {
        Tree::assemble(snapshot.revision(), Listings::of(snapshot))
    }

    /// The current tree in the store.
    pub async fn read(store: &Store) -> Result<Tree, RecordError> {
        let mut attempt = 1;
        loop {
            match Listings::read(store).await {
                Err(RecordError::Store(MetaError::Compacted { .. })) if attempt < READ_ATTEMPTS => {
                    attempt += 1
                }
                listings => {
                    return listings.map(|listings| Tree::assemble(listings.host_epochs.revision, listings));
                }
            }
        }
    }

    fn assemble(revision: Revision, from: Listings) -> Tree {
        let mut tree = Tree { revision, bad: from.bad(), ..Tree::default() };
        for (key, seen) in from.host_epochs.entries {
            tree.host_mut(key.proxy).epoch = Some(seen);
        }
        for (key, seen) in from.last_host_epochs.entries {
            tree.host_mut(key.proxy).last_epoch = Some(seen);
        }
        for (key, seen) in from.owners.entries {
            tree.host_mut(key.proxy).owners.insert(key.node, seen);
        }
        for (key, seen) in from.host_nodes.entries {
            tree.host_mut(key.proxy).copies.insert(key.node, seen);
        }
        for (key, seen) in from.quarantines.entries {
            tree.host_mut(key.proxy).quarantine.insert(key.node, seen);
        }
        for (key, seen) in from.cluster_nodes.entries {
            tree.cluster_mut(key.cluster).nodes.insert(key.node, seen);
        }
        for (key, seen) in from.shards.entries {
            tree.cluster_mut(key.cluster).shards.insert(key.primary, seen);
        }
        for (key, seen) in from.moves.entries {
            tree.cluster_mut(key.cluster).moves.insert(key.id, seen);
        }
        for (key, seen) in from.progresses.entries {
            tree.cluster_mut(key.cluster).progress.insert(key.id, seen);
        }
        macro_rules! one_each {
            ($($listing:ident => $field:ident),*) => {$(
                for (key, seen) in from.$listing.entries {
                    tree.cluster_mut(key.cluster).$field = Some(seen);
                }
            )*};
        }
        one_each!(
            cluster_epochs => epoch, last_cluster_epochs => last_epoch, node_numbers => node_number,
            max_memories => max_memory, replica_numbers => replicas, configs => config, bumps => bump,
            creations => creating, rebalances => rebalance, removals => removing, deletions => deleting
        );
        tree.task_epoch = from.task_epochs.entries.into_iter().next().map(|(_, seen)| seen);
        tree.draining = draining(&from.drains, &from.daemons);
        tree.daemons = daemons(&from.daemons);
        tree.coordinators = from.coordinators.entries;
        tree.failures = from.failures.entries;
        tree.granters = from.granters.entries.into_iter().map(|(key, seen)| (key.controller, seen)).collect();
        let acknowledged = from.acknowledgments.entries.into_iter();
        tree.acknowledged = acknowledged.map(|(key, _)| (key.address, key.report_id)).collect();
        tree
    }

    fn host_mut(&mut self, proxy: Address) -> &mut HostTree {
        self.hosts.entry(proxy).or_default()
    }

    fn cluster_mut(&mut self, cluster: ClusterName) -> &mut ClusterTree {
        self.clusters.entry(cluster).or_default()
    }

    /// A cluster that exists.
    #[must_use]
    pub fn cluster(&self, name: &ClusterName) -> Option<&ClusterTree> {
        self.clusters.get(name).filter(|cluster| cluster.exists())
    }

    /// A host that is registered.
    #[must_use]
    pub fn host(&self, proxy: &Address) -> Option<&HostTree> {
        self.hosts.get(proxy).filter(|host| host.epoch.is_some())
    }

    /// The host that a proxy is on, if it is up.
    #[must_use]
    pub fn host_of(&self, proxy: &Address) -> Option<HostId> {
        self.daemons.get(proxy).cloned()
    }

    /// Clusters that exist, by name.
    pub fn active(&self) -> impl Iterator<Item = (&ClusterName, &ClusterTree)> {
        self.clusters.iter().filter(|(_, cluster)| cluster.exists())
    }

    /// Hosts that are registered, by the address of their proxy.
    pub fn registered(&self) -> impl Iterator<Item = (&Address, &HostTree)> {
        self.hosts.iter().filter(|(_, host)| host.epoch.is_some())
    }

    /// Free nodes: without an owner, and emptied since they had one.
    pub fn free_nodes(&self) -> impl Iterator<Item = Place> {
        self.registered().flat_map(|(proxy, host)| {
            let free = host.owners.iter().filter(|(node, owner)| {
                owner.record.0.is_none()
                    && !host.quarantine.contains_key(*node)
                    && !host.copies.contains_key(*node)
            });
            free.map(|(node, _)| Place { proxy: proxy.clone(), node: node.clone() })
        })
    }

    /// The live coordinators.
    #[must_use]
    pub fn alive(&self) -> BTreeSet<ReportId> {
        self.coordinators.iter().map(|(key, _)| key.report_id.clone()).collect()
    }

    /// Whether no other coordinator than this one may grant without the store. A record that cannot be read may be
    /// anybody's.
    #[must_use]
    pub fn granted_only_by(&self, life: &ReportId) -> bool {
        self.granters_are_known() && self.granters.values().all(|seen| seen.record == *life)
    }

    /// Whether every record of a coordinator that may grant without the store can be read.
    #[must_use]
    pub fn granters_are_known(&self) -> bool {
        let prefix = Prefix::path(&Granters {});
        !self.bad.iter().any(|bad| bad.key.starts_with(&prefix))
    }

    /// The reports, as input of [`capstan_control::failure`].
    #[must_use]
    pub fn reports(&self) -> Listing<FailureKey> {
        Listing { entries: self.failures.clone(), ..Listing::at(self.revision) }
    }

    /// Whether a host's epoch covers every change of its clusters: it was bumped with, or after, each of
    /// them. Others get no push until they are bumped, so that an epoch stands for one content.
    #[must_use]
    pub fn is_settled(&self, proxy: &Address) -> bool {
        let Some(epoch) = self.host(proxy).and_then(|host| host.epoch.as_ref()) else { return false };
        let touches =
            |cluster: &&ClusterTree| cluster.nodes.values().any(|node| node.record.proxy_address == *proxy);
        let pending = self.clusters.values().filter(touches).filter_map(|cluster| cluster.bump.as_ref());
        pending.into_iter().all(|bump| bump.mod_revision <= epoch.mod_revision)
    }
}

/// Whether a bad value has this key.
pub(crate) fn is_bad<K: Key>(tree: &Tree, key: &K) -> bool {
    let path = key.path();
    tree.bad.iter().any(|bad| bad.key == path)
}
