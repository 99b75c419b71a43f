//! What is sent to a proxy? The control messages: coordinators write them, proxies parse them.
//!
//! ```text
//! NMCTL SETDB     epoch flags [dbname ip:port slot_range] ...      own nodes: ip:port is a node
//! NMCTL SETPEER   epoch flags [dbname ip:port slots] ...           other proxies: ip:port is a proxy
//! NMCTL SETREPL   epoch flags [dbname node_ip:port proxy_ip:port (primary | replica-of node_ip:port)] ...
//! NMCTL SETCONF   epoch flags [dbname json] ...
//! NMCTL SETSYNC   epoch flags [dbname node_ip:port revision members] ...   which replicas must have a write
//! NMCTL RELEASING epoch flags [dbname ip:port slot_range] ...      asks the source of a move to release ranges
//! NMCTL IMPORT    epoch dbname src_ip:src_port slots [pairing] [session]   turns the connection into an import stream
//! NMCTL FENCE     epoch                                            refuse older SETDBs from now on; report what is held
//! NMCTL LEASE     coordinator needed ttl_ms [epoch clock [standing]]   clock: from the reply to EPOCH
//! NMCTL LISTDB | CLEARDB | MOVES | EPOCH | INFO
//! slot_range := slots | migrating dst_ip:dst_port slots [pairing] | importing src_ip:src_port slots [pairing]
//! slots      := 0-1000 | 7
//! members    := none | ip:port,ip:port,...                         revision: of the shard's record
//! pairing    := pairing=epoch
//! flags      := NOFLAG | FORCE | HANDOVER, and reserved words, separated by commas
//! standing   := REGISTERED coordinator,coordinator,... | DETACHED
//! ```
//!
//! Keywords are case-insensitive; database names are not. `dst` and `src` are proxies. A node without slots (a replica,
//! a new target) is announced with [`SetRepl`]. The pairing is the epoch of the cluster at which the two ends of a move
//! were paired: it distinguishes a move from another one of the same slots between the same proxies. Cluster names
//! contain no `=`.

mod holding;
mod old_epoch;
mod parse;
mod print;
mod settings;
#[cfg(test)]
mod tests;

use capstan_control::epoch::Epoch;

use crate::ClusterName;
use crate::address::Address;
use crate::slots::SlotRange;

pub use holding::Holding;
pub use old_epoch::OldEpoch;
pub use parse::WrongMessage;
pub use settings::{Acks, Mode, PasswordHash, Rights, Settings, User};

/// Most entries of a message: every slot of a cluster on its own, four times over.
pub const MAX_ENTRIES: usize = 4 * 16_384;

/// A control message to a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The slots of this host's nodes.
    SetDb(Announcement),
    /// The slots of the other proxies.
    SetPeer(Announcement),
    /// Which node is primary and which replica.
    SetRepl(SetRepl),
    /// How databases are served.
    SetConf(SetConf),
    /// Which replicas must have a write before it is acknowledged.
    SetSync(SetSync),
    /// Release ranges that migrate away.
    Releasing(Announcement),
    /// The connection will carry the keys of an importing range.
    Import(Import),
    /// Refuse every `SETDB` below this epoch from now on, and report what is held.
    Fence(Epoch),
    /// A grant of the right to serve.
    Lease(LeaseGrant),
    /// List the databases.
    ListDb,
    /// Clear all state, epochs included.
    ClearDb,
    /// Report the progress of all moves.
    Moves,
    /// Report the epochs and the clock.
    Epoch,
    /// Report everything that helps an operator.
    Info,
}

/// Modifiers of a message. Unknown words are kept and ignored, because the specification reserves them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Accept it even if its epoch is lower than the current one.
    pub force: bool,
    /// In `SETDB`: nodes that lose their slots hand over to successors that get everything they have executed.
    pub handover: bool,
    /// Unknown words, as received.
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
        /// The pairing of the move, if the sender has it.
        pairing: Option<Epoch>,
    },
    /// The node receives it and does not serve it yet.
    Importing {
        /// The proxy that owns it.
        from: Address,
        /// Which slots.
        range: SlotRange,
        /// The pairing of the move, if the sender has it.
        pairing: Option<Epoch>,
    },
}

