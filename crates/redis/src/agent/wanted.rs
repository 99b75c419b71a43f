//! What should a node be? Plain values that whoever reads the metadata hands to the agent.

use std::fmt;

use crate::address::Address;
use crate::keys::ClusterName;

/// Which life of a cluster's name data belongs to: a name that was deleted and created again has another one, so that
/// a node never serves the data of a predecessor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What of a node's data survives the end of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing.
    #[default]
    None,
    /// Everything but about the last second: the append-only file, synced every second.
    Aof,
    /// What was there at the last snapshot.
    Rdb,
}

/// What a node of this host is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where it listens.
    pub node: Address,
    /// Whose it is. `None`: free; it is emptied and kept running, so that it can be taken quickly.
    pub owner: Option<(ClusterName, Incarnation)>,
    /// Most bytes of data; `None` leaves it to the machine.
    pub max_memory: Option<u64>,
    /// What survives its process.
    pub persistence: Persistence,
    /// What a connection must know; `None` for an open node on loopback.
    pub password: Option<String>,
}
