//! Scale: how does a cluster grow or shrink? Its slots are then spread over its nodes.

use std::collections::{BTreeMap, BTreeSet};

use capstan_meta::record::Key;
use capstan_placement::slots::{SlotMap, SlotPlan, plan_slots};
use capstan_placement::{Cluster, Copies, Node, NodeName, NodeState};

use super::draft::{Draft, NODES_PER_TXN};
use super::edit::Edit;
use super::moves::{MOVES_PER_TXN, Wish, plan_begin};
use super::place::{Missing, missing};
use crate::address::Address;
use crate::error::BrokerError;
use crate::facts::{ClusterTree, Tree};
use crate::keys::*;
use crate::slots::SlotRange;
use crate::spec::MAX_NODES;
use crate::status::Rebalance;

/// Slots that pass from one node to another.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Shift {
    /// Which slots.
    pub slots: SlotRange,
    /// The current owner; `None` without one.
    pub from: Option<Address>,
    /// The new owner.
    pub to: Address,
}

/// The shifts that spread a cluster's slots evenly over its primaries, without the retiring ones.
pub fn plan_spread(cluster: &ClusterTree, retiring: &BTreeSet<Address>) -> Result<Vec<Shift>, BrokerError> {
    let primaries: Vec<&Address> = cluster.primaries().map(|node| &node.record.address).collect();
    let plan = spread(cluster, &primaries, retiring)?;
    let address = |name: &NodeName| {
        let at: Option<usize> = name.as_str().parse().ok();
        at.and_then(|at| primaries.get(at)).map(|address| (*address).clone())
    };
    let shift = |step: &capstan_placement::slots::SlotMove| {
        let from = step.from.as_ref().and_then(address);
        Some(Shift { slots: step.slots, from, to: address(&step.to)? })
    };
    Ok(plan.moves.iter().filter_map(shift).collect())
}

/// The planner's names are positions: an address may contain characters that a name may not.
fn spread(
    cluster: &ClusterTree,
    primaries: &[&Address],
    retiring: &BTreeSet<Address>,
) -> Result<SlotPlan, BrokerError> {
    let unplannable = |error: capstan_placement::PlacementError| BrokerError::Invalid(error.to_string());
    let name = |at: usize| NodeName::new(format!("{at:05}")).map_err(unplannable);
    let mut nodes = Vec::new();
    let mut ranges = Vec::new();
    for (at, address) in primaries.iter().enumerate() {
        let state = if retiring.contains(*address) { NodeState::Retiring } else { NodeState::Serving };
        nodes.push(Node::new(name(at)?).being(state));
        for range in cluster.nodes.get(*address).into_iter().flat_map(|node| node.record.owned()) {
            ranges.push((range, name(at)?));
        }
    }
    let one = Copies::new(1).map_err(unplannable)?;
    let placed = Cluster::new(one, nodes).map_err(unplannable)?;
    plan_slots(&placed, &SlotMap::new(ranges).map_err(unplannable)?).map_err(unplannable)
}

/// The effect of scaling.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ScalePlan {
    /// Primaries now.
    pub from: u32,
    /// Primaries afterwards.
    pub to: u32,
    /// Nodes that join, replicas included.
    pub joining: Vec<Address>,
    /// Primaries that leave, with their replicas.
    pub retiring: Vec<Address>,
    /// Slots that move.
    pub shifts: Vec<Shift>,
}

/// The effect of scaling a cluster to this many primaries. Pure.
pub fn plan_scale(tree: &Tree, name: &ClusterName, nodes: u32) -> Result<ScalePlan, BrokerError> {
    let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
    check_idle(name, cluster, nodes)?;
    let from = cluster.primaries().count() as u32;
    let retiring = retiring(cluster, from.saturating_sub(nodes) as usize);
    let mut after = cluster.clone();
    after.node_number = after.node_number.map(|seen| with(&seen, nodes));
    let lacking = missing(tree, name, &after);
    if lacking.unplaced > 0 {
        return Err(too_few(&lacking));
    }
    let joining: Vec<Address> = lacking.additions.iter().map(|node| node.address.clone()).collect();
    for record in lacking.additions {
        let stored = cluster.nodes.values().next().map(|seen| with(seen, record.clone()));
        after.nodes.extend(stored.map(|stored| (record.address, stored)));
    }
    let leaving: BTreeSet<Address> = retiring.iter().cloned().collect();
    Ok(ScalePlan { from, to: nodes, joining, retiring, shifts: plan_spread(&after, &leaving)? })
}

