//! The loop around one copy: takes inputs, steps the state machine, performs the effects.
//!
//! A failed disk write ends the copy's life, and a new one begins from the data on disk when the disk may work again.
//! This is the same as after a crash, so it needs no extra rules.

mod life;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::session::SessionState;
use capstan_meta::{LeaseId, Revision, Store, clock};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use self::life::RECOVER_AFTER;
use super::budget::Room;
use super::gauge::{Duty, Gauge, Needle, Progress};
use super::handle::Drained;
use super::machine::StateMachine;
use super::transfer::{Arriving, Leaving};
use super::{Shared, Told};
use crate::config::LogConfig;
use crate::disk::{DiskError, DiskLog};
use crate::entry::{Entry, History, LogEpoch, Offset};
use crate::error::LogError;
use crate::keys::{HolderId, LogName};
use crate::net::{Links, Packet};
use crate::replica::{Aim, Append, Event, Moment, Replica, Shipment, Standing, Status, Ticket, Timing};

/// Inputs taken before timers are checked again.
const BURST: usize = 256;

/// Offsets of an append, or the error.
type Placement = Result<(Offset, Offset), LogError>;

/// The receiver of an append's outcome, and its memory reservation.
#[derive(Debug)]
pub(super) struct Reply {
    /// Receives the offsets as soon as they are assigned.
    pub(super) placed: Option<oneshot::Sender<Placement>>,
    pub(super) outcome: oneshot::Sender<Placement>,
    pub(super) room: Room,
}

impl Reply {
    /// Rejects the append.
    pub(super) fn refuse(self, error: LogError) {
        let Reply { placed, outcome, room } = self;
        drop(room);
        placed.unwrap_or(outcome).send(Err(error)).ok();
    }

    /// Reports the assigned offsets.
    pub(super) fn place(&mut self, first: Offset, end: Offset) {
        if let Some(placed) = self.placed.take() {
            placed.send(Ok((first, end))).ok();
        }
    }

    /// Reports the outcome of a placed append.
    pub(super) fn finish(self, outcome: Placement) {
        drop(self.room);
        self.outcome.send(outcome).ok();
    }
}

/// An input of the loop.
#[derive(Debug)]
pub(super) enum Input {
    Append(Option<LogEpoch>, Vec<Bytes>, Reply),
    Drain(Aim, Instant, oneshot::Sender<Result<Drained, LogError>>),
    Truncate(Offset, oneshot::Sender<Result<(), LogError>>),
    Repair(Offset, oneshot::Sender<()>),
    Status(oneshot::Sender<Status>),
}

/// A packet of another holder. Boxed because it is rare and large: a queue has space of full size for every message.
pub(super) type Arrived = Box<(HolderId, Packet, Room)>;

/// Reports of the disk and the store. There is one per effect, and effects are bounded by inputs.
#[derive(Debug)]
pub(super) enum Notice {
    Written {
        life: u64,
        generation: u64,
        upto: Offset,
        outcome: Result<(), Box<DiskError>>,
    },
    NotProposed(Revision),
    Configured(Box<LogConfig>, Revision),
    Repaired(Offset),
    /// An entry that another copy lacks cannot be read here.
    Damaged(Offset),
    /// The owner installed a snapshot, or failed.
    Installed {
        session: u64,
        from: HolderId,
        epoch: LogEpoch,
        history: History,
        outcome: Result<(), String>,
    },
    /// A snapshot has arrived at this copy, or was given up.
    Shipped(HolderId),
}

/// A handover or seal in progress.
pub(super) struct Drain {
    aim: Aim,
    epoch: LogEpoch,
    until: Instant,
    reply: oneshot::Sender<Result<Drained, LogError>>,
}

/// An append that has offsets and is not committed.
pub(super) struct Placed {
    pub(super) first: Offset,
    pub(super) end: Offset,
    pub(super) reply: Reply,
}

