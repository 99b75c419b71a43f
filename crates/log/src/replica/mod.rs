//! How does one copy of a log behave? A pure state machine: an event goes in, effects come out, nothing waits.
//!
//! It does no I/O and reads no clock; the loop around it performs the effects in their order and brings their outcome
//! back as events. The same machine runs on real disks and sockets (`crate::host`) and in the simulation.
//!
//! Why it is safe, in five lines. An entry is committed when every in-sync holder has it durably. A primary is taken
//! from the in-sync set only, so it has every committed entry, and it never cuts its own log. A follower takes entries
//! from the primary of the newest epoch that it knows, so an old primary cannot collect a complete set of
//! acknowledgments once its successor has begun. An epoch has one writer in one life: a restarted primary begins a new
//! one. A copy joins the set with everything that was there when the epoch began, and counts from the moment that its
//! joining may have happened.

mod follower;
mod message;
mod primary;

use std::time::Duration;

use bytes::Bytes;
use capstan_meta::Revision;

use crate::config::LogConfig;
use crate::entry::{Entry, History, LogEpoch, Offset};
use crate::keys::HolderId;
use follower::Follower;
pub use message::Message;
use primary::Primary;

/// Time on the holder's own monotonic clock, from an arbitrary beginning.
pub type Moment = Duration;

/// How patient a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A follower hears from its primary at least this often.
    pub heartbeat: Duration,
    /// Entries that were not acknowledged after this are sent again.
    pub resend: Duration,
    /// A copy that made no progress for this long is taken out of the in-sync set.
    pub lag: Duration,
    /// Entries on the way to one follower; more than a round trip can hold only fills queues.
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
            window: 4096,
            shipment: 512,
        }
    }
}

/// Names an append until it is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What can happen to a copy.
#[derive(Clone, Debug)]
pub enum Event {
    /// Time has passed.
    Tick,
    /// The configuration, as the store had it at this revision (of the record). Old news is ignored.
    Configured(LogConfig, Revision),
    /// A proposal with this guard surely did not happen and never will.
    NotProposed(Revision),
    /// The host's lease is good until then, a safe margin already taken off. If it is a new lease and not a renewal,
    /// the configuration as it was after it was granted must have been told before: the old one may have been missed.
    Leased(Moment),
    /// Some people want to append; together they cost one write and one shipment.
    Append(Vec<(Ticket, Vec<Bytes>)>),
    /// Everything before this offset is durable here, as of this generation of the log.
    Durable(u64, Offset),
    /// The owner does not need entries before this offset any more.
    Truncate(Offset),
    /// Another copy says something.
    Received(HolderId, Message),
}

/// What the loop is to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write entries at the end of the own log; [`Event::Durable`] with this generation when they are.
    Write(u64, Vec<Entry>),
    /// Forget the own log from this offset on; what is written afterwards belongs to this generation.
    Cut(u64, Offset),
    /// Forget everything and begin at the end of this history, with this snapshot of what came before.
    Reset(u64, History, Bytes),
    /// Drop entries before this offset; they stay in the history.
    Truncate(Offset),
    /// Say this to another copy.
    Send(HolderId, Message),
    /// Read the own log and send it to another copy.
    Ship(HolderId, Shipment),
    /// Take a snapshot and send it, with the history up to the own beginning, to a copy that is too far behind.
    ShipSnapshot(HolderId, LogEpoch, History),
    /// Change the configuration if it is still at this revision.
    Propose(Revision, LogConfig),
    /// The append stands at these offsets (first, one behind the last), and is not committed yet.
    Placed(Ticket, Offset, Offset),
    /// The append was not taken, and will never be there.
    Refused(Ticket, Refusal),
    /// Everything before this offset is committed.
    Committed(Offset),
    /// This copy does not lead any more; what becomes of placed appends, the next primary decides.
    Deposed,
    /// The primary's history contradicts what is committed here. Nothing is cut; somebody must look.
    Diverged(Offset),
}

/// A stretch of the primary's log on its way to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shipment {
    /// The primary's epoch.
    pub epoch: LogEpoch,
    /// Epoch of the entry before the first.
    pub epoch_before: LogEpoch,
    /// First offset.
    pub from: Offset,
    /// One behind the last.
    pub upto: Offset,
    /// What is committed.
    pub committed: Offset,
}

/// Why an append was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another holder is the primary, or nobody is yet.
    NotPrimary,
    /// This is the primary, but its lease has run out: somebody else may have been named.
    NoLease,
}

/// The newest configuration that a copy knows.
#[derive(Clone, Debug)]
struct Known {
    config: LogConfig,
    revision: Revision,
}

