//! How does one copy of a log behave? A pure state machine: an event goes in, effects come out, nothing waits.
//!
//! It does no I/O and reads no clock; the loop around it performs the effects in order and returns their outcomes as
//! events. The same machine runs on real disks and sockets (`crate::host`) and in the simulation.
//!
//! Why it is safe: An entry is committed when every in-sync holder has it durably. A primary is elected from the
//! in-sync set only, so it has every committed entry, and it never cuts its own log. A follower accepts entries from
//! the primary of the newest epoch it has seen, so an old primary cannot collect a complete set of acknowledgments once
//! its successor has begun. An epoch has one writer in one life: a restarted primary begins a new one. A copy joins the
//! set with everything that existed when the epoch began, and counts from the moment its joining may have been
//! committed.

mod follower;
mod message;
mod primary;
mod rest;
mod status;

use std::time::Duration;

use bytes::Bytes;
use capstan_meta::Revision;

use crate::config::LogConfig;
use crate::entry::{Entry, History, LogEpoch, Offset};
use crate::keys::HolderId;
use follower::Follower;
pub use message::Message;
use primary::Primary;
pub use status::{RoleName, Status};

/// Time on the holder's monotonic clock, from an arbitrary origin; it goes on while the machine is suspended.
pub type Moment = Duration;

/// The timeouts of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The maximum interval between messages of a primary to a follower.
    pub heartbeat: Duration,
    /// The time after which unacknowledged entries are sent again.
    pub resend: Duration,
    /// The time without progress after which a copy leaves the in-sync set.
    pub lag: Duration,
    /// The lag in time at which a copy leaves the set even if it makes progress: it is too slow for the log.
    pub behind: Duration,
    /// Entries in flight to one follower; more than a round trip needs would only fill queues.
    pub window: u64,
    /// Entries in one shipment.
    pub shipment: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat: Duration::from_millis(200),
            resend: Duration::from_millis(500),
            lag: Duration::from_secs(3),
            behind: Duration::from_secs(10),
            window: 4096,
            shipment: 512,
        }
    }
}

/// Identifies an append until it is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Entries to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// Identifies it until it is placed.
    pub ticket: Ticket,
    /// The only epoch in which it may be placed; `None` for any.
    pub epoch: Option<LogEpoch>,
    /// When it arrived, since 1970.
    pub time: Duration,
    /// The entries.
    pub batch: Vec<Bytes>,
}

/// Why a primary accepts no more appends: it is about to end its epoch, or the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aim {
    /// Hand over to another holder once everything is committed and it has everything.
    HandOver(HolderId),
    /// Seal the log once everything is committed.
    Seal,
}

/// An input of a copy.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// The configuration as of this revision of the record. Older ones are ignored.
    Configured(LogConfig, Revision),
    /// A proposal with this guard definitely did not happen and never will.
    NotProposed(Revision),
    /// The host's lease is valid until then, minus a safety margin. If the lease is new and not renewed, the
    /// configuration read after it was granted must have been delivered before: a change may have been missed.
    Leased(Moment),
    /// Appends that arrived together; together they cost one write and one shipment.
    Append(Vec<Append>),
    /// Accept no more appends and pursue this aim; or continue as before.
    Aim(Option<Aim>),
    /// The snapshot for this copy has arrived there, or was given up.
    SnapshotEnded(HolderId),
    /// Everything before this offset is durable here, in this generation of the log.
    Durable(u64, Offset),
    /// The owner no longer needs entries before this offset.
    Truncate(Offset),
    /// A message of another copy.
    Received(HolderId, Message),
}

/// An action for the loop, performed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write entries to the end of the own log; report [`Event::Durable`] with this generation.
    Write(u64, Vec<Entry>),
    /// Cut the own log from this offset on; later writes belong to this generation.
    Cut(u64, Offset),
    /// Drop everything and begin at the end of this history, with this snapshot of the state before.
    Reset(u64, History, Bytes),
    /// Drop entries before this offset; they stay in the history.
    Truncate(Offset),
    /// Send a message to another copy.
    Send(HolderId, Message),
    /// Read the own log and send it to another copy.
    Ship(HolderId, Shipment),
    /// Take a snapshot and send it, with the history up to its end, to a copy that is too far behind; report
    /// [`Event::SnapshotEnded`] at the end.
    ShipSnapshot(HolderId, LogEpoch),
    /// Change the configuration if it is still at this revision.
    Propose(Revision, LogConfig),
    /// The append has these offsets (first, one after the last), and is not committed yet.
    Placed(Ticket, Offset, Offset),
    /// The append was rejected and will never be in the log.
    Refused(Ticket, Refusal),
    /// Everything before this offset is committed.
    Committed(Offset),
    /// This copy does not lead any more; the next primary decides the outcome of placed appends.
    Deposed,
    /// The primary's history contradicts committed entries. Nothing is cut; an operator must look.
    Diverged(Offset),
}

