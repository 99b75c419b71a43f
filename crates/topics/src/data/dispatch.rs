//! Which message goes to which consumer, and when again? Pure: messages, acknowledgments and the time go in, deliveries
//! come out.
//!
//! A message that was fetched is *queued*, *in flight* with one consumer, or *held back* until a time; then it is
//! acknowledged. All of them together are bounded by the window. Nothing leaves it without being acknowledged.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use super::ledger::Ledger;
use super::message::Message;
use super::seats::{Seat, Seats};
use crate::spec::{BackoffStrategy, FailurePolicy, PoisonPolicy, SubscriptionKind};

/// Messages of a subscription that are fetched and not acknowledged.
pub(crate) const WINDOW: usize = 1_024;
/// Their bytes: nothing more is fetched beyond them. Room for several consumers with all that they may have.
const WINDOW_BYTES: usize = 64 << 20;

/// Why a message that was not acknowledged in time is delivered again.
const TIMED_OUT: &str = "ack timeout";

/// Messages of a subscription that wait for the time of their delivery. They are not kept in memory, only their offsets;
/// what was acknowledged behind them is stored in ranges, which this bounds as well.
const MAX_DELAYED: usize = 10_000;

/// The state of one subscription.
#[derive(Debug)]
pub(crate) struct Dispatch {
    kind: SubscriptionKind,
    policy: FailurePolicy,
    /// Messages that consumers may have without an acknowledgment; none: the windows alone bound them.
    max_unacked: Option<u32>,
    /// Whether consumers acknowledge; without it a message is done with when it is sent.
    acknowledged: bool,
    ledger: Ledger,
    /// The next offset to fetch.
    position: u64,
    /// Bytes of all messages that are queued, in flight, held back or poison.
    bytes: usize,
    queued: VecDeque<Arc<Message>>,
    flights: BTreeMap<u64, Flight>,
    held: BTreeMap<u64, Held>,
    /// Messages that are delivered later, by offset, and when.
    delayed: BTreeMap<u64, u64>,
    /// Delayed messages whose time has come: to be fetched again.
    due: Vec<u64>,
    /// Messages older than this, in milliseconds, are not delivered any more; zero: all are.
    ttl: u64,
    /// Messages that were too old, since they were last asked for.
    expired: u32,
    /// When flights time out and held and delayed messages are due, with their offsets.
    timers: BTreeSet<(u64, u64)>,
    seats: Seats,
    /// Messages that were delivered too often and wait to be put aside.
    poison: Vec<Poison>,
    pub(crate) redeliveries: u64,
}

#[derive(Debug)]
struct Flight {
    seat: u64,
    message: Arc<Message>,
    attempts: u32,
    deadline: u64,
}

#[derive(Debug)]
struct Held {
    message: Arc<Message>,
    attempts: u32,
    due: u64,
}

/// A message for a consumer.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) seat: u64,
    pub(crate) message: Arc<Message>,
}

/// A message that was delivered too often.
#[derive(Clone, Debug)]
pub(crate) struct Poison {
    pub(crate) message: Arc<Message>,
    pub(crate) attempts: u32,
    /// Why the last delivery failed, as the consumer said.
    pub(crate) reason: Option<String>,
}

impl Dispatch {
    pub(crate) fn new(
        kind: SubscriptionKind,
        policy: FailurePolicy,
        ledger: Ledger,
        acknowledged: bool,
    ) -> Dispatch {
        Dispatch {
            kind,
            policy,
            max_unacked: None,
            acknowledged,
            position: ledger.floor(),
            ledger,
            bytes: 0,
            queued: VecDeque::new(),
            flights: BTreeMap::new(),
            held: BTreeMap::new(),
            delayed: BTreeMap::new(),
            due: Vec::new(),
            ttl: 0,
            expired: 0,
            timers: BTreeSet::new(),
            seats: Seats::default(),
            poison: Vec::new(),
            redeliveries: 0,
        }
    }

    pub(crate) fn kind(&self) -> SubscriptionKind {
        self.kind
    }

    pub(crate) fn set_kind(&mut self, kind: SubscriptionKind) {
        self.kind = kind;
    }

    pub(crate) fn policy(&self) -> &FailurePolicy {
        &self.policy
    }

    pub(crate) fn set_policy(&mut self, policy: FailurePolicy) {
        self.policy = policy;
    }

    pub(crate) fn max_unacked(&self) -> Option<u32> {
        self.max_unacked
    }

    /// Bounds what consumers have without an acknowledgment. What they have already stays with them.
    pub(crate) fn set_max_unacked(&mut self, limit: Option<u32>) {
        self.max_unacked = limit;
    }

