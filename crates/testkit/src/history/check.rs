//! The rules, each checked separately, so that a violation names the broken guarantee.

use std::collections::BTreeMap;
use std::fmt::Debug;

use super::model::Model;
use super::{Call, Change, Checked, Datum, Event, Guard, Operation, Outcome, Rule, Violation};

/// Violations to print: the first one is the bug, the rest follow from it.
const SHOWN: usize = 10;

/// Checks a history against the complete watch log of its keys.
pub fn check<K: Datum, V: Datum>(
    operations: &[Operation<K, V>],
    log: &[Event<K, V>],
) -> Result<Checked, Vec<Violation>> {
    let mut checker = Checker { log: by_revision(log), writers: BTreeMap::new(), violations: Vec::new() };
    checker.log_in_order(log);
    checker.claim_revisions(operations);
    checker.settle_unknown(operations);
    checker.replay(operations);
    checker.real_time(operations);
    let settled = checker.writers.values().filter(|op| op.outcome == Outcome::Unknown).count();
    let known = operations.iter().filter(|op| revision(&op.outcome).is_some()).count();
    let absent = operations.len() - known - settled;
    let checked = Checked { known, settled, absent, revisions: checker.log.len() };
    if checker.violations.is_empty() { Ok(checked) } else { Err(checker.violations) }
}

/// [`check`], and panics with the first violations.
#[track_caller]
pub fn assert_linearizable<K: Datum, V: Datum>(
    operations: &[Operation<K, V>],
    log: &[Event<K, V>],
) -> Checked {
    check(operations, log).unwrap_or_else(|violations| {
        let shown: Vec<String> = violations.iter().take(SHOWN).map(ToString::to_string).collect();
        panic!("not linearizable, {} violations:\n{}", violations.len(), shown.join("\n"))
    })
}

/// Checks that a resumed watcher that began at revision `from` saw exactly what `log` has.
pub fn check_resumed<K: Datum, V: Datum>(
    log: &[Event<K, V>],
    from: u64,
    resumed: &[Event<K, V>],
) -> Result<(), Violation> {
    let expected: Vec<_> = log.iter().filter(|event| event.revision >= from).collect();
    let place = (0..expected.len().max(resumed.len())).find(|i| expected.get(*i).copied() != resumed.get(*i));
    let Some(place) = place else { return Ok(()) };
    let (expected, got) = (expected.get(place), resumed.get(place));
    let evidence = format!("event {place} after revision {from}: expected {expected:?}, got {got:?}");
    Err(Violation { rule: Rule::SameLog, evidence })
}

struct Checker<'a, K, V> {
    /// The changes of each revision, sorted by key.
    log: BTreeMap<u64, Vec<Change<K, V>>>,
    /// The writer of each revision.
    writers: BTreeMap<u64, &'a Operation<K, V>>,
    violations: Vec<Violation>,
}

impl<'a, K: Datum, V: Datum> Checker<'a, K, V> {
    fn violation(&mut self, rule: Rule, evidence: String) {
        self.violations.push(Violation { rule, evidence });
    }

    fn log_in_order(&mut self, log: &[Event<K, V>]) {
        for pair in log.windows(2).filter(|pair| pair[0].revision > pair[1].revision) {
            self.violation(Rule::LogInOrder, format!("{:?} came before {:?}", pair[0], pair[1]));
        }
        let doubled = self.log.iter().find_map(|(revision, changes)| {
            let pair = changes.windows(2).find(|pair| pair[0].key() == pair[1].key())?;
            Some(format!("revision {revision} has both {:?} and {:?}", pair[0], pair[1]))
        });
        if let Some(evidence) = doubled {
            self.violation(Rule::LogInOrder, evidence);
        }
    }

    /// Assigns each acknowledged write its revision.
    fn claim_revisions(&mut self, operations: &'a [Operation<K, V>]) {
        for op in operations {
            let Outcome::Committed { revision } = op.outcome else { continue };
            if let Some(other) = self.writers.insert(revision, op) {
                self.violation(
                    Rule::UniqueRevision,
                    format!("{revision} was given to {other:?} and to {op:?}"),
                );
            }
        }
    }