/// A range of the primary's log to be sent to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shipment {
    /// The primary's epoch.
    pub epoch: LogEpoch,
    /// Epoch of the entry before the first.
    pub epoch_before: LogEpoch,
    /// First offset.
    pub from: Offset,
    /// One after the last.
    pub upto: Offset,
    /// The committed offset.
    pub committed: Offset,
}

/// Why an append was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another holder is the primary, or there is none yet.
    NotPrimary,
    /// This is the primary, but its lease has expired: another one may have been elected.
    NoLease,
    /// The primary is in the first epoch, and the append was for the second.
    OtherEpoch(LogEpoch, LogEpoch),
    /// The primary is handing over, or sealing the log.
    Draining,
    /// The log was sealed.
    Sealed,
}

/// The role of a copy, on which its owner acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// This copy leads and serves: every entry before `begun`, and so everything acknowledged in earlier epochs, is
    /// committed here.
    Leading {
        /// Its epoch, for `append_in` and `submit`.
        epoch: LogEpoch,
        /// The offset after the first entry of the epoch.
        begun: Offset,
    },
    /// This copy follows, or is the primary and does not serve yet.
    Following {
        /// The primary of the record.
        primary: HolderId,
    },
    /// This copy is not a member, has no configuration yet, or has halted because of damage.
    Out,
}

/// The newest configuration of a copy.
#[derive(Clone, Debug)]
struct Known {
    config: LogConfig,
    revision: Revision,
}

/// A copy's part of the log.
#[derive(Clone, Debug)]
struct Local {
    /// The first offset that is still present.
    start: Offset,
    /// Everything that was written, durable or not.
    history: History,
    /// Everything before this offset is durable.
    durable: Offset,
    /// Grows with every cut, so that old durable notices are recognised.
    generation: u64,
}

#[derive(Clone, Debug)]
enum Role {
    /// Not a member, or not configured yet.
    Idle,
    /// Primary in an epoch that an earlier life may have written in: waits for a new one.
    Claiming,
    Primary(Box<Primary>),
    Follower(Follower),
    /// Contradicted by the primary about committed entries; takes no further part.
    Halted,
}

/// One copy of one log.
#[derive(Clone, Debug)]
pub struct Replica {
    me: HolderId,
    timing: Timing,
    now: Moment,
    lease_until: Moment,
    local: Local,
    committed: Offset,
    known: Option<Known>,
    /// The epoch when this life began: an earlier life may have written in it, so this one must not.
    born_in: Option<LogEpoch>,
    /// The highest epoch of any message.
    fenced_by: LogEpoch,
    role: Role,
    /// The number of this life; later lives have larger numbers.
    life: u64,
    /// The latest time of an entry here: times never decrease along the log.
    newest_time: Duration,
    /// The maximum interval between heartbeats of a log at rest, if it is longer than the usual one.
    rest: Duration,
}

impl Replica {
    /// A copy found on disk, at the beginning of a life. `start` is the first offset still present.
    #[must_use]
    pub fn new(me: HolderId, start: Offset, history: History, timing: Timing) -> Replica {
        let local = Local { start, durable: history.end(), history, generation: 0 };
        Replica {
            me,
            timing,
            now: Moment::ZERO,
            lease_until: Moment::ZERO,
            committed: local.start,
            local,
            known: None,
            born_in: None,
            fenced_by: LogEpoch(0),
            role: Role::Idle,
            life: 0,
            newest_time: Duration::ZERO,
            rest: Duration::ZERO,
        }
    }

    /// The same, in this life: larger than every earlier one of this copy.
    #[must_use]
    pub fn in_life(mut self, life: u64) -> Replica {
        self.life = life;
        self
    }

    /// The same, where an earlier life recorded this committed offset.
    #[must_use]
    pub fn knowing(mut self, committed: Offset) -> Replica {
        self.committed = self.committed.max(committed.min(self.local.history.end()));
        self
    }

    /// Processes one event at this moment.
    pub fn step(&mut self, now: Moment, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        let mut effects = Vec::new();
        match event {
            Event::Tick => self.tick(&mut effects),
            Event::Configured(config, revision) => self.configured(config, revision, &mut effects),
            Event::NotProposed(guard) => self.not_proposed(guard, &mut effects),
            Event::Leased(until) => {
                self.lease_until = self.lease_until.max(until);
                self.advance(&mut effects);
            }
            Event::Append(appends) => self.append(appends, &mut effects),
            Event::Aim(aim) => self.take_aim(aim, &mut effects),
            Event::SnapshotEnded(to) => self.snapshot_ended(&to, &mut effects),
            Event::Durable(generation, upto) => self.durable(generation, upto, &mut effects),
            Event::Truncate(before) => self.truncate(before, &mut effects),
            Event::Received(from, message) => self.receive(&from, message, &mut effects),
        }
        effects
    }

