//! Is a node ready to serve? What the agent knows, for the proxy in the same process.

use std::collections::BTreeMap;
use std::fmt;
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

impl fmt::Debug for NodeAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        /// Whose data it holds; `None` for a free node, and for an external one of which nobody knows.
        owner: Option<(ClusterName, Incarnation)>,
    },
    /// It cannot be used now.
    NotReady {
        /// Why, in words for an operator.
        why: Arc<str>,
    },
}

/// What became of a node, for coordinators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It serves.
    Ready,
    /// It is being started, loaded or emptied.
    Starting,
    /// No process answers.
    Down,
    /// It was a primary with keys and came back without: its data is gone from here.
    Lost,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Health::Ready => "ready",
            Health::Starting => "starting",
            Health::Down => "down",
            Health::Lost => "lost",
        })
    }
}

/// What the agent last saw of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Whether the proxy may use it.
    pub state: NodeState,
    /// In a word.
    pub health: Health,
    /// Its primary, if it follows one.
    pub replica_of: Option<Address>,
    /// Whether a replica hears its primary.
    pub linked: bool,
    /// How much of the stream of writes it has.
    pub offset: u64,
    /// The server's own name for this life of it.
    pub run_id: String,
    /// Keys in it.
    pub keys: u64,
    /// Bytes that its data takes.
    pub used_memory: u64,
    /// Starts since the agent began.
    pub starts: u64,
}

impl fmt::Display for NodeReport {
    /// One line of facts, as `NMCTL INFO` shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeReport { health, linked, offset, run_id, keys, used_memory, starts, .. } = self;
        write!(f, "health={health} role=")?;
        match &self.replica_of {
            Some(primary) => write!(f, "replica of={primary} linked={linked}")?,
            None => f.write_str("primary")?,
        }
        write!(f, " offset={offset} run_id={run_id} keys={keys} used_memory={used_memory} starts={starts}")?;
        match &self.state {
            NodeState::Ready { owner: Some((name, incarnation)), .. } => {
                write!(f, " owner={name}/{incarnation}")
            }
            NodeState::Ready { owner: None, .. } => Ok(()),
            // JSON, because it is the only fact with spaces: it stands at the end and can be read again.
            NodeState::NotReady { why } => write!(f, " why={}", serde_json::Value::from(&**why)),
        }
    }
}

type Reports = BTreeMap<Address, NodeReport>;

/// The nodes of this host, as the agent last saw them. Clones are the same; a snapshot is swapped in whole.
#[derive(Clone, Debug)]
pub struct Nodes {
    snapshot: Arc<ArcSwap<Reports>>,
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
        Nodes { snapshot: Arc::default(), unknown }
    }

    /// What is known of a node.
    #[must_use]
    pub fn state(&self, node: &Address) -> NodeState {
        self.snapshot.load().get(node).map_or(&self.unknown, |report| &report.state).clone()
    }

    /// Everything that the agent knows; empty without an agent.
    #[must_use]
    pub fn reports(&self) -> Arc<Reports> {
        self.snapshot.load_full()
    }

    /// What the agent knows of a node now; `None` forgets it.
    pub(super) fn publish(&self, node: &Address, report: Option<NodeReport>) {
        self.snapshot.rcu(|known| {
            let mut known = Reports::clone(known);
            match &report {
                Some(report) => known.insert(node.clone(), report.clone()),
                None => known.remove(node),
            };
            known
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(state: NodeState) -> NodeReport {
        NodeReport {
            state,
            health: Health::Ready,
            replica_of: None,
            linked: true,
            offset: 5,
            run_id: "abc".to_owned(),
            keys: 3,
            used_memory: 1000,
            starts: 1,
        }
    }

    #[test]
    fn unknown_nodes_are_refused_or_taken() {
        let node: Address = "127.0.0.1:7001".parse().unwrap();
        let nodes = Nodes::supervised();
        assert!(matches!(nodes.state(&node), NodeState::NotReady { .. }));
        let (seen, ready) = (nodes.clone(), NodeState::Ready { auth: None, owner: None });
        nodes.publish(&node, Some(report(ready.clone())));
        assert_eq!(seen.state(&node), ready);
        nodes.publish(&node, None);
        assert!(matches!(seen.state(&node), NodeState::NotReady { .. }));
        assert!(matches!(Nodes::external(None).state(&node), NodeState::Ready { .. }));
    }

    #[test]
    fn reports_are_one_line_and_passwords_are_not_printed() {
        let auth = Some(NodeAuth { password: "secret".into() });
        assert!(!format!("{auth:?}").contains("secret"));
        let owner = Some(("demo".parse().unwrap(), Incarnation(2)));
        assert_eq!(
            report(NodeState::Ready { auth, owner }).to_string(),
            "health=ready role=primary offset=5 run_id=abc keys=3 used_memory=1000 starts=1 owner=demo/2"
        );
        let down = NodeReport {
            health: Health::Down,
            replica_of: Some("h:1".parse().unwrap()),
            ..report(NodeState::NotReady { why: "it ended".into() })
        };
        assert!(down.to_string().starts_with("health=down role=replica of=h:1 linked=true"));
        assert!(down.to_string().ends_with("why=\"it ended\""));
    }

    #[test]
    fn coordinators_read_what_is_reported() {
        use crate::coordinator::NodeFact;
        let node: Address = "127.0.0.1:7001".parse().unwrap();
        let read = |report: &NodeReport| NodeFact::parse(&format!("node:{node} {report}")).unwrap();
        let owner = Some(("demo".parse().unwrap(), Incarnation(2)));
        let ready = report(NodeState::Ready { auth: None, owner });
        let expected = NodeFact {
            health: "ready".to_owned(),
            replica_of: None,
            linked: true,
            offset: 5,
            keys: 3,
            used_memory: 1000,
            owner: Some("demo/2".to_owned()),
            why: None,
        };
        assert_eq!(read(&ready), (node.clone(), expected.clone()));
        let why = "it said \"health=ready offset=9\"\r\n\\ and ended";
        let lost = NodeReport {
            health: Health::Lost,
            replica_of: Some("h:1".parse().unwrap()),
            linked: false,
            ..report(NodeState::NotReady { why: why.into() })
        };
        assert!(!lost.to_string().contains(['\r', '\n']), "{lost}");
        let expected = NodeFact {
            health: "lost".to_owned(),
            replica_of: Some("h:1".parse().unwrap()),
            linked: false,
            owner: None,
            why: Some(why.to_owned()),
            ..expected
        };
        assert_eq!(read(&lost), (node, expected));
    }
}
