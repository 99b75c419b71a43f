//! Is a message obeyed? By its epoch, and by nothing that depends on when it arrives.

use std::collections::BTreeSet;

use capstan_control::epoch::{Acceptance, Epoch};
use serde::{Deserialize, Serialize};

use super::tenure::Tenure;
use crate::address::Address;
use crate::keys::ClusterName;
use crate::nmctl::{Announcement, Claim, Entry, Flags, Import, Message, SetConf, SetRepl};
use crate::slots::SlotRange;

/// Everything that a proxy was told, each with its epoch. A value: to obey is to make another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyState {
    own: Announcement,
    peers: Announcement,
    roles: SetRepl,
    conf: SetConf,
    released: BTreeSet<Move>,
    /// No `SETDB` before this epoch is obeyed any more.
    floor: Epoch,
    tenure: Tenure,
    leased: bool,
}

/// A range that moves away, or has been let go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Move {
    /// Of which database.
    pub db: ClusterName,
    /// From which node of this host.
    pub node: Address,
    /// To which proxy.
    pub to: Address,
    /// Which slots.
    pub range: SlotRange,
    /// Since when the two ends belong together. Another pairing is another move: what was let go for one is not let go
    /// for the other, whose target has nothing yet.
    pub pairing: Option<Epoch>,
}

impl Move {
    /// The move that an entry of `SETDB` speaks of, if it speaks of one.
    #[must_use]
    pub fn of(entry: &Entry) -> Option<Move> {
        let Claim::Migrating { to, range, pairing } = &entry.claim else { return None };
        let (db, node, to) = (entry.db.clone(), entry.address.clone(), to.clone());
        Some(Move { db, node, to, range: *range, pairing: *pairing })
    }

    /// As an entry says it.
    #[must_use]
    pub fn entry(&self) -> Entry {
        let claim = Claim::Migrating { to: self.to.clone(), range: self.range, pairing: self.pairing };
        Entry { db: self.db.clone(), address: self.node.clone(), claim }
    }

    /// Whether an entry of `RELEASING` means this move. What it leaves out, it does not mind.
    #[must_use]
    pub fn is_meant_by(&self, entry: &Entry) -> bool {
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

/// What to do with a message that is not refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Keep this state on disk, act upon it, and then answer.
    Obey(Box<ProxyState>),
    /// Answer as if it had just been obeyed.
    Known,
}

/// A message that is not obeyed. The text is an error line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// From the past.
    #[error("OLD_EPOCH known {known}")]
    OldEpoch {
        /// What is known.
        known: Epoch,
    },
    /// Two coordinators say different things at the same epoch: one of them is wrong, and nobody here knows which.
    #[error("ERR {message} of epoch {epoch} is known with other content; send a newer epoch, or FORCE")]
    Contradiction {
        /// Which message.
        message: &'static str,
        /// At which epoch.
        epoch: Epoch,
    },
    /// It speaks of a `SETDB` that has not arrived.
    #[error("TRYAGAIN SETDB of epoch {epoch} has not arrived; known {known}")]
    NotYet {
        /// What it speaks of.
        epoch: Epoch,
        /// What is known.
        known: Epoch,
    },
    /// There is nothing to let go.
    #[error("ERR slots {range} of {db} are not migrating from {node}")]
    NotMigrating {
        /// Which database.
        db: ClusterName,
        /// Which node.
        node: Address,
        /// Which slots.
        range: SlotRange,
    },
    /// There is nothing to bring.
    #[error("ERR slots {range} of {db} are not importing here")]
    NotImporting {
        /// Which database.
        db: ClusterName,
        /// Which slots.
        range: SlotRange,
    },
}

impl ProxyState {
    /// What becomes of a message. Questions, leases and releases change nothing here and are known.
    pub fn accept(&self, message: &Message) -> Result<Verdict, Refusal> {
        match message {
            Message::SetDb(told) => self.accept_own(told),
            Message::SetPeer(told) => self.accept_peers(told),
            Message::SetRepl(told) => self.accept_roles(told),
            Message::SetConf(told) => self.accept_conf(told),
            Message::Fence(epoch) => self.fence(*epoch),
            Message::ClearDb => Ok(obey(ProxyState { leased: self.leased, ..ProxyState::default() })),
            Message::Releasing(_)
            | Message::Import(_)
            | Message::Lease(_)
            | Message::ListDb
            | Message::Moves
            | Message::Epoch
            | Message::Info => Ok(Verdict::Known),
        }
    }

