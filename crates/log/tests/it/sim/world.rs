//! One simulated world: nodes, a metadata store, a network, a controller, and the event queue.

mod bugs;
mod faults;
mod seen;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use capstan_log::config::LogConfig;
use capstan_log::entry::{EntryKind, LogEpoch, Offset};
use capstan_log::keys::HolderId;
use capstan_log::replica::{Append, Effect, Event, Message, Moment, Replica, Ticket, Timing};
use capstan_meta::Revision;
use capstan_testkit::seed;
use rand::RngExt;
use rand::rngs::StdRng;

pub use self::bugs::Bug;
pub use self::seen::Seen;
use super::check::{self, Truth};
use super::disk::{Change, Disk};

const NODES: [&str; 4] = ["a", "b", "c", "d"];
const LEASE: Duration = Duration::from_millis(1_000);
/// The share of the lease that a node uses. Clocks drift by up to 5 %, so 0.9 would do.
const SAFE: f64 = 0.85;
const CALM: Duration = Duration::from_secs(30);
/// Usually a few dozen. Each is answered at most once, and one in twenty is duplicated: more than this is a storm.
const MOST_UNDER_WAY: usize = 2_000;

pub struct Store {
    pub config: LogConfig,
    pub revision: i64,
    leases: BTreeMap<HolderId, Lease>,
}

/// A lease of a node: its number, and until when it is good.
#[derive(Clone, Copy)]
struct Lease {
    number: u64,
    until: Moment,
}

pub struct Node {
    pub replica: Option<Replica>,
    pub disk: Disk,
    life: u64,
    /// The lease that it knows it has; 0 for none.
    lease: u64,
    /// Its clock: local time is `skew + true time * rate`.
    skew: Duration,
    rate: f64,
    /// The newest generation of its log.
    generation: u64,
    /// Placed and not yet committed: offset behind the append, and its payload.
    waiting: Vec<(u64, Bytes)>,
}

impl Node {
    pub fn local(&self, now: Moment) -> Moment {
        self.skew + now.mul_f64(self.rate)
    }
}

enum Next {
    Tick(HolderId),
    Deliver {
        to: HolderId,
        from: HolderId,
        message: Message,
    },
    Synced {
        node: HolderId,
        life: u64,
        generation: u64,
        upto: u64,
        made: u64,
    },
    Proposed {
        by: HolderId,
        life: u64,
        guard: i64,
        config: LogConfig,
    },
    NotProposed {
        by: HolderId,
        life: u64,
        guard: i64,
    },
    Look {
        node: HolderId,
        life: u64,
    },
    Shown {
        node: HolderId,
        life: u64,
        config: LogConfig,
        revision: i64,
    },
    Renew(HolderId),
    Renewed {
        node: HolderId,
        life: u64,
        lease: u64,
        asked: Moment,
    },
    Leased {
        node: HolderId,
        life: u64,
        lease: u64,
        until: Moment,
        looked: Option<(LogConfig, i64)>,
    },
    Append,
    Controller,
    Decided {
        guard: i64,
        config: LogConfig,
        forced: bool,
    },
    Crash,
    /// A node crashes that has just begun an epoch.
    Stumble {
        node: HolderId,
        life: u64,
    },
    Blind,
    Restart(HolderId),
    Weather,
    Truncate,
    Shipped {
        node: HolderId,
        life: u64,
        to: HolderId,
    },
}

pub struct World {
    pub now: Moment,
    pub nodes: BTreeMap<HolderId, Node>,
    pub store: Store,
    pub truth: Truth,
    pub seen: Seen,
    rng: StdRng,
    queue: BTreeMap<(Moment, u64), Next>,
    number: u64,
    pub bug: Bug,
    chaos: bool,
    /// Links that swallow everything, by direction.
    cut: BTreeSet<(HolderId, HolderId)>,
    loss: f64,
    /// Nodes that cannot reach the store, and until when.
    blind: BTreeMap<HolderId, Moment>,
    /// Epochs whose primary was replaced because its lease had run out.
    pub replaced: BTreeSet<LogEpoch>,
    appends: u64,
}

fn id(name: &str) -> HolderId {
    name.parse().unwrap()
}

