//! The planner's input in numbers: names become positions, states become copies that count.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::assignment::Assignment;
use crate::cluster::Cluster;
use crate::error::PlacementError;
use crate::flow::Holders;
use crate::mix;
use crate::node::{Node, NodeState};
use crate::shares::{self, Groups, Share};

/// A consistent cluster and assignment, with fair shares computed.
///
/// Node positions count serving nodes only, sorted by name.
pub(crate) struct Problem<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) present: &'a Assignment,
    pub(crate) serving: Vec<&'a Node>,
    pub(crate) groups: Groups,
    pub(crate) shares: Vec<Share>,
    pub(crate) salt: Vec<u64>,
    pub(crate) shards: Vec<ShardNow>,
}

/// The present holders of one shard.
#[derive(Default, Clone)]
pub(crate) struct ShardNow {
    /// Serving nodes with a copy.
    pub(crate) holders: Holders,
    /// Retiring nodes with a copy, as positions in the cluster's node list.
    pub(crate) retiring: SmallVec<[u32; 2]>,
    /// The primary, if it serves.
    pub(crate) primary: Option<u32>,
    /// Whether the primary is a retiring node.
    pub(crate) primary_retiring: bool,
}

impl<'a> Problem<'a> {
    pub(crate) fn new(cluster: &'a Cluster, present: &'a Assignment) -> Result<Self, PlacementError> {
        let serving: Vec<&Node> = cluster.nodes().iter().filter(|n| n.state == NodeState::Serving).collect();
        let copies = u32::from(cluster.copies().get());
        let groups = Groups::new(group_of(&serving), copies);
        let weights: Vec<u32> = serving.iter().map(|node| node.weight.get()).collect();
        Ok(Self {
            shares: shares::fair(present.count(), copies, &weights, &groups),
            salt: serving.iter().map(|node| mix::of_name(node.name.as_str())).collect(),
            shards: locate(cluster, present)?,
            cluster,
            present,
            serving,
            groups,
        })
    }

    pub(crate) fn copies(&self) -> u32 {
        u32::from(self.cluster.copies().get())
    }

    pub(crate) fn low(&self) -> Vec<u32> {
        self.shares.iter().map(|share| share.floor(1)).collect()
    }

    pub(crate) fn high(&self) -> Vec<u32> {
        self.shares.iter().map(|share| share.ceil(1)).collect()
    }

    /// Copies that each serving node has now.
    pub(crate) fn stored(&self) -> Vec<u32> {
        let mut stored = vec![0; self.serving.len()];
        for &holder in self.shards.iter().flat_map(|shard| &shard.holders) {
            stored[holder as usize] += 1;
        }
        stored
    }

    /// Copies on nodes that are not gone.
    pub(crate) fn copies_now(&self) -> u64 {
        self.shards.iter().map(|shard| (shard.holders.len() + shard.retiring.len()) as u64).sum()
    }

    /// Copies that no live node has: the input of repair.
    pub(crate) fn missing(&self) -> u64 {
        let short = |shard: &ShardNow| {
            u64::from(self.copies()).saturating_sub((shard.holders.len() + shard.retiring.len()) as u64)
        };
        self.shards.iter().map(short).sum()
    }
}

/// Nodes of one domain are one group; a node without a domain is its own group.
fn group_of(serving: &[&Node]) -> Vec<u32> {
    let mut numbers = BTreeMap::new();
    let mut next = 0;
    let mut fresh = || {
        next += 1;
        next - 1
    };
    serving
        .iter()
        .map(|node| match &node.domain {
            Some(domain) => *numbers.entry(domain.clone()).or_insert_with(&mut fresh),
            None => fresh(),
        })
        .collect()
}

fn locate(cluster: &Cluster, present: &Assignment) -> Result<Vec<ShardNow>, PlacementError> {
    let positions = cluster.positions();
    let mut among_serving = Vec::with_capacity(cluster.nodes().len());
    let mut serving = 0;
    for node in cluster.nodes() {
        among_serving.push(serving);
        serving += u32::from(node.state == NodeState::Serving);
    }
    let locate_one = |(shard, placement): (crate::Shard, &crate::Placement)| {
        let mut now = ShardNow::default();
        for holder in &placement.holders {
            let Some(&at) = positions.get(holder.as_str()) else {
                return Err(PlacementError::UnknownNode { shard: shard.get(), node: holder.to_string() });
            };
            match cluster.nodes()[at as usize].state {
                NodeState::Serving => {
                    let position = among_serving[at as usize];
                    now.holders.push(position);
                    if placement.primary.as_ref() == Some(holder) {
                        now.primary = Some(position);
                    }
                }
                NodeState::Retiring => {
                    now.retiring.push(at);
                    now.primary_retiring |= placement.primary.as_ref() == Some(holder);
                }
                NodeState::Gone => {}
            }
        }
        Ok(now)
    };
    present.iter().map(locate_one).collect()
}
