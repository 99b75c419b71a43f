//! Along which chains of swaps does surplus flow, once the tight swaps are known?
//!
//! Tight swaps form a network of cost zero. Levels are counted from the sources, chains only step one level down, and a
//! node at a dead end is not tried again until levels are recomputed.

use std::collections::VecDeque;

use super::pool::{Choice, Pools};
use super::{FAR, Flow};
use crate::mix;

/// Moves units over tight swaps until no chain is left.
pub(super) fn exhaust(flow: &mut Flow<'_>) {
    while flow.unplaced > 0 {
        let levels = Levels::count(flow);
        if !levels.reach_sink {
            return;
        }
        let before = flow.unplaced;
        Round::new(flow, levels).run();
        if flow.unplaced == before {
            return;
        }
    }
}

const NEVER: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Vertex {
    /// A shard that misses a copy: only at the start of a chain.
    Shard(u32),
    Node(u32),
    Hub,
}

struct Levels {
    nodes: Vec<u32>,
    hub: u32,
    reach_sink: bool,
}

impl Levels {
    fn count(flow: &Flow<'_>) -> Self {
        let nodes = flow.potential.len() as u32;
        let members = (0..nodes).filter_map(|node| Some((flow.fresh_worth(node)?, node)));
        let mut pools = Pools::new(flow.instance.groups, members);
        let mut levels = Self { nodes: vec![NEVER; nodes as usize], hub: NEVER, reach_sink: false };
        let mut queue = VecDeque::new();
        for node in (0..nodes).filter(|&node| flow.excess[node as usize] > 0) {
            levels.reach(Vertex::Node(node), 1, &mut queue);
        }
        if flow.hub.excess > 0 {
            levels.reach(Vertex::Hub, 1, &mut queue);
        }
        for &shard in &flow.short_shards {
            levels.pass(flow, shard, None, 1, &mut pools, &mut queue);
        }
        while let Some(vertex) = queue.pop_front() {
            levels.expand(flow, vertex, &mut pools, &mut queue);
        }
        levels
    }

    fn reach(&mut self, vertex: Vertex, level: u32, queue: &mut VecDeque<Vertex>) {
        let slot = match vertex {
            Vertex::Node(node) => &mut self.nodes[node as usize],
            Vertex::Hub => &mut self.hub,
            Vertex::Shard(_) => return,
        };
        if *slot == NEVER {
            *slot = level;
            queue.push_back(vertex);
        }
    }

    fn expand(
        &mut self,
        flow: &Flow<'_>,
        vertex: Vertex,
        pools: &mut Pools<i64>,
        queue: &mut VecDeque<Vertex>,
    ) {
        match vertex {
            Vertex::Shard(_) => {}
            Vertex::Hub => {
                self.reach_sink |= flow.hub_reaches_sink();
                for node in (0..flow.potential.len() as u32).filter(|&node| flow.hub_feeds(node)) {
                    self.reach(Vertex::Node(node), self.hub + 1, queue);
                }
            }
            Vertex::Node(node) => {
                let below = self.nodes[node as usize] + 1;
                self.reach_sink |= flow.node_reaches_sink(node);
                if flow.feeds_hub(node) {
                    self.reach(Vertex::Hub, below, queue);
                }
                for &shard in &flow.held[node as usize] {
                    self.pass(flow, shard, Some(node), below, pools, queue);
                }
            }
        }
    }

    /// Reaches every node that may take the shard at no cost.
    fn pass(
        &mut self,
        flow: &Flow<'_>,
        shard: u32,
        from: Option<u32>,
        level: u32,
        pools: &mut Pools<i64>,
        queue: &mut VecDeque<Vertex>,
    ) {
        let worth = from.map_or(0, |node| flow.worth(shard, node));
        for (taker, its_worth) in flow.listed_takers(shard, from) {
            if its_worth == worth {
                self.reach(Vertex::Node(taker), level, queue);
            }
        }
        let Some(pool) = pools.get(worth) else { return };
        pool.visit(
            0,
            |group| group.is_none_or(|group| flow.has_room(shard, group, from)),
            |node| {
                if flow.holds(shard, node) {
                    return Choice::Skip;
                }
                self.reach(Vertex::Node(node), level, queue);
                Choice::Drop
            },
        );
    }
}

