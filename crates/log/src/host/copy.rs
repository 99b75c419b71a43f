//! The loop around one copy: takes inputs, lets them happen to the state machine, has the effects performed.
//!
//! A disk that refuses a write ends the copy's life, and a new one begins from what is on disk once there is hope: that
//! is what happens after a crash, so it needs no rules of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::session::SessionState;
use capstan_meta::{LeaseId, Revision, Store};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::gauge::{Gauge, Needle, Progress, Standing};
use super::{Shared, Snapshots};
use crate::config::LogConfig;
use crate::disk::{DiskError, DiskLog};
use crate::entry::{Entry, Offset};
use crate::error::LogError;
use crate::keys::{HolderId, LogName};
use crate::net::{Links, Packet};
use crate::replica::{Event, Moment, Replica, Status, Ticket, Timing};

/// Inputs taken before time is looked at again.
const BURST: usize = 256;
/// How long a copy whose disk refused a write waits before it tries again: long enough not to wear out anybody.
const RECOVER_AFTER: Duration = Duration::from_secs(1);

/// Where an append's outcome goes.
pub(super) type Reply = oneshot::Sender<Result<(Offset, Offset), LogError>>;

/// What the loop takes.
#[derive(Debug)]
pub(super) enum Input {
    Append(Vec<Bytes>, Reply),
    /// Boxed like everything that is rare and large: a queue has a place of full size for every message.
    Packet(Box<(HolderId, Packet)>),
    Configured(Box<LogConfig>, Revision),
    Truncate(Offset, oneshot::Sender<Result<(), LogError>>),
    Repair(Offset, oneshot::Sender<()>),
    Status(oneshot::Sender<Status>),
}

/// What the disk and the store report back. There are as many as there were effects, and those are bounded by inputs.
#[derive(Debug)]
pub(super) enum Notice {
    Written { life: u64, generation: u64, upto: Offset, outcome: Result<(), Box<DiskError>> },
    NotProposed(Revision),
    Configured(Box<LogConfig>, Revision),
    Repaired(Offset),
}

