//! What is a proxy told? The control messages, as both sides know them: coordinators write them, proxies read them.
//!
//! ```text
//! NMCTL SETDB     epoch flags [dbname ip:port slot_range] ...      own nodes: ip:port is a node
//! NMCTL SETPEER   epoch flags [dbname ip:port slot_range] ...      the others: ip:port is a proxy
//! NMCTL RELEASING epoch flags [dbname ip:port slot_range] ...      asks the source of a move to let go
//! slot_range := 0-1000 | migrating dst_ip:dst_port 0-1000 | importing src_ip:src_port 0-1000
//! ```
//!
//! `dst` and `src` are proxies. A node without slots (a replica, a fresh target) is announced with [`SetRepl`].

use capstan_control::epoch::Epoch;

use crate::address::Address;
use crate::keys::ClusterName;
use crate::slots::SlotRange;

/// What a message asks for beside its content. Words that are not known are kept and ignored, as the documents reserve
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Take it even if its epoch is lower than what is known.
    pub force: bool,
    /// Other words, as they came.
    pub others: Vec<String>,
}

/// A range of slots and what is happening to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The node serves it.
    Stable(SlotRange),
    /// The node serves it and copies it to the node of another proxy.
    Migrating {
        /// The proxy that will own it.
        to: Address,
        /// Which slots.
        range: SlotRange,
    },
    /// The node receives it and does not serve it yet.
    Importing {
        /// The proxy that owns it.
        from: Address,
        /// Which slots.
        range: SlotRange,
    },
}

/// One line of a message: an address of a database, and slots there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which database (cluster).
    pub db: ClusterName,
    /// A node of this host (`SETDB`), or another proxy (`SETPEER`).
    pub address: Address,
    /// Which slots.
    pub claim: Claim,
}

/// `SETDB`, `SETPEER` and `RELEASING` have the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The epoch of the host that it is sent to.
    pub epoch: Epoch,
    /// Flags.
    pub flags: Flags,
    /// Everything that is true now; what is not in it is not true any more.
    pub entries: Vec<Entry>,
}

/// Which node is what: `NMCTL SETREPL epoch flags [dbname ip:port (primary | replica-of ip:port proxy_ip:port)] ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRepl {
    /// The epoch of the host that it is sent to.
    pub epoch: Epoch,
    /// Flags.
    pub flags: Flags,
    /// Every node of the database on any host, so that replicas can be shown to clients.
    pub nodes: Vec<NodeRole>,
}

/// The role of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRole {
    /// Which database.
    pub db: ClusterName,
    /// The node.
    pub node: Address,
    /// The proxy in front of it.
    pub proxy: Address,
    /// Its primary, if it is a replica.
    pub replica_of: Option<Address>,
}

/// The right to serve: `NMCTL LEASE coordinator needed ttl_ms`. A proxy serves while `needed` coordinators have each
/// told it so within their `ttl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Which coordinator.
    pub coordinator: String,
    /// How many it takes: a majority of the living coordinators.
    pub needed: u32,
    /// For how long, in milliseconds.
    pub ttl_ms: u64,
}
