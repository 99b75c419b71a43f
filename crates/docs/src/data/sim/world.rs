//! One simulated cluster: nodes with engines that crash, tokens that move between them, clients, and a model of what the
//! clients may expect.
//!
//! The log of a token is a list of committed entries; that it is one is shown by the simulation of the log itself. What
//! is real here: the evaluation of writes, the data of a copy, snapshots and their batches, the deletion of what does
//! not count, the decisions of the steward, the states of nodes and jobs.

mod check;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read as _};
use std::ops::RangeInclusive;
use std::sync::Arc;

use bson::{Bson, Document, doc};
use bytes::Bytes;
use capstan_log::{HolderId, LogConfig, LogEpoch, LogName, Offset, StateMachine as _};
use capstan_testkit::seed;
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::engine::CrashEngine;
use super::records::Records;
use super::seen::Seen;
use crate::data::command::{Reply, Select, Target, Write};
use crate::data::copy::Data;
use crate::data::entry;
use crate::data::evaluate::{evaluate, is_wide};
use crate::data::machine::{Machine, put_pair, read_pair};
use crate::data::pace::Pace;
use crate::data::state::Draft;
use crate::data::tokens::Tokens;
use crate::decide::{JobProgress, JobState, NodeFacts, NodeState, Seen as Sight, events};
use crate::error::DocsError;
use crate::id::Token;
use crate::metrics::DocsMetrics;
use crate::queue::desk::Desk;
use crate::spec::{CollectionId, CollectionSpec, IndexSpec};
use crate::storage::{Engine, layout};

const TOKENS: usize = 4;
const KEYS: u32 = 8;
/// The fewest nodes that a cluster keeps, and the most that it has.
const NODES: RangeInclusive<usize> = 3..=5;

/// The planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    None,
    /// A primary serves before it has applied what its predecessors acknowledged.
    ServeBeforeBegin,
    /// The log is shortened although the engine may still lose what the entries made.
    ShortenBeforeSync,
    /// A copy counts although its last batches did not come.
    CountTooEarly,
}

/// The log of one token.
#[derive(Default)]
struct Log {
    /// Committed entries; those that begin an epoch have no data.
    entries: Vec<Option<Bytes>>,
    /// What the documents are after each entry.
    states: Vec<BTreeMap<u32, i64>>,
    /// The epoch whose first entry is committed.
    begun: Option<LogEpoch>,
}

/// A node's part of a token's log: the entries from one offset up to another.
#[derive(Clone, Copy, Default)]
struct Held {
    start: u64,
    end: u64,
}

struct Node {
    engine: Arc<CrashEngine>,
    tokens: Tokens,
    held: BTreeMap<Token, Held>,
    state: NodeState,
}

impl Node {
    fn new() -> Node {
        let engine = Arc::new(CrashEngine::default());
        let tokens = open(&engine);
        Node { engine, tokens, held: BTreeMap::new(), state: NodeState::New }
    }

    fn data(&self, token: Token) -> Arc<Data> {
        self.tokens.data(token).unwrap()
    }
}

fn open(engine: &Arc<CrashEngine>) -> Tokens {
    Tokens::new(
        Arc::clone(engine) as Arc<dyn Engine>,
        None,
        Arc::new(Pace::new(None)),
        DocsMetrics::default(),
    )
}

pub(super) struct World {
    rng: StdRng,
    bug: Bug,
    records: Records,
    logs: BTreeMap<Token, Log>,
    nodes: BTreeMap<HolderId, Node>,
    jobs: BTreeMap<Token, (HolderId, JobProgress, u64)>,
    target: Target,
    /// What clients may expect: the number in each document that is there.
    model: BTreeMap<(Token, u32), i64>,
    pub(super) seen: Seen,
}

fn name(token: Token) -> LogName {
    token.log().unwrap()
}

fn id(token: Token, key: u32) -> Bson {
    Bson::String(format!("{token}{key:03x}"))
}

