//! What is the desired state of a node? Plain values that the reader of the metadata passes to the agent.

use capstan_redis_proxy::nodes::Incarnation;

use crate::address::Address;
use crate::keys::ClusterName;
use crate::shard::Succession;
use crate::spec::Acks;

/// What of a node's data survives the end of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing, except over a regular stop.
    #[default]
    None,
    /// Everything but about the last second: the append-only file, synced every second.
    Aof,
    /// The state at the last snapshot.
    Rdb,
}

/// What runs a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The agent: it starts and stops the process.
    #[default]
    Supervised,
    /// Another system: the agent only checks and empties it.
    External,
}

/// The desired state of a node of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Where it listens.
    pub node: Address,
    /// What runs it.
    pub kind: Kind,
    /// Its owner. `None`: free; it is emptied and kept running, so that it can be assigned quickly.
    pub owner: Option<(ClusterName, Incarnation)>,
    /// Most bytes of data; `None`: no limit.
    pub max_memory: Option<u64>,
    /// Whether keys are evicted when the memory is full; otherwise writes are refused.
    pub eviction: bool,
    /// What survives its process.
    pub persistence: Persistence,
    /// The password of connections; `None` for an open node on loopback.
    pub password: Option<String>,
    /// What happens to data of another owner.
    pub former: Former,
    /// The other primaries of its cluster, from which it copies functions.
    pub peers: Vec<Address>,
}

/// What happens to the data of the previous owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Former {
    /// It is removed: its cluster was deleted.
    Erased,
    /// It is set aside for a while: its cluster exists, and may recover it.
    #[default]
    SetAside,
    /// The same; and data of the new owner that was set aside here is restored.
    BroughtBack,
}

/// The role of a node in its shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It accepts writes.
    #[default]
    Primary,
    /// It replicates from another node.
    ReplicaOf(Address),
}

/// The role of a node, and what it may do to get there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// The role.
    pub role: Role,
    /// How it became a primary, if it is one.
    pub succession: Succession,
    /// Whether no other node is known to have as much data as it had.
    pub alone: bool,
    /// Whether a primary of its shard has served before: then there may be data that a new directory lacks.
    pub established: bool,
    /// Which nodes must have a write before it is acknowledged.
    pub acks: Acks,
}

impl From<Role> for Order {
    fn from(role: Role) -> Order {
        Order { role, succession: Succession::Agreed, alone: true, established: false, acks: Acks::Primary }
    }
}
