//! What is known when something is decided: the whole tree of this service, at one revision.
//!
//! MetaDataBroker of the first document: everything that is read is read here, either from the store or from a view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_control::drain::Intent;
use capstan_control::epoch::Epoch;
use capstan_control::keys::{DrainKey, Drains, HostKey, Hosts};
use capstan_meta::record::{BadValue, Key, Listing, RecordError, Stored};
use capstan_meta::view::{Ranges, Snapshot};
use capstan_meta::{MetaError, Revision, Store};

use crate::address::Address;
use crate::keys::*;
use crate::spec::ClusterConfig;
use crate::status::{MoveId, MoveProgress, MoveRecord, NodeRecord, Owner, Place, Quarantine, Rebalance};

/// How often a read may begin anew because history was compacted away under it.
const READ_ATTEMPTS: usize = 8;

/// A record as it was read.
pub type Seen<R> = Arc<Stored<R>>;

/// Everything about one name of a cluster.
#[derive(Clone, Debug, Default)]
pub struct ClusterTree {
    /// How often it changed; it exists as long as this does.
    pub epoch: Option<Seen<Epoch>>,
    /// The epoch that the last cluster of this name ended with.
    pub last_epoch: Option<Seen<Epoch>>,
    /// How many primaries it is to have.
    pub node_number: Option<Seen<u32>>,
    /// How much a node may hold.
    pub max_memory: Option<Seen<u64>>,
    /// How many replicas a primary is to have.
    pub replicas: Option<Seen<u32>>,
    /// How it is served.
    pub config: Option<Seen<ClusterConfig>>,
    /// Its nodes, by address.
    pub nodes: BTreeMap<Address, Seen<NodeRecord>>,
    /// Its moves.
    pub moves: BTreeMap<MoveId, Seen<MoveRecord>>,
    /// How far they are.
    pub progress: BTreeMap<MoveId, Seen<MoveProgress>>,
    /// Its hosts are to be told.
    pub bump: Option<Seen<i64>>,
    /// Nodes are missing.
    pub creating: Option<Seen<i64>>,
    /// Slots are to be spread.
    pub rebalance: Option<Seen<Rebalance>>,
    /// Nodes of a deleted cluster are to be released.
    pub removing: Option<Seen<ClusterName>>,
    /// Its name is not free yet.
    pub deleting: Option<Seen<i64>>,
}

impl ClusterTree {
    /// Whether the cluster exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.epoch.is_some()
    }

    /// Which life of the name it is.
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

    /// How many primaries it is to have.
    #[must_use]
    pub fn wanted_primaries(&self) -> usize {
        self.node_number.as_ref().map_or(0, |number| number.record as usize)
    }

    /// How many replicas each is to have.
    #[must_use]
    pub fn wanted_replicas(&self) -> usize {
        self.replicas.as_ref().map_or(0, |number| number.record as usize)
    }
}

/// Everything about one host.
#[derive(Clone, Debug, Default)]
pub struct HostTree {
    /// How often what its proxy must know has changed; it exists as long as this does.
    pub epoch: Option<Seen<Epoch>>,
    /// The epoch that it had when it was last removed.
    pub last_epoch: Option<Seen<Epoch>>,
    /// Its nodes and their owners.
    pub owners: BTreeMap<Address, Seen<Owner>>,
    /// Copies of what its nodes are.
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
    /// The last number of a move.
    pub task_epoch: Option<Seen<Epoch>>,
    /// Coordinators that are up.
    pub coordinators: Vec<(CoordinatorKey, Seen<ReportId>)>,
    /// Who is reported.
    pub failures: Vec<(FailureKey, Seen<i64>)>,
    /// Proxies of hosts that are to be emptied.
    pub draining: BTreeSet<Address>,
    /// What could not be read.
    pub bad: Vec<BadValue>,
}

/// Under which name a host's daemon says where its proxy listens.
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

/// Everything that a [`Tree`] is made of.
macro_rules! every_prefix {
    ($visit:ident) => {
        $visit! {
            host_epochs: HostEpochs, last_host_epochs: LastHostEpochs, owners: Owners, host_nodes: HostNodes,
            quarantines: Quarantines, cluster_epochs: ClusterEpochs, last_cluster_epochs: LastClusterEpochs,
            node_numbers: NodeNumbers, max_memories: MaxMemories, replica_numbers: ReplicaNumbers, configs: Configs,
            cluster_nodes: ClusterNodes, task_epochs: TaskEpochs, moves: Moves, progresses: Progresses,
            bumps: BumpTasks, creations: CreateNodesTasks, rebalances: RebalanceTasks, removals: RemoveNodesTasks,
            deletions: DeletingClusters, coordinators: Coordinators, failures: Failures, drains: Drains,
            daemons: Hosts
        }
    };
}

macro_rules! declare_listings {
    ($($field:ident: $prefix:ident),*) => {
        struct Listings { $($field: Listing<<$prefix as capstan_meta::record::Prefix>::Key>),* }

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
    /// What a view must cover to make a tree of it.
    #[must_use]
    pub fn ranges() -> Ranges {
        macro_rules! add_all {
            ($($field:ident: $prefix:ident),*) => { Ranges::new()$(.with(&$prefix {}))* };
        }
        every_prefix!(add_all)
    }

    /// The tree as a view shows it.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Tree {
        Tree::assemble(snapshot.revision(), Listings::of(snapshot))
    }

    /// The tree as the store has it now.
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
        tree.coordinators = from.coordinators.entries;
        tree.failures = from.failures.entries;
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

    /// Clusters that exist, by name.
    pub fn active(&self) -> impl Iterator<Item = (&ClusterName, &ClusterTree)> {
        self.clusters.iter().filter(|(_, cluster)| cluster.exists())
    }

    /// Hosts that are registered, by the address of their proxy.
    pub fn registered(&self) -> impl Iterator<Item = (&Address, &HostTree)> {
        self.hosts.iter().filter(|(_, host)| host.epoch.is_some())
    }

    /// Nodes that can be taken: without an owner, and emptied since they had one.
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

    /// The coordinators that are up.
    #[must_use]
    pub fn alive(&self) -> BTreeSet<ReportId> {
        self.coordinators.iter().map(|(key, _)| key.report_id.clone()).collect()
    }

    /// The reports, as [`capstan_control::failure`] reads them.
    #[must_use]
    pub fn reports(&self) -> Listing<FailureKey> {
        Listing { entries: self.failures.clone(), ..Listing::at(self.revision) }
    }

    /// Which hosts have what they must know at the epoch that they have: those that were bumped with, or after, every
    /// change of their clusters. Others are told nothing until they are bumped, so that an epoch means one content.
    #[must_use]
    pub fn is_settled(&self, proxy: &Address) -> bool {
        let Some(epoch) = self.host(proxy).and_then(|host| host.epoch.as_ref()) else { return false };
        let touches =
            |cluster: &&ClusterTree| cluster.nodes.values().any(|node| node.record.proxy_address == *proxy);
        let pending = self.clusters.values().filter(touches).filter_map(|cluster| cluster.bump.as_ref());
        pending.into_iter().all(|bump| bump.mod_revision <= epoch.mod_revision)
    }
}

/// Whether a path of a bad value is that of this key.
pub(crate) fn is_bad<K: Key>(tree: &Tree, key: &K) -> bool {
    let path = key.path();
    tree.bad.iter().any(|bad| bad.key == path)
}
