//! What should move for balance, and how much of it now?
//!
//! Rebalancing waits until every shard has all its copies, and then moves a limited number of copies at a time. A batch
//! consists of whole shards of the best plan, so all batches together make no more copies than that plan.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use crate::assignment::Assignment;
use crate::cluster::Cluster;
use crate::error::PlacementError;
use crate::plan::Plan;
use crate::planner::{plan, summarise};
use crate::problem::Problem;
use crate::shard::Shard;

/// How many copies one batch may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Throttle {
    /// At most this many, except that one shard is always moved completely.
    Adds(NonZeroU32),
    /// Everything at once.
    Unlimited,
}

/// Whether to move anything now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rebalance {
    /// Copies are missing: repair first.
    Wait {
        /// How many copies no live node has.
        missing_copies: u64,
    },
    /// Every rule holds.
    Balanced,
    /// Perform this, then ask again.
    Move(Box<Plan>),
}

/// The next batch of moves towards balance, including those that empty retiring nodes.
pub fn rebalance(
    cluster: &Cluster,
    present: &Assignment,
    throttle: Throttle,
) -> Result<Rebalance, PlacementError> {
    let problem = Problem::new(cluster, present)?;
    let missing_copies = problem.missing();
    if missing_copies > 0 {
        return Ok(Rebalance::Wait { missing_copies });
    }
    let whole = plan(cluster, present)?;
    Ok(match throttle {
        _ if whole.is_empty() => Rebalance::Balanced,
        Throttle::Unlimited => Rebalance::Move(Box::new(whole)),
        Throttle::Adds(most) => Rebalance::Move(Box::new(first_batch(&problem, whole, most.get()))),
    })
}

fn first_batch(problem: &Problem<'_>, whole: Plan, most: u32) -> Plan {
    if whole.adds.len() as u64 <= u64::from(most) {
        return whole;
    }
    let chosen = first_shards(&whole, most as usize);
    let mut placements = problem.present.placements().to_vec();
    for &shard in &chosen {
        placements[shard.index()] = whole.assignment.placements()[shard.index()].clone();
    }
    let assignment = Assignment::trusted(placements);
    let adds: Vec<_> = whole.adds.into_iter().filter(|add| chosen.contains(&add.shard)).collect();
    let removals: Vec<_> = whole.removals.into_iter().filter(|r| chosen.contains(&r.shard)).collect();
    Plan {
        role_changes: whole.role_changes.into_iter().filter(|c| chosen.contains(&c.shard)).collect(),
        nodes: summarise(problem, &assignment, &adds, &removals),
        bound: whole.bound,
        adds,
        removals,
        assignment,
    }
}

/// Whole shards in order, as many as fit. Shards that only change primary wait for the last batch, since earlier
/// batches may make that unnecessary.
fn first_shards(whole: &Plan, most: usize) -> BTreeSet<Shard> {
    let mut chosen = BTreeSet::new();
    let mut taken = 0;
    for adds in whole.adds.chunk_by(|a, b| a.shard == b.shard) {
        taken += adds.len();
        if taken > most && !chosen.is_empty() {
            break;
        }
        chosen.insert(adds[0].shard);
    }
    chosen
}