/// The same revision with another record: a projection, never compared.
fn with<T, R>(
    seen: &std::sync::Arc<capstan_meta::record::Stored<T>>,
    record: R,
) -> std::sync::Arc<capstan_meta::record::Stored<R>> {
    let (create_revision, mod_revision, lease) = (seen.create_revision, seen.mod_revision, seen.lease);
    std::sync::Arc::new(capstan_meta::record::Stored { record, create_revision, mod_revision, lease })
}

fn check_idle(name: &ClusterName, cluster: &ClusterTree, nodes: u32) -> Result<(), BrokerError> {
    if nodes == 0 || nodes > MAX_NODES {
        let text = format!("cluster {name}: between 1 and {MAX_NODES} nodes, not {nodes}");
        return Err(BrokerError::Invalid(text));
    }
    if cluster.creating.is_some() {
        return Err(BrokerError::StillCreating(name.clone()));
    }
    if cluster.rebalance.is_some() || !cluster.moves.is_empty() {
        return Err(BrokerError::Moving(name.clone()));
    }
    Ok(())
}

pub(crate) fn too_few(lacking: &Missing) -> BrokerError {
    let free = lacking.additions.len();
    let why = "free and emptied, on reachable hosts".to_owned();
    BrokerError::TooFewNodes { wanted: free + lacking.unplaced, free, why }
}

/// Which primaries leave: those on the hosts with the most nodes of the cluster, then those with the fewest
/// slots.
fn retiring(cluster: &ClusterTree, count: usize) -> Vec<Address> {
    let mut on_host: BTreeMap<&Address, usize> = BTreeMap::new();
    for node in cluster.nodes.values() {
        *on_host.entry(&node.record.proxy_address).or_default() += 1;
    }
    let mut left: Vec<_> = cluster.primaries().map(|node| &node.record).collect();
    let mut chosen = Vec::new();
    while chosen.len() < count {
        let rank = |at: &usize| {
            let node = left[*at];
            let here = on_host.get(&node.proxy_address).copied().unwrap_or(0);
            (here, std::cmp::Reverse(node.slot_count()), node.address.clone())
        };
        let Some(at) = (0..left.len()).max_by_key(rank) else { break };
        let node = left.remove(at);
        if let Some(here) = on_host.get_mut(&node.proxy_address) {
            *here -= 1;
        }
        chosen.push(node.address.clone());
    }
    chosen
}

fn want_spread(draft: &mut Draft, name: &ClusterName, cluster: &ClusterTree, retire: &[Address], now: u64) {
    let key = RebalanceTaskKey { cluster: name.clone() };
    let record = Rebalance { asked_at: now, retire: retire.to_vec(), extra: Default::default() };
    draft.guard(key.as_seen(cluster.rebalance.as_deref())).then(key.put(&record));
}

/// Changes the number of primaries, and records the tasks that add the missing nodes and spread the slots.
pub(crate) fn plan_resize(
    tree: &Tree,
    name: &ClusterName,
    nodes: u32,
    now: u64,
) -> Result<Draft, BrokerError> {
    let plan = plan_scale(tree, name, nodes)?;
    let mut edit = Edit::of(tree, name)?;
    edit.node_number = Some(nodes);
    if !plan.joining.is_empty() {
        edit.want_nodes();
    }
    let cluster = edit.before;
    let mut draft = edit.finish(format!("scale cluster {name} from {} to {nodes} nodes", plan.from), now);
    want_spread(&mut draft, name, cluster, &plan.retiring, now);
    Ok(draft)
}

/// Records the task to spread slots evenly.
pub fn plan_rebalance(tree: &Tree, name: &ClusterName, now: u64) -> Result<Draft, BrokerError> {
    let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
    let mut draft = Draft::new(format!("spread the slots of cluster {name}"));
    draft.guard(ClusterEpochKey { cluster: name.clone() }.as_seen(cluster.epoch.as_deref()));
    want_spread(&mut draft, name, cluster, &[], now);
    Ok(draft)
}

/// The next step of spreading slots.
#[derive(Debug)]
pub enum Spreading {
    /// The next transaction.
    Next(Draft),
    /// Nothing can be done now, with the reason.
    Waits(String),
}

