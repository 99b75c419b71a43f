//! Which task owns the pushed state? The keeper: it accepts one message after another, persists it, swaps the
//! routing table and replies. The workers only read the table.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capstan_meta::clock;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, error};

use crate::gate::{Gate, Phase};
use crate::moves::Prepared;
use crate::nodes::{NodeState, Nodes};
use crate::state::{Clock, Lease, Move, ProxyState, Routing, Serving, StateFile, Verdict};
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::{Announcement, Entry, Holding, LeaseGrant, Message};
use capstan_redis_protocol::resp::{Protocol, Writer};

use super::arena::Key;
use super::mailbox::Letter;
use super::replies::Sequence;
use super::{Lent, Shared};

/// Messages queued for the keeper. Coordinators send one at a time; a longer queue does not help.
pub(super) const QUEUE: usize = 256;

/// A message, and where its reply goes.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) message: Message,
    /// When it was received.
    pub(super) received: Instant,
    pub(super) worker: usize,
    pub(super) session: Key,
    pub(super) sequence: Sequence,
}

/// The owner of the state.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    nodes: Nodes,
    state: ProxyState,
    lease: Lease,
    /// How long the machine had been suspended when the lease was last looked at.
    suspended: Duration,
    /// `None` for a proxy that keeps its state in memory only.
    file: Option<StateFile>,
    /// The gates of ranges that migrate away.
    gates: BTreeMap<Move, Arc<Gate>>,
    /// Releases that wait until their moves are nearly done.
    releasing: JoinSet<()>,
}

/// A proxy without a state directory cannot persist a release, so it releases nothing.
const NO_MOVES: &str = "ERR this proxy does not move slots: it has no state directory";

impl Keeper {
    pub(super) fn new(
        shared: Arc<Shared>,
        nodes: Nodes,
        state: ProxyState,
        file: Option<StateFile>,
        needs_lease: bool,
    ) -> Result<Keeper, String> {
        let clock = Clock::new(rand::random(), Instant::now());
        let lease = Lease::new(needs_lease || state.is_under_lease(), clock);
        let (gates, releasing) = (BTreeMap::new(), JoinSet::new());
        let suspended = clock::suspended();
        let mut keeper = Keeper { shared, nodes, state, lease, suspended, file, gates, releasing };
        let state = keeper.state.clone();
        if state.own().epoch.is_told() {
            let prepared = keeper.prepare(&state)?;
            keeper.publish();
            prepared.into_iter().for_each(Prepared::routed);
        }
        keeper.publish();
        Ok(keeper)
    }

    /// Runs until all senders are gone.
    pub(super) async fn run(mut self, mut orders: mpsc::Receiver<Order>) {
        while let Some(order) = orders.recv().await {
            while self.releasing.try_join_next().is_some() {}
            match order.message.clone() {
                Message::Releasing(announcement) => self.release(announcement, order),
                _ => {
                    let mut reply = self.obey(&order);
                    // Replies under the old table count until the last worker has the new one.
                    if let Err(not) = self.shared.adoption.complete().await {
                        reply.clear();
                        Writer::new(&mut reply, Protocol::Resp2).error(not.to_string());
                    }
                    answer(&self.shared, &order, reply);
                }
            }
        }
    }

    /// Runs concurrently: a release takes as long as the last keys of its move.
    fn release(&mut self, announcement: Announcement, order: Order) {
        let shared = Arc::clone(&self.shared);
        self.releasing.spawn(async move {
            let mut reply = Vec::new();
            let mut writer = Writer::new(&mut reply, Protocol::Resp2);
            match &shared.moves {
                None => writer.error(NO_MOVES),
                Some(moves) => match moves.releasing(&announcement).await {
                    Ok(()) => writer.ok(),
                    Err(not) => writer.error(not.to_string()),
                },
            }
            answer(&shared, &order, reply);
        });
    }

    /// Drops a lease from before the machine was suspended: its clock stood still, and those of coordinators did not.
    fn wake_up(&mut self) {
        let suspended = clock::suspended();
        if !clock::slept(self.suspended, suspended).is_zero() {
            self.lease = self.lease.after_suspension(rand::random(), Instant::now());
        }
        self.suspended = suspended;
    }