impl Flow<'_> {
    fn node_reaches_sink(&self, node: u32) -> bool {
        self.deficit[node as usize] > 0 && self.potential[node as usize] == self.sink_potential
    }

    fn hub_reaches_sink(&self) -> bool {
        self.hub.deficit > 0 && self.hub.potential == self.sink_potential
    }

    fn feeds_hub(&self, node: u32) -> bool {
        let at = node as usize;
        self.accepted[at] < self.instance.high[at] && self.potential[at] == self.hub.potential
    }

    fn hub_feeds(&self, node: u32) -> bool {
        let at = node as usize;
        self.accepted[at] > self.instance.low[at] && self.potential[at] == self.hub.potential
    }
}

/// One step of a chain.
#[derive(Clone, Copy)]
struct Step {
    from: Vertex,
    to: Vertex,
    /// The position of the moving shard in the giver's list.
    position: usize,
    shard: u32,
}

/// Not a shard: the step trades slack through the hub.
const NO_SHARD: u32 = u32::MAX;

enum Next {
    Sink,
    Step(Step),
    Dead,
}

struct Round<'f, 'a> {
    flow: &'f mut Flow<'a>,
    levels: Levels,
    pools: Pools<(u32, i64)>,
    node_dead: Vec<bool>,
    hub_dead: bool,
    node_cursor: Vec<usize>,
    hub_cursor: u32,
    path: Vec<Step>,
}

impl<'f, 'a> Round<'f, 'a> {
    fn new(flow: &'f mut Flow<'a>, levels: Levels) -> Self {
        let nodes = flow.potential.len();
        let reached = (0..nodes as u32).filter(|&node| levels.nodes[node as usize] != NEVER);
        let members =
            reached.filter_map(|node| Some(((levels.nodes[node as usize], flow.fresh_worth(node)?), node)));
        let pools = Pools::new(flow.instance.groups, members);
        Self {
            flow,
            levels,
            pools,
            node_dead: vec![false; nodes],
            hub_dead: false,
            node_cursor: vec![0; nodes],
            hub_cursor: 0,
            path: Vec::new(),
        }
    }

    fn run(&mut self) {
        let mut short = std::mem::take(&mut self.flow.short_shards);
        short.retain(|&shard| {
            while self.flow.missing(shard) > 0 {
                if !self.chain(Vertex::Shard(shard)) {
                    return true;
                }
            }
            false
        });
        self.flow.short_shards = short;
        let mut givers: Vec<u32> = (0..self.node_dead.len() as u32).collect();
        givers.retain(|&node| self.flow.excess[node as usize] > 0);
        for node in givers {
            while self.flow.excess[node as usize] > 0 && self.chain(Vertex::Node(node)) {
                self.flow.excess[node as usize] -= 1;
            }
        }
        while self.flow.hub.excess > 0 && self.chain(Vertex::Hub) {
            self.flow.hub.excess -= 1;
        }
    }

    /// Finds a chain from here to a sink and applies it; false if there is none.
    fn chain(&mut self, source: Vertex) -> bool {
        self.path.clear();
        let mut here = source;
        loop {
            match self.next(here) {
                Next::Sink => {
                    self.carry_out(here);
                    return true;
                }
                Next::Step(step) => {
                    self.path.push(step);
                    here = step.to;
                }
                Next::Dead => {
                    self.bury(here);
                    let Some(step) = self.path.pop() else { return false };
                    here = step.from;
                }
            }
        }
    }

    fn bury(&mut self, vertex: Vertex) {
        match vertex {
            Vertex::Shard(_) => {}
            Vertex::Node(node) => self.node_dead[node as usize] = true,
            Vertex::Hub => self.hub_dead = true,
        }
    }

    fn next(&mut self, here: Vertex) -> Next {
        match here {
            Vertex::Shard(shard) => match self.taker(shard, None, 1) {
                Some(to) => Next::Step(Step { from: here, to: Vertex::Node(to), position: 0, shard }),
                None => Next::Dead,
            },
            Vertex::Hub => self.next_of_hub(),
            Vertex::Node(node) => self.next_of_node(node),
        }
    }

