//! Is a message accepted? By its epoch, and independent of when it arrives.

use std::collections::{BTreeMap, BTreeSet};

use capstan_control::epoch::{Acceptance, Epoch};
use serde::{Deserialize, Serialize};

use super::tenure::Tenure;
use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::{
    Announcement, Claim, Entry, Flags, Import, InSync, Message, OldEpoch, SetConf, SetRepl, SetSync,
};
use capstan_redis_protocol::slots::SlotRange;

/// All messages that a proxy has accepted, each with its epoch. Immutable: accepting a message makes a new
/// state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyState {
    own: Announcement,
    peers: Announcement,
    roles: SetRepl,
    conf: SetConf,
    /// By primary, with the epoch of the message.
    in_sync: BTreeMap<Address, (Epoch, InSync)>,
    released: BTreeSet<Move>,
    /// No `SETDB` below this epoch is accepted.
    floor: Epoch,
    tenure: Tenure,
    /// Nodes that lost their slots by the last `SETDB` in a planned handover. Not persisted.
    handed_over: BTreeSet<Address>,
    leased: bool,
}

/// A range that migrates away, or has been released.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Move {
    /// The database.
    pub db: ClusterName,
    /// The source node, on this host.
    pub node: Address,
    /// The target proxy.
    pub to: Address,
    /// The slots.
    pub range: SlotRange,
    /// The pairing of the two ends. Another pairing is another move: a range released for one is not released
    /// for the other, whose target has no data yet.
    pub pairing: Option<Epoch>,
}

impl Move {
    /// The move in an entry of `SETDB`, if it has one.
    #[must_use]
    pub fn of(entry: &Entry) -> Option<Move> {
        let Claim::Migrating { to, range, pairing } = &entry.claim else { return None };
        let (db, node, to) = (entry.db.clone(), entry.address.clone(), to.clone());
        Some(Move { db, node, to, range: *range, pairing: *pairing })
    }

    /// The entry of `SETDB` for this move.
    #[must_use]
    pub fn entry(&self) -> Entry {
        let claim = Claim::Migrating { to: self.to.clone(), range: self.range, pairing: self.pairing };
        Entry { db: self.db.clone(), address: self.node.clone(), claim }
    }

    /// Whether an entry of `RELEASING` refers to this move. A missing pairing matches any.
    #[must_use]
    pub fn matches_entry(&self, entry: &Entry) -> bool {
        let target = match &entry.claim {
            Claim::Migrating { to, .. } => Some(to),
            Claim::Stable(_) | Claim::Importing { .. } => None,
        };
        (&self.db, &self.node, self.range) == (&entry.db, &entry.address, entry.claim.range())
            && target.is_none_or(|to| self.to == *to)
            && entry.claim.pairing().is_none_or(|pairing| self.pairing == Some(pairing))
    }
}

impl std::fmt::Display for Move {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Move { db, node, to, range, .. } = self;
        write!(f, "{db} {node} {range} to {to}")
    }
}

/// The handling of a message that is not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Persist this state, apply it, then reply.
    Accept(Box<ProxyState>),
    /// Reply as if it had just been accepted.
    Unchanged,
}

/// Why a message is not accepted. The text is an error line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is outdated.
    #[error("{}", OldEpoch { known: *known })]
    OldEpoch {
        /// The current epoch.
        known: Epoch,
    },
    /// Two messages of the same epoch have different contents: one of them is wrong, and the proxy cannot
    /// tell which.
    #[error("ERR {message} of epoch {epoch} was accepted with other content; send a newer epoch, or FORCE")]
    Contradiction {
        /// Which message.
        message: &'static str,
        /// At which epoch.
        epoch: Epoch,
    },
    /// It refers to a `SETDB` that has not arrived.
    #[error("TRYAGAIN SETDB of epoch {epoch} has not arrived; known {known}")]
    NotYet {
        /// The epoch it refers to.
        epoch: Epoch,
        /// The current epoch.
        known: Epoch,
    },
    /// There is no such migrating range.
    #[error("ERR slots {range} of {db} are not migrating from {node}")]
    NotMigrating {
        /// Which database.
        db: ClusterName,
        /// Which node.
        node: Address,
        /// Which slots.
        range: SlotRange,
    },
    /// There is no such importing range.
    #[error("ERR slots {range} of {db} are not importing here")]
    NotImporting {
        /// Which database.
        db: ClusterName,
        /// Which slots.
        range: SlotRange,
    },
}

