//! Which holders satisfy all bounds at the least cost? An exact minimum-cost flow that never builds its network.
//!
//! Shards send `want` units each, nodes take between `low` and `high`, and a unit from shard to node costs what the
//! [`Instance`] defines. Starting from the present layout, overfull nodes and missing copies are sources, underfull
//! nodes are sinks, and each unit of improvement is a chain of swaps "shard t goes from i to j". Successive shortest
//! chains keep the cost of the layout minimal throughout, so the result is optimal, and the potentials that prove it
//! are the prices of nodes (see `bounds`).
//!
//! The network would have shards x nodes edges. Only nodes are vertices here: shards are passed through, and "every
//! node that does not hold t" is taken from a pool of unreached nodes, so a search visits each copy about once instead
//! of each edge.

mod augment;
mod distance;
mod pool;

use smallvec::SmallVec;

use crate::mix;
use crate::shares::Groups;

pub(crate) type Holders = SmallVec<[u32; 4]>;

/// The input of the solver. Nodes and shards are numbers from 0.
pub(crate) struct Instance<'a> {
    /// Holders that each shard must have.
    pub(crate) want: u32,
    /// The minimum number of shards on each node.
    pub(crate) low: Vec<u32>,
    /// The maximum number of shards on each node.
    pub(crate) high: Vec<u32>,
    /// Per shard: nodes with their own price, in any order.
    pub(crate) listed: Vec<SmallVec<[(u32, i64); 4]>>,
    /// Cost of each node for shards that do not list it; `None` if only listed nodes may hold a shard.
    pub(crate) fresh: Option<Vec<i64>>,
    /// At most `limit` holders of a shard in one group.
    pub(crate) groups: &'a Groups,
    /// Present holders of each shard: at most `want`, and within the limit, unless `pinned`.
    pub(crate) start: Vec<Holders>,
    /// Per shard: copies outside this cluster of nodes that count towards `want`.
    pub(crate) served: Vec<u32>,
    /// Whether present holders may be taken away.
    pub(crate) present: Present,
    /// Scrambled identity of each node, to break ties independently of the order of the list.
    pub(crate) salt: Vec<u64>,
}

/// How the solver may treat the present holders.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Present {
    /// They may lose shards to others.
    Movable,
    /// They stay; only missing copies are placed, and the bounds count only those.
    Pinned,
}

/// The solution: holders within all bounds at minimum cost.
pub(crate) struct Solution {
    pub(crate) holders: Vec<Holders>,
    /// Dual price of a copy on each node: a certificate of optimality.
    pub(crate) prices: Vec<i64>,
}

/// Units that could not be placed: the bounds contradict each other.
pub(crate) struct Short(pub(crate) u64);

/// Larger than any real distance, and safe to add to.
const FAR: i64 = i64::MAX / 4;

pub(crate) fn solve(instance: &Instance<'_>) -> Result<Solution, Short> {
    let mut flow = Flow::new(instance);
    while flow.unplaced > 0 {
        let Some(step) = distance::shortest(&flow) else { return Err(Short(flow.unplaced)) };
        flow.raise(&step);
        let before = flow.unplaced;
        augment::exhaust(&mut flow);
        // Shortest distances imply a chain of that length; without progress, stop instead of spinning.
        if flow.unplaced == before {
            return Err(Short(before));
        }
    }
    let prices = flow.potential.iter().map(|&potential| flow.hub.potential - potential).collect();
    Ok(Solution { holders: flow.holders, prices })
}

/// The state of a solution in progress.
pub(crate) struct Flow<'a> {
    instance: &'a Instance<'a>,
    holders: Vec<Holders>,
    /// Shards on each node that it may give away.
    held: Vec<Vec<u32>>,
    /// The accepted part of each node's load, always within its bounds.
    accepted: Vec<u32>,
    /// Load above the accepted part: to be given away.
    excess: Vec<u32>,
    /// Load below the accepted part: to be received.
    deficit: Vec<u32>,
    potential: Vec<i64>,
    /// Where nodes within their bounds trade the slack between low and high.
    hub: Hub,
    sink_potential: i64,
    /// Shards with fewer holders than wanted, in scrambled order.
    short_shards: Vec<u32>,
    /// Units not yet routed to a sink.
    unplaced: u64,
}

struct Hub {
    potential: i64,
    excess: u64,
    deficit: u64,
}

/// The result of one search: the distance of everything from the sources, cut off at the nearest sink.
struct Distances {
    nodes: Vec<i64>,
    hub: i64,
    sink: i64,
}