    fn obey(&mut self, order: &Order) -> Vec<u8> {
        self.wake_up();
        let mut reply = Vec::new();
        let mut writer = Writer::new(&mut reply, Protocol::Resp2);
        match &order.message {
            Message::SetDb(_)
            | Message::SetPeer(_)
            | Message::SetRepl(_)
            | Message::SetConf(_)
            | Message::SetSync(_)
            | Message::ClearDb => match self.accept(&order.message) {
                Ok(()) => writer.ok(),
                Err(text) => writer.error(&text),
            },
            Message::Fence(_) => match self.accept(&order.message) {
                Ok(()) => self.write_holding(&mut writer),
                Err(text) => writer.error(&text),
            },
            Message::Lease(grant) => match self.grant(grant, order.received) {
                Ok(()) => writer.ok(),
                Err(text) => writer.error(&text),
            },
            // Releases run concurrently, imports are handed over by the workers; both end up here only
            // without moves.
            Message::Releasing(_) | Message::Import(_) => writer.error(NO_MOVES),
            Message::ListDb => {
                let names = self.state.databases();
                writer.array(names.len());
                names.iter().for_each(|name| writer.bulk(name.as_str()));
            }
            Message::Moves => {
                let lines = self.shared.moves.as_ref().map(|moves| moves.lines()).unwrap_or_default();
                writer.array(lines.len());
                lines.iter().for_each(|line| writer.bulk(line));
            }
            Message::Epoch => {
                let state = &self.state;
                let epochs = [
                    ("SETDB", state.own().epoch),
                    ("SETPEER", state.peers().epoch),
                    ("SETREPL", state.roles().epoch),
                    ("SETCONF", state.conf().epoch),
                ];
                writer.array(epochs.len() * 2 + 6);
                for (name, epoch) in epochs {
                    writer.bulk(name);
                    writer.integer(i64::try_from(epoch.0).unwrap_or(i64::MAX));
                }
                writer.bulk("CLOCK");
                writer.bulk(self.lease.clock().reading(Instant::now()));
                // That the standing of a coordinator in `LEASE` is understood.
                writer.bulk("STANDING");
                writer.integer(1);
                // That `SETSYNC` is.
                writer.bulk("SETSYNC");
                writer.integer(1);
            }
            Message::Info => writer.bulk(self.about(order.received)),
        }
        reply
    }

    /// Accepts a message durably, or returns the refusal.
    fn accept(&mut self, message: &Message) -> Result<(), String> {
        self.nodes_are_ready(message)?;
        match self.state.accept(message).map_err(|refusal| refusal.to_string())? {
            Verdict::Unchanged => Ok(()),
            Verdict::Accept(next) => self.change(*next),
        }
    }