    fn is_full(&self) -> bool {
        self.max_unacked
            .is_some_and(|limit| self.flights.len() >= usize::try_from(limit).unwrap_or(usize::MAX))
    }

    /// Whether a message that was delivered too often holds all others up. With keys it holds up its own key only.
    fn is_blocked(&self) -> bool {
        let holds_all = match self.kind {
            SubscriptionKind::Exclusive | SubscriptionKind::Shared | SubscriptionKind::Failover => true,
            SubscriptionKind::KeyShared => false,
        };
        holds_all && self.policy.poison == PoisonPolicy::Block && !self.poison.is_empty()
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }

    pub(crate) fn seats(&self) -> &[Seat] {
        self.seats.all()
    }

    /// Adds a consumer, or changes what a known one takes.
    pub(crate) fn join(&mut self, seat: Seat) {
        self.seats.join(seat);
    }

    /// A consumer has a stream from now on.
    pub(crate) fn attach(&mut self, id: u64) {
        self.seats.attach(id);
    }

    /// A consumer is gone: what it has not acknowledged goes to others at once, and does not count as a redelivery.
    pub(crate) fn leave(&mut self, id: u64, now: u64) {
        self.seats.leave(id);
        let lost: Vec<u64> =
            self.flights.iter().filter(|(_, flight)| flight.seat == id).map(|(offset, _)| *offset).collect();
        for offset in lost {
            if let Some(flight) = self.land(offset) {
                self.hold(flight.message, flight.attempts, now);
            }
        }
    }

    /// How many more messages may be fetched.
    pub(crate) fn room(&self) -> usize {
        let full = self.bytes >= WINDOW_BYTES || self.delayed.len() >= MAX_DELAYED;
        if full || !self.seats.any_attached() {
            return 0;
        }
        WINDOW.saturating_sub(self.queued.len() + self.flights.len() + self.held.len() + self.poison.len())
    }

    /// Takes consecutive messages from the position on.
    pub(crate) fn offer(&mut self, messages: Vec<Arc<Message>>, now: u64) {
        for message in messages {
            self.position = message.offset + 1;
            if self.ledger.has(message.offset) {
                continue;
            }
            if self.is_expired(&message, now) {
                self.expire_one(message.offset);
                continue;
            }
            match message.record.deliver_at {
                later if later > now && self.acknowledged => self.delay(message.offset, later),
                later if later > now => {
                    self.enters(&message);
                    self.hold(message, 0, later);
                }
                _ => {
                    self.enters(&message);
                    self.queued.push_back(message);
                }
            }
        }
    }

    fn enters(&mut self, message: &Message) {
        self.bytes += message.record.stored_size();
    }

    fn leaves(&mut self, message: &Message) {
        self.bytes = self.bytes.saturating_sub(message.record.stored_size());
    }

    fn delay(&mut self, offset: u64, due: u64) {
        self.timers.insert((due, offset));
        self.delayed.insert(offset, due);
    }