impl Claim {
    /// Which slots.
    #[must_use]
    pub fn range(&self) -> SlotRange {
        match self {
            Claim::Stable(range) | Claim::Migrating { range, .. } | Claim::Importing { range, .. } => *range,
        }
    }

    /// The pairing of its move, if the range moves and the message contained it.
    #[must_use]
    pub fn pairing(&self) -> Option<Epoch> {
        match self {
            Claim::Stable(_) => None,
            Claim::Migrating { pairing, .. } | Claim::Importing { pairing, .. } => *pairing,
        }
    }

    /// Whether the node serves the range.
    #[must_use]
    pub fn owns(&self) -> bool {
        match self {
            Claim::Stable(_) | Claim::Migrating { .. } => true,
            Claim::Importing { .. } => false,
        }
    }
}

/// One entry of a message: an address of a database, and its slots.
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The epoch of the host that it is sent to.
    pub epoch: Epoch,
    /// Flags.
    pub flags: Flags,
    /// The complete state: what is missing in it is no longer valid.
    pub entries: Vec<Entry>,
}

/// The roles of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// How databases are served. A missing database is served with default settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetConf {
    /// The epoch of the host that it is sent to.
    pub epoch: Epoch,
    /// Flags.
    pub flags: Flags,
    /// The settings of each database, one entry per database.
    pub databases: Vec<(ClusterName, Settings)>,
}

/// The replicas that must have a write before it is acknowledged, of shards with `acks: replica`. Ordered by epoch, then
/// by revision, for each node on its own: what is missing in it stays valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetSync {
    /// The epoch of the host that it is sent to.
    pub epoch: Epoch,
    /// Flags.
    pub flags: Flags,
    /// One entry per primary.
    pub shards: Vec<InSync>,
}

/// The replicas of one primary that may be promoted in its place, or will be soon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InSync {
    /// Which database.
    pub db: ClusterName,
    /// The primary.
    pub node: Address,
    /// The revision of the shard's record.
    pub revision: u64,
    /// The replicas.
    pub members: Vec<Address>,
}

/// The source's request before it sends keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The epoch of the source's own `SETDB`: each host has its own epoch, and the source has no other. A
    /// source superseded by its own successor is refused.
    pub epoch: Epoch,
    /// Which database.
    pub db: ClusterName,
    /// The proxy that the range comes from.
    pub from: Address,
    /// Which slots.
    pub range: SlotRange,
    /// The pairing of the move, as pushed to the source.
    pub pairing: Option<Epoch>,
    /// The session that the connection joins. Without one the range is emptied and a new session begins; the
    /// reply is its name.
    pub session: Option<String>,
}

/// A grant of the right to serve. A proxy serves while it has valid grants of `needed` coordinators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Which coordinator.
    pub coordinator: String,
    /// The number of grants needed: the other coordinators are then too few to replace the proxy.
    pub needed: u32,
    /// How long it is valid, in milliseconds.
    pub ttl_ms: u64,
    /// The basis of the grant. A manual grant has none: it is valid from its receipt, for everything held.
    pub basis: Option<Basis>,
}

/// What a grant is based on: the state of the proxy as the coordinator last saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The `SETDB` that the proxy has acknowledged to the coordinator: slots gained later are not covered.
    pub epoch: Epoch,
    /// The proxy's clock, read before the grant was decided. The grant counts from there, however long it was
    /// in transit.
    pub clock: String,
    /// How the coordinator stands with the store.
    pub standing: Standing,
}

/// How the coordinator that gives a grant stands with the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// Not stated: a coordinator of an earlier version, or a proxy that does not read it.
    #[default]
    Unstated,
    /// Registered, with a fresh view in which these coordinators are registered, itself among them.
    Registered(Vec<String>),
    /// Without the store. The grant counts only together with a grant of every registered coordinator.
    Detached,
}