    /// A node that is not ready, or that holds the data of another database, must not be given slots.
    fn nodes_are_ready(&self, message: &Message) -> Result<(), String> {
        let Message::SetDb(announcement) = message else { return Ok(()) };
        let supervised = self.nodes.reports();
        for Entry { db, address, .. } in &announcement.entries {
            if let Some(primary) = supervised.get(address).and_then(|report| report.replica_of.as_ref()) {
                return Err(format!("TRYAGAIN node {address} not ready: it is a replica of {primary}"));
            }
            match self.nodes.state(address) {
                NodeState::NotReady { why } => {
                    return Err(format!("TRYAGAIN node {address} not ready: {why}"));
                }
                NodeState::Ready { owner, .. } => {
                    let ours = owner.is_some_and(|(name, _)| name == *db);
                    if supervised.contains_key(address) && !ours {
                        return Err(format!(
                            "TRYAGAIN node {address} not ready: it is not assigned to {db} yet"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Changes the state: persisted first, then in force.
    fn change(&mut self, next: ProxyState) -> Result<(), String> {
        if let Some(file) = &self.file
            && let Err(error) = self.persist(file, &next)
        {
            error!(%error, path = %file.path().display(), "cannot persist the proxy state");
            return Err(format!("ERR cannot persist the message: {error}"));
        }
        let moved = (next.own() != self.state.own()).then(|| self.prepare(&next)).transpose()?.flatten();
        self.state = next;
        self.publish();
        moved.into_iter().for_each(Prepared::routed);
        debug!(own = %self.state.own().epoch, peers = %self.state.peers().epoch, "routing table changed");
        Ok(())
    }

    fn persist(&self, file: &StateFile, next: &ProxyState) -> std::io::Result<()> {
        if !next.in_sync().eq(self.state.in_sync()) {
            file.save_in_sync(next)?;
        }
        file.save(next)
    }

    /// The gates of ranges that migrate away in a new state. Their moves begin when the routing table is in
    /// place.
    fn prepare(&mut self, next: &ProxyState) -> Result<Option<Prepared>, String> {
        let Some(moves) = &self.shared.moves else { return Ok(None) };
        let own = next.own();
        let prepared = moves
            .prepare(own.epoch, &own.entries, self.shared.mailboxes.len())
            .map_err(|error| format!("ERR cannot persist the moves: {error}"))?;
        self.gates = next.moves().filter_map(|of| prepared.gate(&of).map(|gate| (of, gate))).collect();
        Ok(Some(prepared))
    }

    /// Writes what is held at this moment, as the reply to a fence.
    fn write_holding(&self, writer: &mut Writer<'_, Vec<u8>>) {
        let own = self.state.own().clone();
        let is_released = |entry: &&Entry| {
            let gate = Move::of(entry).and_then(|of| self.gates.get(&of));
            gate.is_some_and(|gate| gate.phase() == Phase::Released)
        };
        let released = own.entries.iter().filter(is_released).cloned().collect();
        let lines = Holding { own, released }.lines();
        writer.array(lines.len());
        lines.iter().for_each(|line| writer.bulk(line));
    }

    fn grant(&mut self, grant: &LeaseGrant, received: Instant) -> Result<(), String> {
        if !self.state.is_under_lease() {
            self.change(self.state.under_lease())?;
        }
        self.lease.grant(grant, received);
        self.publish_lease();
        Ok(())
    }

    /// Publishes the state to the workers.
    fn publish(&self) {
        let me: &Address = &self.shared.address;
        let routing = Routing::of(&self.state, me, |of| self.gates.get(of).cloned());
        self.shared.routing.store(Arc::new(routing));
        self.shared.adoption.publish();
        self.publish_lease();
    }

    fn publish_lease(&self) {
        let serving = self.lease.serving(Instant::now());
        self.shared.lend(Lent { serving, suspended: self.suspended });
        self.shared.mailboxes.iter().for_each(super::mailbox::Mailbox::wake);
    }

    /// The text of `NMCTL INFO`, for operators; coordinators parse the lines about nodes.
    fn about(&self, now: Instant) -> String {
        let serving = match self.lease.serving(now) {
            Serving::Always => "always".to_owned(),
            Serving::Until { end, backed } => {
                let left = end.saturating_duration_since(now).as_millis();
                format!("lease_ms={left} backed={backed}")
            }
            Serving::NotNow => "no".to_owned(),
        };
        let mut text = format!("address:{}\r\nserving:{serving}\r\n", self.shared.address);
        for (name, left) in self.lease.coordinators(now) {
            text.push_str(&format!("coordinator:{name} lease_ms={}\r\n", left.as_millis()));
        }
        for (name, announcement) in [("SETDB", self.state.own()), ("SETPEER", self.state.peers())] {
            for entry in &announcement.entries {
                text.push_str(&format!("{name}:{entry} epoch={}\r\n", announcement.epoch));
            }
        }
        for (node, report) in self.nodes.reports().iter() {
            text.push_str(&format!("node:{node} {report}\r\n"));
        }
        text
    }
}

fn answer(shared: &Shared, order: &Order, reply: Vec<u8>) {
    if let Some(mailbox) = shared.mailboxes.get(order.worker) {
        mailbox.post(Letter::Give { session: order.session, sequence: order.sequence, reply });
    }
}
