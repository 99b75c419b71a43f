//! Producers that lose answers and are started again, a broker that crashes, and consumers that do as they like, on one
//! topic: what was acknowledged is there, once and in order, and every message reaches the consumers. Bugs that are planted
//! are found.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use capstan_testkit::seed::{rng, seeds, soak};
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::dispatch::Dispatch;
use super::envelope::{Envelope, Format};
use super::ledger::Ledger;
use super::message::{Message, Record};
use super::producers::{Life, Producers, Verdict};
use super::seats::Seat;
use crate::spec::{FailurePolicy, SubscriptionKind};

const STEPS: u32 = 300;
/// Steps in which everything that was begun is finished.
const LAST_STEPS: u32 = 2_000;
const CLIENTS: u64 = 2;
const KEYS: u64 = 3;

/// What may be wrong with a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// It answers before the message is committed.
    EarlyAnswer,
    /// The state of producers is not rebuilt after a crash.
    ForgottenProducers,
    /// Lives of a producer are not told apart.
    OneSession,
    /// A checkpoint says what was delivered, not what was acknowledged.
    CheckpointOfDelivered,
    /// After a crash a subscription begins at the end.
    BeginsAtTheEnd,
    /// An acknowledgment counts for everything before it.
    AcknowledgesBefore,
    /// After a crash a subscription begins at its beginning.
    BeginsAnew,
}

const BUGS: [Bug; 7] = [
    Bug::EarlyAnswer,
    Bug::ForgottenProducers,
    Bug::OneSession,
    Bug::CheckpointOfDelivered,
    Bug::BeginsAtTheEnd,
    Bug::AcknowledgesBefore,
    Bug::BeginsAnew,
];

/// Records of one publication: each is a number that no other record has.
#[derive(Clone, Debug)]
struct Batch {
    sequence: i64,
    records: Vec<u64>,
}

#[derive(Debug)]
struct Client {
    session: u64,
    next: i64,
    unacknowledged: VecDeque<Batch>,
    /// Its stream has ended: it sends everything again.
    is_cut_off: bool,
}

#[derive(Debug)]
struct Entry {
    envelope: Envelope,
    records: Vec<u64>,
}

/// An answer on its way, given when its offset is committed.
#[derive(Clone, Copy, Debug)]
struct Answer {
    client: usize,
    sequence: i64,
    offset: u64,
}

/// What a broker has in memory.
struct Broker {
    next: u64,
    producers: Producers,
    dispatch: Dispatch,
    /// What was acknowledged when it began.
    began_with: Ledger,
    /// The newest message that was delivered in this life.
    newest: Option<u64>,
    /// What consumers have.
    hands: Vec<u64>,
    consumers: Vec<u64>,
}

struct World {
    random: StdRng,
    bug: Option<Bug>,
    kind: SubscriptionKind,
    now: u64,
    numbers: u64,
    clients: Vec<Client>,
    /// Which records were acknowledged to their producer, and where they are said to be.
    promised: BTreeMap<u64, u64>,
    log: Vec<Entry>,
    /// The records of the log, by offset.
    committed: Vec<u64>,
    pending: VecDeque<Entry>,
    answers: Vec<Answer>,
    stored: Ledger,
    /// Offsets that consumers have acknowledged.
    done: BTreeSet<u64>,
    broker: Broker,
}

type Found = Result<(), String>;

fn begin(kind: SubscriptionKind, ledger: Ledger, log: &[Entry], end: u64) -> Broker {
    let policy =
        FailurePolicy { ack_timeout_ms: 100, base_redelivery_delay_ms: 10, ..FailurePolicy::default() };
    let mut producers = Producers::default();
    log.iter().for_each(|entry| producers.note(&entry.envelope));
    let mut broker = Broker {
        next: end,
        producers,
        dispatch: Dispatch::new(kind, policy, ledger.clone(), true),
        began_with: ledger,
        newest: None,
        hands: Vec::new(),
        consumers: Vec::new(),
    };
    let consumers = if kind == SubscriptionKind::Exclusive { 1 } else { 3 };
    (0..consumers).for_each(|id| broker.join(id));
    broker
}

