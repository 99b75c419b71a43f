//! The checker accepts the history of a correct store and names the guarantee that a broken one violates.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use capstan_testkit::history::{
    Call, Change, Checked, Event, Guard, Operation, Outcome, Recorder, Rule, Seen, assert_linearizable,
    check, check_resumed,
};
use capstan_testkit::seed::{rng, seeds};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

const CLIENTS: u64 = 8;
const OPERATIONS: u64 = 60;
const KEYS: u64 = 4;

/// A bug, planted in every 20th operation that it concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    StaleRead,
    LostWrite,
    DoubledRevision,
    IgnoredGuard,
    HalfTransaction,
    ForgottenWrite,
}

type History = (Vec<Operation<u64, u64>>, Vec<Event<u64, u64>>);
type State = BTreeMap<u64, Seen<u64>>;

/// A small store, correct but for its bug.
struct Store {
    bug: Bug,
    chances: u64,
    /// The state after each revision; the last is the newest.
    states: Vec<State>,
    log: Vec<Event<u64, u64>>,
}

impl Store {
    fn new(bug: Bug) -> Self {
        Self { bug, chances: 0, states: vec![State::new()], log: Vec::new() }
    }

    fn revision(&self) -> u64 {
        self.states.len() as u64 - 1
    }

    /// Whether the bug happens now.
    fn strikes(&mut self, bug: Bug) -> bool {
        self.chances += u64::from(self.bug == bug);
        self.bug == bug && self.chances.is_multiple_of(20)
    }

    fn perform(&mut self, call: &Call<u64, u64>) -> Outcome<u64, u64> {
        match call {
            Call::Get(key) => self.read(*key..*key + 1),
            Call::Range(range) => self.read(range.clone()),
            Call::Commit { guards, changes } => self.commit(guards, changes),
        }
    }

    fn read(&mut self, range: std::ops::Range<u64>) -> Outcome<u64, u64> {
        let age = if self.strikes(Bug::StaleRead) { 10.min(self.revision()) } else { 0 };
        let revision = self.revision() - age;
        let state = &self.states[revision as usize];
        let entries = state.range(range).map(|(key, seen)| (*key, seen.clone())).collect();
        Outcome::Found { revision, entries }
    }

    fn commit(&mut self, guards: &[Guard<u64, u64>], changes: &[Change<u64, u64>]) -> Outcome<u64, u64> {
        let revision = self.revision();
        let mut state = self.states[revision as usize].clone();
        let holds = |guard: &Guard<u64, u64>| match guard {
            Guard::Value(key, value) => state.get(key).is_some_and(|seen| seen.value == *value),
            Guard::Modified(key, modified) => state.get(key).map_or(0, |seen| seen.modified) == *modified,
        };
        if !guards.iter().all(holds) && !self.strikes(Bug::IgnoredGuard) {
            return Outcome::Refused { revision };
        }
        let next = revision + 1;
        let mut events = Vec::new();
        for change in changes {
            let changed = match change {
                Change::Put(key, value) => {
                    state.insert(*key, Seen { value: *value, modified: next });
                    true
                }
                Change::Delete(key) => state.remove(key).is_some(),
            };
            events.extend(changed.then(|| Event { revision: next, change: change.clone() }));
        }
        if events.is_empty() {
            return Outcome::Unchanged { revision };
        }
        self.publish(state, events)
    }

    fn publish(&mut self, state: State, mut events: Vec<Event<u64, u64>>) -> Outcome<u64, u64> {
        let next = self.revision() + 1;
        if self.strikes(Bug::LostWrite) {
            // Acknowledged with a revision, but not applied; the next write gets the same revision.
            return Outcome::Committed { revision: next };
        }
        if self.strikes(Bug::ForgottenWrite) {
            self.states.push(self.states[self.revision() as usize].clone());
            return Outcome::Committed { revision: next };
        }
        if events.len() > 1 && self.strikes(Bug::HalfTransaction) {
            events.pop();
        }
        self.states.push(state);
        self.log.extend(events);
        Outcome::Committed { revision: if self.strikes(Bug::DoubledRevision) { next - 1 } else { next } }
    }
}

fn random_call(rng: &mut StdRng, value: u64, seen: u64) -> Call<u64, u64> {
    let key = rng.random_range(0..KEYS);
    let put = Change::Put(key, value);
    match rng.random_range(0..6) {
        0 => Call::Get(key),
        1 => Call::Range(0..key),
        2 => Call::Commit { guards: vec![], changes: vec![put] },
        3 => Call::Commit { guards: vec![Guard::Modified(key, seen)], changes: vec![put] },
        4 => Call::Commit { guards: vec![], changes: vec![Change::Delete(key)] },
        _ => Call::Commit { guards: vec![], changes: vec![put, Change::Put((key + 1) % KEYS, value)] },
    }
}