    /// Assigns each unclaimed revision to an unknown write with the same changes, the oldest first.
    fn settle_unknown(&mut self, operations: &'a [Operation<K, V>]) {
        let mut unknown: BTreeMap<Vec<Change<K, V>>, Vec<_>> = BTreeMap::new();
        for op in operations.iter().filter(|op| op.outcome == Outcome::Unknown) {
            if let Call::Commit { changes, .. } = &op.call {
                unknown.entry(sorted(changes)).or_default().push(op);
            }
        }
        for candidates in unknown.values_mut() {
            candidates.sort_by_key(|op| std::cmp::Reverse(op.invoked));
        }
        let mut model = Model::new();
        let mut invented = Vec::new();
        for (revision, events) in &self.log {
            if !self.writers.contains_key(revision) {
                // The log shows only changes that had an effect.
                let same = |changes: &Vec<Change<K, V>>| effective(&model, changes) == *events;
                let candidates = match unknown.get_mut(events).filter(|candidates| !candidates.is_empty()) {
                    Some(candidates) => Some(candidates),
                    None => {
                        unknown.iter_mut().find(|(c, ops)| !ops.is_empty() && same(c)).map(|(_, ops)| ops)
                    }
                };
                match candidates.and_then(Vec::pop) {
                    Some(op) => drop(self.writers.insert(*revision, op)),
                    None => invented.push(format!("revision {revision}, {events:?}, has no writer")),
                }
            }
            events.iter().for_each(|change| model.apply(*revision, change));
        }
        invented.into_iter().for_each(|evidence| self.violation(Rule::NothingInvented, evidence));
    }

    /// Replays the revisions in order on the model; checks every operation at its revision.
    fn replay(&mut self, operations: &'a [Operation<K, V>]) {
        let mut readers: Vec<(u64, &Operation<K, V>)> = Vec::new();
        for op in operations.iter().filter(|op| !matches!(op.outcome, Outcome::Committed { .. })) {
            readers.extend(revision(&op.outcome).map(|revision| (revision, op)));
        }
        readers.sort_by_key(|(revision, _)| *revision);
        let mut readers = readers.into_iter().peekable();
        let mut model = Model::new();
        let mut steps: Vec<u64> = self.log.keys().chain(self.writers.keys()).copied().collect();
        steps.sort_unstable();
        steps.dedup();
        for step in steps {
            while let Some((at, op)) = readers.next_if(|(at, _)| *at < step) {
                self.judge_reader(&model, at, op);
            }
            let events = self.log.get(&step).cloned().unwrap_or_default();
            if let Some(op) = self.writers.get(&step) {
                self.judge_writer(&model, step, op, &events);
            }
            events.iter().for_each(|change| model.apply(step, change));
        }
        for (at, op) in readers {
            self.judge_reader(&model, at, op);
        }
    }

    fn judge_writer(
        &mut self,
        before: &Model<K, V>,
        revision: u64,
        op: &Operation<K, V>,
        events: &[Change<K, V>],
    ) {
        let Call::Commit { guards, changes } = &op.call else {
            return self.violation(Rule::UniqueRevision, format!("a read made revision {revision}: {op:?}"));
        };
        let expected = effective(before, changes);
        if expected != events {
            let evidence = format!("revision {revision}: the log has {events:?}, not {expected:?} of {op:?}");
            self.violation(Rule::NothingLost, evidence);
        }
        if let Some(broken) = guards.iter().find(|guard| !before.holds(guard)) {
            self.violation(
                Rule::GuardsHold,
                format!("{broken:?} was false before revision {revision}: {op:?}"),
            );
        }
    }

