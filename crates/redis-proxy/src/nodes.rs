//! Is a node ready to serve? The state published by the agent, for the proxy in the same process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};

use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::address::Address;

/// The incarnation of a cluster's name that data belongs to: a name that was deleted and created again has a
/// new one, so that a node never serves the data of a predecessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The credentials of a node.
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
    /// It runs, it is the process started for it, and its data belongs to its owner.
    Ready {
        /// How to authenticate.
        auth: Option<NodeAuth>,
        /// The owner of its data; `None` for a free node, and for an external one without a known owner.
        owner: Option<(ClusterName, Incarnation)>,
    },
    /// It cannot be used now.
    NotReady {
        /// Why, for an operator.
        why: Arc<str>,
    },
}

/// The health of a node, for coordinators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// It serves.
    Ready,
    /// It is a replica in its initial synchronization.
    Syncing,
    /// It was started, and loads its data.
    Loading,
    /// It executes one long command or script.
    Busy,
    /// It is being promoted, and does not have everything from the previous primary yet.
    TakingOver,
    /// Its process is alive and makes no progress.
    Frozen,
    /// Its process does not run, or is not the expected one.
    #[default]
    Down,
    /// A primary that restarted with an older snapshot, or may lack its last writes, while another node may have more.
    Older,
    /// A primary that had keys and restarted empty: its data on this node is lost.
    Lost,
}

impl Health {
    const ALL: [Health; 9] = [
        Health::Ready,
        Health::Syncing,
        Health::Loading,
        Health::Busy,
        Health::TakingOver,
        Health::Frozen,
        Health::Down,
        Health::Older,
        Health::Lost,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Health::Ready => "ready",
            Health::Syncing => "syncing",
            Health::Loading => "loading",
            Health::Busy => "busy",
            Health::TakingOver => "taking-over",
            Health::Frozen => "frozen",
            Health::Down => "down",
            Health::Older => "older",
            Health::Lost => "lost",
        }
    }

    /// Parses the name; `None` if it is unknown.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Health> {
        Health::ALL.into_iter().find(|health| health.word() == word)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How much of its shard's data a node holds, as far as its host can tell. Ordered: more data is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Data {
    /// It restarted empty.
    Gone,
    /// It restarted with an older snapshot.
    Older,
    /// It restarted with everything that it had, and has not been linked to its primary since.
    Whole,
    /// It serves, or has been linked to its primary since its start.
    #[default]
    Current,
}

impl Data {
    /// Its name in reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Data::Gone => "gone",
            Data::Older => "older",
            Data::Whole => "whole",
            Data::Current => "current",
        }
    }

    /// Parses the name; an unknown one is not trusted.
    #[must_use]
    pub fn of_word(word: &str) -> Data {
        let all = [Data::Current, Data::Whole, Data::Older, Data::Gone];
        all.into_iter().find(|data| data.word() == word).unwrap_or(Data::Gone)
    }

    /// Whether it has all data.
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Data::Current
    }
}

/// The state of a node as last observed by the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Whether the proxy may use it.
    pub state: NodeState,
    /// Its health.
    pub health: Health,
    /// Its primary, if it is a replica.
    pub replica_of: Option<Address>,
    /// Whether a replica is linked to its primary.
    pub linked: bool,
    /// Its replication offset.
    pub offset: u64,
    /// The server's run id.
    pub run_id: String,
    /// The number of keys.
    pub keys: u64,
    /// The memory used by its data, in bytes.
    pub used_memory: u64,
    /// Starts since the agent started.
    pub starts: u64,
    /// How much of its shard's data it holds.
    pub data: Data,
    /// A number that grows while it loads, syncs or executes.
    pub progress: u64,
    /// When it was looked at: what it reports is at least as new.
    pub looked_at: Option<Instant>,
}

impl fmt::Display for NodeReport {
    /// Writes one line of facts, as in `NMCTL INFO`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NodeReport { health, linked, offset, run_id, keys, used_memory, starts, .. } = self;
        let (data, progress) = (self.data.word(), self.progress);
        write!(f, "health={health} role=")?;
        match &self.replica_of {
            Some(primary) => write!(f, "replica of={primary} linked={linked}")?,
            None => f.write_str("primary")?,
        }
        write!(f, " offset={offset} run_id={run_id} keys={keys} used_memory={used_memory} starts={starts}")?;
        write!(f, " data={data} progress={progress}")?;
        if let Some(at) = self.looked_at {
            write!(f, " age_ms={}", at.elapsed().as_millis())?;
        }
        match &self.state {
            NodeState::Ready { owner: Some((name, incarnation)), .. } => {
                write!(f, " owner={name}/{incarnation}")
            }
            NodeState::Ready { owner: None, .. } => Ok(()),
            // JSON, because it is the only fact with spaces; it is at the end and can be parsed.
            NodeState::NotReady { why } => write!(f, " why={}", serde_json::Value::from(&**why)),
        }
    }
}

type Reports = BTreeMap<Address, NodeReport>;

/// The nodes of this host, as last observed by the agent. Clones share the state; a snapshot is swapped
/// atomically.
#[derive(Clone, Debug)]
pub struct Nodes {
    snapshot: Arc<ArcSwap<Reports>>,
    unknown: NodeState,
}

impl Nodes {
    /// For a proxy with an agent: a node without a report is not ready.
    #[must_use]
    pub fn supervised() -> Nodes {
        Nodes::with_unknown(NodeState::NotReady { why: "not a node of this host".into() })
    }

    /// For a proxy without an agent: every node counts as ready.
    #[must_use]
    pub fn external(auth: Option<NodeAuth>) -> Nodes {
        Nodes::with_unknown(NodeState::Ready { auth, owner: None })
    }

    fn with_unknown(unknown: NodeState) -> Nodes {
        Nodes { snapshot: Arc::default(), unknown }
    }

    /// The state of a node.
    #[must_use]
    pub fn state(&self, node: &Address) -> NodeState {
        self.snapshot.load().get(node).map_or(&self.unknown, |report| &report.state).clone()
    }

    /// All reports of the agent; empty without an agent.
    #[must_use]
    pub fn reports(&self) -> Arc<Reports> {
        self.snapshot.load_full()
    }

    /// Publishes the report of a node; `None` removes it.
    pub fn publish(&self, node: &Address, report: Option<NodeReport>) {
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
            data: Data::Current,
            progress: 0,
            looked_at: None,
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
            "health=ready role=primary offset=5 run_id=abc keys=3 used_memory=1000 starts=1 data=current progress=0 owner=demo/2"
        );
        let down = NodeReport {
            health: Health::Down,
            replica_of: Some("h:1".parse().unwrap()),
            ..report(NodeState::NotReady { why: "it ended".into() })
        };
        assert!(down.to_string().starts_with("health=down role=replica of=h:1 linked=true"));
        assert!(down.to_string().ends_with("why=\"it ended\""));
    }
}