    fn next_of_hub(&mut self) -> Next {
        if self.flow.hub_reaches_sink() {
            return Next::Sink;
        }
        while let Some(&level) = self.levels.nodes.get(self.hub_cursor as usize) {
            let node = self.hub_cursor;
            if level == self.levels.hub + 1 && !self.node_dead[node as usize] && self.flow.hub_feeds(node) {
                let to = Vertex::Node(node);
                return Next::Step(Step { from: Vertex::Hub, to, position: 0, shard: NO_SHARD });
            }
            self.hub_cursor += 1;
        }
        Next::Dead
    }

    fn next_of_node(&mut self, node: u32) -> Next {
        if self.node_dead[node as usize] {
            return Next::Dead;
        }
        if self.flow.node_reaches_sink(node) {
            return Next::Sink;
        }
        let (from, below) = (Vertex::Node(node), self.levels.nodes[node as usize] + 1);
        if self.levels.hub == below && !self.hub_dead && self.flow.feeds_hub(node) {
            return Next::Step(Step { from, to: Vertex::Hub, position: 0, shard: NO_SHARD });
        }
        while let Some(&shard) = self.flow.held[node as usize].get(self.node_cursor[node as usize]) {
            if let Some(to) = self.taker(shard, Some(node), below) {
                let position = self.node_cursor[node as usize];
                return Next::Step(Step { from, to: Vertex::Node(to), position, shard });
            }
            self.node_cursor[node as usize] += 1;
        }
        Next::Dead
    }

    /// A node one level down that may take the shard at no cost.
    fn taker(&mut self, shard: u32, from: Option<u32>, level: u32) -> Option<u32> {
        let (flow, dead, levels) = (&*self.flow, &self.node_dead, &self.levels.nodes);
        let worth = from.map_or(0, |node| flow.worth(shard, node));
        let listed = flow.listed_takers(shard, from).find(|&(node, its_worth)| {
            its_worth == worth && levels[node as usize] == level && !dead[node as usize]
        });
        if let Some((node, _)) = listed {
            return Some(node);
        }
        let pool = self.pools.get((level, worth))?;
        let start =
            mix::pair(u64::from(shard), from.map_or(FAR as u64, |node| flow.instance.salt[node as usize]))
                .wrapping_add(mix::mix(flow.holders[shard as usize].len() as u64));
        pool.visit(
            start,
            |group| group.is_none_or(|group| flow.has_room(shard, group, from)),
            |node| match flow.holds(shard, node) {
                _ if dead[node as usize] => Choice::Drop,
                true => Choice::Skip,
                false => Choice::Stop,
            },
        )
    }

    fn carry_out(&mut self, last: Vertex) {
        let flow = &mut *self.flow;
        flow.unplaced -= 1;
        match last {
            Vertex::Node(node) => flow.deficit[node as usize] -= 1,
            Vertex::Hub => flow.hub.deficit -= 1,
            Vertex::Shard(_) => {}
        }
        for step in self.path.drain(..) {
            match (step.from, step.to) {
                (Vertex::Shard(shard), Vertex::Node(to)) => flow.place(shard, to),
                (Vertex::Node(from), Vertex::Node(to)) => flow.swap(step.shard, step.position, from, to),
                (Vertex::Node(from), Vertex::Hub) => flow.accepted[from as usize] += 1,
                (Vertex::Hub, Vertex::Node(to)) => flow.accepted[to as usize] -= 1,
                (Vertex::Hub | Vertex::Shard(_), Vertex::Hub) | (_, Vertex::Shard(_)) => {}
            }
        }
    }
}

impl Flow<'_> {
    fn place(&mut self, shard: u32, to: u32) {
        self.holders[shard as usize].push(to);
        self.held[to as usize].push(shard);
    }

    fn swap(&mut self, shard: u32, position: usize, from: u32, to: u32) {
        debug_assert_eq!(self.held[from as usize][position], shard);
        debug_assert!(!self.holds(shard, to));
        self.held[from as usize].swap_remove(position);
        self.held[to as usize].push(shard);
        for holder in &mut self.holders[shard as usize] {
            if *holder == from {
                *holder = to;
            }
        }
    }
}