impl ProxyState {
    /// Decides about a message. Queries, leases and releases do not change the state.
    pub fn accept(&self, message: &Message) -> Result<Verdict, Refusal> {
        match message {
            Message::SetDb(new) => self.accept_own(new),
            Message::SetPeer(new) => self.accept_peers(new),
            Message::SetRepl(new) => self.accept_roles(new),
            Message::SetConf(new) => self.accept_conf(new),
            Message::SetSync(new) => self.accept_in_sync(new),
            Message::Fence(epoch) => self.fence(*epoch),
            Message::ClearDb => Ok(accept(ProxyState { leased: self.leased, ..ProxyState::default() })),
            Message::Releasing(_)
            | Message::Import(_)
            | Message::Lease(_)
            | Message::ListDb
            | Message::Moves
            | Message::Epoch
            | Message::Info => Ok(Verdict::Unchanged),
        }
    }

    fn accept_own(&self, new: &Announcement) -> Result<Verdict, Refusal> {
        let new = in_order(new);
        if new.epoch < self.floor && !new.flags.force {
            return Err(Refusal::OldEpoch { known: self.floor });
        }
        if !is_new("SETDB", self.own.epoch, new.epoch, &new.flags, self.own.entries == new.entries)? {
            return Ok(Verdict::Unchanged);
        }
        let migrating: BTreeSet<Move> = moves(&new).collect();
        let released = self.released.intersection(&migrating).cloned().collect();
        // A forced lower epoch must also accept the messages that follow it.
        let floor = if new.flags.force { Epoch::NEVER_TOLD } else { self.floor };
        let tenure = self.tenure.after(&new);
        let handed_over = if new.flags.handover { lost_nodes(&self.own, &new) } else { BTreeSet::new() };
        let own = unflagged(new);
        Ok(accept(ProxyState { own, released, floor, tenure, handed_over, ..self.clone() }))
    }

    /// From here on the proxy has what it has now, or what is pushed at this epoch or later: after the reply,
    /// no message from between can be accepted.
    fn fence(&self, epoch: Epoch) -> Result<Verdict, Refusal> {
        let known = self.own.epoch.max(self.floor);
        if epoch < known {
            return Err(Refusal::OldEpoch { known });
        }
        // The next epoch is the lowest that would be accepted anyway.
        if epoch == self.floor || epoch <= self.own.epoch.next() {
            return Ok(Verdict::Unchanged);
        }
        Ok(accept(self.fenced(epoch)))
    }

    /// The state that accepts no `SETDB` below this epoch.
    pub(super) fn fenced(&self, floor: Epoch) -> ProxyState {
        ProxyState { floor, ..self.clone() }
    }

    /// The epoch below which no `SETDB` is accepted, if it was fenced.
    #[must_use]
    pub fn floor(&self) -> Epoch {
        self.floor
    }

    /// Nodes that lost their slots by the last `SETDB`, and whose successors get everything they have executed.
    #[must_use]
    pub fn handed_over(&self) -> &BTreeSet<Address> {
        &self.handed_over
    }

    /// Since when it holds its slots.
    #[must_use]
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    fn accept_peers(&self, new: &Announcement) -> Result<Verdict, Refusal> {
        let new = in_order(new);
        if !is_new("SETPEER", self.peers.epoch, new.epoch, &new.flags, self.peers.entries == new.entries)? {
            return Ok(Verdict::Unchanged);
        }
        Ok(accept(ProxyState { peers: unflagged(new), ..self.clone() }))
    }