impl World {
    pub fn new(seed: u64, bug: Bug) -> World {
        let mut rng = seed::rng(seed);
        let holders = rng.random_range(1..=3usize);
        let min_copies = rng.random_range(1..=holders);
        let config =
            LogConfig::new(NODES[..holders].iter().map(|name| id(name)).collect(), min_copies).unwrap();
        let mut world = World {
            now: Moment::ZERO,
            nodes: BTreeMap::new(),
            store: Store { config, revision: 1, leases: BTreeMap::new() },
            truth: Truth::default(),
            seen: Seen::default(),
            rng,
            queue: BTreeMap::new(),
            number: 0,
            bug,
            chaos: true,
            cut: BTreeSet::new(),
            loss: 0.0,
            blind: BTreeMap::new(),
            replaced: BTreeSet::new(),
            appends: 0,
        };
        for name in NODES {
            let skew = Duration::from_millis(world.rng.random_range(0..100_000));
            let rate = world.rng.random_range(0.95..1.05);
            let disk = Disk { skips_cuts: bug == Bug::SkipCut, ..Disk::default() };
            let node = Node {
                replica: None,
                disk,
                life: 0,
                lease: 0,
                generation: 0,
                skew,
                rate,
                waiting: Vec::new(),
            };
            world.nodes.insert(id(name), node);
            world.restart(&id(name));
        }
        for next in [Next::Append, Next::Controller, Next::Crash, Next::Blind, Next::Weather, Next::Truncate]
        {
            world.after(1..100, next);
        }
        world
    }

    fn after(&mut self, millis: std::ops::Range<u64>, next: Next) {
        let delay = Duration::from_micros(self.rng.random_range(millis.start * 1000..millis.end * 1000));
        self.number += 1;
        self.queue.insert((self.now + delay, self.number), next);
    }

    pub fn run_chaos(&mut self, time: Duration) {
        self.run_until(time);
    }

    /// Everything works again: what was stuck must come unstuck.
    pub fn run_calm(&mut self) {
        self.chaos = false;
        self.cut.clear();
        self.blind.clear();
        self.loss = 0.0;
        for name in NODES {
            if self.nodes[&id(name)].replica.is_none() {
                self.restart(&id(name));
            }
        }
        let before = self.seen.acknowledged;
        let end = self.now + CALM;
        while self.now < end && !(self.all_in_sync() && self.seen.acknowledged > before) {
            self.run_until(self.now + Duration::from_millis(500));
        }
        assert!(self.all_in_sync(), "not in sync after the calm: {:?}", self.store.config);
        assert!(
            self.seen.acknowledged > before,
            "nothing was acknowledged in the calm: {:?}",
            self.store.config
        );
    }

    fn all_in_sync(&self) -> bool {
        let config = &self.store.config;
        config.in_sync.len() == config.holders.len() || config.leaving.is_some()
    }

    fn run_until(&mut self, end: Moment) {
        while let Some(((at, _), _)) = self.queue.first_key_value() {
            if *at > end {
                break;
            }
            let ((at, _), next) = self.queue.pop_first().unwrap();
            self.now = at;
            self.seen.events += 1;
            self.happen(next);
            check::invariants(self);
            assert!(self.queue.len() < MOST_UNDER_WAY, "messages multiply");
        }
        self.now = end;
    }

