//! How does this service answer a drain? Pure.
//!
//! Primaries hand over to a replica that is in sync if there is one; otherwise their slots move to the
//! cluster's other primaries. A host is drained when nothing on it has slots and its proxy redirects its
//! clients. Replicas may stay: nothing is lost with them. After an undrain, slots are spread evenly again.

use std::collections::BTreeSet;

use capstan_control::drain::{Answer, FailureUnit, Intent, Question, questions};
use capstan_control::keys::{HostKey, ServiceName};
use capstan_meta::Txn;
use capstan_meta::view::Snapshot;

use crate::address::Address;
use crate::board::ProxyFact;
use crate::decide::Steps;
use crate::decide::content::Content;
use crate::decide::heal::Facts;
use crate::decide::in_sync::IN_SYNC_BYTES;
use crate::decide::{
    Draft, OldPrimary, Pool, on_draining, plan_create_node, plan_promote, plan_rebalance, plan_shifts,
    plan_spread,
};
use crate::facts::{ClusterTree, PROXY_ADDRESS, Tree};
use crate::keys::ClusterName;

/// The name of this service in drains.
pub const SERVICE: &str = "redis";

/// The answers, and the steps toward better ones.
pub(crate) fn answers(snapshot: &Snapshot, tree: &Tree, facts: &Facts, now: u64) -> (Steps, Vec<Txn>) {
    let mut steps = Steps::default();
    let Ok(service) = SERVICE.parse::<ServiceName>() else { return (steps, Vec::new()) };
    let mut answers = Vec::new();
    for question in questions(snapshot, &service) {
        let proxy = proxy_of(snapshot, &question);
        let units = proxy.as_ref().map(|proxy| units(tree, proxy)).unwrap_or_default();
        let say = match proxy {
            // Without a proxy, the host has nothing of this service.
            None if question.intent() == Intent::Drain => Answer::Drained,
            None => Answer::Healthy,
            Some(proxy) => match question.intent() {
                Intent::Drain => empty(tree, facts, &proxy, now, &mut steps),
                Intent::Return => take_up(tree, facts, &proxy, now, &mut steps),
            },
        };
        answers.extend(question.answer_holding(say, units, now));
    }
    (steps, answers)
}

fn proxy_of(snapshot: &Snapshot, question: &Question) -> Option<Address> {
    let host = snapshot.get(&HostKey { host: question.host.clone() }).ok().flatten()?;
    host.record.addresses.get(PROXY_ADDRESS)?.parse().ok()
}

/// The shards with a node on a host, including replicas: they stay there while it is drained.
fn units(tree: &Tree, proxy: &Address) -> Vec<FailureUnit> {
    let here = tree.active().flat_map(|(name, cluster)| {
        let nodes = cluster.nodes.values().map(|seen| &seen.record);
        let nodes = nodes.filter(|node| node.proxy_address == *proxy);
        nodes.map(move |node| shard_unit(name, cluster, node.replica_of.as_ref().unwrap_or(&node.address)))
    });
    let units: BTreeSet<FailureUnit> = here.collect();
    units.into_iter().collect()
}

/// A shard keeps its name when its primary changes.
fn shard_unit(name: &ClusterName, cluster: &ClusterTree, primary: &Address) -> FailureUnit {
    let shard = cluster.shards.get(primary).map_or(primary.as_str(), |seen| &seen.record.id);
    FailureUnit(format!("{SERVICE}/{name}/{shard}"))
}

fn on_host<'t>(
    tree: &'t Tree,
    proxy: &'t Address,
) -> impl Iterator<Item = (&'t ClusterName, &'t ClusterTree)> {
    tree.active().filter(move |(_, cluster)| cluster.proxies().contains(proxy))
}

fn empty(tree: &Tree, facts: &Facts, proxy: &Address, now: u64, steps: &mut Steps) -> Answer {
    let mut left = Vec::new();
    for (name, cluster) in on_host(tree, proxy) {
        let here =
            |node: &Address| cluster.nodes.get(node).is_some_and(|seen| seen.record.proxy_address == *proxy);
        let slots: u32 = cluster
            .primaries()
            .filter(|node| here(&node.record.address))
            .map(|node| node.record.slot_count())
            .sum();
        let moves = cluster
            .moves
            .values()
            .filter(|m| here(&m.record.source.node) || here(&m.record.target.node))
            .count();
        if slots == 0 && moves == 0 {
            continue;
        }
        match leave(tree, facts, name, cluster, proxy, now) {
            Ok(draft) => {
                steps.commits.extend(draft);
                left.push(format!("{slots} slots of cluster {name} are on it ({moves} moves in progress)"));
            }
            Err(why) => left.push(format!("{slots} slots of cluster {name} are on it: {why}")),
        }
    }
    if left.is_empty() && keeps_clients(tree, facts, proxy) {
        left.push(format!("proxy {proxy} keeps clients waiting until it gets the new owners of their slots"));
    }
    if left.is_empty() { Answer::Drained } else { Answer::Pending { reason: left.join("; ") } }
}

