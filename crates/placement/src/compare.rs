//! How do the usual hash methods place the same shards? For comparison only; no service uses them.

use std::collections::{BTreeMap, BTreeSet};

use crate::assignment::{Assignment, Placement};
use crate::mix;
use crate::node::NodeName;
use crate::shard::{Copies, ShardCount};

/// Rendezvous hashing: each shard on the nodes with the highest hash of shard and node, the first one primary.
pub fn rendezvous(nodes: &[NodeName], shards: ShardCount, copies: Copies) -> Assignment {
    let hashes: Vec<u64> = nodes.iter().map(|node| mix::of_name(node.as_str())).collect();
    let place = |shard: crate::Shard| {
        let mut best: Vec<(u64, usize)> = Vec::new();
        for (at, &hash) in hashes.iter().enumerate() {
            let score = (mix::pair(u64::from(shard.get()), hash), at);
            let rank = best.partition_point(|other| *other > score);
            if rank < usize::from(copies.get()) {
                best.insert(rank, score);
                best.truncate(usize::from(copies.get()));
            }
        }
        placed(best.into_iter().map(|(_, at)| nodes[at].clone()).collect())
    };
    Assignment::trusted(shards.shards().map(place).collect())
}

/// A hash ring: each node at `points` places, each shard on the next distinct nodes, the first one primary.
pub fn ring(nodes: &[NodeName], points: u32, shards: ShardCount, copies: Copies) -> Assignment {
    let mut ring: Vec<(u64, usize)> = Vec::with_capacity(nodes.len() * points as usize);
    for (at, node) in nodes.iter().enumerate() {
        let hash = mix::of_name(node.as_str());
        ring.extend((0..points).map(|point| (mix::pair(hash, u64::from(point)), at)));
    }
    ring.sort_unstable();
    let place = |shard: crate::Shard| {
        let from = ring.partition_point(|&(hash, _)| hash < mix::mix(u64::from(shard.get())));
        let mut found: Vec<usize> = Vec::new();
        for &(_, at) in ring[from..].iter().chain(&ring[..from]) {
            if found.len() == usize::from(copies.get()) {
                break;
            }
            if !found.contains(&at) {
                found.push(at);
            }
        }
        placed(found.into_iter().map(|at| nodes[at].clone()).collect())
    };
    Assignment::trusted(shards.shards().map(place).collect())
}

fn placed(mut holders: Vec<NodeName>) -> Placement {
    let primary = holders.first().cloned();
    holders.sort();
    Placement { primary, holders }
}

/// The cost of changing one layout into another, and the balance of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Movement {
    /// Copies made.
    pub adds: u64,
    /// Copies made on nodes that held something before.
    pub adds_on_old_nodes: u64,
    /// Copies deleted on nodes that stay.
    pub removals: u64,
    /// Fewest copies on a node afterwards.
    pub fewest_copies: u32,
    /// Most copies on a node afterwards.
    pub most_copies: u32,
    /// Most shards that one node is primary of afterwards.
    pub most_primaries: u32,
}

/// Compares two layouts of the same shards; `nodes` are those of the later layout.
pub fn movement(before: &Assignment, after: &Assignment, nodes: &[NodeName]) -> Movement {
    let stays: BTreeSet<&NodeName> = nodes.iter().collect();
    let old = before.tally();
    let (mut adds, mut adds_on_old_nodes, mut removals) = (0, 0, 0);
    for (was, will) in before.placements().iter().zip(after.placements()) {
        for added in will.holders.iter().filter(|node| !was.holders.contains(node)) {
            adds += 1;
            adds_on_old_nodes += u64::from(old.contains_key(added));
        }
        removals +=
            was.holders.iter().filter(|n| !will.holders.contains(n) && stays.contains(n)).count() as u64;
    }
    let tally: BTreeMap<&NodeName, crate::Tally> = after.tally();
    let copies = |node: &NodeName| tally.get(node).map_or(0, |tally| tally.copies);
    Movement {
        adds,
        adds_on_old_nodes,
        removals,
        fewest_copies: nodes.iter().map(copies).min().unwrap_or(0),
        most_copies: nodes.iter().map(copies).max().unwrap_or(0),
        most_primaries: tally.values().map(|tally| tally.primaries).max().unwrap_or(0),
    }
}
