//! The operations on clusters and hosts: each a shell that reads the tree, has [`decide`](crate::decide) plan the next
//! transaction, commits it, and reads again ([`settle`]) until nothing is left to do. An operation of several
//! transactions is recorded in the first; if it is interrupted, the coordinators complete it with the same planners.

use std::collections::BTreeSet;

use capstan_control::epoch::Epoch;
use capstan_meta::{Store, clock};

use crate::address::Address;
use crate::commit::{Next, settle};
use crate::decide::*;
use crate::error::BrokerError;
use crate::facts::ClusterTree;
use crate::keys::ClusterName;
use crate::shard::ShardRecord;
use crate::spec::{ClusterSpec, MAX_NODES_PER_HOST, User};
use crate::status::{MoveId, Place};

/// Accepts that a shard continues without data that no reachable node has: with a replica that may lack some
/// of it, else with an empty node. Refused while the shard is served. Returns the new primary; `None` if one
/// has to be found first.
pub async fn accept_loss(
    store: &Store,
    name: &ClusterName,
    primary: &Address,
    with: Option<&Address>,
) -> Result<Option<Address>, BrokerError> {
    let mut chosen: Option<Option<Address>> = None;
    settle(store, &format!("the shard of {primary} of cluster {name}"), |tree, progress| {
        let waits = tree.cluster(name).is_some_and(|cluster| is_waiting(cluster, primary));
        if let Some(node) = chosen.clone().filter(|_| progress.maybe_ours() && !waits) {
            return Ok(Next::Done(node));
        }
        let (draft, node) = plan_accept_loss(tree, name, primary, with, clock::since_epoch().as_secs())?;
        chosen = Some(node);
        Ok(Next::Commit(draft))
    })
    .await
}

/// Recovers data that a node held before it left the cluster: the node, which must be free, becomes the
/// shard's primary again with the data that its host set aside. The present primary leaves, and its own data
/// is set aside.
pub async fn recover(
    store: &Store,
    name: &ClusterName,
    primary: &Address,
    node: &Address,
) -> Result<Place, BrokerError> {
    let why = "an operator recovered data that was set aside";
    settle(store, &format!("the shard of {primary} of cluster {name}"), |tree, progress| {
        let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
        if let Some(seen) = cluster.nodes.get(node).filter(|_| progress.maybe_ours()) {
            let (proxy, node) = (seen.record.proxy_address.clone(), node.clone());
            return Ok(Next::Done(Place { proxy, node }));
        }
        if !cluster.nodes.get(primary).is_some_and(|seen| seen.record.is_primary()) {
            return Err(BrokerError::NoNode { cluster: name.clone(), node: primary.clone() });
        }
        let place = choose(tree, cluster, Some(node), &BTreeSet::new())?;
        let now = clock::since_epoch().as_secs();
        plan_replace_as(tree, name, primary, &place, (why, now), ShardRecord::recovered_by).map(Next::Commit)
    })
    .await
}

/// Creates a cluster: first its specification and epoch, together with the task that completes it; then its
/// nodes, in as few transactions as the store accepts. If it is interrupted, any coordinator completes the
/// task.
pub async fn create_cluster(
    store: &Store,
    name: &ClusterName,
    spec: &ClusterSpec,
) -> Result<(), BrokerError> {
    check_request(name, spec)?;
    let request = format!("{:016x}", rand::random::<u64>());
    settle(store, &format!("cluster {name}"), |tree, progress| {
        let now = clock::since_epoch().as_secs();
        match tree.cluster(name) {
            None if progress.committed > 0 => Ok(Next::Done(())),
            None => plan_create(tree, name, spec, &request, now).map(Next::Commit),
            Some(cluster) if !is_ours(cluster, &request) => Err(BrokerError::ClusterExists(name.clone())),
            Some(cluster) => match plan_nodes(tree, name, cluster, now) {
                Creation::Complete => Ok(Next::Done(())),
                Creation::Next(draft) => Ok(Next::Commit(draft)),
                // The task stays: it is completed as soon as there are nodes.
                Creation::Lacks(lacking) => Err(too_few(&lacking)),
            },
        }
    })
    .await
}

