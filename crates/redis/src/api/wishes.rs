//! What is the desired state of the nodes of one host? Pure, for the daemon that follows the tree with its
//! own view.

use super::serving;
use crate::address::Address;
use crate::agent::Former;
use crate::check::config_unreadable;
use crate::facts::{ClusterTree, HostTree, Tree};
use crate::keys::ClusterName;
use crate::spec::Persistence;

/// The desired state of one node of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeWish {
    /// The node.
    pub node: Address,
    /// Its owner, and the incarnation of the owner's name; `None`: it is to be emptied.
    pub owner: Option<(ClusterName, u64)>,
    /// Bytes of data that it may hold; zero: no limit.
    pub max_memory: u64,
    /// Whether keys are evicted when the memory is full.
    pub eviction: bool,
    /// What survives its process.
    pub persistence: Persistence,
    /// What happens to data of another owner.
    pub former: Former,
    /// The other serving primaries of its cluster.
    pub peers: Vec<Address>,
}

/// What happens to data of another owner: it is removed only if its cluster is known to be deleted.
fn former(tree: &Tree, host: &HostTree, node: &Address) -> Former {
    let deleted = |name: &ClusterName, life: u64| {
        tree.cluster(name).is_none_or(|cluster| match &cluster.config {
            Some(config) => config.record.incarnation != life,
            // Which life the name is in is not known.
            None => config_unreadable(tree, name, cluster).is_none(),
        })
    };
    let record = host.copies.get(node).map(|seen| &seen.record);
    let shard = record.and_then(|it| tree.cluster(&it.cluster_name)?.shards.get(node));
    match host.quarantine.get(node).map(|seen| &seen.record) {
        Some(left) if deleted(&left.cluster, left.incarnation) => Former::Erased,
        Some(_) => Former::SetAside,
        None if shard.is_some_and(|shard| shard.record.recovering) => Former::BroughtBack,
        None => Former::SetAside,
    }
}

fn peers(cluster: &ClusterTree, node: &Address) -> Vec<Address> {
    let serving = cluster.primaries().map(|seen| &seen.record).filter(|peer| peer.slot_count() > 0);
    serving.map(|peer| peer.address.clone()).filter(|peer| peer != node).collect()
}

/// The desired state of a host's nodes. A node whose cluster has an unreadable configuration is missing: what is not known
/// must not be changed, least of all what of its data survives.
#[must_use]
pub fn node_wishes(tree: &Tree, proxy: &Address) -> Vec<NodeWish> {
    let Some(host) = tree.host(proxy) else { return Vec::new() };
    let wish = |node: &Address| {
        let owned = host
            .copies
            .get(node)
            .map(|seen| &seen.record)
            .filter(|_| host.owners.get(node).is_some_and(|owner| owner.record.0.is_some()));
        let cluster = owned.and_then(|record| tree.cluster(&record.cluster_name));
        if let (Some(record), Some(cluster)) = (owned, cluster)
            && cluster.config.is_none()
            && config_unreadable(tree, &record.cluster_name, cluster).is_some()
        {
            return None;
        }
        Some(NodeWish {
            node: node.clone(),
            owner: owned.map(|record| (record.cluster_name.clone(), record.incarnation)),
            max_memory: cluster.and_then(|c| c.max_memory.as_ref()).map_or(0, |seen| seen.record),
            eviction: cluster.is_some_and(|cluster| serving(cluster).cache),
            persistence: cluster.map(|cluster| serving(cluster).persistence).unwrap_or_default(),
            former: former(tree, host, node),
            peers: cluster.map(|cluster| peers(cluster, node)).unwrap_or_default(),
        })
    };
    host.owners.keys().filter_map(wish).collect()
}