    fn configured(&mut self, config: LogConfig, revision: Revision, effects: &mut Vec<Effect>) {
        if self.known.as_ref().is_some_and(|known| known.revision >= revision) {
            return;
        }
        // A store that was rolled back may name epochs that are already in the log: those count as used.
        let used = *self.born_in.get_or_insert(config.epoch) == config.epoch
            || config.epoch <= self.local.history.newest();
        self.fenced_by = self.fenced_by.max(config.epoch);
        self.known = Some(Known { config: config.clone(), revision });
        self.assume_role(config, used, effects);
        self.apply_floor(effects);
    }

    fn assume_role(&mut self, config: LogConfig, used: bool, effects: &mut Vec<Effect>) {
        let leads = matches!(&self.role, Role::Primary(primary) if primary.epoch == config.epoch);
        if matches!(self.role, Role::Halted) {
            return;
        }
        if config.primary == self.me {
            match (leads, used) {
                (true, _) => self.reconfigure(effects),
                // An earlier life of this holder may have sent entries of this epoch that it then lost.
                (false, true) => self.claim(effects),
                (false, false) => self.lead(config.epoch, effects),
            }
            return;
        }
        self.depose(effects);
        if config.members().any(|member| *member == self.me) {
            self.follow(&config, effects);
        } else {
            self.role = Role::Idle;
        }
    }

    fn depose(&mut self, effects: &mut Vec<Effect>) {
        if matches!(self.role, Role::Primary(_)) {
            effects.push(Effect::Deposed);
            self.role = Role::Idle;
        }
    }

    fn claim(&mut self, effects: &mut Vec<Effect>) {
        self.role = Role::Claiming;
        let Some(known) = &self.known else { return };
        if let Ok(next) = known.config.elect(&self.me) {
            effects.push(Effect::Propose(known.revision, next));
        }
    }

    fn not_proposed(&mut self, guard: Revision, effects: &mut Vec<Effect>) {
        match &mut self.role {
            Role::Claiming if self.known.as_ref().is_some_and(|known| known.revision == guard) => {
                self.claim(effects);
            }
            Role::Primary(primary) => {
                primary.forget_proposal(guard);
                self.pursue(effects);
            }
            Role::Idle | Role::Claiming | Role::Follower(_) | Role::Halted => {}
        }
    }

    fn durable(&mut self, generation: u64, upto: Offset, effects: &mut Vec<Effect>) {
        if generation != self.local.generation || upto <= self.local.durable {
            return;
        }
        self.local.durable = upto.min(self.local.history.end());
        match &self.role {
            Role::Primary(_) => self.advance(effects),
            Role::Follower(_) => self.acknowledge_progress(effects),
            Role::Idle | Role::Claiming | Role::Halted => {}
        }
    }

    /// Drops entries below the floor of the configuration.
    fn apply_floor(&mut self, effects: &mut Vec<Effect>) {
        if let Some(floor) = self.known.as_ref().map(|known| known.config.floor) {
            self.truncate(floor, effects);
        }
    }

    fn truncate(&mut self, before: Offset, effects: &mut Vec<Effect>) {
        let before = before.min(self.committed).min(self.held_for_copies());
        if before > self.local.start {
            self.local.start = before;
            self.local.history.prune(before);
            effects.push(Effect::Truncate(before));
        }
    }

    fn tick(&mut self, effects: &mut Vec<Effect>) {
        match &self.role {
            Role::Primary(_) => self.tend(effects),
            Role::Follower(_) => self.introduce_again(effects),
            Role::Idle | Role::Claiming | Role::Halted => {}
        }
    }

    fn receive(&mut self, from: &HolderId, message: Message, effects: &mut Vec<Effect>) {
        let present = self.epoch();
        if message.epoch() > present {
            // The sender has a newer epoch; this copy acts on it once the store has it too.
            self.fenced_by = self.fenced_by.max(message.epoch());
            return;
        }
        if message.epoch() < present {
            if message.is_from_primary() {
                effects.push(Effect::Send(from.clone(), Message::Fenced { epoch: present }));
            }
            return;
        }
        match message {
            Message::Append { epoch_before, from: at, entries, committed, .. } => {
                self.take(from, epoch_before, at, entries, committed, effects);
            }
            Message::Install { history, snapshot, .. } => self.install(from, history, snapshot, effects),
            Message::Ack { life, durable, .. } => {
                if self.meet(from, life) {
                    self.acknowledged(from, durable, effects);
                }
            }
            Message::Behind { life, history, .. } => {
                if self.meet(from, life) {
                    self.behind(from, &history, effects);
                }
            }
            Message::Fenced { .. } => {}
        }
    }