/// Create Node: one more primary, without slots; a free node of the broker's choice, or the named one.
pub async fn create_node(
    store: &Store,
    name: &ClusterName,
    wanted: Option<&Address>,
) -> Result<Place, BrokerError> {
    let mut chosen: Option<Place> = None;
    settle(store, &format!("cluster {name}"), |tree, progress| {
        let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
        if let Some(place) =
            chosen.as_ref().filter(|place| progress.maybe_ours() && cluster.nodes.contains_key(&place.node))
        {
            return Ok(Next::Done(place.clone()));
        }
        let place = choose(tree, cluster, wanted, &BTreeSet::new())?;
        chosen = Some(place.clone());
        plan_create_node(tree, name, &place, clock::since_epoch().as_secs()).map(Next::Commit)
    })
    .await
}

/// Registers a host: its proxy and its nodes, all free.
pub async fn add_host(store: &Store, proxy: &Address, nodes: &[Address]) -> Result<Change, BrokerError> {
    let nodes: BTreeSet<Address> = nodes.iter().cloned().collect();
    if nodes.is_empty() || nodes.len() > MAX_NODES_PER_HOST {
        let text =
            format!("host {proxy}: a host has between 1 and {MAX_NODES_PER_HOST} nodes, not {}", nodes.len());
        return Err(BrokerError::Invalid(text));
    }
    settle(store, &format!("host {proxy}"), |tree, progress| plan_add(tree, proxy, &nodes, progress)).await
}

/// Removes a host from the pool. None of its nodes may be in use.
pub async fn remove_host(store: &Store, proxy: &Address) -> Result<Change, BrokerError> {
    settle(store, &format!("host {proxy}"), |tree, progress| plan_remove(tree, proxy, progress)).await
}

/// Frees an emptied node, see [`plan_end_quarantine`]. Already free is fine.
pub async fn end_quarantine(store: &Store, place: &Place, emptied_at: Epoch) -> Result<Change, BrokerError> {
    settle(store, &format!("node {place}"), |tree, progress| {
        Ok(match plan_end_quarantine(tree, place, emptied_at) {
            Some(draft) => Next::Commit(draft),
            None => Next::Done(Change::found(progress)),
        })
    })
    .await
}

/// Raises the epoch of a host above its proxy's: the tree was restored from a backup, or the proxy was used
/// elsewhere before.
pub async fn raise_host_epoch(store: &Store, proxy: &Address, known: Epoch) -> Result<Change, BrokerError> {
    settle(store, &format!("host {proxy}"), |tree, progress| {
        Ok(match plan_raise_epoch(tree, proxy, known)? {
            Some(draft) => Next::Commit(draft),
            None => Next::Done(Change::found(progress)),
        })
    })
    .await
}

/// Begins to move slots to a node. Slots of several owners become several moves.
pub async fn begin_move(
    store: &Store,
    name: &ClusterName,
    wish: &Wish,
    why: &str,
) -> Result<Vec<MoveId>, BrokerError> {
    let request = format!("{:016x}", rand::random::<u64>());
    let mut begun = Vec::new();
    settle(store, &format!("cluster {name}"), |tree, progress| {
        if progress.committed > 0 {
            return Ok(Next::Done(begun.clone()));
        }
        if progress.unknown {
            let ours = |cluster: &ClusterTree| -> Vec<MoveId> {
                cluster
                    .moves
                    .iter()
                    .filter(|(_, seen)| seen.record.request == request)
                    .map(|(id, _)| *id)
                    .collect()
            };
            let found = tree.cluster(name).map(ours).unwrap_or_default();
            if !found.is_empty() {
                return Ok(Next::Done(found));
            }
        }
        let now = clock::since_epoch().as_secs();
        let (draft, ids) = plan_begin(tree, name, std::slice::from_ref(wish), why, &request, now)?;
        begun = ids;
        Ok(Next::Commit(draft))
    })
    .await
}

/// Commits a move that its source has released. Already committed is fine: another coordinator was faster.
pub async fn commit_move(
    store: &Store,
    name: &ClusterName,
    id: MoveId,
    released_at: Epoch,
) -> Result<(), BrokerError> {
    settle(store, &format!("move {id} of cluster {name}"), |tree, _| {
        match plan_commit(tree, name, id, released_at, clock::since_epoch().as_secs()) {
            Ok(draft) => Ok(Next::Commit(draft)),
            Err(BrokerError::NoMove { .. } | BrokerError::NoCluster(_)) => Ok(Next::Done(())),
            Err(error) => Err(error),
        }
    })
    .await
}