/// One copy of one log on this host.
pub(super) struct Copy {
    pub(super) name: LogName,
    pub(super) me: HolderId,
    pub(super) timing: Timing,
    pub(super) replica: Replica,
    pub(super) disk: DiskLog,
    pub(super) store: Store,
    pub(super) links: Arc<Links>,
    pub(super) machine: Arc<dyn StateMachine>,
    /// Snapshots being sent to other copies, and one being received.
    pub(super) leaving: Vec<Leaving>,
    pub(super) arriving: Option<Arriving>,
    /// The tasks that read the disk for copies that are far behind, by copy.
    pub(super) readers: HashMap<HolderId, mpsc::Sender<Shipment>>,
    pub(super) notices: mpsc::UnboundedSender<Notice>,
    needle: Needle,
    standing: watch::Sender<Standing>,
    /// The mark of the last published standing, which is cheaper to compare than the standing itself.
    standing_mark: (Duty, LogEpoch, bool),
    drain: Option<Drain>,
    shared: Arc<Shared>,
    pub(super) background: JoinSet<()>,
    /// All entries that are not durable yet, and the most recent ones before: what followers usually need.
    pub(super) recent: VecDeque<Entry>,
    pub(super) recent_bytes: usize,
    /// In the order of arrival, which is the order in which they are placed or rejected.
    pub(super) tickets: VecDeque<(Ticket, Reply)>,
    /// Appends that were received and not yet processed.
    gathered: Vec<Append>,
    /// Whether several appends arrived together the last time.
    has_company: bool,
    pub(super) placed: VecDeque<Placed>,
    pub(super) repairs: Vec<(Offset, oneshot::Sender<()>)>,
    pub(super) life: u64,
    /// Writes that were not reported back yet.
    pub(super) writing: usize,
    /// Why this life ended, and when the next one may begin.
    pub(super) ended: Option<(DiskError, Instant)>,
    /// Consecutive lives that ended without a commit.
    pub(super) failures: u32,
    /// The revision at which this copy last tried to hand over, and how often it has tried.
    resigned: (Option<Revision>, usize),
    next_ticket: u64,
    pub(super) next_session: u64,
    timeline: Timeline,
    session: watch::Receiver<SessionState>,
    lease: LeaseId,
    known: Option<(LogConfig, Revision)>,
    reports: Option<mpsc::UnboundedReceiver<Notice>>,
    _inputs: mpsc::WeakSender<Input>,
}

impl Copy {
    pub(super) fn new(
        shared: &Arc<Shared>,
        disk: DiskLog,
        machine: Arc<dyn StateMachine>,
        inputs: mpsc::WeakSender<Input>,
    ) -> Copy {
        let (notices, reports) = mpsc::unbounded_channel();
        let (me, timing) = (shared.options.me.clone(), shared.options.timing);
        let committed = disk.committed().max(disk.start());
        let progress = Progress { committed, duty: Duty::Follower };
        let life = shared.next_life();
        let replica = Replica::new(me.clone(), disk.start(), disk.history(), timing).in_life(life);
        Copy {
            name: disk.name().clone(),
            replica: replica.knowing(committed),
            me,
            timing,
            disk,
            store: shared.store.clone(),
            links: Arc::clone(&shared.links),
            machine,
            leaving: Vec::new(),
            arriving: None,
            readers: HashMap::new(),
            notices,
            needle: Needle::at(progress),
            standing: watch::Sender::new(Standing::Out),
            standing_mark: (Duty::Follower, LogEpoch(0), false),
            drain: None,
            shared: Arc::clone(shared),
            background: JoinSet::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            tickets: VecDeque::new(),
            gathered: Vec::new(),
            has_company: false,
            placed: VecDeque::new(),
            repairs: Vec::new(),
            life,
            writing: 0,
            ended: None,
            failures: 0,
            resigned: (None, 0),
            next_ticket: 0,
            next_session: 0,
            timeline: Timeline { base: Instant::now(), suspended: clock::suspended() },
            session: shared.session.clone(),
            lease: LeaseId::NONE,
            known: None,
            reports: Some(reports),
            _inputs: inputs,
        }
    }

    pub(super) fn gauge(&self) -> Arc<Gauge> {
        self.needle.gauge()
    }