/// Whether a reachable proxy has pushes outstanding. It gets the new owners of slots when those have
/// confirmed.
fn keeps_clients(tree: &Tree, facts: &Facts, proxy: &Address) -> bool {
    let is_current = |fact: &ProxyFact| {
        let known = fact.confirmed.as_deref();
        known.is_some() && known == Content::of(tree, proxy).as_ref()
    };
    let has_served = on_host(tree, proxy).next().is_some();
    has_served && facts.get(proxy).is_some_and(|fact| fact.reached && !is_current(fact))
}

/// The next step that takes slots of a cluster away from a host; nothing while moves are in progress.
fn leave(
    tree: &Tree,
    facts: &Facts,
    name: &ClusterName,
    cluster: &ClusterTree,
    proxy: &Address,
    now: u64,
) -> Result<Option<Draft>, String> {
    let here = cluster
        .primaries()
        .filter(|node| node.record.proxy_address == *proxy && node.record.slot_count() > 0);
    for primary in here {
        if let Some(replica) = in_sync(tree, facts, cluster, &primary.record.address) {
            let draft = plan_promote(tree, name, &replica, OldPrimary::Follows, now);
            return draft.map(Some).map_err(|error| error.to_string());
        }
    }
    if !cluster.moves.is_empty() || cluster.creating.is_some() {
        return Ok(None);
    }
    let leaving = on_draining(tree, cluster);
    if cluster.primaries().all(|node| leaving.contains(&node.record.address)) {
        let Some(place) = Pool::of(tree, Some(cluster)).take(&BTreeSet::new()) else {
            return Err(
                "no other node of the cluster can take them, and no node is free elsewhere".to_owned()
            );
        };
        return plan_create_node(tree, name, &place, now).map(Some).map_err(|error| error.to_string());
    }
    let shifts = plan_spread(cluster, &leaving).map_err(|error| error.to_string())?;
    if shifts.is_empty() {
        return Ok(None);
    }
    let why = format!("host {proxy} is being drained");
    plan_shifts(tree, name, &shifts, &why, now).map(Some).map_err(|error| error.to_string())
}

/// A replica elsewhere that is about in sync with its primary.
fn in_sync(tree: &Tree, facts: &Facts, cluster: &ClusterTree, primary: &Address) -> Option<Address> {
    let offset = |proxy: &Address, node: &Address| facts.get(proxy)?.nodes.get(node).cloned();
    let seen = cluster.nodes.get(primary)?;
    let own = offset(&seen.record.proxy_address, primary)?.offset;
    let reported = |proxy: &Address| tree.failures.iter().any(|(key, _)| key.address == *proxy);
    let shard = &cluster.shards.get(primary)?.record;
    let replicas = cluster.replicas_of(primary).map(|seen| &seen.record);
    let fit = replicas
        .filter(|node| shard.may_promote(&node.address))
        .filter(|node| !tree.draining.contains(&node.proxy_address) && !reported(&node.proxy_address));
    let known = fit.filter_map(|node| Some((offset(&node.proxy_address, &node.address)?, node)));
    let synced = known.filter(|(fact, _)| {
        let follows = fact.is_ready() && fact.linked && fact.replica_of.as_ref() == Some(primary);
        follows && own.saturating_sub(fact.offset) <= IN_SYNC_BYTES
    });
    synced.max_by_key(|(fact, _)| fact.offset).map(|(_, node)| node.address.clone())
}

fn take_up(tree: &Tree, facts: &Facts, proxy: &Address, now: u64, steps: &mut Steps) -> Answer {
    if !facts.get(proxy).is_some_and(|fact| fact.reached && fact.confirmed.is_some())
        && tree.host(proxy).is_some()
    {
        return Answer::Pending { reason: format!("proxy {proxy} has not confirmed its content") };
    }
    for (name, cluster) in on_host(tree, proxy) {
        let idle = cluster
            .primaries()
            .any(|node| node.record.proxy_address == *proxy && node.record.slots.is_empty());
        if idle && cluster.rebalance.is_none() && cluster.moves.is_empty() {
            steps.commits.extend(plan_rebalance(tree, name, now));
        }
    }
    Answer::Healthy
}

#[cfg(test)]
mod tests;