/// An append that stands in the log and is not committed.
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
    pub(super) snapshots: Arc<dyn Snapshots>,
    pub(super) notices: mpsc::UnboundedSender<Notice>,
    needle: Needle,
    pub(super) background: JoinSet<()>,
    /// Everything that is not durable yet, and what was written just before: what followers mostly want.
    pub(super) recent: VecDeque<Entry>,
    pub(super) recent_bytes: usize,
    /// In the order in which they were taken, which is the order in which they are placed or refused.
    pub(super) tickets: VecDeque<(Ticket, Reply)>,
    /// Appends that were taken and have not happened yet.
    gathered: Vec<(Ticket, Vec<Bytes>)>,
    /// Whether more than one of them came together the last time.
    has_company: bool,
    pub(super) placed: VecDeque<Placed>,
    pub(super) repairs: Vec<(Offset, oneshot::Sender<()>)>,
    pub(super) life: u64,
    /// Writes that were not reported back yet.
    pub(super) writing: usize,
    /// Why this life ended, and when the next one may begin.
    pub(super) ended: Option<(DiskError, Instant)>,
    next_ticket: u64,
    base: Instant,
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
        snapshots: Arc<dyn Snapshots>,
        inputs: mpsc::WeakSender<Input>,
    ) -> Copy {
        let (notices, reports) = mpsc::unbounded_channel();
        let (me, timing) = (shared.options.me.clone(), shared.options.timing);
        let progress = Progress { committed: disk.start(), standing: Standing::Other };
        Copy {
            name: disk.name().clone(),
            replica: Replica::new(me.clone(), disk.start(), disk.history(), timing),
            me,
            timing,
            disk,
            store: shared.store.clone(),
            links: Arc::clone(&shared.links),
            snapshots,
            notices,
            needle: Needle::at(progress),
            background: JoinSet::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            tickets: VecDeque::new(),
            gathered: Vec::new(),
            has_company: false,
            placed: VecDeque::new(),
            repairs: Vec::new(),
            life: 0,
            writing: 0,
            ended: None,
            next_ticket: 0,
            base: Instant::now(),
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

    /// Works until nobody holds the log any more.
    pub(super) async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        let Some(mut reports) = self.reports.take() else { return };
        let mut session = self.session.clone();
        session.mark_changed();
        // Kept over the turns of the loop: registering a timer and a waiter for every entry costs more than the entry.
        let tick = tokio::time::sleep_until(Instant::now());
        let renewal = renewed(session);
        tokio::pin!(tick, renewal);
        loop {
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
                () = &mut tick => {
                    self.begin_anew().await;
                    self.happen(Event::Tick).await;
                    // Nobody waits for signs of life from a copy that is alone: a thousand of them should cost nothing.
                    let pause = if self.is_alone() { RECOVER_AFTER } else { self.timing.heartbeat / 2 };
                    tick.as_mut().reset(Instant::now() + pause);
                }
                input = inputs.recv() => {
                    let Some(input) = input else { return };
                    self.input(input).await;
                    self.burst(&mut inputs).await;
                    if self.has_company {
                        // Others who were told the outcome of the same group are about to append again.
                        tokio::task::yield_now().await;
                        self.burst(&mut inputs).await;
                    }
                    self.append_gathered().await;
                }
                Some(_) = self.background.join_next() => {}
            }
        }
    }

    /// Takes what is waiting, within reason.
    async fn burst(&mut self, inputs: &mut mpsc::Receiver<Input>) {
        for _ in 0..BURST {
            let Ok(input) = inputs.try_recv() else { return };
            self.input(input).await;
        }
    }

    /// Whether nobody else has a copy or builds one.
    pub(super) fn is_alone(&self) -> bool {
        self.known.as_ref().is_some_and(|(config, _)| config.members().count() == 1)
    }

    pub(super) fn now(&self) -> Moment {
        Instant::now().duration_since(self.base)
    }

    /// Lets an event happen and performs what follows from it.
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
        let standing = if self.replica.is_primary() { Standing::Primary } else { Standing::Other };
        self.needle.move_to(self.replica.committed(), standing);
    }

    /// The answer to the append with this ticket.
    pub(super) fn reply_to(&mut self, ticket: Ticket) -> Option<Reply> {
        let place = self.tickets.iter().position(|(waiting, _)| *waiting == ticket)?;
        self.tickets.remove(place).map(|(_, reply)| reply)
    }

    async fn input(&mut self, input: Input) {
        if let Input::Append(batch, reply) = input {
            self.gather(batch, reply);
            return;
        }
        self.append_gathered().await;
        match input {
            Input::Append(..) => {}
            Input::Packet(packet) => match *packet {
                (from, Packet::Message(message)) => self.happen(Event::Received(from, message)).await,
                (from, Packet::Fetch(offset)) => self.lend(&from, offset).await,
                (_, Packet::Fetched(entries)) => self.borrowed(entries),
            },
            Input::Configured(config, revision) => self.configured(*config, revision).await,
            Input::Truncate(offset, reply) => drop(reply.send(self.truncate(offset).await)),
            Input::Repair(offset, reply) => self.ask_for(offset, reply),
            Input::Status(reply) => drop(reply.send(self.replica.status(self.now()))),
        }
    }

    /// Appends that arrive together are placed together.
    fn gather(&mut self, batch: Vec<Bytes>, reply: Reply) {
        if let Some((error, _)) = &self.ended {
            reply.send(Err(error.clone().into())).ok();
            return;
        }
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.tickets.push_back((ticket, reply));
        self.gathered.push((ticket, batch));
    }

    async fn append_gathered(&mut self) {
        if !self.gathered.is_empty() {
            let appends = std::mem::take(&mut self.gathered);
            self.has_company = appends.len() > 1;
            self.happen(Event::Append(appends)).await;
        }
    }

    /// Works between two lives too: it is what makes room on a full disk.
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
    }

    /// The lease was renewed, or there is a new one: then the configuration is looked at first, because the end of the
    /// old lease may have had consequences.
    async fn leased(&mut self, state: SessionState) {
        let SessionState::Live { lease, until } = state else { return };
        if lease != self.lease {
            match crate::referee::read(&self.store, &self.name).await {
                Ok(found) => self.configured(found.record, found.mod_revision).await,
                // Without a look there is no acting; the next renewal looks again.
                Err(_) => return,
            }
            self.lease = lease;
        }
        let until = until.saturating_duration_since(self.base);
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
        }
    }

    /// The disk refused: nothing of what this life believes about its tail is sure any more.
    pub(super) fn end_life(&mut self, error: DiskError) {
        if self.ended.is_some() {
            return;
        }
        tracing::warn!(log = %self.name, %error, "copy of log stops");
        self.gathered.clear();
        for (_, reply) in self.tickets.drain(..) {
            reply.send(Err(error.clone().into())).ok();
        }
        let alone = self.is_alone();
        for placed in self.placed.drain(..) {
            // Another holder may have what this one could not write.
            let told = if alone { error.clone().into() } else { LogError::Deposed(self.name.clone()) };
            placed.reply.send(Err(told)).ok();
        }
        self.ended = Some((error, Instant::now() + RECOVER_AFTER));
    }

    /// A new life, from what is on disk, once the last write of the old one was reported.
    async fn begin_anew(&mut self) {
        if self.writing > 0 || self.ended.as_ref().is_none_or(|(_, when)| Instant::now() < *when) {
            return;
        }
        self.ended = None;
        self.life += 1;
        self.recent.clear();
        self.recent_bytes = 0;
        let committed = self.needle.shown().committed;
        let found = Replica::new(self.me.clone(), self.disk.start(), self.disk.history(), self.timing);
        self.replica = found.knowing(committed);
        let state = *self.session.borrow();
        self.lease = LeaseId::NONE;
        self.leased(state).await;
    }
}

/// The next state of the session; nothing when its keeper has gone.
async fn renewed(
    mut session: watch::Receiver<SessionState>,
) -> Option<(SessionState, watch::Receiver<SessionState>)> {
    session.changed().await.ok()?;
    let state = *session.borrow_and_update();
    Some((state, session))
}
