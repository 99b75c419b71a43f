//! Which nodes are in the cluster, and how many copies must each shard have?

use std::collections::HashMap;

use crate::error::PlacementError;
use crate::node::{Node, NodeName, NodeState};
use crate::shard::Copies;

/// The nodes of a cluster and the number of copies per shard, validated once.
///
/// Nodes are sorted by name, so that no plan depends on the order of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    copies: Copies,
    nodes: Vec<Node>,
}

impl Cluster {
    /// The largest cluster that one plan supports.
    pub const MAX_NODES: usize = 10_000;

    /// Rejects duplicate names, too many nodes, and fewer serving nodes than copies.
    pub fn new(copies: Copies, nodes: impl IntoIterator<Item = Node>) -> Result<Self, PlacementError> {
        let mut nodes: Vec<Node> = nodes.into_iter().collect();
        if nodes.len() > Self::MAX_NODES {
            return Err(PlacementError::TooManyNodes { nodes: nodes.len(), max: Self::MAX_NODES });
        }
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(PlacementError::DuplicateNode { name: pair[0].name.to_string() });
        }
        let serving = nodes.iter().filter(|node| node.state == NodeState::Serving).count();
        if serving < usize::from(copies.get()) {
            return Err(PlacementError::TooFewNodes { copies: copies.get(), serving });
        }
        Ok(Self { copies, nodes })
    }

    /// Copies per shard.
    pub fn copies(&self) -> Copies {
        self.copies
    }

    /// All nodes, sorted by name.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node of this name.
    pub fn node(&self, name: &NodeName) -> Option<&Node> {
        self.nodes.binary_search_by(|node| node.name.cmp(name)).ok().map(|at| &self.nodes[at])
    }

    /// The same cluster with one more node.
    pub fn with(&self, node: Node) -> Result<Self, PlacementError> {
        Self::new(self.copies, self.nodes.iter().cloned().chain([node]))
    }

    /// The same cluster with one node in another state; unknown names change nothing.
    pub fn marking(&self, name: &NodeName, state: NodeState) -> Result<Self, PlacementError> {
        let mark = |node: &Node| if node.name == *name { node.clone().being(state) } else { node.clone() };
        Self::new(self.copies, self.nodes.iter().map(mark))
    }

    /// The same cluster without one node; unknown names change nothing.
    pub fn without(&self, name: &NodeName) -> Result<Self, PlacementError> {
        Self::new(self.copies, self.nodes.iter().filter(|node| node.name != *name).cloned())
    }

    pub(crate) fn positions(&self) -> HashMap<&str, u32> {
        self.nodes.iter().enumerate().map(|(at, node)| (node.name.as_str(), at as u32)).collect()
    }
}
