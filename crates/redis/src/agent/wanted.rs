//! What should a node be? Plain values that whoever reads the metadata hands to the agent.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::address::Address;
use crate::keys::ClusterName;

/// Which life of a cluster's name data belongs to: a name that was deleted and created again has another one, so that
/// a node never serves the data of a predecessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What of a node's data survives the end of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing, except over an orderly stop.
    #[default]
    None,
    /// Everything but about the last second: the append-only file, synced every second.
    Aof,
    /// What was there at the last snapshot.
    Rdb,
}

/// Who runs a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The agent: it starts the process and ends it.
    #[default]
    Supervised,
    /// Somebody else: the agent looks after it and empties it, no more.
    External,
}

/// What a node of this host is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where it listens.
    pub node: Address,
    /// Who runs it.
    pub kind: Kind,
    /// Whose it is. `None`: free; it is emptied and kept running, so that it can be taken quickly.
    pub owner: Option<(ClusterName, Incarnation)>,
    /// Most bytes of data; `None` leaves it to the machine.
    pub max_memory: Option<u64>,
    /// What survives its process.
    pub persistence: Persistence,
    /// What a connection must know; `None` for an open node on loopback.
    pub password: Option<String>,
}

/// What a node is to the other nodes of its shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It takes the writes.
    #[default]
    Primary,
    /// It follows another node.
    ReplicaOf(Address),
}