    /// Delayed messages whose time has come. Each is to be given back ([`Dispatch::ripe`]) or delayed again.
    pub(crate) fn take_due(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.due)
    }

    /// A delayed message, fetched when its time had come.
    pub(crate) fn ripe(&mut self, message: Arc<Message>, now: u64) {
        if !self.ledger.has(message.offset) {
            self.enters(&message);
            self.hold(message, 0, now);
        }
    }

    /// A delayed message that could not be fetched.
    pub(crate) fn delay_again(&mut self, offset: u64, due: u64) {
        if offset < self.position && !self.ledger.has(offset) {
            self.delay(offset, due);
        }
    }

    fn is_expired(&self, message: &Message, now: u64) -> bool {
        self.ttl > 0 && message.append_time.saturating_add(self.ttl) <= now
    }

    fn expire_one(&mut self, offset: u64) {
        self.ledger.acknowledge(offset);
        self.expired += 1;
    }

    /// Gives up messages that are too old and not on their way to a consumer.
    pub(crate) fn expire(&mut self, ttl: u64, now: u64) {
        self.ttl = ttl;
        if ttl == 0 {
            return;
        }
        // Times do not fall along a topic.
        while self.queued.front().is_some_and(|message| self.is_expired(message, now))
            && let Some(oldest) = self.queued.pop_front()
        {
            self.leaves(&oldest);
            self.expire_one(oldest.offset);
        }
        let held: Vec<u64> = self
            .held
            .iter()
            .filter(|(_, held)| self.is_expired(&held.message, now))
            .map(|(offset, _)| *offset)
            .collect();
        for offset in held {
            if let Some(held) = self.drop_held(offset) {
                self.leaves(&held.message);
            }
            self.expire_one(offset);
        }
    }

    /// How many messages were too old since the last call.
    pub(crate) fn take_expired(&mut self) -> u32 {
        std::mem::take(&mut self.expired)
    }

    /// Messages before this offset are gone: they count as acknowledged.
    pub(crate) fn skip_to(&mut self, offset: u64) {
        self.position = self.position.max(offset);
        self.ledger.raise(offset);
    }

    /// Passes offsets that have no message any more: they count as acknowledged, and what is in flight before them does not.
    pub(crate) fn pass_to(&mut self, offset: u64) {
        self.ledger.pass(self.position, offset);
        self.position = self.position.max(offset);
    }

    /// Begins anew at an offset. What is in flight is forgotten.
    pub(crate) fn seek(&mut self, offset: u64) {
        self.ledger = Ledger::new(offset, BTreeMap::new());
        self.position = offset;
        self.bytes = 0;
        self.queued.clear();
        self.flights.clear();
        self.held.clear();
        self.delayed.clear();
        self.due.clear();
        self.timers.clear();
        self.poison.clear();
        self.seats.reset();
    }

    /// Acknowledges a message that was delivered, also late; whether it was new.
    pub(crate) fn acknowledge(&mut self, offset: u64) -> bool {
        if offset >= self.position {
            return false;
        }
        if let Some(due) = self.delayed.remove(&offset) {
            self.timers.remove(&(due, offset));
        }
        if let Some(message) = self.take_out(offset) {
            self.leaves(&message);
        }
        self.ledger.acknowledge(offset)
    }

    /// Takes a message from wherever it is.
    fn take_out(&mut self, offset: u64) -> Option<Arc<Message>> {
        if let Some(flight) = self.land(offset) {
            return Some(flight.message);
        }
        if let Some(held) = self.drop_held(offset) {
            return Some(held.message);
        }
        if let Some(at) = self.poison.iter().position(|poison| poison.message.offset == offset) {
            return Some(self.poison.swap_remove(at).message);
        }
        let at = self.queued.iter().position(|message| message.offset == offset)?;
        self.queued.remove(at)
    }

    /// Has a message delivered again, after a pause.
    pub(crate) fn refuse(&mut self, offset: u64, delay: Option<u64>, reason: Option<String>, now: u64) {
        if let Some(flight) = self.land(offset) {
            self.again(flight, delay, reason, now);
        }
    }

    /// Flights whose time is up are delivered again.
    pub(crate) fn time_out(&mut self, now: u64) {
        while let Some((due, offset)) = self.timers.first().copied()
            && due <= now
        {
            match self.flights.get(&offset) {
                Some(flight) if flight.deadline == due => {
                    if let Some(flight) = self.land(offset) {
                        self.again(flight, None, Some(TIMED_OUT.to_owned()), now);
                    }
                }
                // A held message that is due waits for a consumer, not for the clock.
                Some(_) | None => {
                    self.timers.remove(&(due, offset));
                    if self.delayed.get(&offset) == Some(&due) {
                        self.delayed.remove(&offset);
                        self.due.push(offset);
                    }
                }
            }
        }
    }

    fn again(&mut self, flight: Flight, delay: Option<u64>, reason: Option<String>, now: u64) {
        let attempts = flight.attempts.saturating_add(1);
        if attempts > self.policy.max_redelivery_count {
            self.poison.push(Poison { message: flight.message, attempts, reason });
            return;
        }
        self.redeliveries += 1;
        let pause = self.pause(attempts).max(delay.unwrap_or_default());
        self.hold(flight.message, attempts, now + pause.min(self.policy.max_redelivery_delay_ms));
    }

    fn pause(&self, attempts: u32) -> u64 {
        let base = self.policy.base_redelivery_delay_ms;
        match self.policy.backoff {
            BackoffStrategy::Fixed => base,
            BackoffStrategy::Exponential => base.saturating_mul(1 << (attempts - 1).min(20)),
        }
    }

    /// Messages that were delivered too often and are to be put aside. Blocked ones stay.
    pub(crate) fn take_poison(&mut self) -> Vec<Poison> {
        match self.policy.poison {
            PoisonPolicy::Block => Vec::new(),
            PoisonPolicy::Drop => {
                for poison in std::mem::take(&mut self.poison) {
                    tracing::warn!(
                        offset = poison.message.offset,
                        "message was delivered too often and is dropped"
                    );
                    self.leaves(&poison.message);
                    self.ledger.acknowledge(poison.message.offset);
                }
                Vec::new()
            }
            PoisonPolicy::DeadLetter => {
                let poison = std::mem::take(&mut self.poison);
                poison.iter().for_each(|poison| self.leaves(&poison.message));
                poison
            }
        }
    }

    /// A message was put aside.
    pub(crate) fn put_aside(&mut self, offset: u64) {
        self.ledger.acknowledge(offset);
    }

    /// A message could not be put aside yet: it stays until it can.
    pub(crate) fn keep_poison(&mut self, poison: Poison) {
        self.enters(&poison.message);
        self.poison.push(poison);
    }

    fn hold(&mut self, message: Arc<Message>, attempts: u32, due: u64) {
        self.timers.insert((due, message.offset));
        self.held.insert(message.offset, Held { message, attempts, due });
    }

    fn drop_held(&mut self, offset: u64) -> Option<Held> {
        let held = self.held.remove(&offset)?;
        self.timers.remove(&(held.due, offset));
        Some(held)
    }

    /// Takes a message out of flight.
    fn land(&mut self, offset: u64) -> Option<Flight> {
        let flight = self.flights.remove(&offset)?;
        self.timers.remove(&(flight.deadline, offset));
        self.seats.take(flight.seat, flight.message.record.stored_size());
        Some(flight)
    }

    /// The next delivery, if a message and a consumer for it are there. It counts as in flight from now on.
    pub(crate) fn next(&mut self, now: u64) -> Option<Delivery> {
        if self.is_full() || self.is_blocked() {
            return None;
        }
        match self.kind {
            SubscriptionKind::KeyShared => self.next_by_key(now),
            SubscriptionKind::Exclusive | SubscriptionKind::Shared | SubscriptionKind::Failover => {
                let seat = self.seats.ready(self.kind)?;
                let due = self.held.iter().find(|(_, held)| held.due <= now).map(|(offset, _)| *offset);
                let (message, attempts) = match due.and_then(|offset| self.drop_held(offset)) {
                    Some(held) => (held.message, held.attempts),
                    None => (self.queued.pop_front()?, 0),
                };
                self.seats.end_turn(seat);
                Some(self.launch(seat, message, attempts, now))
            }
        }
    }

    /// One message of a key at a time, in the order of the offsets.
    fn next_by_key(&mut self, now: u64) -> Option<Delivery> {
        let mut busy: HashSet<&[u8]> =
            self.flights.values().map(|flight| flight.message.record.ordering_key()).collect();
        busy.extend(self.poison.iter().map(|poison| poison.message.record.ordering_key()));
        let held = self.held.iter().map(|(offset, held)| (*offset, &held.message, held.due <= now));
        let queued = self.queued.iter().map(|message| (message.offset, message, true));
        let mut open: Vec<_> = held.chain(queued).collect();
        open.sort_unstable_by_key(|(offset, ..)| *offset);
        let mut chosen = None;
        for (offset, message, is_due) in open {
            let key = message.record.ordering_key();
            if busy.insert(key)
                && is_due
                && let Some(seat) = self.seats.owner(key)
            {
                chosen = Some((offset, seat));
                break;
            }
        }
        let (offset, seat) = chosen?;
        if let Some(held) = self.drop_held(offset) {
            return Some(self.launch(seat, held.message, held.attempts, now));
        }
        let at = self.queued.iter().position(|message| message.offset == offset)?;
        let message = self.queued.remove(at)?;
        Some(self.launch(seat, message, 0, now))
    }

    fn launch(&mut self, id: u64, message: Arc<Message>, attempts: u32, now: u64) -> Delivery {
        if !self.acknowledged {
            self.leaves(&message);
            self.ledger.acknowledge(message.offset);
            return Delivery { seat: id, message };
        }
        let deadline = now + self.policy.ack_timeout_ms;
        self.seats.give(id, message.record.stored_size());
        self.timers.insert((deadline, message.offset));
        let flight = Flight { seat: id, message: message.clone(), attempts, deadline };
        self.flights.insert(message.offset, flight);
        Delivery { seat: id, message }
    }

    /// A delivery did not fit into the consumer's stream: it is due again, and the consumer is left alone until it has
    /// read something ([`Dispatch::made_room`]) or has another stream. Acknowledgments do not tell: what fills the stream
    /// may have timed out and be in flight no longer.
    pub(crate) fn undelivered(&mut self, delivery: &Delivery, now: u64) {
        match self.land(delivery.message.offset) {
            Some(flight) => self.hold(flight.message, flight.attempts, now),
            None => {
                self.enters(&delivery.message);
                self.queued.push_front(delivery.message.clone());
            }
        }
        self.seats.filled(delivery.seat);
    }

    /// A consumer has read from a stream that was full.
    pub(crate) fn made_room(&mut self, id: u64) {
        self.seats.made_room(id);
    }

    /// When something is due that is not yet.
    pub(crate) fn next_due(&self, now: u64) -> Option<u64> {
        self.timers.range((now + 1, 0)..).next().map(|(due, _)| *due)
    }
}

#[cfg(test)]
mod tests;