/// What a copy has of the log.
#[derive(Clone, Debug)]
struct Local {
    /// First offset that is still there.
    start: Offset,
    /// Everything that was written, durable or not.
    history: History,
    /// Everything before this is durable.
    durable: Offset,
    /// Rises with every cut, so that old durable notices are recognised.
    generation: u64,
}

#[derive(Clone, Debug)]
enum Role {
    /// Not a member, or not told yet.
    Idle,
    /// Named primary in an epoch that an earlier life may have written in: waits for a new one.
    Claiming,
    Primary(Primary),
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
    /// The epoch in force when this life began: an earlier life may have written in it, so this one must not.
    born_in: Option<LogEpoch>,
    /// The highest epoch that anyone has told of.
    fenced_by: LogEpoch,
    role: Role,
}

impl Replica {
    /// A copy that was found on disk like this, at the beginning of a life. `start` is the first offset still there.
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
        }
    }

    /// The same, where an earlier life in the same process knew that much to be committed.
    #[must_use]
    pub fn knowing(mut self, committed: Offset) -> Replica {
        self.committed = self.committed.max(committed.min(self.local.history.end()));
        self
    }

    /// Lets one event happen at this moment.
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
        // A store that was set back tells of epochs that are in the log already: those are used as well.
        let used = *self.born_in.get_or_insert(config.epoch) == config.epoch
            || config.epoch <= self.local.history.newest();
        self.fenced_by = self.fenced_by.max(config.epoch);
        self.known = Some(Known { config: config.clone(), revision });
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
            Role::Primary(primary) => primary.forget_proposal(guard),
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

    fn truncate(&mut self, before: Offset, effects: &mut Vec<Effect>) {
        let before = before.min(self.committed);
        if before > self.local.start {
            self.local.start = before;
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
        let present = self.known.as_ref().map_or(LogEpoch(0), |known| known.config.epoch);
        if message.epoch() > present {
            // Its sender knows of a newer epoch; this copy acts on it when the store says so too.
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
            Message::Ack { durable, .. } => self.acknowledged(from, durable, effects),
            Message::Behind { history, .. } => self.behind(from, &history, effects),
            Message::Fenced { .. } => {}
        }
    }

    /// Whether this copy leads and may act on it now: its lease is good and nobody has told of a later epoch.
    fn may_act(&self) -> bool {
        match &self.role {
            Role::Primary(primary) => self.now < self.lease_until && self.fenced_by <= primary.epoch,
            Role::Idle | Role::Claiming | Role::Follower(_) | Role::Halted => false,
        }
    }

    /// Up to where readers may be shown entries now; nothing while this copy cannot know.
    #[must_use]
    pub fn readable(&self, now: Moment) -> Option<Offset> {
        match &self.role {
            Role::Primary(primary) => {
                let leased = now.max(self.now) < self.lease_until && self.fenced_by <= primary.epoch;
                leased.then_some(self.committed)
            }
            Role::Follower(_) => Some(self.committed),
            Role::Idle | Role::Claiming | Role::Halted => None,
        }
    }

    /// What is known to be committed here.
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

    /// First offset that is still here.
    #[must_use]
    pub fn start(&self) -> Offset {
        self.local.start
    }

    /// Whether this copy leads in this epoch, lease or not.
    #[must_use]
    pub fn leads(&self, epoch: LogEpoch) -> bool {
        matches!(&self.role, Role::Primary(primary) if primary.epoch == epoch)
    }

    /// Whether this copy leads, lease or not.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        matches!(self.role, Role::Primary(_))
    }

    /// Where this copy stands.
    #[must_use]
    pub fn status(&self, now: Moment) -> Status {
        Status {
            role: self.role_name(now),
            epoch: self.known.as_ref().map_or(LogEpoch(0), |known| known.config.epoch),
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

/// What a copy is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleName {
    /// Not a member, or not told yet.
    Idle,
    /// Named primary, about to begin an epoch.
    Claiming,
    /// Leads.
    Primary,
    /// Would lead, but its lease has run out.
    Suspended,
    /// Follows.
    Follower,
    /// Copies, to become a holder.
    Learner,
    /// Its primary contradicts what is committed here.
    Halted,
}

/// Where a copy stands, for people and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What it is.
    pub role: RoleName,
    /// The epoch of the configuration that it knows.
    pub epoch: LogEpoch,
    /// First offset that is still here.
    pub start: Offset,
    /// First offset behind what was written.
    pub end: Offset,
    /// First offset behind what is durable.
    pub durable: Offset,
    /// First offset behind what is committed.
    pub committed: Offset,
    /// For a primary: each other member, and how many entries it lacks.
    pub followers: Vec<(HolderId, u64)>,
    /// The configuration that it knows.
    pub config: Option<LogConfig>,
}