impl<'a> Flow<'a> {
    fn new(instance: &'a Instance<'a>) -> Self {
        let nodes = instance.low.len();
        let held = held_in_scrambled_order(instance);
        let mut flow = Self {
            instance,
            holders: instance.start.clone(),
            accepted: vec![0; nodes],
            excess: vec![0; nodes],
            deficit: vec![0; nodes],
            potential: vec![0; nodes],
            hub: Hub { potential: 0, excess: 0, deficit: 0 },
            sink_potential: 0,
            short_shards: Vec::new(),
            unplaced: 0,
            held,
        };
        flow.count_imbalance();
        flow
    }

    fn count_imbalance(&mut self) {
        let mut missing = 0;
        for shard in 0..self.holders.len() as u32 {
            let short = self.missing(shard);
            missing += u64::from(short);
            if short > 0 {
                self.short_shards.push(shard);
            }
        }
        self.short_shards.sort_by_key(|&shard| mix::mix(u64::from(shard)));
        let mut load = missing;
        let mut accepted = 0;
        self.unplaced = missing;
        for node in 0..self.held.len() {
            let here = self.held[node].len() as u32;
            let within = here.clamp(self.instance.low[node], self.instance.high[node]);
            self.accepted[node] = within;
            self.excess[node] = here - here.min(within);
            self.deficit[node] = within - here.min(within);
            self.unplaced += u64::from(self.excess[node]);
            load += u64::from(here);
            accepted += u64::from(within);
        }
        self.hub.excess = accepted.saturating_sub(load);
        self.hub.deficit = load.saturating_sub(accepted);
        self.unplaced += self.hub.excess;
    }

    fn raise(&mut self, found: &Distances) {
        for (potential, &distance) in self.potential.iter_mut().zip(&found.nodes) {
            *potential += distance.min(found.sink);
        }
        self.hub.potential += found.hub.min(found.sink);
        self.sink_potential += found.sink;
    }

    /// The number of holders that this shard lacks.
    fn missing(&self, shard: u32) -> u32 {
        let has = self.holders[shard as usize].len() as u32 + self.instance.served[shard as usize];
        self.instance.want.saturating_sub(has)
    }

    /// Cost of this shard on this node.
    fn cost(&self, shard: u32, node: u32) -> i64 {
        let listed = self.instance.listed[shard as usize].iter().find(|&&(at, _)| at == node);
        match (listed, &self.instance.fresh) {
            (Some(&(_, cost)), _) => cost,
            (None, Some(fresh)) => fresh[node as usize],
            (None, None) => FAR,
        }
    }

    /// Cost minus potential: a swap of `shard` from one node to another is tight if both have the same.
    fn worth(&self, shard: u32, node: u32) -> i64 {
        self.cost(shard, node) - self.potential[node as usize]
    }

    /// Worth of a node for shards that do not list it.
    fn fresh_worth(&self, node: u32) -> Option<i64> {
        let fresh = self.instance.fresh.as_ref()?;
        Some(fresh[node as usize] - self.potential[node as usize])
    }

    fn holds(&self, shard: u32, node: u32) -> bool {
        self.holders[shard as usize].contains(&node)
    }

    /// Whether the shard may have one more holder in the group once `leaving` has left.
    fn has_room(&self, shard: u32, group: u32, leaving: Option<u32>) -> bool {
        let groups = self.instance.groups;
        if !groups.binds(group) {
            return true;
        }
        let here = |&&node: &&u32| groups.of[node as usize] == group && Some(node) != leaving;
        (self.holders[shard as usize].iter().filter(here).count() as u32) < groups.limit
    }

    /// Nodes with their own price for this shard that may take it, and their worth.
    fn listed_takers(&self, shard: u32, leaving: Option<u32>) -> impl Iterator<Item = (u32, i64)> + '_ {
        let listed = self.instance.listed[shard as usize].iter();
        listed
            .filter(move |&&(node, _)| {
                !self.holds(shard, node)
                    && self.has_room(shard, self.instance.groups.of[node as usize], leaving)
            })
            .map(|&(node, cost)| (node, cost - self.potential[node as usize]))
    }
}

/// Scatters neighbouring shards of a node over all others: if two nodes shared too many shards, one could not take over
/// its part of the other's loss.
fn held_in_scrambled_order(instance: &Instance<'_>) -> Vec<Vec<u32>> {
    let mut held = vec![Vec::new(); instance.low.len()];
    if instance.present == Present::Pinned {
        return held;
    }
    for (shard, holders) in instance.start.iter().enumerate() {
        for &node in holders {
            held[node as usize].push(shard as u32);
        }
    }
    for (node, shards) in held.iter_mut().enumerate() {
        shards.sort_by_cached_key(|&shard| mix::pair(instance.salt[node], u64::from(shard)));
    }
    held
}
