//! Delete Node and Delete Cluster.

use capstan_control::epoch::Epoch;
use capstan_meta::record::{Key, Prefix};

use super::draft::{Draft, NODES_PER_TXN, seconds};
use super::edit::Edit;
use crate::address::Address;
use crate::error::BrokerError;
use crate::facts::{ClusterTree, Tree};
use crate::keys::*;

/// The transaction of Delete Node.
pub fn plan_delete_node(
    tree: &Tree,
    name: &ClusterName,
    node: &Address,
    now: u64,
) -> Result<Draft, BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    let record = edit.node(node)?.clone();
    let wrong =
        |why: &str| BrokerError::WrongRole { cluster: name.clone(), node: node.clone(), why: why.to_owned() };
    if !record.slots.is_empty() {
        let (cluster, node) = (name.clone(), node.clone());
        return Err(BrokerError::NodeHasSlots { cluster, node, slots: record.slot_count() });
    }
    let aimed_at = edit.moves.values().any(|other| other.source.node == *node || other.target.node == *node);
    if aimed_at {
        return Err(wrong("a recorded move includes it; cancel the move first"));
    }
    match &record.replica_of {
        None => {
            let number = edit.before.wanted_primaries() as u32;
            if number <= 1 {
                return Err(wrong("it is the only node; delete the cluster instead"));
            }
            edit.node_number = Some(number - 1);
            let replicas: Vec<Address> =
                edit.before.replicas_of(node).map(|replica| replica.record.address.clone()).collect();
            for replica in replicas {
                edit.release(&replica, "its primary left the cluster");
            }
        }
        Some(primary) => {
            if edit.before.replicas_of(primary).count() <= edit.before.wanted_replicas() {
                return Err(wrong(
                    "the specification requires this replica; lower the number of replicas first",
                ));
            }
        }
    }
    edit.release(node, "it was deleted from its cluster");
    edit.note(format!("deleted node {node} of"), "");
    Ok(edit.finish(format!("delete node {node} from cluster {name}"), now))
}

/// The first transaction of Delete Cluster. The specification is removed; the nodes stay until they are
/// released, and the name is in use until then.
#[must_use]
pub fn plan_delete(name: &ClusterName, cluster: &ClusterTree, now: u64) -> Draft {
    let key = || name.clone();
    let epoch = cluster.epoch.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record).next();
    let mut draft = Draft::new(format!("delete cluster {name}"));
    draft
        .guard(ClusterEpochKey { cluster: key() }.as_seen(cluster.epoch.as_deref()))
        .then(ClusterEpochKey { cluster: key() }.delete())
        .then(NodeNumberKey { cluster: key() }.delete())
        .then(MaxMemoryKey { cluster: key() }.delete())
        .then(ReplicasKey { cluster: key() }.delete())
        .then(ConfigKey { cluster: key() }.delete())
        .then(CreateNodesTaskKey { cluster: key() }.delete())
        .then(RebalanceTaskKey { cluster: key() }.delete())
        .then(ShardsOf { cluster: key() }.delete_all())
        .then(MovesOf { cluster: key() }.delete_all())
        .then(ProgressesOf { cluster: key() }.delete_all())
        .then(LastClusterEpochKey { cluster: key() }.put(&epoch))
        .then(DeletingKey { cluster: key() }.put(&seconds(now)))
        .then(RemoveNodesTaskKey { cluster: key() }.put(name))
        .then(BumpTaskKey { cluster: key() }.put(&seconds(now)));
    draft
}

/// The next transaction of `remove_nodes`: releases a batch of the deleted cluster's nodes; the last one
/// removes the task and frees the name, if no node was added in between.
#[must_use]
pub fn plan_release(tree: &Tree, name: &ClusterName, cluster: &ClusterTree, now: u64) -> Draft {
    let (task, deleting) =
        (RemoveNodesTaskKey { cluster: name.clone() }, DeletingKey { cluster: name.clone() });
    let mut draft = Draft::new(format!("release nodes of deleted cluster {name}"));
    draft
        .guard(task.as_seen(cluster.removing.as_deref()))
        .guard(deleting.as_seen(cluster.deleting.as_deref()))
        .guard(ClusterEpochKey { cluster: name.clone() }.absent());
    for seen in cluster.nodes.values().take(NODES_PER_TXN) {
        draft.release(tree, cluster, &seen.record, &format!("cluster {name} was deleted"), now);
    }
    if cluster.nodes.len() <= NODES_PER_TXN {
        draft
            .nothing_new(&NodesOf { cluster: name.clone() }, tree)
            .then(task.delete())
            .then(deleting.delete())
            .then(BumpTaskKey { cluster: name.clone() }.delete());
    }
    draft
}
