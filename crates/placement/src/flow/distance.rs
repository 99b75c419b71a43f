//! How far is each node from the nearest source of surplus, in cost of swaps?

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::pool::{Choice, Pools};
use super::{Distances, FAR, Flow};

/// Shortest distances under the present potentials; `None` if no sink can be reached.
pub(super) fn shortest(flow: &Flow<'_>) -> Option<Distances> {
    let mut search = Search::new(flow);
    search.start();
    while let Some(Reverse((distance, event))) = search.queue.pop() {
        if distance >= search.found.sink {
            break;
        }
        match event {
            Event::Node(node) => search.settle_node(distance, node),
            Event::Hub => search.settle_hub(distance),
            Event::Takers { from, worth, of } => search.reach_pool(distance, from, worth, of),
        }
    }
    (search.found.sink < FAR).then_some(search.found)
}

/// Ordered, so that equal distances are processed in the same order everywhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Hub,
    Node(u32),
    /// Shards that `from` holds (or that have no holder yet) at this worth go to nodes of worth `of`.
    Takers {
        from: Option<u32>,
        worth: i64,
        of: i64,
    },
}

struct Search<'f, 'a> {
    flow: &'f Flow<'a>,
    found: Distances,
    node_settled: Vec<bool>,
    hub_settled: bool,
    queue: BinaryHeap<Reverse<(i64, Event)>>,
    pools: Pools<i64>,
}

impl<'f, 'a> Search<'f, 'a> {
    fn new(flow: &'f Flow<'a>) -> Self {
        let nodes = flow.potential.len();
        let members = (0..nodes as u32).filter_map(|node| Some((flow.fresh_worth(node)?, node)));
        Self {
            flow,
            found: Distances { nodes: vec![FAR; nodes], hub: FAR, sink: FAR },
            node_settled: vec![false; nodes],
            hub_settled: false,
            queue: BinaryHeap::new(),
            pools: Pools::new(flow.instance.groups, members),
        }
    }

    fn start(&mut self) {
        for node in 0..self.flow.excess.len() as u32 {
            if self.flow.excess[node as usize] > 0 {
                self.reach_node(-self.flow.potential[node as usize], node);
            }
        }
        if self.flow.hub.excess > 0 {
            self.reach_hub(-self.flow.hub.potential);
        }
        for &shard in &self.flow.short_shards {
            for (taker, worth) in self.flow.listed_takers(shard, None) {
                self.reach_node(worth, taker);
            }
        }
        if !self.flow.short_shards.is_empty() {
            self.offer(0, None, 0);
        }
    }

    fn reach_node(&mut self, distance: i64, node: u32) {
        if distance < self.found.nodes[node as usize] && distance < self.found.sink {
            self.found.nodes[node as usize] = distance;
            self.queue.push(Reverse((distance, Event::Node(node))));
        }
    }

    fn reach_hub(&mut self, distance: i64) {
        if distance < self.found.hub && distance < self.found.sink {
            self.found.hub = distance;
            self.queue.push(Reverse((distance, Event::Hub)));
        }
    }

    fn reach_sink(&mut self, distance: i64) {
        self.found.sink = self.found.sink.min(distance);
    }

    fn settle_hub(&mut self, distance: i64) {
        if std::mem::replace(&mut self.hub_settled, true) {
            return;
        }
        let flow = self.flow;
        let from = distance + flow.hub.potential;
        if flow.hub.deficit > 0 {
            self.reach_sink(from - flow.sink_potential);
        }
        for node in 0..flow.potential.len() {
            if flow.accepted[node] > flow.instance.low[node] {
                self.reach_node(from - flow.potential[node], node as u32);
            }
        }
    }

    fn settle_node(&mut self, distance: i64, node: u32) {
        let (flow, at) = (self.flow, node as usize);
        if std::mem::replace(&mut self.node_settled[at], true) {
            return;
        }
        let from = distance + flow.potential[at];
        if flow.deficit[at] > 0 {
            self.reach_sink(from - flow.sink_potential);
        }
        if flow.accepted[at] < flow.instance.high[at] {
            self.reach_hub(from - flow.hub.potential);
        }
        let mut worths: smallvec::SmallVec<[i64; 4]> = smallvec::SmallVec::new();
        for &shard in &flow.held[at] {
            let worth = flow.worth(shard, node);
            if !worths.contains(&worth) {
                worths.push(worth);
            }
            for (taker, its_worth) in flow.listed_takers(shard, Some(node)) {
                self.reach_node(distance + its_worth - worth, taker);
            }
        }
        for worth in worths {
            self.offer(distance, Some(node), worth);
        }
    }

    fn offer(&mut self, distance: i64, from: Option<u32>, worth: i64) {
        for of in self.pools.keys() {
            let there = distance + of - worth;
            if there < self.found.sink {
                self.queue.push(Reverse((there, Event::Takers { from, worth, of })));
            }
        }
    }

    fn reach_pool(&mut self, distance: i64, from: Option<u32>, worth: i64, of: i64) {
        let flow = self.flow;
        let shards = match from {
            Some(node) => &flow.held[node as usize],
            None => &flow.short_shards,
        };
        let (mut reached, settled) = (Vec::new(), &self.node_settled);
        for &shard in shards {
            if from.is_some_and(|node| flow.worth(shard, node) != worth) {
                continue;
            }
            let Some(pool) = self.pools.get(of) else { break };
            pool.visit(
                0,
                |group| group.is_none_or(|group| flow.has_room(shard, group, from)),
                |node| match flow.holds(shard, node) {
                    _ if settled[node as usize] => Choice::Drop,
                    true => Choice::Skip,
                    false => {
                        reached.push(node);
                        Choice::Drop
                    }
                },
            );
        }
        for node in reached {
            self.reach_node(distance, node);
        }
    }
}
