//! What follows from a failure? Pure: from reports in the tree and what proxies say about their nodes to the next
//! transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use capstan_control::failure::{Verdict, verdicts};
use tokio::time::Instant;

use super::board::ProxyFact;
use super::timing::Timing;
use crate::address::Address;
use crate::broker::{
    BrokerError, ClusterTree, Draft, OldPrimary, Tree, plan_drop_replica, plan_give_up, plan_promote,
    plan_replace, replacement, replacement_at_home,
};
use crate::keys::{ClusterName, Coordinators, FailureKey};
use crate::plan::Steps;
use crate::status::NodeRecord;

/// What a proxy says of its nodes is at most so old: how often its agent looks at them, and then some.
const SEEN_WITHIN: Duration = Duration::from_millis(600);

/// What is known of proxies, by address.
pub type Facts = BTreeMap<Address, ProxyFact>;

/// Steps because of proxies that enough coordinators cannot reach. Guarded by the reports that count, and by there
/// being no coordinator that was not counted.
#[must_use]
pub fn dead_proxies(tree: &Tree, facts: &Facts, timing: &Timing, now: u64) -> Steps {
    let mut steps = Steps::default();
    let judged = verdicts(&tree.reports(), &tree.alive(), timing.quorum());
    let dead: Vec<&Verdict<FailureKey>> = judged.iter().filter(|verdict| verdict.is_dead()).collect();
    let gone: BTreeSet<&Address> = tree.failures.iter().map(|(key, _)| &key.address).collect();
    for verdict in dead {
        for (name, node) in nodes_behind(tree, &verdict.suspect) {
            let Some(cluster) = tree.cluster(name) else { continue };
            let since = facts.get(&verdict.suspect).and_then(|fact| fact.missed_since);
            let step = Loss {
                tree,
                name,
                cluster,
                facts,
                gone: &gone,
                since,
                lost: false,
                why: "its proxy does not answer",
                now,
            };
            match step.of(node) {
                Ok(Some(mut draft)) => {
                    draft.guard_all(verdict.guards()).nothing_new(&Coordinators {}, tree);
                    steps.commits.push(draft);
                }
                Ok(None) => {
                    steps.waits.push(format!("node {}: waiting for what its replicas say", node.address))
                }
                Err(error) => steps.waits.push(format!("node {}: {error}", node.address)),
            }
        }
    }
    steps
}

/// Steps because of nodes that their own proxy calls lost, or down for too long.
pub(super) fn dead_nodes(tree: &Tree, facts: &Facts, timing: &Timing, at: Instant, now: u64) -> Steps {
    let mut steps = Steps::default();
    let gone: BTreeSet<&Address> = tree.failures.iter().map(|(key, _)| &key.address).collect();
    for (proxy, fact) in facts.iter().filter(|(proxy, fact)| fact.reached && !gone.contains(proxy)) {
        for (name, node) in nodes_behind(tree, proxy) {
            let Some(cluster) = tree.cluster(name) else { continue };
            let Some(ill) = fact.nodes.get(&node.address).filter(|node| !node.is_ready()) else { continue };
            let since = fact.ill_since.get(&node.address).copied();
            let ill_for = since.map_or(Duration::ZERO, |since| at.duration_since(since));
            let bound = if node.is_primary() && cluster.replicas_of(&node.address).next().is_none() {
                timing.lone_node_down
            } else {
                timing.node_down
            };
            if ill.health != "lost" && ill_for < bound {
                continue;
            }
            let why = if ill.health == "lost" { "it came back without its data" } else { "it is down" };
            let lost = ill.health == "lost";
            let step = Loss { tree, name, cluster, facts, gone: &gone, since, lost, why, now };
            match step.of(node) {
                Ok(Some(draft)) => steps.commits.push(draft),
                Ok(None) => {
                    steps.waits.push(format!("node {}: waiting for what its replicas say", node.address))
                }
                Err(error) => steps.waits.push(format!("node {}: {error}", node.address)),
            }
        }
    }
    steps
}

fn nodes_behind<'t>(tree: &'t Tree, proxy: &'t Address) -> Vec<(&'t ClusterName, &'t NodeRecord)> {
    let nodes = tree
        .active()
        .flat_map(|(name, cluster)| cluster.nodes.values().map(move |seen| (name, &seen.record)));
    nodes.filter(|(_, node)| node.proxy_address == *proxy).collect()
}

struct Loss<'l> {
    tree: &'l Tree,
    name: &'l ClusterName,
    cluster: &'l ClusterTree,
    facts: &'l Facts,
    gone: &'l BTreeSet<&'l Address>,
    /// When it was found out here.
    since: Option<Instant>,
    /// Its data is known to be gone.
    lost: bool,
    why: &'l str,
    now: u64,
}

impl Loss<'_> {
    /// What becomes of a lost node: a replica is replaced in time, a primary by its best replica, else by an empty
    /// node. Nothing while the replicas have not been heard.
    fn of(&self, node: &NodeRecord) -> Result<Option<Draft>, BrokerError> {
        let (tree, name) = (self.tree, self.name);
        if !node.is_primary() {
            return plan_drop_replica(tree, name, &node.address, self.why, self.now).map(Some);
        }
        let replicas: Vec<&NodeRecord> = self
            .cluster
            .replicas_of(&node.address)
            .map(|seen| &seen.record)
            .filter(|replica| !self.gone.contains(&replica.proxy_address))
            .collect();
        if replicas.is_empty() {
            let alone = self.cluster.replicas_of(&node.address).next().is_none();
            let place = match replacement(tree, name, &node.address, None) {
                // Its host is well, and there is nothing to wait for.
                Err(BrokerError::TooFewNodes { .. }) if self.lost && alone => {
                    replacement_at_home(tree, name, &node.address)
                }
                other => other,
            };
            return match place {
                Ok(place) => plan_replace(tree, name, &node.address, &place, self.why, self.now).map(Some),
                // The same node can be emptied and taken again.
                Err(BrokerError::TooFewNodes { .. }) if self.lost && alone => {
                    plan_give_up(tree, name, &node.address, self.why, self.now).map(Some)
                }
                Err(error) => Err(error),
            };
        }
        match self.best(&replicas) {
            Some(replica) => plan_promote(tree, name, replica, OldPrimary::Leaves, self.now).map(Some),
            None => Ok(None),
        }
    }

    /// The replica that has most of the stream of writes; nothing until every replica that can be heard was. Where there
    /// is a choice, what was heard before the primary was gone says nothing: its last writes may have come after it.
    fn best<'r>(&self, replicas: &[&'r NodeRecord]) -> Option<&'r Address> {
        let since = self.since.filter(|_| replicas.len() > 1).map(|since| since + SEEN_WITHIN);
        let offset = |replica: &&NodeRecord| {
            let fact = self.facts.get(&replica.proxy_address)?;
            fact.nodes_at.filter(|at| since.is_none_or(|since| *at >= since))?;
            // An external node, or a proxy that does not look after its nodes: nothing is known of it.
            Some(
                fact.nodes
                    .get(&replica.address)
                    .map_or(0, |node| if node.health == "lost" { 0 } else { node.offset }),
            )
        };
        let heard: Option<Vec<u64>> = replicas.iter().map(offset).collect();
        let offsets = heard?;
        let ranked = replicas
            .iter()
            .zip(offsets)
            .max_by_key(|(replica, offset)| (*offset, std::cmp::Reverse(&replica.address)));
        ranked.map(|(replica, _)| &replica.address)
    }
}

#[cfg(test)]
mod tests;