    fn accept_own(&self, told: &Announcement) -> Result<Verdict, Refusal> {
        let told = in_order(told);
        if told.epoch < self.floor && !told.flags.force {
            return Err(Refusal::OldEpoch { known: self.floor });
        }
        if !obeys("SETDB", self.own.epoch, told.epoch, &told.flags, self.own.entries == told.entries)? {
            return Ok(Verdict::Known);
        }
        let migrating: BTreeSet<Move> = moves(&told).collect();
        let released = self.released.intersection(&migrating).cloned().collect();
        // Whoever forces an epoch back wants what follows it to be obeyed.
        let floor = if told.flags.force { Epoch::NEVER_TOLD } else { self.floor };
        let tenure = self.tenure.after(&told);
        Ok(obey(ProxyState { own: unflagged(told), released, floor, tenure, ..self.clone() }))
    }

    /// From here on the proxy has what it has now, or what it is told at this epoch or later: whoever heard its answer
    /// knows that no message from between can still arrive.
    fn fence(&self, epoch: Epoch) -> Result<Verdict, Refusal> {
        let known = self.own.epoch.max(self.floor);
        if epoch < known {
            return Err(Refusal::OldEpoch { known });
        }
        // The next epoch is the lowest that would be obeyed anyway.
        if epoch == self.floor || epoch <= self.own.epoch.next() {
            return Ok(Verdict::Known);
        }
        Ok(obey(self.fenced(epoch)))
    }

    /// The state that obeys no `SETDB` before this epoch.
    pub(super) fn fenced(&self, floor: Epoch) -> ProxyState {
        ProxyState { floor, ..self.clone() }
    }

    /// The epoch before which no `SETDB` is obeyed, if it was fenced.
    #[must_use]
    pub fn floor(&self) -> Epoch {
        self.floor
    }

    /// Since when it holds its slots.
    #[must_use]
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    fn accept_peers(&self, told: &Announcement) -> Result<Verdict, Refusal> {
        let told = in_order(told);
        if !obeys("SETPEER", self.peers.epoch, told.epoch, &told.flags, self.peers.entries == told.entries)? {
            return Ok(Verdict::Known);
        }
        Ok(obey(ProxyState { peers: unflagged(told), ..self.clone() }))
    }

    fn accept_roles(&self, told: &SetRepl) -> Result<Verdict, Refusal> {
        let mut nodes = told.nodes.clone();
        nodes.sort_by(|one, other| (&one.db, &one.node).cmp(&(&other.db, &other.node)));
        if !obeys("SETREPL", self.roles.epoch, told.epoch, &told.flags, self.roles.nodes == nodes)? {
            return Ok(Verdict::Known);
        }
        let roles = SetRepl { epoch: told.epoch, flags: Flags::default(), nodes };
        Ok(obey(ProxyState { roles, ..self.clone() }))
    }

    fn accept_conf(&self, told: &SetConf) -> Result<Verdict, Refusal> {
        let mut databases = told.databases.clone();
        databases.sort_by(|one, other| one.0.cmp(&other.0));
        if !obeys("SETCONF", self.conf.epoch, told.epoch, &told.flags, self.conf.databases == databases)? {
            return Ok(Verdict::Known);
        }
        let conf = SetConf { epoch: told.epoch, flags: Flags::default(), databases };
        Ok(obey(ProxyState { conf, ..self.clone() }))
    }

    /// The moves that a `RELEASING` asks to let go of; all of them are under way here.
    pub fn releasing(&self, told: &Announcement) -> Result<Vec<Move>, Refusal> {
        self.speaks_of_now(told.epoch)?;
        told.entries.iter().map(|entry| self.move_of(entry)).collect()
    }