    /// Whether this copy leads and may act now: its lease is valid and it has seen no later epoch.
    fn may_act(&self) -> bool {
        match &self.role {
            Role::Primary(primary) => self.now < self.lease_until && self.fenced_by <= primary.epoch,
            Role::Idle | Role::Claiming | Role::Follower(_) | Role::Halted => false,
        }
    }

    /// The offset up to which entries are readable now; `None` while this copy cannot determine it.
    #[must_use]
    pub fn readable(&self, now: Moment) -> Option<Offset> {
        match &self.role {
            Role::Primary(primary) => {
                let leased = now.max(self.now) < self.lease_until && self.fenced_by <= primary.epoch;
                // Before that, entries acknowledged by an earlier primary might not be visible.
                (leased && self.committed >= primary.begun).then_some(self.committed)
            }
            Role::Follower(_) => Some(self.committed),
            Role::Idle | Role::Claiming | Role::Halted => None,
        }
    }

    /// The committed offset as far as this copy knows.
    #[must_use]
    pub fn committed(&self) -> Offset {
        self.committed
    }

    /// Everything before this offset is durable here.
    #[must_use]
    pub fn durable_end(&self) -> Offset {
        self.local.durable
    }

    /// Everything that was written here, durable or not.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.local.history
    }

    /// The first offset that is still present.
    #[must_use]
    pub fn start(&self) -> Offset {
        self.local.start
    }

    /// Whether this copy leads in this epoch, with or without a lease.
    #[must_use]
    pub fn leads(&self, epoch: LogEpoch) -> bool {
        matches!(&self.role, Role::Primary(primary) if primary.epoch == epoch)
    }

    /// The epoch of this copy's configuration.
    #[must_use]
    pub fn epoch(&self) -> LogEpoch {
        self.known.as_ref().map_or(LogEpoch(0), |known| known.config.epoch)
    }

    /// Whether this copy leads, follows or is about to.
    #[must_use]
    pub fn takes_part(&self) -> bool {
        !matches!(self.role, Role::Idle | Role::Halted)
    }

    /// Whether this copy leads and the first entry of its epoch is committed, with or without a lease.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        matches!(&self.role, Role::Primary(primary) if self.committed >= primary.begun)
    }

    /// The role of this copy, with or without a lease.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let named = self.known.as_ref().map(|known| known.config.primary.clone());
        match (&self.role, named) {
            (Role::Primary(primary), _) if self.committed >= primary.begun => {
                Standing::Leading { epoch: primary.epoch, begun: primary.begun }
            }
            (Role::Primary(_) | Role::Claiming | Role::Follower(_), Some(primary)) => {
                Standing::Following { primary }
            }
            (Role::Primary(_) | Role::Claiming | Role::Follower(_), None)
            | (Role::Idle | Role::Halted, _) => Standing::Out,
        }
    }

    /// Whether a message had a later epoch than the configuration.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fenced_by > self.epoch()
    }

    /// The in-sync follower with the most recent answer, if this copy leads.
    #[must_use]
    pub fn heir(&self, now: Moment) -> Option<&HolderId> {
        let (Role::Primary(primary), Some(known)) = (&self.role, &self.known) else { return None };
        primary.liveliest(now, self.timing.lag, &known.config)
    }

    /// Whether this copy leads, with or without a lease.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        matches!(self.role, Role::Primary(_))
    }

    /// The status of this copy.
    #[must_use]
    pub fn status(&self, now: Moment) -> Status {
        Status {
            role: self.role_name(now),
            epoch: self.epoch(),
            start: self.local.start,
            end: self.local.history.end(),
            durable: self.local.durable,
            committed: self.committed,
            followers: match &self.role {
                Role::Primary(primary) => primary.lags(self.local.history.end()),
                Role::Idle | Role::Claiming | Role::Follower(_) | Role::Halted => Vec::new(),
            },
            config: self.known.as_ref().map(|known| known.config.clone()),
        }
    }

    fn role_name(&self, now: Moment) -> RoleName {
        match &self.role {
            Role::Idle => RoleName::Idle,
            Role::Claiming => RoleName::Claiming,
            Role::Primary(_) if now < self.lease_until => RoleName::Primary,
            Role::Primary(_) => RoleName::Suspended,
            Role::Halted => RoleName::Halted,
            Role::Follower(_) => {
                let learns = self.known.as_ref().is_some_and(|k| k.config.learner.as_ref() == Some(&self.me));
                if learns { RoleName::Learner } else { RoleName::Follower }
            }
        }
    }
}