    fn accept_roles(&self, new: &SetRepl) -> Result<Verdict, Refusal> {
        let mut nodes = new.nodes.clone();
        nodes.sort_by(|one, other| (&one.db, &one.node).cmp(&(&other.db, &other.node)));
        if !is_new("SETREPL", self.roles.epoch, new.epoch, &new.flags, self.roles.nodes == nodes)? {
            return Ok(Verdict::Unchanged);
        }
        let roles = SetRepl { epoch: new.epoch, flags: Flags::default(), nodes };
        Ok(accept(ProxyState { roles, ..self.clone() }))
    }

    fn accept_conf(&self, new: &SetConf) -> Result<Verdict, Refusal> {
        let mut databases = new.databases.clone();
        databases.sort_by(|one, other| one.0.cmp(&other.0));
        if !is_new("SETCONF", self.conf.epoch, new.epoch, &new.flags, self.conf.databases == databases)? {
            return Ok(Verdict::Unchanged);
        }
        let conf = SetConf { epoch: new.epoch, flags: Flags::default(), databases };
        Ok(accept(ProxyState { conf, ..self.clone() }))
    }

    /// Entries of a lower epoch are refused, because the sender would take them for accepted; those of a lower revision
    /// were overtaken by another coordinator's, which counts for both.
    fn accept_in_sync(&self, new: &SetSync) -> Result<Verdict, Refusal> {
        let mut in_sync = self.in_sync.clone();
        for shard in &new.shards {
            let known = in_sync.get(&shard.node).map(|(epoch, known)| (*epoch, known.revision));
            if let Some((known, _)) = known.filter(|(known, _)| *known > new.epoch && !new.flags.force) {
                return Err(Refusal::OldEpoch { known });
            }
            if new.flags.force || known.is_none_or(|known| known < (new.epoch, shard.revision)) {
                in_sync.insert(shard.node.clone(), (new.epoch, shard.clone()));
            }
        }
        if in_sync == self.in_sync {
            return Ok(Verdict::Unchanged);
        }
        Ok(accept(ProxyState { in_sync, ..self.clone() }))
    }

    /// The replicas that must have a write, as messages: one for each primary.
    pub fn in_sync(&self) -> impl Iterator<Item = SetSync> {
        let message = |(epoch, shard): &(Epoch, InSync)| SetSync {
            epoch: *epoch,
            flags: Flags::default(),
            shards: vec![shard.clone()],
        };
        self.in_sync.values().map(message)
    }

    /// The moves that a `RELEASING` refers to; all of them are in progress here.
    pub fn releasing(&self, new: &Announcement) -> Result<Vec<Move>, Refusal> {
        self.require_current(new.epoch)?;
        new.entries.iter().map(|entry| self.move_of(entry)).collect()
    }

    fn move_of(&self, entry: &Entry) -> Result<Move, Refusal> {
        let (db, node, range) = (entry.db.clone(), entry.address.clone(), entry.claim.range());
        let meant = moves(&self.own).find(|known| known.matches_entry(entry));
        meant.ok_or(Refusal::NotMigrating { db, node, range })
    }

    /// The node that receives the keys of an import; the import is current as long as this returns the same
    /// node. The epoch is the source's own and independent of this host's.
    pub fn importing(&self, import: &Import) -> Result<Address, Refusal> {
        let claim =
            Claim::Importing { from: import.from.clone(), range: import.range, pairing: import.pairing };
        let is_it = |entry: &&Entry| entry.db == import.db && entry.claim == claim;
        let found = self.own.entries.iter().find(is_it).map(|entry| entry.address.clone());
        found.ok_or_else(|| Refusal::NotImporting { db: import.db.clone(), range: import.range })
    }

    fn require_current(&self, epoch: Epoch) -> Result<(), Refusal> {
        let known = self.own.epoch;
        match known.accept(epoch) {
            Acceptance::Known => Ok(()),
            Acceptance::Newer => Err(Refusal::NotYet { epoch, known }),
            Acceptance::Refused { known } => Err(Refusal::OldEpoch { known }),
        }
    }

