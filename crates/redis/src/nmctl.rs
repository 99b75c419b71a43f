//! What is a proxy told? The control messages, as both sides know them: coordinators write them, proxies read them.
//!
//! ```text
//! NMCTL SETDB     epoch flags [dbname ip:port slot_range] ...      own nodes: ip:port is a node
//! NMCTL SETPEER   epoch flags [dbname ip:port slots] ...           the others: ip:port is a proxy
//! NMCTL SETREPL   epoch flags [dbname node_ip:port proxy_ip:port (primary | replica-of node_ip:port)] ...
//! NMCTL SETCONF   epoch flags [dbname json] ...
//! NMCTL RELEASING epoch flags [dbname ip:port slot_range] ...      asks the source of a move to let go
//! NMCTL IMPORT    epoch dbname src_ip:src_port slots [pairing] [session]   turns the connection into an import stream
//! NMCTL FENCE     epoch                                            refuse older SETDBs from now on; say what is held
//! NMCTL LEASE     coordinator needed ttl_ms [epoch clock]          clock: as EPOCH said it
//! NMCTL LISTDB | CLEARDB | MOVES | EPOCH | INFO
//! slot_range := slots | migrating dst_ip:dst_port slots [pairing] | importing src_ip:src_port slots [pairing]
//! slots      := 0-1000 | 7
//! pairing    := pairing=epoch
//! flags      := NOFLAG | FORCE, and words that are reserved, separated by commas
//! ```
//!
//! Words are read in any case of letters; names of databases are not. `dst` and `src` are proxies. A node without slots
//! (a replica, a fresh target) is announced with [`SetRepl`]. The pairing is the epoch of the cluster at which the two
//! ends of a move were put together: it tells a move from another one of the same slots between the same proxies. No
//! cluster is created with a `=` in its name.

mod holding;
mod parse;
mod print;
mod settings;
#[cfg(test)]
mod tests;

use capstan_control::epoch::Epoch;

use crate::address::Address;
use crate::keys::ClusterName;
use crate::slots::SlotRange;

pub use holding::Holding;
pub use parse::WrongMessage;
pub use settings::{Mode, PasswordHash, Rights, Settings, User};

/// Most entries of a message: every slot of a cluster on its own, four times over.
pub const MAX_ENTRIES: usize = 4 * 16_384;

/// Everything that a proxy can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// What the nodes of this host have.
    SetDb(Announcement),
    /// What the other proxies have.
    SetPeer(Announcement),
    /// Which node is primary and which replica.
    SetRepl(SetRepl),
    /// How databases are served.
    SetConf(SetConf),
    /// Let go of ranges that move away.
    Releasing(Announcement),
    /// The connection will bring the keys of a range that moves here.
    Import(Import),
    /// Refuse every `SETDB` before this epoch from now on, and say what is held.
    Fence(Epoch),
    /// The right to serve.
    Lease(LeaseGrant),
    /// Which databases are known?
    ListDb,
    /// Forget everything, epochs included.
    ClearDb,
    /// How far are the moves?
    Moves,
    /// Which epochs are known?
    Epoch,
    /// Everything that helps a person.
    Info,
}

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
        /// Since when the two belong together, if whoever says it knows.
        pairing: Option<Epoch>,
    },
    /// The node receives it and does not serve it yet.
    Importing {
        /// The proxy that owns it.
        from: Address,
        /// Which slots.
        range: SlotRange,
        /// Since when the two belong together, if whoever says it knows.
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

    /// Since when the two ends of its move belong together, if it moves and that was said.
    #[must_use]
    pub fn pairing(&self) -> Option<Epoch> {
        match self {
            Claim::Stable(_) => None,
            Claim::Migrating { pairing, .. } | Claim::Importing { pairing, .. } => *pairing,
        }
    }

    /// Whether the node serves them.
    #[must_use]
    pub fn owns(&self) -> bool {
        match self {
            Claim::Stable(_) | Claim::Migrating { .. } => true,
            Claim::Importing { .. } => false,
        }
    }
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The epoch of the host that it is sent to.
    pub epoch: Epoch,
    /// Flags.
    pub flags: Flags,
    /// Everything that is true now; what is not in it is not true any more.
    pub entries: Vec<Entry>,
}

/// Which node is what.
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

/// How databases are served. A database that is not in it is served with default settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetConf {
    /// The epoch of the host that it is sent to.
    pub epoch: Epoch,
    /// Flags.
    pub flags: Flags,
    /// The settings of each database, each database once.
    pub databases: Vec<(ClusterName, Settings)>,
}

/// What a source says before it sends keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The epoch of the source's own `SETDB`: each host has its own, and the source knows no other. A source that was
    /// overtaken by its own successor is refused.
    pub epoch: Epoch,
    /// Which database.
    pub db: ClusterName,
    /// The proxy that the range comes from.
    pub from: Address,
    /// Which slots.
    pub range: SlotRange,
    /// Since when the two belong together, as the source was told.
    pub pairing: Option<Epoch>,
    /// The session that the connection joins. Without one the range is emptied and a new session begins; the reply is
    /// its name.
    pub session: Option<String>,
}

/// The right to serve. A proxy serves while `needed` coordinators have each
/// told it so within their `ttl`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Which coordinator.
    pub coordinator: String,
    /// How many it takes: a majority of the living coordinators.
    pub needed: u32,
    /// For how long, in milliseconds.
    pub ttl_ms: u64,
    /// What it was given upon. A grant by hand has none: it counts from its receipt, for everything that is held.
    pub basis: Option<Basis>,
}

/// What a coordinator knew of a proxy when it gave a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Basis {
    /// The `SETDB` that the proxy has confirmed to it: what the proxy gained later is not meant.
    pub epoch: Epoch,
    /// What the proxy's clock said before the grant was decided. It counts from there, however long it was on its way.
    pub clock: String,
}