    pub(super) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// Runs until the log is closed.
    pub(super) async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut packets: mpsc::Receiver<Arrived>,
        mut configs: watch::Receiver<Told>,
    ) {
        let Some(mut reports) = self.reports.take() else { return };
        let mut session = self.session.clone();
        session.mark_changed();
        // Kept across iterations: registering a timer and a waiter for every entry costs more than the entry.
        let tick = tokio::time::sleep_until(Instant::now());
        let renewal = renewed(session);
        tokio::pin!(tick, renewal);
        loop {
            // A log that was at rest may have something to do before its next tick.
            let due = Instant::now() + self.pause();
            if due < tick.deadline() {
                tick.as_mut().reset(due);
            }
            tokio::select! {
                biased;
                Some(notice) = reports.recv() => {
                    self.notice(notice).await;
                    for _ in 0..BURST {
                        let Ok(notice) = reports.try_recv() else { break };
                        self.notice(notice).await;
                    }
                }
                renewal_seen = &mut renewal => {
                    let Some((state, session)) = renewal_seen else { return };
                    renewal.set(renewed(session));
                    self.leased(state).await;
                }
                Ok(()) = configs.changed() => {
                    let told = configs.borrow_and_update().clone();
                    if let Some((config, revision)) = told {
                        self.configured(*config, revision).await;
                    }
                }
                () = &mut tick => {
                    self.begin_anew().await;
                    self.happen(Event::Tick).await;
                    self.tend_drain().await;
                    self.tend_snapshots();
                    self.replica.rest_up_to(self.shared.longest_pause());
                    let pause = self.pause();
                    if pause > self.timing.heartbeat {
                        // At rest every follower has everything.
                        self.forget_recent(0);
                    }
                    tick.as_mut().reset(Instant::now() + pause);
                }
                Some(arrived) = packets.recv() => {
                    self.arrived(*arrived).await;
                    for _ in 0..BURST {
                        let Ok(arrived) = packets.try_recv() else { break };
                        self.arrived(*arrived).await;
                    }
                    // Appends get their turn whatever else arrives.
                    if let Ok(input) = inputs.try_recv() {
                        self.input(input).await;
                        self.burst(&mut inputs).await;
                        self.append_gathered().await;
                    }
                }
                input = inputs.recv() => {
                    let Some(input) = input else { return };
                    self.input(input).await;
                    self.burst(&mut inputs).await;
                    if self.has_company {
                        // Other callers of the same group are about to append again.
                        tokio::task::yield_now().await;
                        self.burst(&mut inputs).await;
                    }
                    self.append_gathered().await;
                }
                Some(_) = self.background.join_next() => {}
            }
        }
    }

    /// Takes the waiting inputs, up to a bound.
    async fn burst(&mut self, inputs: &mut mpsc::Receiver<Input>) {
        for _ in 0..BURST {
            let Ok(input) = inputs.try_recv() else { return };
            self.input(input).await;
        }
    }

    /// How long this copy can go without a tick. A single copy sends no heartbeats: a thousand of them should cost
    /// nothing.
    fn pause(&self) -> Duration {
        let busy = self.ended.is_some() || self.drain.is_some();
        let transfers = self.arriving.is_some() || !self.leaving.is_empty();
        match () {
            () if self.is_alone() => RECOVER_AFTER,
            () if busy || transfers => self.timing.heartbeat / 2,
            () => self.replica.pause(self.now()),
        }
    }

    /// Whether there is no other holder or learner.
    pub(super) fn is_alone(&self) -> bool {
        self.known.as_ref().is_some_and(|(config, _)| config.members().count() == 1)
    }

    pub(super) fn now(&self) -> Moment {
        self.timeline.moment(Instant::now(), clock::suspended())
    }

    /// Steps the machine and performs the effects.
    pub(super) async fn happen(&mut self, event: Event) {
        if self.ended.is_some() {
            return;
        }
        let effects = self.replica.step(self.now(), event);
        for effect in effects {
            self.perform(effect).await;
        }
        self.publish();
    }

    pub(super) fn publish(&mut self) {
        // A primary that has seen a later epoch reads like a follower: its successor may have committed more.
        let leads = self.replica.is_primary() && !self.replica.is_fenced();
        let duty = match (leads, self.replica.has_begun()) {
            (true, true) => Duty::Primary,
            (true, false) => Duty::Beginning,
            (false, _) => Duty::Follower,
        };
        let committed = self.replica.committed();
        if committed > self.needle.shown().committed {
            self.disk.commit(committed);
        }
        self.needle.move_to(committed, duty);
        let mark = (duty, self.replica.epoch(), self.replica.takes_part());
        if mark != self.standing_mark {
            self.standing_mark = mark;
            let standing = self.replica.standing();
            self.standing.send_if_modified(|shown| std::mem::replace(shown, standing.clone()) != standing);
        }
    }

    /// The reply for the append with this ticket.
    pub(super) fn reply_to(&mut self, ticket: Ticket) -> Option<Reply> {
        let place = self.tickets.iter().position(|(waiting, _)| *waiting == ticket)?;
        self.tickets.remove(place).map(|(_, reply)| reply)
    }

    async fn input(&mut self, input: Input) {
        if let Input::Append(epoch, batch, reply) = input {
            self.gather(epoch, batch, reply);
            return;
        }
        self.append_gathered().await;
        match input {
            Input::Append(..) => {}
            Input::Drain(aim, until, reply) => self.begin_drain(aim, until, reply).await,
            Input::Truncate(offset, reply) => drop(reply.send(self.truncate(offset).await)),
            Input::Repair(offset, reply) => self.ask_for(offset, reply),
            Input::Status(reply) => drop(reply.send(self.replica.status(self.now()))),
        }
    }

    async fn arrived(&mut self, (from, packet, _room): (HolderId, Packet, Room)) {
        match packet {
            Packet::Message(message) => self.happen(Event::Received(from, message)).await,
            Packet::Fetch(offset) => self.lend(from, offset),
            Packet::Fetched(entries) => self.borrowed(entries),
            Packet::Piece(piece) => self.piece(&from, piece),
            Packet::Taken(taken) => self.taken(&from, taken),
        }
    }

    /// Collects appends that arrive together, so that they are placed together.
    fn gather(&mut self, epoch: Option<LogEpoch>, batch: Vec<Bytes>, reply: Reply) {
        if let Some((error, _)) = &self.ended {
            reply.refuse(error.clone().into());
            return;
        }
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.tickets.push_back((ticket, reply));
        let time = capstan_meta::clock::since_epoch();
        self.gathered.push(Append { ticket, epoch, time, batch });
    }

    async fn append_gathered(&mut self) {
        if !self.gathered.is_empty() {
            let appends = std::mem::take(&mut self.gathered);
            self.has_company = appends.len() > 1;
            self.happen(Event::Append(appends)).await;
        }
    }

    /// Works between two lives too: it frees space on a full disk.
    async fn truncate(&mut self, before: Offset) -> Result<(), LogError> {
        if self.ended.is_some() {
            let committed = self.needle.shown().committed;
            return Ok(self.disk.truncate(before.min(committed)).await?);
        }
        self.happen(Event::Truncate(before)).await;
        self.ended.as_ref().map_or(Ok(()), |(error, _)| Err(error.clone().into()))
    }

    async fn configured(&mut self, config: LogConfig, revision: Revision) {
        if self.known.as_ref().is_none_or(|(_, known)| *known < revision) {
            self.known = Some((config.clone(), revision));
        }
        self.happen(Event::Configured(config, revision)).await;
        self.tend_drain().await;
        if self.ended.is_some() {
            self.resign();
        }
    }

    /// Begins to hand over or to seal; one at a time.
    async fn begin_drain(
        &mut self,
        aim: Aim,
        until: Instant,
        reply: oneshot::Sender<Result<Drained, LogError>>,
    ) {
        if self.drain.is_some() {
            reply.send(Err(LogError::Draining(self.name.clone()))).ok();
            return;
        }
        let epoch = self.replica.epoch();
        self.drain = Some(Drain { aim: aim.clone(), epoch, until, reply });
        self.tend_drain().await;
        if self.drain.is_some() {
            self.happen(Event::Aim(Some(aim))).await;
        }
    }

    /// Checks whether a handover or seal has completed or failed.
    async fn tend_drain(&mut self) {
        let (Some(drain), Some((config, _))) = (&self.drain, &self.known) else { return };
        let held = match &drain.aim {
            Aim::HandOver(to) => config.holders.contains(to),
            Aim::Seal => true,
        };
        let end = config.sealed.unwrap_or_default();
        let outcome = match &drain.aim {
            Aim::Seal if config.sealed.is_some() => Ok(Drained { epoch: config.epoch, end }),
            Aim::HandOver(to) if config.primary == *to => Ok(Drained { epoch: config.epoch, end }),
            Aim::HandOver(to) if !held => Err(crate::config::Refused::NotAHolder(to.clone()).into()),
            Aim::HandOver(_) | Aim::Seal if self.ended.is_some() || !self.replica.leads(drain.epoch) => {
                Err(LogError::NotPrimary(self.name.clone()))
            }
            Aim::HandOver(_) | Aim::Seal if Instant::now() >= drain.until => {
                Err(LogError::NotDrained(self.name.clone()))
            }
            Aim::HandOver(_) | Aim::Seal => return,
        };
        if let Some(drain) = self.drain.take() {
            drain.reply.send(outcome).ok();
        }
        self.happen(Event::Aim(None)).await;
    }

    /// Handles a renewed or a new lease. After a new one the configuration is read first, because it may have changed
    /// when the old lease expired.
    async fn leased(&mut self, state: SessionState) {
        let SessionState::Live { lease, until, suspended } = state else { return };
        if lease != self.lease {
            match crate::referee::read(&self.store, &self.name).await {
                Ok(found) => self.configured(found.record, found.mod_revision).await,
                // Without a fresh configuration the copy does not act; the next renewal reads it again.
                Err(_) => return,
            }
            self.lease = lease;
            self.needle.lease(lease);
        }
        let until = self.timeline.moment(until, suspended);
        self.happen(Event::Leased(until)).await;
    }

    async fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::Written { life, generation, upto, outcome } => {
                self.writing -= 1;
                if life == self.life {
                    match outcome {
                        Ok(()) => self.happen(Event::Durable(generation, upto)).await,
                        Err(error) => self.end_life(*error),
                    }
                }
            }
            Notice::NotProposed(guard) => self.happen(Event::NotProposed(guard)).await,
            Notice::Configured(config, revision) => self.configured(*config, revision).await,
            Notice::Repaired(offset) => self.repaired(offset),
            Notice::Damaged(offset) => self.ask_for(offset, oneshot::channel().0),
            Notice::Installed { session, from, epoch, history, outcome } => {
                self.installed(session, &from, epoch, history, outcome).await;
            }
            Notice::Shipped(to) => {
                self.leaving.retain(|leaving| leaving.to != to);
                self.happen(Event::SnapshotEnded(to)).await;
            }
        }
    }
}

