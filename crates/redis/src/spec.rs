//! What do users ask for? The size of a cluster, and how it is served.

use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

/// Most primaries of one cluster: every one has at least a few slots, and every proxy a line for each.
pub const MAX_NODES: u32 = 1000;
/// Most replicas of one primary; more only slow it down.
pub const MAX_REPLICAS: u32 = 5;
/// Most nodes of one host: they are registered in one transaction.
pub const MAX_NODES_PER_HOST: usize = 60;
/// Longest name of a cluster; it stands in every message to every proxy.
pub const MAX_CLUSTER_NAME: usize = 64;

/// What a new cluster is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// Nodes with slots.
    pub nodes: u32,
    /// Replicas of each of them, on other hosts.
    #[serde(default)]
    pub replicas: u32,
    /// Bytes of data that a node may hold; zero leaves it to the machine.
    #[serde(default)]
    pub max_memory: u64,
    /// How it is served.
    #[serde(default)]
    pub serving: Serving,
}

impl ClusterSpec {
    /// A cluster of so many nodes without replicas, with defaults for everything else.
    #[must_use]
    pub fn of(nodes: u32) -> ClusterSpec {
        ClusterSpec { nodes, replicas: 0, max_memory: 0, serving: Serving::default() }
    }
}

/// What clients of a database see: what `SETCONF` tells to proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// How clients of other proxies' keys are answered.
    #[serde(default)]
    pub mode: Mode,
    /// Whether commands with keys of several slots are split and merged, where Redis Cluster refuses them.
    #[serde(default)]
    pub split: bool,
    /// Who may connect; nobody listed: everybody.
    #[serde(default)]
    pub users: Vec<User>,
    /// Whether clients that name no cluster use this one, where a proxy serves several.
    #[serde(default)]
    pub default: bool,
    /// What survives the end of a node's process.
    #[serde(default)]
    pub persistence: Persistence,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a client gets for a key of another proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// `MOVED`: clients know clusters.
    #[default]
    Cluster,
    /// The answer: the proxy forwards, for clients that know no clusters.
    Single,
}

/// What of a node's data survives its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Persistence {
    /// Nothing.
    #[default]
    None,
    /// All but about the last second.
    Aof,
    /// What was there at the last snapshot.
    Rdb,
}

/// Somebody who may connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The name.
    pub name: String,
    /// SHA-256 of each password, in hex; none: the name is enough.
    #[serde(default)]
    pub password_sha256: Vec<String>,
    /// What they may do.
    #[serde(default)]
    pub commands: Commands,
}

/// What a user may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Commands {
    /// Everything that clients may do at all.
    #[default]
    All,
    /// Commands that change nothing.
    Read,
}

/// The configuration of a cluster as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterConfig {
    /// Which life of the name this is: the epoch that it began with. A name that was deleted and created again has
    /// another one, so that no node serves the data of a predecessor.
    pub incarnation: u64,
    /// Who asked for it, so that a request with an unknown outcome finds its own cluster again.
    #[serde(default)]
    pub request: String,
    /// How it is served.
    #[serde(flatten)]
    pub serving: Serving,
}

json_records!(ClusterConfig);
