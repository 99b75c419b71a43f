//! What must be done, in which order, and what is the layout after it?

use serde::{Deserialize, Serialize};

use crate::assignment::{Assignment, Placement};
use crate::node::{NodeName, NodeState};
use crate::shard::Shard;

/// Copies a shard to a node that does not have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Add {
    /// The shard.
    pub shard: Shard,
    /// The node to copy from; `None` if no live node has it, so that the copy starts empty.
    pub source: Option<NodeName>,
    /// The node to copy to.
    pub target: NodeName,
}

/// Makes another holder the primary of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleChange {
    /// The shard.
    pub shard: Shard,
    /// The primary before, if there was one.
    pub from: Option<NodeName>,
    /// The new primary.
    pub to: NodeName,
}

/// Deletes an excess copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removal {
    /// The shard.
    pub shard: Shard,
    /// The node.
    pub node: NodeName,
}

/// The least number of copies that any plan must make under all rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// Adds that no plan can avoid, found by counting copies per node.
    pub counted_adds: u64,
    /// Adds that no plan can avoid, proved for this input; equal to the plan's.
    pub proved_adds: u64,
    /// Adds and removals that no plan can avoid.
    pub tasks: u64,
}

/// One node before and after a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSummary {
    /// Which node.
    pub node: NodeName,
    /// Its state.
    pub state: NodeState,
    /// Copies before.
    pub stored_before: u32,
    /// Copies afterwards.
    pub stored: u32,
    /// Fair share, rounded down.
    pub fair_low: u32,
    /// Fair share, rounded up.
    pub fair_high: u32,
    /// Shards that it is primary of afterwards.
    pub primaries: u32,
    /// Adds and removals on it.
    pub tasks: u32,
}

/// The steps to a better layout. Perform adds, then role changes, then removals: wherever it stops, every shard has at
/// least as many complete copies as before, and its full number once its adds are done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Copies to make, by shard.
    pub adds: Vec<Add>,
    /// Primaries to change, by shard.
    pub role_changes: Vec<RoleChange>,
    /// Copies to delete, by shard.
    pub removals: Vec<Removal>,
    /// The lower bound.
    pub bound: Bound,
    /// Each node before and after, by name.
    pub nodes: Vec<NodeSummary>,
    /// The layout after the plan.
    pub assignment: Assignment,
}

/// One step of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// Make a copy.
    Add(&'a Add),
    /// Change a primary.
    RoleChange(&'a RoleChange),
    /// Delete a copy.
    Remove(&'a Removal),
}

impl Step<'_> {
    /// The shard that this step is about.
    pub fn shard(&self) -> Shard {
        match self {
            Step::Add(add) => add.shard,
            Step::RoleChange(change) => change.shard,
            Step::Remove(removal) => removal.shard,
        }
    }
}

impl Plan {
    /// Storage tasks: copies made and deleted. Role changes store nothing.
    pub fn tasks(&self) -> u64 {
        (self.adds.len() + self.removals.len()) as u64
    }

    /// Whether the plan has no steps.
    pub fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.role_changes.is_empty() && self.removals.is_empty()
    }

    /// Every step in an order that is safe to stop at any point.
    pub fn steps(&self) -> impl Iterator<Item = Step<'_>> {
        let adds = self.adds.iter().map(Step::Add);
        let changes = self.role_changes.iter().map(Step::RoleChange);
        adds.chain(changes).chain(self.removals.iter().map(Step::Remove))
    }

    /// The steps of one shard, in the same safe order; shards are independent.
    pub fn steps_of(&self, shard: Shard) -> impl Iterator<Item = Step<'_>> {
        self.steps().filter(move |step| step.shard() == shard)
    }
}

impl Assignment {
    /// Applies a step to the layout.
    pub fn apply(&mut self, step: Step<'_>) {
        let mut placements = std::mem::replace(self, Assignment::trusted(Vec::new())).into_placements();
        if let Some(placement) = placements.get_mut(step.shard().index()) {
            apply_to(placement, step);
        }
        *self = Assignment::trusted(placements);
    }
}

fn apply_to(placement: &mut Placement, step: Step<'_>) {
    match step {
        Step::Add(add) => {
            if let Err(at) = placement.holders.binary_search(&add.target) {
                placement.holders.insert(at, add.target.clone());
            }
        }
        Step::RoleChange(change) => placement.primary = Some(change.to.clone()),
        Step::Remove(removal) => placement.holders.retain(|holder| *holder != removal.node),
    }
}