/// The time of a copy: what the machine slept has passed too, unlike on the clock of its timers.
#[derive(Clone, Copy, Debug)]
struct Timeline {
    base: Instant,
    /// How long the machine had been suspended then, in all.
    suspended: Duration,
}

impl Timeline {
    /// An instant, by which (or by whose renewal) the machine had been suspended for so long in all.
    fn moment(self, instant: Instant, suspended: Duration) -> Moment {
        instant.saturating_duration_since(self.base) + clock::slept(self.suspended, suspended)
    }
}

/// The next state of the session; `None` when the session has ended.
async fn renewed(
    mut session: watch::Receiver<SessionState>,
) -> Option<(SessionState, watch::Receiver<SessionState>)> {
    session.changed().await.ok()?;
    let state = *session.borrow_and_update();
    Some((state, session))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A primary whose machine slept past its lease does not act on it, although its timers stood still.
    #[test]
    fn a_lease_ends_while_the_machine_sleeps() {
        let (base, second) = (Instant::now(), Duration::from_secs(1));
        let timeline = Timeline { base, suspended: 50 * second };
        let until = timeline.moment(base + 8 * second, 60 * second);
        assert!(timeline.moment(base + second, 60 * second) < until, "it slept before the renewal only");
        assert!(timeline.moment(base + second, 66 * second) < until);
        assert!(timeline.moment(base + second, 67 * second) >= until);
        assert_eq!(
            timeline.moment(base, 50 * second + second / 50),
            Moment::ZERO,
            "the clocks are read in turn"
        );
    }
}