    fn move_of(&self, entry: &Entry) -> Result<Move, Refusal> {
        let (db, node, range) = (entry.db.clone(), entry.address.clone(), entry.claim.range());
        let meant = moves(&self.own).find(|known| known.is_meant_by(entry));
        meant.ok_or(Refusal::NotMigrating { db, node, range })
    }

    /// The node that receives the keys of an import; it is current as long as this answers the same. The epoch is the
    /// source's own and says nothing about this host's.
    pub fn importing(&self, import: &Import) -> Result<Address, Refusal> {
        let claim =
            Claim::Importing { from: import.from.clone(), range: import.range, pairing: import.pairing };
        let is_it = |entry: &&Entry| entry.db == import.db && entry.claim == claim;
        let found = self.own.entries.iter().find(is_it).map(|entry| entry.address.clone());
        found.ok_or_else(|| Refusal::NotImporting { db: import.db.clone(), range: import.range })
    }

    fn speaks_of_now(&self, epoch: Epoch) -> Result<(), Refusal> {
        let known = self.own.epoch;
        match known.accept(epoch) {
            Acceptance::Known => Ok(()),
            Acceptance::Newer => Err(Refusal::NotYet { epoch, known }),
            Acceptance::Refused { known } => Err(Refusal::OldEpoch { known }),
        }
    }

    /// The state in which these moves have let go. Keep it on disk before anybody is told.
    #[must_use]
    pub fn let_go(&self, of: impl IntoIterator<Item = Move>) -> ProxyState {
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

    /// The moves that are under way or released.
    pub fn moves(&self) -> impl Iterator<Item = Move> {
        moves(&self.own)
    }

    /// Whether a move has let go.
    #[must_use]
    pub fn has_let_go(&self, of: &Move) -> bool {
        self.released.contains(of)
    }

    /// All moves that have let go.
    pub fn released(&self) -> impl Iterator<Item = &Move> {
        self.released.iter()
    }

    /// What `SETDB` said last.
    #[must_use]
    pub fn own(&self) -> &Announcement {
        &self.own
    }

    /// What `SETPEER` said last.
    #[must_use]
    pub fn peers(&self) -> &Announcement {
        &self.peers
    }

    /// What `SETREPL` said last.
    #[must_use]
    pub fn roles(&self) -> &SetRepl {
        &self.roles
    }

    /// What `SETCONF` said last.
    #[must_use]
    pub fn conf(&self) -> &SetConf {
        &self.conf
    }

    /// Every database that anything was said about.
    #[must_use]
    pub fn databases(&self) -> BTreeSet<ClusterName> {
        let claimed = self.own.entries.iter().chain(&self.peers.entries).map(|entry| &entry.db);
        let of_nodes = self.roles.nodes.iter().map(|node| &node.db);
        claimed.chain(of_nodes).chain(self.conf.databases.iter().map(|(db, _)| db)).cloned().collect()
    }
}

fn obey(state: ProxyState) -> Verdict {
    Verdict::Obey(Box::new(state))
}

/// Whether a message is obeyed (`true`), or known already.
fn obeys(
    message: &'static str,
    known: Epoch,
    told: Epoch,
    flags: &Flags,
    same: bool,
) -> Result<bool, Refusal> {
    if flags.force && told.is_told() {
        return Ok(true);
    }
    match known.accept(told) {
        Acceptance::Newer => Ok(true),
        Acceptance::Known if same => Ok(false),
        Acceptance::Known => Err(Refusal::Contradiction { message, epoch: told }),
        Acceptance::Refused { known } => Err(Refusal::OldEpoch { known }),
    }
}

/// The same entries in an order of their own, so that two coordinators that list them differently agree.
fn in_order(told: &Announcement) -> Announcement {
    let mut told = told.clone();
    told.entries.sort_by(|one, other| {
        let key = |entry: &Entry| (entry.claim.range(), entry.claim.owns());
        (&one.db, key(one), &one.address).cmp(&(&other.db, key(other), &other.address))
    });
    told
}

fn unflagged(told: Announcement) -> Announcement {
    Announcement { flags: Flags::default(), ..told }
}

fn moves(own: &Announcement) -> impl Iterator<Item = Move> {
    own.entries.iter().filter_map(Move::of)
}
