//! Which copies are lost, and where should they be restored now?
//!
//! Repair is urgent, so it moves nothing that is not lost: present holders stay, including retiring ones, and nothing
//! is deleted. The result is still balanced where lost copies alone can restore balance, which after the loss of one
//! node is nearly always possible. Further balancing is left to `rebalance`.

use crate::assignment::Assignment;
use crate::cluster::Cluster;
use crate::error::PlacementError;
use crate::flow::{self, Holders, Instance, Present};
use crate::plan::{Bound, Plan};
use crate::planner::{Leavers, write_down};
use crate::problem::Problem;
use crate::shares::Groups;

/// The plan that restores lost copies and lost primaries, and does nothing else.
pub fn repair(cluster: &Cluster, present: &Assignment) -> Result<Plan, PlacementError> {
    let problem = Problem::new(cluster, present)?;
    let missing = problem.missing();
    let holders = restore(&problem, missing)?;
    let primaries: Vec<Option<u32>> = promote(&problem, &holders);
    let bound = Bound { counted_adds: missing, proved_adds: missing, tasks: missing };
    Ok(write_down(&problem, &holders, &primaries, Leavers::Keep, bound))
}

/// Bounds on what each node receives, from the fairest to the one that always works.
enum Ambition {
    /// Every node ends within one of fair.
    Fair,
    /// No node ends more than this many above fair because of repair.
    AtMostAbove(u32),
}

fn restore(problem: &Problem<'_>, missing: u64) -> Result<Vec<Holders>, PlacementError> {
    let kept: Vec<Holders> = problem.shards.iter().map(|shard| shard.holders.clone()).collect();
    if missing == 0 {
        return Ok(kept);
    }
    let groups = &problem.groups;
    let mut ambition = Ambition::Fair;
    loop {
        let short = match flow::solve(&instance(problem, &kept, groups, &ambition)) {
            Ok(solution) => return Ok(solution.holders),
            Err(short) => short,
        };
        ambition = match ambition {
            Ambition::Fair => Ambition::AtMostAbove(0),
            Ambition::AtMostAbove(more) if more < problem.present.count() => {
                Ambition::AtMostAbove(2 * more + 1)
            }
            Ambition::AtMostAbove(_) => return Err(PlacementError::Unsolved { short: short.0 }),
        };
    }
}

fn instance<'g>(
    problem: &Problem<'_>,
    kept: &[Holders],
    groups: &'g Groups,
    ambition: &Ambition,
) -> Instance<'g> {
    let stored = problem.stored();
    let left = |bound: Vec<u32>, above: u32| -> Vec<u32> {
        bound.iter().zip(&stored).map(|(bound, stored)| (bound + above).saturating_sub(*stored)).collect()
    };
    let (low, high) = match ambition {
        Ambition::Fair => (left(problem.low(), 0), left(problem.high(), 0)),
        Ambition::AtMostAbove(more) => (vec![0; stored.len()], left(problem.high(), *more)),
    };
    Instance {
        want: problem.copies(),
        low,
        high,
        listed: vec![Default::default(); kept.len()],
        fresh: Some(vec![1; stored.len()]),
        groups,
        // Copies on retiring nodes count: with them, nothing is missing.
        start: kept.to_vec(),
        served: problem.shards.iter().map(|shard| shard.retiring.len() as u32).collect(),
        present: Present::Pinned,
        salt: problem.salt.clone(),
    }
}

/// A live primary stays; a lost one is replaced by the holder with the fewest primaries.
fn promote(problem: &Problem<'_>, holders: &[Holders]) -> Vec<Option<u32>> {
    let mut primaries = vec![0u32; problem.serving.len()];
    problem.shards.iter().filter_map(|shard| shard.primary).for_each(|node| primaries[node as usize] += 1);
    let mut chosen = Vec::with_capacity(holders.len());
    for (shard, holders) in problem.shards.iter().zip(holders) {
        let lost = shard.primary.is_none() && !shard.primary_retiring;
        // A complete copy can serve at once; a new one only after it was made.
        let candidates = if shard.holders.is_empty() { holders } else { &shard.holders };
        let heir = candidates.iter().copied().min_by_key(|&node| (primaries[node as usize], node));
        let heir = heir.filter(|_| lost);
        if let Some(heir) = heir {
            primaries[heir as usize] += 1;
        }
        chosen.push(heir.or(shard.primary));
    }
    chosen
}