/// Cancels a move. Possible until the move is committed.
pub async fn cancel_move(store: &Store, name: &ClusterName, id: MoveId) -> Result<(), BrokerError> {
    settle(store, &format!("move {id} of cluster {name}"), |tree, progress| {
        match plan_cancel(tree, name, id, clock::since_epoch().as_secs()) {
            Ok(draft) => Ok(Next::Commit(draft)),
            Err(BrokerError::NoMove { .. }) if progress.maybe_ours() => Ok(Next::Done(())),
            Err(error) => Err(error),
        }
    })
    .await
}

/// Changes the target of a move.
pub async fn retarget_move(
    store: &Store,
    name: &ClusterName,
    id: MoveId,
    target: &Address,
) -> Result<(), BrokerError> {
    settle(store, &format!("move {id} of cluster {name}"), |tree, progress| {
        let aimed = |cluster: &ClusterTree| {
            cluster.moves.get(&id).is_some_and(|seen| seen.record.target.node == *target)
        };
        if tree.cluster(name).is_some_and(aimed) {
            return Ok(Next::Done(()));
        }
        match plan_retarget(tree, name, id, target, clock::since_epoch().as_secs()) {
            Ok(draft) => Ok(Next::Commit(draft)),
            Err(BrokerError::NoMove { .. }) if progress.maybe_ours() => Ok(Next::Done(())),
            Err(error) => Err(error),
        }
    })
    .await
}

/// Delete Node: a primary without slots leaves together with its replicas; a replica leaves if there are more
/// than the specification requires.
pub async fn delete_node(store: &Store, name: &ClusterName, node: &Address) -> Result<(), BrokerError> {
    settle(store, &format!("cluster {name}"), |tree, progress| {
        let gone = tree.cluster(name).is_some_and(|cluster| !cluster.nodes.contains_key(node));
        if gone && progress.maybe_ours() {
            return Ok(Next::Done(()));
        }
        plan_delete_node(tree, name, node, clock::since_epoch().as_secs()).map(Next::Commit)
    })
    .await
}

/// Delete Cluster: the first transaction deletes the cluster and records the rest; the others release its
/// nodes. Returns when the last node is released; if it is interrupted, any coordinator completes the task.
pub async fn delete_cluster(store: &Store, name: &ClusterName) -> Result<(), BrokerError> {
    settle(store, &format!("cluster {name}"), |tree, progress| {
        let now = clock::since_epoch().as_secs();
        let cluster = tree.clusters.get(name);
        match cluster {
            Some(cluster) if cluster.exists() && progress.committed == 0 => {
                Ok(Next::Commit(plan_delete(name, cluster, now)))
            }
            Some(cluster) if cluster.removing.is_some() && !cluster.exists() => {
                Ok(Next::Commit(plan_release(tree, name, cluster, now)))
            }
            Some(_) | None if progress.maybe_ours() => Ok(Next::Done(())),
            Some(_) | None => Err(BrokerError::NoCluster(name.clone())),
        }
    })
    .await
}

/// Replace Node: another node takes over role and slots, tags included; the old one goes to quarantine. The
/// new node is empty: data that only the old one had is lost, so a replica is promoted if there is one.
pub async fn replace_node(
    store: &Store,
    name: &ClusterName,
    old: &Address,
    new: Option<&Address>,
    why: &str,
) -> Result<Place, BrokerError> {
    let mut chosen: Option<Place> = None;
    settle(store, &format!("node {old} of cluster {name}"), |tree, progress| {
        let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
        let done =
            |place: &&Place| cluster.nodes.contains_key(&place.node) && !cluster.nodes.contains_key(old);
        if let Some(place) = chosen.as_ref().filter(done).filter(|_| progress.maybe_ours()) {
            return Ok(Next::Done(place.clone()));
        }
        let place = replacement(tree, name, old, new)?;
        chosen = Some(place.clone());
        plan_replace(tree, name, old, &place, why, clock::since_epoch().as_secs()).map(Next::Commit)
    })
    .await
}

