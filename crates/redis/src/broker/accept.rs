//! What may an operator decide where automation only waits? To continue with what is left, or to recover
//! data.

use capstan_meta::{Store, clock};

use super::draft::Draft;
use super::edit::Edit;
use super::error::BrokerError;
use super::replace::{
    OldPrimary, plan_give_up, plan_promote, plan_replace, plan_replace_as, replacement, replacement_at_home,
};
use super::settle::{Next, settle};
use super::tree::{ClusterTree, Tree};
use crate::address::Address;
use crate::keys::ClusterName;
use crate::shard::ShardRecord;
use crate::status::{NodeRecord, Place};

/// The state of a shard whose primary restarted with an older snapshot.
const OLDER: &str = "older";

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

fn is_waiting(cluster: &ClusterTree, primary: &Address) -> bool {
    cluster.shards.get(primary).is_some_and(|shard| shard.record.waiting.is_some())
}

/// The transaction of [`accept_loss`], and the primary after it.
pub fn plan_accept_loss(
    tree: &Tree,
    name: &ClusterName,
    primary: &Address,
    with: Option<&Address>,
    now: u64,
) -> Result<(Draft, Option<Address>), BrokerError> {
    let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
    let wrong = |why: &str| BrokerError::WrongRole {
        cluster: name.clone(),
        node: primary.clone(),
        why: why.to_owned(),
    };
    let waiting = cluster.shards.get(primary).and_then(|shard| shard.record.waiting.as_ref());
    let waiting = waiting.ok_or_else(|| {
        wrong("its shard is not waiting, so there is no loss to accept; `capstan redis check` lists shards that are")
    })?;
    let replica = successor(tree, cluster, primary, with);
    if with.is_some() && replica.is_none() {
        return Err(wrong("it has no such replica on a reachable host"));
    }
    let why = "an operator accepted the loss of its data";
    if let Some(replica) = replica {
        let draft = plan_promote(tree, name, &replica, OldPrimary::Leaves, now)?;
        return Ok((draft, Some(replica)));
    }
    if waiting.state == OLDER {
        let mut edit = Edit::of(tree, name)?;
        let shard = edit.take_shard(primary).forked_to(primary);
        edit.shards.insert(primary.clone(), shard);
        let what = format!("continue with the older snapshot of {primary} of cluster {name}");
        return Ok((edit.finish(what, now), Some(primary.clone())));
    }
    let place = match replacement(tree, name, primary, None) {
        Err(BrokerError::TooFewNodes { .. }) => replacement_at_home(tree, name, primary),
        other => other,
    };
    match place {
        Ok(place) => {
            let draft = plan_replace(tree, name, primary, &place, why, now)?;
            Ok((draft, Some(place.node)))
        }
        Err(BrokerError::TooFewNodes { .. }) if cluster.replicas_of(primary).next().is_none() => {
            Ok((plan_give_up(tree, name, primary, why, now)?, None))
        }
        Err(error) => Err(error),
    }
}

/// The named replica; else a member of the in-sync set, else any, on a host that no coordinator reports.
fn successor(
    tree: &Tree,
    cluster: &ClusterTree,
    primary: &Address,
    with: Option<&Address>,
) -> Option<Address> {
    let reported =
        |node: &&NodeRecord| !tree.failures.iter().any(|(key, _)| key.address == node.proxy_address);
    let shard = cluster.shards.get(primary).map(|seen| &seen.record);
    let replicas = cluster.replicas_of(primary).map(|seen| &seen.record).filter(reported);
    let fit = replicas.filter(|node| with.is_none_or(|with| *with == node.address));
    let member = |node: &NodeRecord| shard.is_some_and(|shard| shard.may_promote(&node.address));
    fit.max_by_key(|node| (member(node), std::cmp::Reverse(&node.address))).map(|node| node.address.clone())
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
        let place = super::create::choose(tree, cluster, Some(node), &Default::default())?;
        let now = clock::since_epoch().as_secs();
        plan_replace_as(tree, name, primary, &place, (why, now), ShardRecord::recovered_by).map(Next::Commit)
    })
    .await
}