    fn happen(&mut self, next: Next) {
        match next {
            Next::Tick(node) => {
                self.step(&node, Event::Tick);
                self.after(40..60, Next::Tick(node));
            }
            Next::Deliver { to, from, message } => {
                let received = self.received(&to, from, message);
                self.step(&to, received);
            }
            Next::Synced { node, life, generation, upto, made } => {
                self.synced(&node, life, generation, upto, made);
            }
            Next::Proposed { by, life, guard, config } => self.proposed(&by, life, guard, config),
            Next::NotProposed { by, life, guard } if self.lives(&by, life) => {
                self.step(&by, Event::NotProposed(Revision(guard)));
            }
            Next::Look { node, life } if self.lives(&node, life) => {
                if !self.is_blind(&node) {
                    self.look(&node, life);
                }
                self.after(50..400, Next::Look { node, life });
            }
            Next::Shown { node, life, config, revision } if self.lives(&node, life) => {
                self.step(&node, Event::Configured(config, Revision(revision)));
            }
            Next::Renew(node) => self.renew(node),
            Next::Renewed { node, life, lease, asked } if self.lives(&node, life) => {
                // A lease that has run out is gone; who gets a new one looks at the configuration before acting on it.
                let known =
                    self.store.leases.get(&node).copied().unwrap_or(Lease { number: 0, until: self.now });
                let renewed = known.number == lease && known.until >= self.now && lease > 0;
                let looked = (!renewed).then(|| (self.store.config.clone(), self.store.revision));
                let number = if renewed { lease } else { known.number + 1 };
                self.store.leases.insert(node.clone(), Lease { number, until: self.now + LEASE });
                let until = asked + LEASE.mul_f64(SAFE);
                self.after(0..20, Next::Leased { node, life, lease: number, until, looked });
            }
            Next::Leased { node, life, lease, until, looked } if self.lives(&node, life) => {
                // An answer about a lease that was given up for a newer one is late.
                if lease < self.nodes[&node].lease {
                    return;
                }
                self.nodes.get_mut(&node).unwrap().lease = lease;
                if let Some((config, revision)) = looked {
                    self.step(&node, Event::Configured(config, Revision(revision)));
                }
                self.step(&node, Event::Leased(until));
            }
            Next::Append => self.append(),
            Next::Controller => self.control(),
            Next::Decided { guard, config, forced } => self.decided(guard, config, forced),
            Next::Crash => self.crash(),
            Next::Stumble { node, life } if self.chaos && self.lives(&node, life) => self.fall(node),
            Next::Stumble { .. } => {}
            Next::Blind => self.blind(),
            Next::Restart(node) if self.nodes[&node].replica.is_none() => self.restart(&node),
            Next::Weather => self.weather(),
            Next::Truncate => self.truncate(),
            Next::Shipped { node, life, to } if self.lives(&node, life) => {
                self.step(&node, Event::SnapshotEnded(to));
            }
            Next::Shipped { .. } => {}
            // What was on its way to a life that is over.
            Next::NotProposed { .. } | Next::Look { .. } | Next::Shown { .. } | Next::Renewed { .. } => {}
            Next::Leased { .. } | Next::Restart(_) => {}
        }
    }

    fn lives(&self, node: &HolderId, life: u64) -> bool {
        self.nodes[node].replica.is_some() && self.nodes[node].life == life
    }

    fn truncate(&mut self) {
        self.after(300..2_000, Next::Truncate);
        let node = id(NODES[self.rng.random_range(0..NODES.len())]);
        let end = self.nodes[&node].disk.seen.end();
        let before = Offset(self.rng.random_range(0..=end));
        self.step(&node, Event::Truncate(before));
    }

    fn append(&mut self) {
        self.after(5..80, Next::Append);
        for name in NODES {
            let leads = self.nodes[&id(name)].replica.as_ref().is_some_and(Replica::is_primary);
            if leads || self.rng.random_bool(0.05) {
                self.appends += 1;
                let number = self.appends;
                let payload = |part: u64| Bytes::from(format!("{number}.{part}"));
                let batch = (0..self.rng.random_range(1..4)).map(payload).collect();
                let (ticket, time) = (Ticket(number), self.now);
                self.step(&id(name), Event::Append(vec![Append { ticket, epoch: None, time, batch }]));
            }
        }
    }

    /// What the controller of a service does, and some things it would do on a bad day. It decides on what it read a
    /// while ago; the guard tells.
    fn control(&mut self) {
        self.after(50..400, Next::Controller);
        let (config, guard) = (self.store.config.clone(), self.store.revision);
        let expired =
            |holder: &HolderId| self.store.leases.get(holder).is_none_or(|lease| lease.until < self.now);
        if expired(&config.primary) {
            let pool = if self.bug == Bug::ElectAnyone { &config.holders } else { &config.in_sync };
            let alive: Vec<&HolderId> = pool.iter().filter(|holder| !expired(holder)).collect();
            if !alive.is_empty() {
                let chosen = alive[self.rng.random_range(0..alive.len())].clone();
                let next = LogConfig { epoch: config.epoch.next(), primary: chosen.clone(), ..config };
                let next = if next.is_in_sync(&chosen) { next } else { next.grow(&chosen).unwrap() };
                self.after(0..30, Next::Decided { guard, config: next, forced: true });
            }
            return;
        }
        let any = |rng: &mut StdRng, from: &[HolderId]| from[rng.random_range(0..from.len())].clone();
        let everyone: Vec<HolderId> = NODES.iter().map(|name| id(name)).collect();
        let lagging = config.holders.iter().find(|holder| !config.is_in_sync(holder));
        let next = match self.rng.random_range(0..if self.chaos { 10 } else { 40 }) {
            _ if self.bug == Bug::GrowTooEarly && lagging.is_some() => config.grow(lagging.unwrap()),
            0 => config.elect(&any(&mut self.rng, &config.in_sync)),
            1 | 2 => config.add_learner(&any(&mut self.rng, &everyone)),
            3 if self.chaos => Ok(config.drop_learner()),
            4 if config.holders.len() > config.min_copies => {
                config.mark_leaving(&any(&mut self.rng, &config.holders))
            }
            5..8 if config.leaving.is_some() => config.remove_leaving(),
            _ => return,
        };
        if let Ok(next) = next {
            self.after(0..150, Next::Decided { guard, config: next, forced: false });
        }
    }