/// Promotes a replica. Already promoted is fine.
pub async fn promote(
    store: &Store,
    name: &ClusterName,
    replica: &Address,
    old: OldPrimary,
) -> Result<(), BrokerError> {
    settle(store, &format!("node {replica} of cluster {name}"), |tree, progress| {
        let node = tree.cluster(name).and_then(|cluster| cluster.nodes.get(replica));
        if node.is_some_and(|node| node.record.is_primary()) && progress.maybe_ours() {
            return Ok(Next::Done(()));
        }
        plan_promote(tree, name, replica, old, clock::since_epoch().as_secs()).map(Next::Commit)
    })
    .await
}

/// Changes the number of a cluster's primaries. The rest (nodes, moves, retirements) is recorded in the same
/// transaction and completed by coordinators.
pub async fn scale(store: &Store, name: &ClusterName, nodes: u32) -> Result<Change, BrokerError> {
    settle(store, &format!("cluster {name}"), |tree, progress| {
        let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
        if cluster.wanted_primaries() == nodes as usize {
            return Ok(Next::Done(if progress.maybe_ours() { Change::Made } else { Change::Already }));
        }
        plan_resize(tree, name, nodes, clock::since_epoch().as_secs()).map(Next::Commit)
    })
    .await
}

/// Spreads a cluster's slots evenly over the nodes that it has.
pub async fn rebalance(store: &Store, name: &ClusterName) -> Result<Change, BrokerError> {
    settle(store, &format!("cluster {name}"), |tree, progress| {
        let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
        if progress.maybe_ours() || cluster.rebalance.is_some() {
            return Ok(Next::Done(if progress.maybe_ours() { Change::Made } else { Change::Already }));
        }
        plan_rebalance(tree, name, clock::since_epoch().as_secs()).map(Next::Commit)
    })
    .await
}

/// Completes the task, if there is one.
pub async fn bump_hosts(store: &Store, name: &ClusterName) -> Result<(), BrokerError> {
    settle(store, &format!("the hosts of cluster {name}"), |tree, _| {
        let draft = tree.clusters.get(name).and_then(|cluster| plan_bump(tree, name, cluster));
        Ok(draft.map_or(Next::Done(()), Next::Commit))
    })
    .await
}

/// Applies ACL rules to a user; a new one begins without any permission. The first user of a cluster gets company:
/// `default` keeps the permissions that every client had until then, as in Redis.
pub async fn change_user(
    store: &Store,
    name: &ClusterName,
    user: &str,
    rules: &str,
) -> Result<UserChange, BrokerError> {
    check_name(user)?;
    let mut planned: Option<Vec<User>> = None;
    settle(store, &format!("the users of cluster {name}"), |tree, progress| {
        let (cluster, config) = configured(tree, name)?;
        let users = &config.serving.users;
        if progress.maybe_ours() && planned.as_ref() == Some(users) {
            return Ok(Next::Done(changed(Change::Made, users, user)?));
        }
        let after = with_rules(users, user, rules)?;
        if after == *users {
            return Ok(Next::Done(changed(Change::Already, users, user)?));
        }
        let made = changed(Change::Made, &after, user)?;
        planned = Some(after.clone());
        Ok(Next::Last(plan_users(tree, name, cluster, config, after, clock::since_epoch().as_secs()), made))
    })
    .await
}

/// Deletes a user; its clients are disconnected.
pub async fn delete_user(store: &Store, name: &ClusterName, user: &str) -> Result<(), BrokerError> {
    settle(store, &format!("the users of cluster {name}"), |tree, progress| {
        let (cluster, config) = configured(tree, name)?;
        let users = &config.serving.users;
        if !users.iter().any(|known| known.name == user) {
            let no_user = || BrokerError::NoUser { cluster: name.clone(), user: user.to_owned() };
            return if progress.maybe_ours() { Ok(Next::Done(())) } else { Err(no_user()) };
        }
        let after = without(name, users, user)?;
        Ok(Next::Last(plan_users(tree, name, cluster, config, after, clock::since_epoch().as_secs()), ()))
    })
    .await
}