    /// The state in which these moves are released. Persist it before replying.
    #[must_use]
    pub fn with_released(&self, of: impl IntoIterator<Item = Move>) -> ProxyState {
        let mut state = self.clone();
        state.released.extend(of);
        let migrating: BTreeSet<Move> = moves(&self.own).collect();
        state.released.retain(|released| migrating.contains(released));
        state
    }

    /// The state of a proxy that was granted a lease once, and never serves without one again.
    #[must_use]
    pub fn under_lease(&self) -> ProxyState {
        ProxyState { leased: true, ..self.clone() }
    }

    /// Whether it was ever granted a lease.
    #[must_use]
    pub fn is_under_lease(&self) -> bool {
        self.leased
    }

    /// The moves that are in progress or released.
    pub fn moves(&self) -> impl Iterator<Item = Move> {
        moves(&self.own)
    }

    /// Whether a move is released.
    #[must_use]
    pub fn has_released(&self, of: &Move) -> bool {
        self.released.contains(of)
    }

    /// All released moves.
    pub fn released(&self) -> impl Iterator<Item = &Move> {
        self.released.iter()
    }

    /// The last accepted `SETDB`.
    #[must_use]
    pub fn own(&self) -> &Announcement {
        &self.own
    }

    /// The last accepted `SETPEER`.
    #[must_use]
    pub fn peers(&self) -> &Announcement {
        &self.peers
    }

    /// The last accepted `SETREPL`.
    #[must_use]
    pub fn roles(&self) -> &SetRepl {
        &self.roles
    }

    /// The last accepted `SETCONF`.
    #[must_use]
    pub fn conf(&self) -> &SetConf {
        &self.conf
    }

    /// Every database in any message.
    #[must_use]
    pub fn databases(&self) -> BTreeSet<ClusterName> {
        let claimed = self.own.entries.iter().chain(&self.peers.entries).map(|entry| &entry.db);
        let of_nodes = self.roles.nodes.iter().map(|node| &node.db);
        claimed.chain(of_nodes).chain(self.conf.databases.iter().map(|(db, _)| db)).cloned().collect()
    }
}

fn accept(state: ProxyState) -> Verdict {
    Verdict::Accept(Box::new(state))
}

/// Whether a message is new (`true`), or already accepted.
fn is_new(
    message: &'static str,
    known: Epoch,
    epoch: Epoch,
    flags: &Flags,
    same: bool,
) -> Result<bool, Refusal> {
    if flags.force && epoch.is_told() {
        return Ok(true);
    }
    match known.accept(epoch) {
        Acceptance::Newer => Ok(true),
        Acceptance::Known if same => Ok(false),
        Acceptance::Known => Err(Refusal::Contradiction { message, epoch }),
        Acceptance::Refused { known } => Err(Refusal::OldEpoch { known }),
    }
}

/// The same entries in canonical order, so that two coordinators that list them differently agree.
fn in_order(new: &Announcement) -> Announcement {
    let mut new = new.clone();
    new.entries.sort_by(|one, other| {
        let key = |entry: &Entry| (entry.claim.range(), entry.claim.owns());
        (&one.db, key(one), &one.address).cmp(&(&other.db, key(other), &other.address))
    });
    new
}

fn unflagged(new: Announcement) -> Announcement {
    Announcement { flags: Flags::default(), ..new }
}

/// Nodes that serve slots in one announcement and none in the next.
fn lost_nodes(before: &Announcement, after: &Announcement) -> BTreeSet<Address> {
    let serving = |own: &Announcement| -> BTreeSet<Address> {
        own.entries.iter().filter(|entry| entry.claim.owns()).map(|entry| entry.address.clone()).collect()
    };
    &serving(before) - &serving(after)
}

fn moves(own: &Announcement) -> impl Iterator<Item = Move> {
    own.entries.iter().filter_map(Move::of)
}