impl World {
    pub(super) fn new(seed: u64, bug: Bug) -> World {
        let mut spec = CollectionSpec::new(CollectionId(1), vec!["_id".to_owned()]);
        spec.indexes.insert("n".to_owned(), IndexSpec { number: 1, ..IndexSpec::default() });
        let mut world = World {
            rng: seed::rng(seed),
            bug,
            records: Records::new(),
            logs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            jobs: BTreeMap::new(),
            target: Target { version: 1, spec },
            model: BTreeMap::new(),
            seen: Seen::default(),
        };
        for _ in 0..world.rng.random_range(NODES) {
            world.join();
        }
        let holders: Vec<HolderId> = world.nodes.keys().cloned().collect();
        for (at, token) in Token::all(1).take(TOKENS).enumerate() {
            let three = (0..3).map(|copy| holders[(at + copy) % holders.len()].clone()).collect();
            world.records.add_log(name(token), three);
            world.logs.insert(token, Log::default());
        }
        world
    }

    fn join(&mut self) {
        let holder: HolderId = format!("docs.n{}", self.nodes.len() + 1).parse().unwrap();
        self.records.add_holder(&holder);
        self.nodes.insert(holder, Node::new());
    }

    fn any_token(&mut self) -> Token {
        let at = self.rng.random_range(0..TOKENS);
        *self.logs.keys().nth(at).unwrap()
    }

    fn any_node(&mut self) -> HolderId {
        let at = self.rng.random_range(0..self.nodes.len());
        self.nodes.keys().nth(at).unwrap().clone()
    }

    fn config(&self, token: Token) -> LogConfig {
        self.records.config(&name(token)).clone()
    }

    fn end(&self, token: Token) -> u64 {
        self.logs[&token].entries.len() as u64
    }

