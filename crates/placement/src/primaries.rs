//! Which holder of each shard is its primary? The fewest role changes that give every node its share.
//!
//! If every holder were primary of an equal fraction of each shard, every node would have its fair number. Flows with
//! integral bounds have integral solutions, so a fair choice exists in every fair layout, by role changes alone.

use smallvec::SmallVec;

use crate::error::PlacementError;
use crate::flow::{self, Holders, Instance, Present};
use crate::problem::Problem;
use crate::shares::Groups;

/// The primary of each shard, given its next holders.
pub(crate) fn choose(problem: &Problem<'_>, holders: &[Holders]) -> Result<Vec<Option<u32>>, PlacementError> {
    let (low, high) = fair_range(problem);
    let unlimited = Groups::new((0..problem.serving.len() as u32).collect(), 1);
    let kept = |shard: usize| problem.shards[shard].primary.filter(|now| holders[shard].contains(now));
    let instance = Instance {
        want: 1,
        low,
        high,
        listed: (0..holders.len()).map(|shard| costs(&holders[shard], kept(shard))).collect(),
        fresh: None,
        groups: &unlimited,
        start: (0..holders.len()).map(|shard| kept(shard).into_iter().collect()).collect(),
        served: vec![0; holders.len()],
        present: Present::Movable,
        salt: problem.salt.clone(),
    };
    let solution = flow::solve(&instance).map_err(|short| PlacementError::Unsolved { short: short.0 })?;
    Ok(solution.holders.iter().map(|primary| primary.first().copied()).collect())
}

fn costs(holders: &Holders, kept: Option<u32>) -> SmallVec<[(u32, i64); 4]> {
    let cost = |node: u32| i64::from(kept.is_some_and(|now| now != node));
    holders.iter().map(|&node| (node, cost(node))).collect()
}

/// Fair share divided by copies per shard, rounded both ways: a layout within one of fair always allows it.
fn fair_range(problem: &Problem<'_>) -> (Vec<u32>, Vec<u32>) {
    let copies = problem.copies();
    problem.shares.iter().map(|share| (share.floor(copies), share.ceil(copies))).unzip()
}
