//! Which node is primary of which slots of a Redis cluster, in few contiguous ranges?
//!
//! Every range is an entry in every client's slot table, so ranges are kept few; but no more slots move than the lower
//! bound, since moving a slot costs far more than an entry. Choosing the cuts is a packing problem, so the number of
//! ranges is the best of several attempts and not proved minimal; the number of moved slots is.

mod cuts;
mod map;

use serde::{Deserialize, Serialize};

pub use map::{SLOTS, SlotMap, SlotRange};

use crate::cluster::Cluster;
use crate::error::PlacementError;
use crate::node::{NodeName, NodeState};
use crate::shares::{self, Groups};
use cuts::{Quota, Run};

/// Slots to move from one node to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotMove {
    /// The slots.
    pub slots: SlotRange,
    /// The present owner, if there is one.
    pub from: Option<NodeName>,
    /// The next owner.
    pub to: NodeName,
}

/// One node before and after a slot plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotSummary {
    /// Which node.
    pub node: NodeName,
    /// Slots before.
    pub slots_before: u32,
    /// Slots afterwards.
    pub slots: u32,
    /// Ranges afterwards.
    pub ranges: u32,
}

/// The moves, and the ranges after them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotPlan {
    /// Moves in order of slot.
    pub moves: Vec<SlotMove>,
    /// Slots that any plan must move.
    pub lower_bound: u32,
    /// Each node before and after, by name.
    pub nodes: Vec<SlotSummary>,
    /// Ranges after the plan.
    pub slots: SlotMap,
}

impl SlotPlan {
    /// Slots that move.
    pub fn slots_moved(&self) -> u32 {
        self.moves.iter().map(|step| step.slots.len()).sum()
    }
}

/// Spreads the primaries of all slots over the serving nodes, within one of the weighted fair share.
pub fn plan_slots(cluster: &Cluster, present: &SlotMap) -> Result<SlotPlan, PlacementError> {
    let serving: Vec<_> = cluster.nodes().iter().filter(|node| node.state == NodeState::Serving).collect();
    if serving.is_empty() {
        return Err(PlacementError::TooFewNodes { copies: 1, serving: 0 });
    }
    present.check_owners(cluster)?;
    let position =
        |name: &NodeName| serving.binary_search_by(|node| node.name.cmp(name)).ok().map(|at| at as u32);
    let runs = present.runs(position);
    let weights: Vec<u32> = serving.iter().map(|node| node.weight.get()).collect();
    let apart = Groups::new((0..weights.len() as u32).collect(), 1);
    let shares = shares::fair(u32::from(SLOTS), 1, &weights, &apart);
    let fair: Vec<(u32, u32)> = shares.iter().map(|share| (share.floor(1), share.ceil(1))).collect();
    let lower_bound = Quota::new(&runs, &fair).moved();
    let after = name_owners(cuts::fewest_ranges(&runs, &fair), |at| serving[at as usize].name.clone());
    Ok(SlotPlan {
        moves: present.moves_to(&after),
        lower_bound,
        nodes: summarise(cluster, present, &after),
        slots: after,
    })
}

fn name_owners(runs: Vec<Run>, name: impl Fn(u32) -> NodeName) -> SlotMap {
    let mut first = 0;
    let mut ranges = Vec::with_capacity(runs.len());
    for run in runs {
        if let Some(owner) = run.owner {
            ranges.push((SlotRange::trusted(first, first + run.len - 1), name(owner)));
        }
        first += run.len;
    }
    SlotMap::trusted(ranges)
}

fn summarise(cluster: &Cluster, before: &SlotMap, after: &SlotMap) -> Vec<SlotSummary> {
    let (before, after) = (before.tally(), after.tally());
    let summary = |node: &crate::Node| SlotSummary {
        node: node.name.clone(),
        slots_before: before.get(&node.name).map_or(0, |&(slots, _)| slots),
        slots: after.get(&node.name).map_or(0, |&(slots, _)| slots),
        ranges: after.get(&node.name).map_or(0, |&(_, ranges)| ranges),
    };
    cluster.nodes().iter().map(summary).collect()
}