    pub(super) fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
            self.check();
        }
    }

    fn step(&mut self) {
        let (token, node) = (self.any_token(), self.any_node());
        match self.rng.random_range(0..100) {
            0..40 => self.write(token),
            40..50 => self.read(token),
            50..62 => self.replicate(token),
            62..72 => {
                let most = self.rng.random_range(1..5);
                self.apply(&node, token, most);
            }
            72..80 => drop(self.govern()),
            80..85 => self.shorten(&node, token),
            85..89 => self.tidy(&node),
            89..92 => self.crash(&node),
            92..97 => self.restart(&node),
            97 if self.seen.joined == 0 && self.nodes.len() < *NODES.end() => {
                self.join();
                self.seen.joined += 1;
            }
            98 => self.retire(&node),
            _ => self.records.now += 10,
        }
    }

    /// Whether a token can commit: all its in-sync copies are there, and they are enough.
    fn commits(&self, config: &LogConfig) -> bool {
        config.in_sync.len() >= config.min_copies && config.in_sync.iter().all(|one| self.records.is_up(one))
    }

    /// Appends an entry on every in-sync copy.
    fn append(&mut self, token: Token, config: &LogConfig, data: Option<Bytes>) {
        let log = self.logs.get_mut(&token).unwrap();
        log.entries.push(data);
        let last = log.states.last().cloned().unwrap_or_default();
        log.states.push(last);
        let end = log.entries.len() as u64;
        for holder in &config.in_sync {
            self.nodes.get_mut(holder).unwrap().held.entry(token).or_default().end = end;
        }
    }

    /// The primary of a token, ready to serve.
    fn primary(&mut self, token: Token) -> Option<HolderId> {
        let config = self.config(token);
        if !self.commits(&config) {
            return None;
        }
        let begins = self.logs[&token].begun != Some(config.epoch);
        if begins {
            self.seen.elections += 1;
            self.append(token, &config, None);
            self.logs.get_mut(&token).unwrap().begun = Some(config.epoch);
        }
        if !(begins && self.bug == Bug::ServeBeforeBegin) {
            self.apply(&config.primary, token, u64::MAX);
        }
        Some(config.primary)
    }

    fn write(&mut self, token: Token) {
        let Some(primary) = self.primary(token) else { return };
        let key = self.rng.random_range(0..KEYS);
        let expected = self.model.get(&(token, key)).copied();
        let select = Select { id: Some(id(token, key)), filter: Document::new(), one: true, unchanged: None };
        let (write, then) = match self.rng.random_range(0..4) {
            0 => (Write::Insert(doc! { "_id": id(token, key), "n": 0_i64 }), expected.or(Some(0))),
            1 => (Write::Delete(select), None),
            _ => {
                let update = doc! { "$inc": { "n": 1_i64 } };
                (Write::Update { select, update }, expected.map(|n| n + 1))
            }
        };
        assert!(!is_wide(&write));
        let data = self.nodes[&primary].data(token);
        let view = data.view();
        let mut draft = Draft::new(&view);
        let outcome = evaluate(&mut draft, &self.target, &write, None, 1);
        let changes = draft.take();
        let is_insert = matches!(write, Write::Insert(_));
        match outcome.map(|step| step.reply) {
            Ok(Reply::Changed(ids)) => {
                let happens = is_insert == expected.is_none();
                assert_eq!(ids.len(), usize::from(happens), "{write:?} of {expected:?}");
                let config = self.config(token);
                if !changes.is_empty() {
                    self.append(token, &config, Some(entry::encode(&changes)));
                }
                self.seen.writes += 1;
            }
            Err(DocsError::Duplicate(_)) if is_insert && expected.is_some() => {
                self.seen.refused += 1;
                return;
            }
            other => panic!("{write:?} of {expected:?}: {other:?}"),
        }
        match then {
            Some(n) => drop(self.model.insert((token, key), n)),
            None => drop(self.model.remove(&(token, key))),
        }
        let expected = self.expected(token);
        if let Some(last) = self.logs.get_mut(&token).unwrap().states.last_mut() {
            *last = expected;
        }
    }

    /// A read at the primary has everything that was acknowledged.
    fn read(&mut self, token: Token) {
        let Some(primary) = self.primary(token) else { return };
        let found = self.documents(&primary, token);
        let expected = self.expected(token);
        assert_eq!(found, expected, "a read of token {token} at {primary}");
        self.seen.reads += 1;
    }

    fn expected(&self, token: Token) -> BTreeMap<u32, i64> {
        let of_token = self.model.iter().filter(|((of, _), _)| *of == token);
        of_token.map(|((_, key), n)| (*key, *n)).collect()
    }

    fn documents(&self, holder: &HolderId, token: Token) -> BTreeMap<u32, i64> {
        let view = self.nodes[holder].data(token).view();
        let number = |key: u32| {
            let found = view.document(CollectionId(1), &id(token, key)).unwrap()?;
            Some(found.get("n").and_then(|n| n.as_i64().or(n.as_i32().map(i64::from))).unwrap())
        };
        (0..KEYS).filter_map(|key| Some((key, number(key)?))).collect()
    }

    /// Applies some of the log on one node, as far as the node has it.
    fn apply(&mut self, holder: &HolderId, token: Token, most: u64) {
        let node = &self.nodes[holder];
        let Some(held) = node.held.get(&token).filter(|_| self.records.is_up(holder)) else { return };
        let data = node.data(token);
        let from = data.applied().next;
        assert!(from >= held.start, "{holder} lacks entries {from} to {} of token {token}", held.start);
        let until = held.end.min(from.saturating_add(most));
        if until <= from {
            return;
        }
        let numbered = (from..until).zip(&self.logs[&token].entries[from as usize..until as usize]);
        let entries: Vec<(u64, Bytes)> =
            numbered.filter_map(|(at, entry)| Some((at, entry.clone()?))).collect();
        if data.apply(from, &entries, until).is_err() {
            assert!(node.engine.is_off());
        }
    }

    /// Brings one copy of a token closer to its primary; the primary lets a complete one join, and a lost one leave.
    fn replicate(&mut self, token: Token) {
        let config = self.config(token);
        if !self.records.is_up(&config.primary) {
            return;
        }
        let lost: Vec<HolderId> =
            config.in_sync.iter().filter(|one| !self.records.is_up(one)).cloned().collect();
        if !lost.is_empty()
            && let Ok(next) = config.shrink(&lost)
        {
            self.records.set(&name(token), next);
            return;
        }
        let outside: Vec<HolderId> = config
            .members()
            .filter(|one| !config.is_in_sync(one) && self.records.is_up(one))
            .cloned()
            .collect();
        let Some(to) = outside.first().cloned() else { return };
        let start = self.nodes[&config.primary].held.get(&token).copied().unwrap_or_default().start;
        let has = *self.nodes.get_mut(&to).unwrap().held.entry(token).or_default();
        if has.end < start {
            self.copy(&config.primary, &to, token, start);
        } else if has.end < self.end(token) {
            let step = self.rng.random_range(1..=8);
            let end = self.end(token).min(has.end + step);
            self.nodes.get_mut(&to).unwrap().held.insert(token, Held { end, ..has });
        } else if let Ok(next) = config.grow(&to) {
            self.records.set(&name(token), next);
        }
    }

    /// A snapshot on its way to a node: it may be cut off, and the power of the receiver may be cut.
    fn copy(&mut self, from: &HolderId, to: &HolderId, token: Token, start: u64) {
        self.apply(from, token, 2);
        let source = self.nodes[from].data(token);
        let snapshot = Machine::direct(Arc::clone(&source)).snapshot(&name(token), Offset(start)).unwrap();
        let (at, bytes) = (snapshot.at, self.content(snapshot, &source));
        let pairs = pair_ends(&bytes);
        let keep = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..=pairs.len()),
            _ => pairs.len(),
        };
        let mut bytes = bytes;
        bytes.truncate(keep.checked_sub(1).map_or(0, |last| pairs[last]));
        if keep < pairs.len() && self.bug != Bug::CountTooEarly {
            bytes.push(0);
        }
        let node = &self.nodes[to];
        if self.rng.random_range(0..5) == 0 {
            node.engine.cut_after(self.rng.random_range(0..4));
        }
        let machine = Machine::direct(node.data(token));
        if machine.install(&name(token), at, &mut Cursor::new(bytes)).is_ok() {
            let held = Held { start: at.0, end: at.0 };
            self.nodes.get_mut(to).unwrap().held.insert(token, held);
            self.seen.copies += 1;
        } else {
            self.seen.cut_off += 1;
        }
        match self.nodes[to].engine.is_off() {
            true => self.power_cut(to),
            false => self.nodes[to].engine.keep_on(),
        }
    }

    /// The pairs of a snapshot: as they are sent directly, or in the batches of a queue.
    fn content(&mut self, mut snapshot: capstan_log::Snapshot, source: &Data) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.rng.random_bool(0.5) {
            snapshot.content.read_to_end(&mut bytes).unwrap();
            return bytes;
        }
        let desk = Desk::new(self.rng.random_range(1..400));
        let prefix = layout::copy_prefix(source.token, source.applied().generation);
        let job = desk.open(source.engine.snapshot(), prefix);
        let mut after: Option<Vec<u8>> = None;
        loop {
            let batch = desk.batch(&job, after.as_deref()).unwrap().unwrap();
            let mut pairs = batch.pairs();
            while let Some((key, value)) = read_pair(&mut pairs).unwrap() {
                put_pair(&mut bytes, &key, &value);
            }
            match batch.next() {
                Some(next) => after = Some(next.to_vec()),
                None => return bytes,
            }
        }
    }

    fn shorten(&mut self, holder: &HolderId, token: Token) {
        let node = &self.nodes[holder];
        let Some(held) = node.held.get(&token).copied().filter(|_| self.records.is_up(holder)) else {
            return;
        };
        let data = node.data(token);
        let saved = match self.bug {
            Bug::ShortenBeforeSync => data.applied().next,
            _ => data.save().unwrap().0,
        };
        let start = saved.min(held.end).saturating_sub(self.rng.random_range(0..4)).max(held.start);
        self.seen.shortened += u64::from(start > held.start);
        self.nodes.get_mut(holder).unwrap().held.insert(token, Held { start, ..held });
    }

    /// Closes the logs that a node does not hold any more, and deletes what does not count.
    fn tidy(&mut self, holder: &HolderId) {
        if !self.records.is_up(holder) {
            return;
        }
        let is_member = |token: &Token| self.config(*token).members().any(|one| one == holder);
        let left: BTreeSet<Token> = self.logs.keys().copied().filter(|token| !is_member(token)).collect();
        let node = self.nodes.get_mut(holder).unwrap();
        node.held.retain(|token, _| !left.contains(token));
        node.tokens.tidy(1, &left).unwrap();
    }

    fn crash(&mut self, holder: &HolderId) {
        let down = self.nodes.keys().filter(|one| !self.records.is_up(one)).count();
        if down > 0 {
            return;
        }
        match self.rng.random_bool(0.5) {
            true => self.power_cut(holder),
            false => {
                self.seen.kills += 1;
                self.stop(holder, usize::MAX);
            }
        }
    }

    fn power_cut(&mut self, holder: &HolderId) {
        self.seen.power_cuts += 1;
        let kept = self.rng.random_range(0..=self.nodes[holder].engine.unsynced());
        self.stop(holder, kept);
    }

    fn stop(&mut self, holder: &HolderId, kept: usize) {
        self.records.stop(holder);
        let node = self.nodes.get_mut(holder).unwrap();
        node.engine = node.engine.after_crash(kept);
        node.tokens = open(&node.engine);
    }

    fn restart(&mut self, holder: &HolderId) {
        if !self.records.is_up(holder) && self.records.holders.contains_key(holder) {
            self.records.start(holder);
        }
    }

    fn retire(&mut self, holder: &HolderId) {
        let stay = self.nodes.keys().filter(|one| !self.records.is_retiring(one)).count();
        if self.seen.retired == 0 && stay > *NODES.start() {
            self.records.retire(holder);
            self.seen.retired += 1;
        }
    }

    /// The steward, handovers, the states of nodes and jobs.
    fn govern(&mut self) -> usize {
        self.records.now += 1;
        let changes = self.records.steward();
        let tokens: Vec<Token> = self.logs.keys().copied().collect();
        for token in &tokens {
            self.records.hand_over(&name(*token));
        }
        let holders: Vec<HolderId> = self.nodes.keys().cloned().collect();
        for holder in holders {
            let (facts, state) = (self.facts(&holder), self.nodes[&holder].state);
            if let Some(event) = facts.event(state) {
                let next = state.step(event).unwrap_or_else(|| panic!("{state:?} and {event:?}"));
                self.nodes.get_mut(&holder).unwrap().state = next;
            }
        }
        tokens.into_iter().for_each(|token| self.follow_job(token));
        changes
    }

    fn facts(&self, holder: &HolderId) -> NodeFacts {
        let configs: Vec<LogConfig> = self.logs.keys().map(|token| self.config(*token)).collect();
        let is_copy = |config: &&LogConfig| config.holders.contains(holder);
        let early = |state: NodeState| matches!(state, NodeState::New | NodeState::CreCluster);
        NodeFacts {
            up: self.records.is_up(holder),
            copies: configs.iter().filter(is_copy).count(),
            behind: configs.iter().filter(is_copy).filter(|config| !config.is_in_sync(holder)).count(),
            learning: configs.iter().filter(|config| config.learner.as_ref() == Some(holder)).count(),
            retiring: self.records.is_retiring(holder),
            first: self.nodes.iter().all(|(other, node)| other == holder || early(node.state)),
        }
    }

    /// What the receiver of a token writes down about its job.
    fn follow_job(&mut self, token: Token) {
        let config = self.config(token);
        if let Some(learner) = &config.learner
            && self
                .jobs
                .get(&token)
                .is_none_or(|(to, job, _)| to != learner || job.state == JobState::Completed)
        {
            self.jobs.insert(token, (learner.clone(), JobProgress::started(), 0));
        }
        let Some((to, job, batch)) = self.jobs.get(&token).cloned() else { return };
        let learns = config.learner.as_ref() == Some(&to);
        if !learns && !config.holders.contains(&to) {
            self.jobs.remove(&token);
            return;
        }
        let sight = if learns {
            Sight::Progress(self.nodes[&to].data(token).applied().next)
        } else {
            Sight::Complete
        };
        let next = job.steps(&events(job.state, sight, batch), to.as_str());
        self.seen.jobs += u64::from(next.state == JobState::Completed && job.state != JobState::Completed);
        self.jobs.insert(token, (to, next, batch));
    }
}

/// Where each pair of a snapshot ends.
fn pair_ends(bytes: &[u8]) -> Vec<usize> {
    let (mut rest, mut ends) = (bytes, Vec::new());
    while read_pair(&mut rest).unwrap().is_some() {
        ends.push(bytes.len() - rest.len());
    }
    ends
}