    fn decided(&mut self, guard: i64, config: LogConfig, forced: bool) {
        if guard != self.store.revision {
            return;
        }
        if config.epoch > self.store.config.epoch {
            self.seen.elections += 1;
            // Renewed between the decision and the write: the old primary may still commit, and that is harmless.
            let primary = &self.store.config.primary;
            let lapsed = self.store.leases.get(primary).is_none_or(|lease| lease.until < self.now);
            if forced && lapsed && config.primary != *primary {
                self.replaced.insert(self.store.config.epoch);
            }
        }
        self.write(config);
    }

    fn write(&mut self, config: LogConfig) {
        self.store.config = config;
        self.store.revision += 1;
    }

    /// A holder's proposal reaches the store. Its answer may be lost; then the holder asks until it knows.
    fn proposed(&mut self, by: &HolderId, life: u64, guard: i64, config: LogConfig) {
        if guard == self.store.revision {
            self.seen.shrinks += u64::from(config.in_sync.len() < self.store.config.in_sync.len());
            self.seen.grows += u64::from(config.in_sync.len() > self.store.config.in_sync.len());
            self.write(config);
        }
        self.look(by, life);
    }

    /// A node reads the configuration, and hears of it a while later.
    fn look(&mut self, node: &HolderId, life: u64) {
        let (config, revision) = (self.store.config.clone(), self.store.revision);
        self.after(0..200, Next::Shown { node: node.clone(), life, config, revision });
    }

    fn synced(&mut self, node: &HolderId, life: u64, generation: u64, upto: u64, made: u64) {
        if !self.lives(node, life) {
            return;
        }
        if !self.skips_sync() {
            self.nodes.get_mut(node).unwrap().disk.sync_upto(made);
        }
        let state = &self.nodes[node];
        let generation = if self.bug == Bug::IgnoreGenerations { state.generation } else { generation };
        self.step(node, Event::Durable(generation, Offset(upto)));
    }

    /// Lets an event happen to a node and performs the effects.
    fn step(&mut self, id: &HolderId, event: Event) {
        let event = self.twisted(id, event);
        let now = self.now;
        let node = self.nodes.get_mut(id).unwrap();
        let local = node.local(now);
        let Some(replica) = &mut node.replica else { return };
        let payloads = match &event {
            Event::Append(appends) => appends[0].batch.clone(),
            _ => Vec::new(),
        };
        let effects = replica.step(local, event);
        effects.into_iter().for_each(|effect| self.perform(id, effect, &payloads));
    }