/// The next transaction of `rebalance`: the missing moves; when nothing is left to move, the retiring nodes
/// leave and the task is removed.
#[must_use]
pub fn plan_spreading(tree: &Tree, name: &ClusterName, cluster: &ClusterTree, now: u64) -> Option<Spreading> {
    let task = cluster.rebalance.as_ref()?;
    if cluster.creating.is_some() {
        return Some(Spreading::Waits(format!("cluster {name}: slots are spread once all its nodes exist")));
    }
    if !cluster.moves.is_empty() {
        return Some(Spreading::Waits(format!(
            "cluster {name}: {} moves are in progress",
            cluster.moves.len()
        )));
    }
    let mut leaving = still_retiring(cluster, &task.record.retire);
    leaving.extend(on_draining(tree, cluster));
    let shifts = match plan_spread(cluster, &leaving) {
        Ok(shifts) => shifts,
        Err(error) => return Some(Spreading::Waits(format!("cluster {name}: {error}"))),
    };
    let draft = match shifts.is_empty() {
        true => end_spreading(tree, name, cluster, now),
        false => plan_shifts(tree, name, &shifts, "slots are spread evenly", now),
    };
    Some(draft.map_or_else(|error| Spreading::Waits(format!("cluster {name}: {error}")), Spreading::Next))
}

/// The retiring nodes, as many as exceed the desired number. A node that was replaced or promoted since it
/// was chosen is not among the recorded ones; another one leaves in its place.
fn still_retiring(cluster: &ClusterTree, named: &[Address]) -> BTreeSet<Address> {
    let too_many = cluster.primaries().count().saturating_sub(cluster.wanted_primaries());
    let is_primary = |node: &&Address| cluster.nodes.get(*node).is_some_and(|seen| seen.record.is_primary());
    let mut leaving: BTreeSet<Address> = named.iter().filter(is_primary).take(too_many).cloned().collect();
    for node in retiring(cluster, cluster.primaries().count()) {
        if leaving.len() >= too_many {
            break;
        }
        leaving.insert(node);
    }
    leaving
}

/// Primaries on hosts that are being drained.
pub(crate) fn on_draining(tree: &Tree, cluster: &ClusterTree) -> BTreeSet<Address> {
    let drained = cluster.primaries().filter(|node| tree.draining.contains(&node.record.proxy_address));
    drained.map(|node| node.record.address.clone()).collect()
}

/// Records as many of these moves as fit in one transaction.
pub(crate) fn plan_shifts(
    tree: &Tree,
    name: &ClusterName,
    shifts: &[Shift],
    why: &str,
    now: u64,
) -> Result<Draft, BrokerError> {
    let wish = |shift: &Shift| Wish { range: shift.slots, target: shift.to.clone() };
    let wishes: Vec<Wish> = shifts.iter().take(MOVES_PER_TXN).map(wish).collect();
    plan_begin(tree, name, &wishes, why, "", now).map(|(draft, _)| draft)
}

fn end_spreading(
    tree: &Tree,
    name: &ClusterName,
    cluster: &ClusterTree,
    now: u64,
) -> Result<Draft, BrokerError> {
    let Some(task) = &cluster.rebalance else { return Err(BrokerError::NoCluster(name.clone())) };
    let key = RebalanceTaskKey { cluster: name.clone() };
    let mut edit = Edit::of(tree, name)?;
    let leaving = still_retiring(cluster, &task.record.retire);
    let family = leaving.iter().flat_map(|node| {
        let replicas = cluster.replicas_of(node).map(|replica| replica.record.address.clone());
        replicas.chain([node.clone()]).collect::<Vec<_>>()
    });
    let mut gone: Vec<Address> = family.collect();
    // Several hundred nodes may retire at once: in several transactions, the last of which removes the task.
    let last_part = gone.len() <= NODES_PER_TXN;
    gone.truncate(NODES_PER_TXN);
    for node in &gone {
        edit.release(node, "its cluster was made smaller");
    }
    let mut draft = match gone.is_empty() {
        true => {
            let mut draft = Draft::new(format!("finish spreading the slots of cluster {name}"));
            draft.guard(ClusterEpochKey { cluster: name.clone() }.as_seen(cluster.epoch.as_deref()));
            draft
        }
        false => edit.finish(format!("retire nodes of cluster {name}"), now),
    };
    if last_part {
        draft.guard(key.unchanged(task)).then(key.delete());
    }
    Ok(draft)
}
