//! How many copies are fair for each node? Weighted water-filling in exact fractions.
//!
//! A node gets copies in proportion to its weight, but at most one per shard, and a failure domain at most `limit` per
//! shard; the excess of a capped node or domain goes to the others.

/// The groups that copies are spread over: a group is a failure domain.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Group of each node.
    pub(crate) of: Vec<u32>,
    /// Nodes of each group.
    pub(crate) members: Vec<Vec<u32>>,
    /// The maximum number of copies of one shard in one group.
    pub(crate) limit: u32,
}

impl Groups {
    /// The fair number per group is the smallest with which `copies` distinct nodes can be found.
    pub(crate) fn new(of: Vec<u32>, copies: u32) -> Self {
        let count = of.iter().max().map_or(0, |&last| last as usize + 1);
        let mut members = vec![Vec::new(); count];
        for (node, &group) in of.iter().enumerate() {
            members[group as usize].push(node as u32);
        }
        let room = |limit: u32| members.iter().map(|m| (m.len() as u32).min(limit)).sum::<u32>();
        let limit = (1..copies).find(|&limit| room(limit) >= copies).unwrap_or(copies);
        Self { of, members, limit }
    }

    /// Whether the limit can ever refuse a copy to this group.
    pub(crate) fn binds(&self, group: u32) -> bool {
        self.members[group as usize].len() as u32 > self.limit
    }
}

/// A fair number of copies as an exact fraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    num: u64,
    den: u64,
}

impl Share {
    pub(crate) fn floor(self, divisor: u32) -> u32 {
        (self.num / (self.den * u64::from(divisor))) as u32
    }

    pub(crate) fn ceil(self, divisor: u32) -> u32 {
        self.num.div_ceil(self.den * u64::from(divisor)) as u32
    }
}

/// The fair share of every node, for `copies` copies of each of `shards` shards.
pub(crate) fn fair(shards: u32, copies: u32, weights: &[u32], groups: &Groups) -> Vec<Share> {
    let mut filling = Filling::new(shards, weights, groups);
    let level = filling.settle(u64::from(shards) * u64::from(copies));
    let mut shares = vec![Share { num: 0, den: 1 }; weights.len()];
    for (group, members) in groups.members.iter().enumerate() {
        if filling.group_full[group] {
            let alone = Groups {
                of: vec![0; members.len()],
                members: vec![(0..members.len() as u32).collect()],
                limit: u32::MAX,
            };
            let inner: Vec<u32> = members.iter().map(|&node| weights[node as usize]).collect();
            let mut within = Filling::new(shards, &inner, &alone);
            let level = within.settle(u64::from(shards) * u64::from(groups.limit));
            for (at, &node) in members.iter().enumerate() {
                shares[node as usize] = within.share(at, level);
            }
        } else {
            for &node in members {
                shares[node as usize] = filling.share(node as usize, level);
            }
        }
    }
    shares
}

/// Copies per unit of weight, as a fraction; `den` 0 once everything is full.
#[derive(Clone, Copy)]
struct Level {
    num: u64,
    den: u64,
}

struct Filling<'a> {
    shards: u64,
    weights: &'a [u32],
    groups: &'a Groups,
    node_full: Vec<bool>,
    group_full: Vec<bool>,
}

impl<'a> Filling<'a> {
    fn new(shards: u32, weights: &'a [u32], groups: &'a Groups) -> Self {
        Self {
            shards: u64::from(shards),
            weights,
            groups,
            node_full: vec![false; weights.len()],
            group_full: vec![false; groups.members.len()],
        }
    }

    /// Raises the level until it holds `total`. The held amount is a concave function of the level, so each step along
    /// the slope stays below the solution, only fills more, and terminates.
    fn settle(&mut self, total: u64) -> Level {
        loop {
            let level = self.level(total);
            if level.den == 0 || !self.mark_full(level) {
                return level;
            }
        }
    }

    fn level(&self, total: u64) -> Level {
        let (mut fixed, mut den) = (0, 0);
        for (group, members) in self.groups.members.iter().enumerate() {
            if self.group_full[group] {
                fixed += self.shards * u64::from(self.groups.limit);
                continue;
            }
            for &node in members {
                match self.node_full[node as usize] {
                    true => fixed += self.shards,
                    false => den += u64::from(self.weights[node as usize]),
                }
            }
        }
        Level { num: total.saturating_sub(fixed), den }
    }

    /// Marks nodes and groups that reach their cap at this level; false if nothing is new.
    fn mark_full(&mut self, level: Level) -> bool {
        let mut changed = false;
        for (group, members) in self.groups.members.iter().enumerate() {
            if self.group_full[group] {
                continue;
            }
            let mut held = 0;
            for &node in members {
                let wants = level.num * u64::from(self.weights[node as usize]);
                let cap = self.shards * level.den;
                if wants >= cap && !self.node_full[node as usize] {
                    self.node_full[node as usize] = true;
                    changed = true;
                }
                held += wants.min(cap);
            }
            if self.groups.binds(group as u32)
                && held >= self.shards * u64::from(self.groups.limit) * level.den
            {
                self.group_full[group] = true;
                changed = true;
            }
        }
        changed
    }

    fn share(&self, node: usize, level: Level) -> Share {
        match self.node_full[node] {
            true => Share { num: self.shards, den: 1 },
            false => Share { num: level.num * u64::from(self.weights[node]), den: level.den.max(1) },
        }
    }
}