    fn judge_reader(&mut self, state: &Model<K, V>, revision: u64, op: &Operation<K, V>) {
        let all_hold = |guards: &[Guard<K, V>]| guards.iter().all(|guard| state.holds(guard));
        let (rule, expected) = match (&op.call, &op.outcome) {
            (Call::Get(key), Outcome::Found { entries, .. }) => {
                (Rule::ReadsAreTrue, mismatch(state.get(key), entries))
            }
            (Call::Range(range), Outcome::Found { entries, .. }) => {
                (Rule::ReadsAreTrue, mismatch(state.range(range), entries))
            }
            (Call::Commit { guards, .. }, Outcome::Refused { .. }) => {
                (Rule::GuardsHold, all_hold(guards).then(|| "all guards held".to_owned()))
            }
            (Call::Commit { guards, changes }, Outcome::Unchanged { .. }) => {
                let truly = all_hold(guards) && effective(state, changes).is_empty();
                (
                    Rule::GuardsHold,
                    (!truly).then(|| "there was something to change, or a guard failed".to_owned()),
                )
            }
            (call, outcome) => {
                (Rule::ReadsAreTrue, Some(format!("{outcome:?} is not an answer to {call:?}")))
            }
        };
        if let Some(expected) = expected {
            self.violation(rule, format!("at revision {revision}: {expected}: {op:?}"));
        }
    }

    /// An operation that began after another was answered has no smaller revision, and a write has a larger one.
    fn real_time(&mut self, operations: &'a [Operation<K, V>]) {
        let mut asked: Vec<(u64, bool, &Operation<K, V>)> =
            self.writers.iter().map(|(revision, op)| (*revision, true, *op)).collect();
        for op in operations.iter().filter(|op| !matches!(op.outcome, Outcome::Committed { .. })) {
            asked.extend(revision(&op.outcome).map(|revision| (revision, false, op)));
        }
        let mut answered: Vec<(u64, &Operation<K, V>)> =
            operations.iter().filter_map(|op| Some((revision(&op.outcome)?, op))).collect();
        asked.sort_by_key(|(_, _, op)| op.invoked);
        answered.sort_by_key(|(_, op)| op.returned);
        let mut answered = answered.into_iter().peekable();
        let mut newest: Option<(u64, &Operation<K, V>)> = None;
        for (revision, writes, op) in asked {
            while let Some(answer) = answered.next_if(|(_, earlier)| earlier.returned < op.invoked) {
                newest = newest.filter(|(newest, _)| *newest >= answer.0).or(Some(answer));
            }
            if let Some((newest, earlier)) = newest
                && (revision < newest || (writes && revision == newest))
            {
                let evidence =
                    format!("{op:?} is at revision {revision}, asked after the answer of {earlier:?}");
                self.violation(Rule::RealTime, evidence);
            }
        }
    }
}

/// The revision of a known outcome.
fn revision<K, V>(outcome: &Outcome<K, V>) -> Option<u64> {
    match outcome {
        Outcome::Found { revision, .. }
        | Outcome::Committed { revision }
        | Outcome::Unchanged { revision }
        | Outcome::Refused { revision } => Some(*revision),
        Outcome::Failed | Outcome::Unknown => None,
    }
}

fn by_revision<K: Datum, V: Datum>(log: &[Event<K, V>]) -> BTreeMap<u64, Vec<Change<K, V>>> {
    let mut revisions: BTreeMap<u64, Vec<Change<K, V>>> = BTreeMap::new();
    for event in log {
        revisions.entry(event.revision).or_default().push(event.change.clone());
    }
    revisions.values_mut().for_each(|changes| changes.sort_by(|a, b| a.key().cmp(b.key())));
    revisions
}

fn sorted<K: Datum, V: Datum>(changes: &[Change<K, V>]) -> Vec<Change<K, V>> {
    let mut changes = changes.to_vec();
    changes.sort_by(|a, b| a.key().cmp(b.key()));
    changes
}

/// The changes that have an effect on this state, sorted by key: what the log shows of them.
fn effective<K: Datum, V: Datum>(state: &Model<K, V>, changes: &[Change<K, V>]) -> Vec<Change<K, V>> {
    let mut changes = sorted(changes);
    changes.retain(|change| state.is_effective(change));
    changes
}

fn mismatch<K: Datum, T: PartialEq + Debug + Clone>(expected: Vec<(K, T)>, got: &[(K, T)]) -> Option<String> {
    let mut got = got.to_vec();
    got.sort_by(|a, b| a.0.cmp(&b.0));
    (expected != got).then(|| format!("expected {expected:?}"))
}