/// Concurrent clients on one store; some responses are lost.
async fn history(bug: Bug, seed: u64) -> History {
    let store = Arc::new(Mutex::new(Store::new(bug)));
    let recorder = Arc::new(Recorder::new());
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (store, recorder, mut rng) = (Arc::clone(&store), Arc::clone(&recorder), rng(seed ^ client));
        clients.spawn(async move {
            let mut seen = 0;
            for number in 0..OPERATIONS {
                let call = random_call(&mut rng, client * OPERATIONS + number, seen);
                let lost = rng.random_ratio(1, 20);
                let arrives = !lost || rng.random_bool(0.5);
                let perform = async {
                    tokio::task::yield_now().await;
                    let outcome = arrives.then(|| store.lock().unwrap().perform(&call));
                    tokio::task::yield_now().await;
                    outcome.filter(|_| !lost).unwrap_or(Outcome::Unknown)
                };
                if let Outcome::Committed { revision } = recorder.record(call.clone(), perform).await {
                    seen = revision;
                }
            }
        });
    }
    clients.join_all().await;
    let log = store.lock().unwrap().log.clone();
    (recorder.operations(), log)
}

fn run(bug: Bug, seed: u64) -> History {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(history(bug, seed))
}

fn caught(bug: Bug, rule: Rule) {
    seeds(20, |seed| {
        let (operations, log) = run(bug, seed);
        let violations = check(&operations, &log).unwrap_err();
        assert!(violations.iter().any(|v| v.rule == rule), "no {rule:?}, but {}", violations[0]);
    });
}

#[test]
fn a_correct_store_passes_and_lost_answers_are_settled_by_the_log() {
    let (mut settled, mut absent) = (0, 0);
    seeds(50, |seed| {
        let (operations, log) = run(Bug::None, seed);
        let checked = assert_linearizable(&operations, &log);
        assert!(checked.known > 300 && checked.revisions > 100, "{checked:?}");
        settled += checked.settled;
        absent += checked.absent;
    });
    assert!(settled > 0 && absent > 0, "settled {settled}, absent {absent}");
}

#[test]
fn a_stale_read_is_caught() {
    caught(Bug::StaleRead, Rule::RealTime);
}

#[test]
fn a_lost_write_is_caught() {
    caught(Bug::LostWrite, Rule::UniqueRevision);
    caught(Bug::ForgottenWrite, Rule::NothingLost);
}

#[test]
fn a_doubled_revision_is_caught() {
    caught(Bug::DoubledRevision, Rule::UniqueRevision);
}

#[test]
fn an_ignored_guard_is_caught() {
    caught(Bug::IgnoredGuard, Rule::GuardsHold);
}

#[test]
fn half_a_transaction_is_caught() {
    caught(Bug::HalfTransaction, Rule::NothingLost);
}

fn put(invoked: u64, returned: u64, value: u64, outcome: Outcome<u64, u64>) -> Operation<u64, u64> {
    let call = Call::Commit { guards: vec![], changes: vec![Change::Put(1, value)] };
    Operation { invoked, returned, call, outcome }
}

fn event(revision: u64, value: u64) -> Event<u64, u64> {
    Event { revision, change: Change::Put(1, value) }
}

fn rules(operations: &[Operation<u64, u64>], log: &[Event<u64, u64>]) -> Vec<Rule> {
    check(operations, log).err().unwrap_or_default().iter().map(|violation| violation.rule).collect()
}

#[test]
fn the_rules_one_by_one() {
    let (one, two) = (Outcome::Committed { revision: 1 }, Outcome::Committed { revision: 2 });
    let log = [event(1, 10), event(2, 20)];
    let good = [put(0, 1, 10, one.clone()), put(2, 3, 20, two.clone())];
    assert_eq!(check(&good, &log).unwrap(), Checked { known: 2, settled: 0, absent: 0, revisions: 2 });

    let backwards = [put(2, 3, 10, one.clone()), put(0, 1, 20, two)];
    assert_eq!(rules(&backwards, &log), [Rule::RealTime]);
    let failed = [put(0, 1, 10, one.clone()), put(2, 3, 20, Outcome::Failed)];
    assert_eq!(rules(&failed, &log), [Rule::NothingInvented]);
    let unknown = [put(0, 1, 10, one.clone()), put(2, 3, 20, Outcome::Unknown)];
    assert_eq!(rules(&unknown, &log), []);
    assert_eq!(rules(&good, &[event(2, 20), event(1, 10)]), [Rule::LogInOrder]);
    let false_read = Outcome::Found { revision: 1, entries: vec![(1, Seen { value: 11, modified: 1 })] };
    let read = Operation { invoked: 2, returned: 3, call: Call::Get(1), outcome: false_read };
    assert_eq!(rules(&[put(0, 1, 10, one), read], &log[..1]), [Rule::ReadsAreTrue]);
}

#[test]
fn a_resumed_watcher_must_miss_and_double_nothing() {
    let log = [event(1, 10), event(2, 20), event(3, 30)];
    check_resumed(&log, 2, &[event(2, 20), event(3, 30)]).unwrap();
    for wrong in [vec![event(3, 30)], vec![event(2, 20), event(2, 20), event(3, 30)], vec![event(2, 20)]] {
        assert_eq!(check_resumed(&log, 2, &wrong).unwrap_err().rule, Rule::SameLog);
    }
}

#[tokio::test]
async fn an_operation_that_was_abandoned_is_unknown() {
    let recorder = Recorder::<u64, u64>::new();
    let hanging = recorder.record(Call::Get(1), std::future::pending());
    tokio::select! {
        _ = hanging => unreachable!(),
        () = tokio::task::yield_now() => {}
    }
    assert_eq!(recorder.operations()[0].outcome, Outcome::Unknown);
}