impl Broker {
    fn join(&mut self, id: u64) {
        self.dispatch.join(Seat::new(id, format!("c{id}"), Vec::new()));
        self.dispatch.attach(id);
        self.consumers.push(id);
    }
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> World {
        let kind = SubscriptionKind::of(i32::try_from(seed % 4).unwrap()).unwrap();
        let client = |at| Client {
            session: 1_000 * (at + 1),
            next: 1,
            unacknowledged: VecDeque::new(),
            is_cut_off: false,
        };
        World {
            random: rng(seed),
            bug,
            kind,
            now: 0,
            numbers: 0,
            clients: (0..CLIENTS).map(client).collect(),
            promised: BTreeMap::new(),
            log: Vec::new(),
            committed: Vec::new(),
            pending: VecDeque::new(),
            answers: Vec::new(),
            stored: Ledger::default(),
            done: BTreeSet::new(),
            broker: begin(kind, Ledger::default(), &[], 0),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn end(&self) -> u64 {
        self.committed.len() as u64
    }

    fn send(&mut self, client: usize) {
        let count = self.random.random_range(1..=3);
        let records: Vec<u64> = (self.numbers..self.numbers + count).collect();
        self.numbers += count;
        let known = &mut self.clients[client];
        let batch = Batch { sequence: known.next, records };
        known.next += i64::try_from(count).unwrap();
        known.unacknowledged.push_back(batch.clone());
        if !known.is_cut_off {
            self.arrive(client, batch);
        }
    }

    /// Everything that a client has no answer for is sent again, in its order.
    fn reconnect(&mut self, client: usize) {
        self.answers.retain(|answer| answer.client != client);
        self.clients[client].is_cut_off = false;
        for batch in self.clients[client].unacknowledged.clone() {
            self.arrive(client, batch);
        }
    }

    fn arrive(&mut self, client: usize, batch: Batch) {
        if self.clients[client].is_cut_off {
            return;
        }
        let session = if self.has(Bug::OneSession) { 0 } else { self.clients[client].session };
        let life = Life { producer_id: client as u64, session };
        let count = u32::try_from(batch.records.len()).unwrap();
        let offset = match self.broker.producers.judge(life, batch.sequence, count) {
            Verdict::Known { offset } => offset,
            Verdict::New => self.append(life, &batch),
            Verdict::OutOfOrder { .. } => {
                self.clients[client].is_cut_off = true;
                return;
            }
        };
        self.answers.push(Answer { client, sequence: batch.sequence, offset });
        if self.has(Bug::EarlyAnswer) {
            self.give_answers(u64::MAX);
        }
    }

    fn append(&mut self, life: Life, batch: &Batch) -> u64 {
        let offset = self.broker.next;
        let envelope = Envelope {
            format: Format::Native,
            count: u32::try_from(batch.records.len()).unwrap(),
            base_offset: offset,
            leader_epoch: 1,
            producer_id: life.producer_id,
            producer_epoch: 0,
            session: life.session,
            base_sequence: batch.sequence,
            base_timestamp: 0,
            max_timestamp: 0,
            append_time: self.now,
        };
        self.broker.producers.note(&envelope);
        self.broker.next = envelope.end();
        self.pending.push_back(Entry { envelope, records: batch.records.clone() });
        offset
    }

    fn commit(&mut self, entries: usize) {
        for entry in self.pending.drain(..entries) {
            self.committed.extend(&entry.records);
            self.log.push(entry);
        }
    }

    /// Answers what is before an offset; some answers are lost, and with them the stream.
    fn give_answers(&mut self, before: u64) {
        let answers = std::mem::take(&mut self.answers).into_iter();
        let (ready, waiting): (Vec<_>, Vec<_>) = answers.partition(|answer| answer.offset < before);
        self.answers = waiting;
        for Answer { client, sequence, offset } in ready {
            let known = &mut self.clients[client];
            if known.is_cut_off {
                continue;
            }
            if self.random.random_bool(0.05) {
                known.is_cut_off = true;
                continue;
            }
            if known.unacknowledged.front().is_some_and(|batch| batch.sequence == sequence) {
                let batch = known.unacknowledged.pop_front().unwrap();
                self.promised.extend(batch.records.iter().copied().zip(offset..));
            }
        }
    }

    /// What was on its way to the disk may be there or not, but no later entry without the earlier ones.
    fn crash(&mut self) {
        let survivors = self.random.random_range(0..=self.pending.len());
        self.commit(survivors);
        self.pending.clear();
        self.answers.clear();
        self.clients.iter_mut().for_each(|client| client.is_cut_off = true);
        let ledger = match self.bug {
            Some(Bug::BeginsAtTheEnd) => Ledger::new(self.end(), BTreeMap::new()),
            Some(Bug::BeginsAnew) => Ledger::default(),
            _ => self.stored.clone(),
        };
        let log = if self.has(Bug::ForgottenProducers) { &[][..] } else { &self.log[..] };
        self.broker = begin(self.kind, ledger, log, self.committed.len() as u64);
        self.broker.began_with = self.stored.clone();
    }

    fn deliver(&mut self) -> Found {
        let (now, end) = (self.now, self.end());
        self.broker.dispatch.time_out(now);
        let (from, room) = (self.broker.dispatch.position(), self.broker.dispatch.room().min(8) as u64);
        let messages = (from..end.min(from + room)).map(|offset| self.message(offset)).collect();
        self.broker.dispatch.offer(messages, now);
        while let Some(delivery) = self.broker.dispatch.next(now) {
            self.check_delivery(&delivery.message)?;
            self.broker.hands.push(delivery.message.offset);
        }
        Ok(())
    }

    fn message(&self, offset: u64) -> Arc<Message> {
        let number = self.committed[usize::try_from(offset).unwrap()];
        let key = Some(Bytes::from((number % KEYS).to_string()));
        let value = Some(Bytes::from(number.to_string()));
        let record = Record { key, value, ..Record::default() };
        Arc::new(Message { offset, producer_id: 1, append_time: 0, record })
    }

    fn check_delivery(&mut self, message: &Message) -> Found {
        let (offset, broker) = (message.offset, &mut self.broker);
        if broker.began_with.has(offset) || broker.dispatch.ledger().has(offset) {
            return Err(format!("{offset} is delivered although it was acknowledged"));
        }
        let key = |offset: u64| self.committed[usize::try_from(offset).unwrap()] % KEYS;
        match self.kind {
            SubscriptionKind::KeyShared => {
                let skipped = (0..offset)
                    .find(|before| key(*before) == key(offset) && !broker.dispatch.ledger().has(*before));
                if let Some(skipped) = skipped {
                    return Err(format!("{offset} is delivered before {skipped}, which has the same key"));
                }
            }
            SubscriptionKind::Exclusive | SubscriptionKind::Failover | SubscriptionKind::Shared => {
                let first = broker.newest.map_or(broker.began_with.floor(), |newest| newest + 1);
                let skipped = (first..offset).find(|skipped| !broker.began_with.has(*skipped));
                if let Some(skipped) = skipped {
                    return Err(format!("{skipped} was left out: {offset} is delivered"));
                }
            }
        }
        broker.newest = broker.newest.max(Some(offset));
        Ok(())
    }

    fn acknowledge(&mut self, offset: u64) {
        self.done.insert(offset);
        self.broker.dispatch.acknowledge(offset);
        if self.has(Bug::AcknowledgesBefore) {
            for before in 0..offset {
                self.broker.dispatch.acknowledge(before);
            }
        }
    }

    fn save(&mut self) -> Found {
        self.stored = match self.bug {
            Some(Bug::CheckpointOfDelivered) => Ledger::new(self.broker.dispatch.position(), BTreeMap::new()),
            _ => self.broker.dispatch.ledger().clone(),
        };
        match (0..self.end()).find(|offset| self.stored.has(*offset) && !self.done.contains(offset)) {
            Some(offset) => Err(format!("{offset} is stored as acknowledged, and no consumer has done so")),
            None => Ok(()),
        }
    }

    fn consume(&mut self) {
        if self.broker.hands.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.broker.hands.len());
        match self.random.random_range(0..10) {
            0 => {
                let offset = self.broker.hands.swap_remove(at);
                self.broker.dispatch.refuse(offset, None, None, self.now);
            }
            // Forgotten: it times out.
            1 => {
                self.broker.hands.swap_remove(at);
            }
            _ => {
                let offset = self.broker.hands.swap_remove(at);
                self.acknowledge(offset);
            }
        }
    }

    fn replace_consumer(&mut self) {
        let at = self.random.random_range(0..self.broker.consumers.len());
        let id = self.broker.consumers.swap_remove(at);
        self.broker.dispatch.leave(id, self.now);
        self.broker.join(id + 10);
    }

    fn step(&mut self) -> Found {
        self.now += self.random.random_range(0..40);
        let client = self.random.random_range(0..self.clients.len());
        match self.random.random_range(0..100) {
            0..=19 => self.send(client),
            20..=39 => {
                let entries = self.random.random_range(0..=self.pending.len());
                self.commit(entries);
                self.give_answers(self.end());
            }
            40..=59 => self.deliver()?,
            60..=84 => self.consume(),
            85..=88 => self.save()?,
            89..=92 if self.clients[client].is_cut_off => self.reconnect(client),
            93..=94 => self.replace_consumer(),
            95 => {
                // Started again: nothing is known about what has no answer.
                let known = &mut self.clients[client];
                (known.session, known.next, known.is_cut_off) = (known.session + 1, 1, false);
                known.unacknowledged.clear();
                self.answers.retain(|answer| answer.client != client);
            }
            96..=97 => self.crash(),
            _ => {}
        }
        Ok(())
    }

    /// Without further failures everything that was begun comes to its end.
    fn finish(&mut self) -> Found {
        for _ in 0..LAST_STEPS {
            self.now += 200;
            for client in 0..self.clients.len() {
                if self.clients[client].is_cut_off {
                    self.reconnect(client);
                }
            }
            self.commit(self.pending.len());
            self.give_answers(self.end());
            self.deliver()?;
            for offset in std::mem::take(&mut self.broker.hands) {
                self.acknowledge(offset);
            }
            self.save()?;
            let answered = self.clients.iter().all(|client| client.unacknowledged.is_empty());
            if answered && self.stored.floor() == self.end() {
                return self.check_log();
            }
        }
        Err(format!("it does not end: {:?} of {}", self.stored, self.end()))
    }

    fn check_log(&self) -> Found {
        for (number, offset) in &self.promised {
            if self.committed.get(usize::try_from(*offset).unwrap()) != Some(number) {
                return Err(format!("record {number} was acknowledged and is not at {offset}"));
            }
        }
        let once: BTreeSet<u64> = self.committed.iter().copied().collect();
        if once.len() != self.committed.len() {
            return Err("a record is there twice".to_owned());
        }
        let mut newest: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        for Entry { envelope, records } in &self.log {
            let before = newest.insert((envelope.producer_id, envelope.session), records[0]);
            if before.is_some_and(|before| before > records[0]) {
                return Err(format!("{records:?} is behind what its producer published later"));
            }
        }
        Ok(())
    }
}

fn run(seed: u64, bug: Option<Bug>) -> Found {
    let mut world = World::new(seed, bug);
    for _ in 0..STEPS {
        world.step()?;
    }
    world.finish()
}

#[test]
fn what_is_acknowledged_is_there_once_and_reaches_consumers() {
    seeds(soak(400, 100_000), |seed| {
        if let Err(why) = run(seed, None) {
            panic!("{why}");
        }
    });
}

#[test]
fn planted_bugs_are_found() {
    for bug in BUGS {
        let found = (0..1_000).find_map(|seed| run(seed, Some(bug)).err().map(|why| (seed, why)));
        let (seed, why) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        eprintln!("{bug:?}: seed {seed}: {why}");
    }
}
