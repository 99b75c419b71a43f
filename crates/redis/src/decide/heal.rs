//! What follows from a failure? Pure: from reports in the tree and the proxies' reports about their nodes to
//! the next transaction.
//!
//! An unhealthy primary is succeeded only by a member of its shard's in-sync set. If no member can be
//! promoted, the shard waits: for its primary, which may have the data on disk, or for a host that returns.
//! Only a cluster that was created as a cache continues empty. What the shard waits for is written into its
//! record, for operators.

mod shard;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::verdict::{Dead, dead};
use crate::address::Address;
use crate::agent::Health;
use crate::board::ProxyFact;
use crate::decide::Draft;
use crate::decide::Steps;
use crate::facts::Tree;
use crate::keys::ClusterName;
use crate::status::NodeRecord;
use crate::timing::Timing;
use shard::{Next, Patient, Trouble};

/// The largest age of a proxy's report about its nodes: the interval of its agent's checks, and a margin.
pub(crate) const SEEN_WITHIN: Duration = Duration::from_millis(600);

/// The facts of proxies, by address.
pub type Facts = BTreeMap<Address, ProxyFact>;

/// The input of decisions about failures.
#[derive(Clone, Copy)]
pub struct Sight<'s> {
    /// The metadata.
    pub tree: &'s Tree,
    /// The proxies' reports.
    pub facts: &'s Facts,
    /// The coordinator's timing.
    pub timing: &'s Timing,
    /// Now, by the clock of this process.
    pub at: Instant,
    /// Now, in seconds since 1970.
    pub now: u64,
}

/// Steps because of proxies that enough coordinators cannot reach. Guarded by the counted reports, and by the
/// absence of coordinators that were not counted.
#[must_use]
pub fn dead_proxies(sight: Sight<'_>) -> Steps {
    let mut steps = Steps::default();
    let tree = sight.tree;
    let gone = gone(tree);
    for Dead { proxy, guards } in dead(tree, sight.timing.quorum()) {
        let since = sight.facts.get(&proxy).and_then(|fact| fact.missed_since);
        for (name, node) in nodes_behind(tree, &proxy) {
            let patient = Patient {
                sight,
                name,
                node,
                gone: &gone,
                trouble: Trouble::Unreachable,
                since,
                stuck: since,
            };
            let guard = |mut draft: Draft| {
                draft.guard_all(guards.iter().cloned());
                draft
            };
            add(&mut steps, node, patient.next(), guard);
        }
    }
    steps
}

/// Steps because of nodes that their own proxy reports as unhealthy.
#[must_use]
pub fn dead_nodes(sight: Sight<'_>) -> Steps {
    let mut steps = Steps::default();
    let gone = gone(sight.tree);
    for (proxy, fact) in sight.facts.iter().filter(|(proxy, fact)| fact.reached && !gone.contains(proxy)) {
        for (name, node) in nodes_behind(sight.tree, proxy) {
            let Some(trouble) = fact.nodes.get(&node.address).and_then(|seen| trouble(seen.health)) else {
                continue;
            };
            let since = fact.ill_since.get(&node.address).copied();
            let stuck = fact.stuck_since.get(&node.address).copied();
            let patient = Patient { sight, name, node, gone: &gone, trouble, since, stuck };
            add(&mut steps, node, patient.next(), |draft| draft);
        }
    }
    steps
}

fn add(steps: &mut Steps, node: &NodeRecord, next: Next, guard: impl Fn(Draft) -> Draft) {
    match next {
        Next::Well => {}
        Next::Commit(draft) => steps.commits.push(guard(*draft)),
        Next::Wait { why, note } => {
            steps.waits.push(format!("node {}: {why}", node.address));
            steps.commits.extend(note.map(|note| guard(*note)));
        }
    }
}

/// The trouble of a node with this health.
fn trouble(health: Health) -> Option<Trouble> {
    match health {
        Health::Ready | Health::Syncing => None,
        Health::Loading => Some(Trouble::Loading),
        Health::Busy => Some(Trouble::Busy),
        Health::TakingOver => Some(Trouble::TakingOver),
        Health::Frozen => Some(Trouble::Frozen),
        Health::Down => Some(Trouble::Down),
        Health::Older => Some(Trouble::Older),
        Health::Lost => Some(Trouble::Lost),
    }
}

/// The proxies that any coordinator reports: they are not chosen for anything.
fn gone(tree: &Tree) -> BTreeSet<&Address> {
    tree.failures.iter().map(|(key, _)| &key.address).collect()
}

fn nodes_behind<'t>(tree: &'t Tree, proxy: &'t Address) -> Vec<(&'t ClusterName, &'t NodeRecord)> {
    let nodes = tree
        .active()
        .flat_map(|(name, cluster)| cluster.nodes.values().map(move |seen| (name, &seen.record)));
    nodes.filter(|(_, node)| node.proxy_address == *proxy).collect()
}

#[cfg(test)]
mod tests;
