//! What is the least that any plan must move? Two lower bounds: one by counting, one with a proof.
//!
//! Counting: a node above its fair share must give, a lost copy must be made, a node below its fair share must receive.
//! That is always a lower bound and, without failure domains, nearly always attained.
//!
//! Proof: put any price on a copy on each node. A plan that respects the bounds of node i pays at most `price * high`
//! (or at least `price * low`, for a negative price) there in total, so its cost is at least the cost of the cheapest
//! choice of holders per shard, prices included, minus those payments. This holds for *any* prices (weak duality). With
//! the solver's prices it equals the cost of the plan, which proves that no plan moves less. The check shares only the
//! prices with the solver.

use smallvec::SmallVec;

use crate::problem::Problem;
use crate::shares::Groups;

/// Cost of a new copy on an empty node. Large, so that the number of copies dominates.
pub(crate) const ADD_TO_NEWCOMER: i64 = 1 << 24;
/// Cost of a new copy on a node that already holds some: slightly higher, so that a join does not touch old nodes.
pub(crate) const ADD_TO_SETTLED: i64 = ADD_TO_NEWCOMER + 1;

/// Adds that no plan can avoid, by counting alone.
pub(crate) fn counted_adds(problem: &Problem<'_>) -> u64 {
    let wanted = u64::from(problem.copies()) * problem.shards.len() as u64;
    let kept: u64 =
        problem.shards.iter().map(|s| (s.holders.len() as u64).min(u64::from(problem.copies()))).sum();
    let (mut over, mut under) = (0, 0);
    for ((stored, low), high) in problem.stored().into_iter().zip(problem.low()).zip(problem.high()) {
        over += u64::from(stored.saturating_sub(high));
        under += u64::from(low.saturating_sub(stored));
    }
    let surplus: u64 = problem.shards.iter().map(|s| s.holders.len() as u64).sum::<u64>() - kept;
    (wanted - kept).max((wanted - kept + over).saturating_sub(surplus)).max(under)
}

/// Adds that no plan can avoid, by the proof above: valid for any prices.
pub(crate) fn proved_adds(problem: &Problem<'_>, prices: &[i64]) -> u64 {
    let fresh = costs_of_adding(problem);
    let offers = Offers::new(problem, prices, &fresh);
    let mut least: i64 = 0;
    for shard in &problem.shards {
        least += offers.cheapest(&shard.holders, prices, problem.copies());
    }
    for ((&price, low), high) in prices.iter().zip(problem.low()).zip(problem.high()) {
        least -= price * i64::from(if price > 0 { high } else { low });
    }
    // Every add costs at most ADD_TO_SETTLED.
    least.max(0).unsigned_abs().div_ceil(ADD_TO_SETTLED.unsigned_abs())
}

/// What a new copy costs on each node.
pub(crate) fn costs_of_adding(problem: &Problem<'_>) -> Vec<i64> {
    let cost = |stored: u32| if stored == 0 { ADD_TO_NEWCOMER } else { ADD_TO_SETTLED };
    problem.stored().into_iter().map(cost).collect()
}

/// The nodes that can be among the cheapest for some shard, cheapest first.
struct Offers<'p> {
    groups: &'p Groups,
    nodes: Vec<(i64, u32)>,
}

impl<'p> Offers<'p> {
    fn new(problem: &'p Problem<'_>, prices: &[i64], fresh: &[i64]) -> Self {
        let mut nodes: Vec<(i64, u32)> =
            (0..prices.len()).map(|node| (prices[node] + fresh[node], node as u32)).collect();
        nodes.sort_unstable();
        // A shard takes at most `copies` nodes of a group and skips at most its own holders.
        let widest = problem.shards.iter().map(|shard| shard.holders.len() as u32).max().unwrap_or(0);
        let mut seen = vec![0; problem.groups.members.len()];
        nodes.retain(|&(_, node)| {
            let seen = &mut seen[problem.groups.of[node as usize] as usize];
            *seen += 1;
            *seen <= problem.groups.limit.min(problem.copies()) + widest
        });
        Self { groups: &problem.groups, nodes }
    }

    /// Greedy is exact here: "at most n per group, at most m in total" is a matroid.
    fn cheapest(&self, holders: &[u32], prices: &[i64], copies: u32) -> i64 {
        let mut own: SmallVec<[(i64, u32); 4]> =
            holders.iter().map(|&node| (prices[node as usize], node)).collect();
        own.sort_unstable();
        let mut others = self.nodes.iter().filter(|(_, node)| !holders.contains(node)).peekable();
        let mut own = own.iter().peekable();
        let mut taken: SmallVec<[u32; 4]> = SmallVec::new();
        let mut total = 0;
        while (taken.len() as u32) < copies {
            let next = match (own.peek(), others.peek()) {
                (Some(&&mine), Some(&&other)) if mine <= other => own.next(),
                (Some(_), None) => own.next(),
                (Some(_) | None, _) => others.next(),
            };
            let Some(&(price, node)) = next else { break };
            let group = self.groups.of[node as usize];
            if (taken.iter().filter(|&&at| at == group).count() as u32) < self.groups.limit {
                taken.push(group);
                total += price;
            }
        }
        total
    }
}
