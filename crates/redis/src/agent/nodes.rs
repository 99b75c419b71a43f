//! Is a node ready to serve? What the agent knows, for the proxy in the same process.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::wanted::Incarnation;
use crate::address::Address;
use crate::keys::ClusterName;

/// What a connection to a node must say first.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeAuth {
    /// The password of the default user.
    pub password: Arc<str>,
}

impl std::fmt::Debug for NodeAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeAuth(..)")
    }
}

/// Whether a node can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It runs, it is the process that was started for it, and what it holds belongs to its owner.
    Ready {
        /// How to authenticate.
        auth: Option<NodeAuth>,
        /// Whose data it holds; `None` for an external node, of which nobody knows.
        owner: Option<(ClusterName, Incarnation)>,
    },
    /// It cannot be used now.
    NotReady {
        /// Why, in words for an operator.
        why: Arc<str>,
    },
}

/// The nodes of this host, as the agent last saw them. Clones are the same; a snapshot is swapped in whole.
#[derive(Clone, Debug)]
pub struct Nodes {
    snapshot: Arc<ArcSwap<HashMap<Address, NodeState>>>,
    unknown: NodeState,
}

impl Nodes {
    /// For a proxy with an agent: a node that the agent does not know is not ready.
    #[must_use]
    pub fn supervised() -> Nodes {
        Nodes::with_unknown(NodeState::NotReady { why: "it is not a node of this host".into() })
    }

    /// For a proxy without an agent: every node is taken as it is.
    #[must_use]
    pub fn external(auth: Option<NodeAuth>) -> Nodes {
        Nodes::with_unknown(NodeState::Ready { auth, owner: None })
    }

    fn with_unknown(unknown: NodeState) -> Nodes {
        Nodes { snapshot: Arc::new(ArcSwap::from_pointee(HashMap::new())), unknown }
    }

    /// What is known of a node.
    #[must_use]
    pub fn state(&self, node: &Address) -> NodeState {
        self.snapshot.load().get(node).unwrap_or(&self.unknown).clone()
    }

    /// Everything that the agent knows.
    #[must_use]
    pub fn all(&self) -> Arc<HashMap<Address, NodeState>> {
        self.snapshot.load_full()
    }

    /// What the agent knows now.
    pub fn publish(&self, states: HashMap<Address, NodeState>) {
        self.snapshot.store(Arc::new(states));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_nodes_are_refused_or_taken() {
        let node: Address = "127.0.0.1:7001".parse().unwrap();
        let nodes = Nodes::supervised();
        assert!(matches!(nodes.state(&node), NodeState::NotReady { .. }));
        let seen = nodes.clone();
        nodes.publish(HashMap::from([(node.clone(), NodeState::Ready { auth: None, owner: None })]));
        assert_eq!(seen.state(&node), NodeState::Ready { auth: None, owner: None });
        assert!(matches!(Nodes::external(None).state(&node), NodeState::Ready { .. }));
    }

    #[test]
    fn passwords_are_not_printed() {
        let auth = NodeAuth { password: "secret".into() };
        assert!(!format!("{auth:?}").contains("secret"));
    }
}