    fn perform(&mut self, id: &HolderId, effect: Effect, payloads: &[Bytes]) {
        let life = self.nodes[id].life;
        match effect {
            Effect::Write(generation, entries) => {
                let begins = entries.iter().any(|entry| entry.kind == EntryKind::Begin);
                if begins && self.chaos && self.rng.random_bool(0.1) {
                    self.after(0..400, Next::Stumble { node: id.clone(), life });
                }
                self.persist(id, Change::Write(entries), generation);
            }
            Effect::Cut(generation, from) => {
                self.seen.cuts += 1;
                self.persist(id, Change::Cut(from.0), generation);
            }
            Effect::Reset(generation, history, snapshot) => {
                self.seen.resets += 1;
                let base = u64::from_le_bytes(snapshot[..].try_into().unwrap());
                self.persist(id, Change::Reset(history, base), generation);
            }
            Effect::Truncate(before) => {
                self.nodes.get_mut(id).unwrap().disk.change(Change::Truncate(before.0));
            }
            Effect::Send(to, message) => self.send(id, to, message),
            Effect::Ship(to, shipment) => {
                let entries = self.nodes[id].disk.seen.slice(shipment.from, shipment.upto).unwrap();
                let message = Message::Append {
                    epoch: shipment.epoch,
                    epoch_before: shipment.epoch_before,
                    from: shipment.from,
                    entries,
                    committed: shipment.committed,
                };
                self.send(id, to, message);
            }
            Effect::ShipSnapshot(to, epoch) => {
                let node = &self.nodes[id];
                let replica = node.replica.as_ref().unwrap();
                // The owner's state may be anywhere between the beginning of the log and what is committed.
                let (start, committed) = (replica.start().0, replica.committed().0);
                let at = self.rng.random_range(start..=committed.max(start));
                let mut history = replica.history().clone();
                history.cut(Offset(at));
                let base = node.disk.seen.hash_at(at).unwrap();
                let snapshot = Bytes::copy_from_slice(&base.to_le_bytes());
                self.send(id, to.clone(), Message::Install { epoch, history, snapshot });
                self.after(1..400, Next::Shipped { node: id.clone(), life, to });
            }
            Effect::Propose(guard, config) => {
                let (by, guard) = (id.clone(), guard.0);
                if self.is_blind(id) {
                    self.after(0..50, Next::NotProposed { by, life, guard });
                } else if self.chaos && self.rng.random_bool(0.2) {
                    if self.bug == Bug::ForgetAProposal {
                        let (by, config) = (by.clone(), config.clone());
                        self.after(0..300, Next::Proposed { by, life: 0, guard, config });
                    }
                    self.after(0..50, Next::NotProposed { by, life, guard });
                } else {
                    self.after(0..200, Next::Proposed { by, life, guard, config });
                }
            }
            Effect::Placed(_, _, end) => {
                self.nodes.get_mut(id).unwrap().waiting.push((end.0, payloads[0].clone()));
            }
            Effect::Refused(_, why) => {
                self.seen.no_lease += u64::from(why == capstan_log::replica::Refusal::NoLease);
            }
            Effect::Committed(upto) => self.committed(id, upto.0),
            Effect::Deposed => {
                self.seen.deposed += 1;
                self.nodes.get_mut(id).unwrap().waiting.clear();
            }
            Effect::Diverged(at) => panic!("{id} was told to cut committed entries at {at}"),
        }
    }

    fn persist(&mut self, id: &HolderId, change: Change, generation: u64) {
        let node = self.nodes.get_mut(id).unwrap();
        node.disk.change(change);
        node.generation = generation;
        let (life, upto, made) = (node.life, node.disk.seen.end(), node.disk.made);
        let next = Next::Synced { node: id.clone(), life, generation, upto, made };
        if self.bug == Bug::AcknowledgeBeforeSync && self.rng.random_bool(0.5) {
            self.step(id, Event::Durable(generation, Offset(upto)));
        }
        let slow = if self.chaos && self.rng.random_bool(0.1) { 500 } else { 60 };
        self.after(1..slow, next);
    }

    fn send(&mut self, from: &HolderId, to: HolderId, message: Message) {
        let message = self.sent(from, message);
        let lost = self.rng.random_bool(self.loss) || self.cut.contains(&(from.clone(), to.clone()));
        if lost {
            return;
        }
        let copies = if self.chaos && self.rng.random_bool(0.05) { 2 } else { 1 };
        for _ in 0..copies {
            let slow = if self.chaos && self.rng.random_bool(0.1) { 500 } else { 10 };
            let (to, from, message) = (to.clone(), from.clone(), message.clone());
            self.after(0..slow, Next::Deliver { to, from, message });
        }
    }

    fn committed(&mut self, id: &HolderId, upto: u64) {
        let status = self.nodes[id].replica.as_ref().unwrap().status(self.nodes[id].local(self.now));
        let leads = self.nodes[id].replica.as_ref().unwrap().leads(status.epoch);
        let node = self.nodes.get_mut(id).unwrap();
        if !leads {
            self.truth.agrees(upto, &node.disk.seen, id);
            return;
        }
        let lapsed = self.replaced.contains(&status.epoch);
        assert!(!lapsed, "{id} commits in epoch {} after its lease had run out for others", status.epoch);
        self.truth.commit(id, status.epoch, upto, &node.disk.seen);
        // A copy that was lost since it was acknowledged was one at that time.
        let has = |node: &&Node| node.disk.durable.end().max(node.disk.lost) >= upto;
        let copies = self.nodes.values().filter(has).count();
        let needed = self.store.config.min_copies;
        assert!(copies >= needed, "{id} commits on {copies} copies, and {needed} are needed");
        let node = self.nodes.get_mut(id).unwrap();
        self.seen.committed = self.truth.entries.len() as u64;
        let done = node.waiting.iter().take_while(|(end, _)| *end <= upto).count();
        self.seen.acknowledged += done as u64;
        for (end, payload) in node.waiting.drain(..done) {
            let place = self.truth.entries[..end as usize].iter().rposition(|entry| entry.data == payload);
            assert!(place.is_some(), "an append was acknowledged at another place than its own");
        }
    }
}
