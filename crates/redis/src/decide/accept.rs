//! What may an operator decide where automation only waits? To continue with what is left, or to recover
//! data.

use super::draft::Draft;
use super::edit::Edit;
use super::replace::{
    OldPrimary, plan_give_up, plan_promote, plan_replace, replacement, replacement_at_home,
};
use crate::address::Address;
use crate::error::BrokerError;
use crate::facts::{ClusterTree, Tree};
use crate::keys::ClusterName;
use crate::status::NodeRecord;

/// The state of a shard whose primary restarted with an older snapshot.
const OLDER: &str = "older";

pub(crate) fn is_waiting(cluster: &ClusterTree, primary: &Address) -> bool {
    cluster.shards.get(primary).is_some_and(|shard| shard.record.waiting.is_some())
}

/// The transaction of [`accept_loss`](crate::broker::accept_loss), and the primary after it.
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
        edit.note(format!("continued with the older snapshot of {primary} in"), why);
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
