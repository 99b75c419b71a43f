//! What do users request? The size of a cluster, and how it is served.

use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use capstan_redis_protocol::acl::{InvalidRule, Rules};
use capstan_redis_protocol::nmctl::PasswordHash;
pub use capstan_redis_protocol::nmctl::{Acks, Rights as Commands};

/// Most primaries of one cluster: every one has at least a few slots, and every proxy has an entry for each.
pub const MAX_NODES: u32 = 1000;
/// Most replicas of one primary; more only slow it down.
pub const MAX_REPLICAS: u32 = 5;
/// Most nodes of one host: they are registered in one transaction.
pub const MAX_NODES_PER_HOST: usize = 60;
/// Longest name of a cluster; it is part of every message to every proxy.
pub const MAX_CLUSTER_NAME: usize = 64;
/// Longest name of a user.
pub const MAX_USER_NAME: usize = 64;
/// Most users of one cluster: with the longest rules they still fit in one message to a proxy.
pub const MAX_USERS: usize = 100;

/// The specification of a new cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// Nodes with slots.
    pub nodes: u32,
    /// Replicas of each of them, on other hosts.
    #[serde(default)]
    pub replicas: u32,
    /// Bytes of data that a node may hold; zero: no limit.
    #[serde(default)]
    pub max_memory: u64,
    /// How it is served.
    #[serde(default)]
    pub serving: Serving,
}

impl ClusterSpec {
    /// A cluster of this many nodes without replicas, with defaults for everything else.
    #[must_use]
    pub fn of(nodes: u32) -> ClusterSpec {
        ClusterSpec { nodes, replicas: 0, max_memory: 0, serving: Serving::default() }
    }
}

/// How a database is served: what `SETCONF` pushes to proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Serving {
    /// What a client gets for a key of another proxy.
    #[serde(default)]
    pub mode: Mode,
    /// Whether commands with keys in several slots are split and merged, where Redis Cluster refuses them.
    #[serde(default)]
    pub split: bool,
    /// Which nodes must have a write before it is acknowledged.
    #[serde(default, skip_serializing_if = "is_default")]
    pub acks: Acks,
    /// The users that may connect; empty: no authentication is required.
    #[serde(default)]
    pub users: Vec<User>,
    /// Whether clients that name no cluster use this one if a proxy serves several.
    #[serde(default)]
    pub default: bool,
    /// What survives the end of a node's process.
    #[serde(default)]
    pub persistence: Persistence,
    /// Whether data may be dropped to stay available: a shard that lost its data continues empty, and keys
    /// are evicted when the memory is full.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cache: bool,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What a client gets for a key of another proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// `MOVED`, for cluster clients.
    #[default]
    Cluster,
    /// The reply itself: the proxy forwards, for clients without cluster support.
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
    /// The state at the last snapshot.
    Rdb,
}

/// A user that may connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The name.
    pub name: String,
    /// SHA-256 of each password, in hex; empty: no password is needed. Not used if there are rules: they have
    /// passwords of their own.
    #[serde(default)]
    pub password_sha256: Vec<String>,
    /// What the user may do.
    #[serde(default)]
    pub commands: Commands,
}

impl User {
    /// A user with a password, which is hashed here: no record and no log has it.
    pub fn new(name: &str, password: &str, commands: Commands) -> Result<User, InvalidRule> {
        let hash = PasswordHash::of(password.as_bytes());
        let name = name.to_owned();
        match commands {
            Commands::All | Commands::Read => {
                Ok(User { name, password_sha256: vec![hash.to_string()], commands })
            }
            Commands::Rules(rules) => {
                let mut rules = Rules::clone(&rules);
                rules.apply(&format!("#{hash}"))?;
                Ok(User { name, password_sha256: Vec::new(), commands: Commands::Rules(rules.into()) })
            }
        }
    }

    /// A user with these rules.
    #[must_use]
    pub fn ruled(name: &str, rules: Rules) -> User {
        User { name: name.to_owned(), password_sha256: Vec::new(), commands: Commands::Rules(rules.into()) }
    }

    /// Its rules, as Redis would show them.
    pub fn rules(&self) -> Result<Rules, InvalidRule> {
        match &self.commands {
            Commands::Rules(rules) => Ok(Rules::clone(rules)),
            Commands::All => Rules::everything().with_passwords(&self.password_sha256),
            Commands::Read => Rules::read_only().with_passwords(&self.password_sha256),
        }
    }
}

/// The configuration of a cluster as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterConfig {
    /// The incarnation of the name: the epoch that it began with. A name that was deleted and created again
    /// has a new one, so that no node serves the data of a predecessor.
    pub incarnation: u64,
    /// The id of the creating request, so that a request with an unknown outcome finds its own cluster.
    #[serde(default)]
    pub request: String,
    /// How it is served.
    #[serde(flatten)]
    pub serving: Serving,
}

json_records!(ClusterConfig);
