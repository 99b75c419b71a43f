//! Is every acknowledged write there, and does no read go backwards? Checks what clients saw of lists that only grow.
//!
//! Clients append unique numbers to shared lists and read whole lists. An append is acknowledged with the length of its
//! list, so two owners of a slot, a node that comes back from the past and a lost write all leave a trace. After the
//! faults the lists are read once more. Where replication is asynchronous, what was acknowledged within a stated window
//! around a failure may be lost; nothing else may.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::time::Duration;

/// The outcome of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The append was acknowledged; its list has this length.
    Appended { element: u64, length: usize },
    /// The error promises that nothing was executed.
    Refused { element: u64 },
    /// It may have been executed, or may still be.
    Unknown { element: u64 },
    /// The whole list.
    Read(Vec<u64>),
}

/// One command of one client. Times are since the start of the run.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub list: String,
    pub invoked: Duration,
    pub returned: Duration,
    pub outcome: Outcome,
}

/// A time in which acknowledged writes may be lost, and why.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub from: Duration,
    pub to: Duration,
}

/// What clients saw, and what the lists contain after the faults.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub events: Vec<Event>,
    pub finally: BTreeMap<String, Vec<u64>>,
    /// Empty: nothing may be lost.
    pub windows: Vec<Window>,
}

impl History {
    /// The list of which most elements were acknowledged at a time that excuses no loss.
    pub fn longest_that_counts(&self) -> String {
        let excused =
            |at: &Duration| self.windows.iter().any(|window| window.from <= *at && *at <= window.to);
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for event in self.events.iter().filter(|event| !excused(&event.returned)) {
            let acknowledged = matches!(event.outcome, Outcome::Appended { .. });
            *counts.entry(&event.list).or_default() += usize::from(acknowledged);
        }
        let longest = counts.into_iter().max_by_key(|(_, count)| *count);
        longest.map(|(list, _)| list.to_owned()).unwrap()
    }
}

/// The numbers of a history without violations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub acknowledged: usize,
    pub reads: usize,
    /// Acknowledged or read within a window, and lost.
    pub excused: usize,
}

/// The broken rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    /// What was acknowledged or read is not there at the end.
    Lost,
    /// An append took effect twice.
    Twice,
    /// An element that no client appended.
    Invented,
    /// An append that was refused took effect.
    RefusedButDone,
    /// A read lacks what was known before it was sent.
    Backwards,
    /// An append that was acknowledged first stands behind one that was sent later.
    Reordered,
    /// The acknowledged length is not the place of the element: the list had two histories.
    Forked,
}

#[derive(Clone, Debug)]
pub(super) struct Violation {
    pub rule: Rule,
    pub list: String,
    pub element: u64,
    pub at: Duration,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { rule, list, element, at } = self;
        write!(f, "{rule:?}: element {element} of {list}, at {:.3} s", at.as_secs_f64())
    }
}

impl History {
    /// Checks every list.
    pub(super) fn check(&self) -> Result<Totals, Vec<Violation>> {
        let mut events: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
        for event in &self.events {
            events.entry(&event.list).or_default().push(event);
        }
        let lists: BTreeSet<&str> =
            events.keys().copied().chain(self.finally.keys().map(String::as_str)).collect();
        let (mut totals, mut violations) = (Totals::default(), Vec::new());
        for name in lists {
            let events = events.get(name).map_or(&[][..], Vec::as_slice);
            let list = List::new(name, events, self.finally.get(name).map_or(&[][..], Vec::as_slice));
            violations.extend(list.contents());
            violations.extend(list.losses(&self.windows, &mut totals));
            violations.extend(list.reads(&mut totals));
            violations.extend(list.order());
            if self.windows.is_empty() {
                violations.extend(list.places());
            }
        }
        if violations.is_empty() { Ok(totals) } else { Err(violations) }
    }
}

/// The history of one list.
struct List<'h> {
    name: &'h str,
    events: &'h [&'h Event],
    finally: &'h [u64],
    place: HashMap<u64, usize>,
    /// When each element was acknowledged or read, with the first time first.
    known: BTreeMap<u64, Vec<Duration>>,
}

impl<'h> List<'h> {
    fn new(name: &'h str, events: &'h [&'h Event], finally: &'h [u64]) -> List<'h> {
        let mut known: BTreeMap<u64, Vec<Duration>> = BTreeMap::new();
        for event in events {
            match &event.outcome {
                Outcome::Appended { element, .. } => {
                    known.entry(*element).or_default().push(event.returned);
                }
                Outcome::Read(elements) => {
                    elements
                        .iter()
                        .for_each(|element| known.entry(*element).or_default().push(event.returned));
                }
                Outcome::Refused { .. } | Outcome::Unknown { .. } => {}
            }
        }
        known.values_mut().for_each(|times| times.sort_unstable());
        let place = finally.iter().enumerate().map(|(place, element)| (*element, place)).collect();
        List { name, events, finally, place, known }
    }

    fn violation(&self, rule: Rule, element: u64, at: Duration) -> Violation {
        Violation { rule, list: self.name.to_owned(), element, at }
    }

    /// Every list, whenever it is read, contains only what was appended, once.
    fn contents(&self) -> Vec<Violation> {
        let (mut sent, mut refused) = (HashSet::new(), HashSet::new());
        for event in self.events {
            match &event.outcome {
                Outcome::Appended { element, .. } | Outcome::Unknown { element } => sent.extend([*element]),
                Outcome::Refused { element } => refused.extend([*element]),
                Outcome::Read(_) => {}
            }
        }
        let reads = self.events.iter().filter_map(|event| match &event.outcome {
            Outcome::Read(elements) => Some((elements.as_slice(), event.returned)),
            _ => None,
        });
        let mut violations = Vec::new();
        for (elements, at) in reads.chain([(self.finally, Duration::MAX)]) {
            let mut here = HashSet::new();
            for element in elements {
                let rule = if !here.insert(element) {
                    Rule::Twice
                } else if sent.contains(element) {
                    continue;
                } else if refused.contains(element) {
                    Rule::RefusedButDone
                } else {
                    Rule::Invented
                };
                violations.push(self.violation(rule, *element, at));
            }
        }
        violations
    }

    /// What was known at a time outside of every window is there.
    fn losses(&self, windows: &[Window], totals: &mut Totals) -> Vec<Violation> {
        let acknowledged = |event: &&&Event| matches!(event.outcome, Outcome::Appended { .. });
        totals.acknowledged += self.events.iter().filter(acknowledged).count();
        let excused = |at: &Duration| windows.iter().any(|window| window.from <= *at && *at <= window.to);
        let mut violations = Vec::new();
        for (element, times) in self.known.iter().filter(|(element, _)| !self.place.contains_key(element)) {
            match times.iter().find(|at| !excused(at)) {
                Some(at) => violations.push(self.violation(Rule::Lost, *element, *at)),
                None => totals.excused += 1,
            }
        }
        violations
    }

    /// A read has everything that was known before it was sent and that is there at the end.
    fn reads(&self, totals: &mut Totals) -> Vec<Violation> {
        let mut violations = Vec::new();
        for event in self.events {
            let Outcome::Read(elements) = &event.outcome else { continue };
            totals.reads += 1;
            let has: HashSet<&u64> = elements.iter().collect();
            let before = |times: &Vec<Duration>| times.first().is_some_and(|at| *at < event.invoked);
            let kept = self.known.iter().filter(|(element, _)| self.place.contains_key(element));
            let lacks = kept.filter(|(element, times)| before(times) && !has.contains(element));
            violations
                .extend(lacks.map(|(element, _)| self.violation(Rule::Backwards, *element, event.invoked)));
        }
        violations
    }

    /// The order of the elements agrees with the order of the commands.
    fn order(&self) -> Vec<Violation> {
        let (mut sent, mut acknowledged) = (HashMap::new(), HashMap::new());
        for event in self.events {
            match &event.outcome {
                Outcome::Appended { element, .. } => {
                    sent.insert(*element, event.invoked);
                    acknowledged.insert(*element, event.returned);
                }
                Outcome::Unknown { element } => drop(sent.insert(*element, event.invoked)),
                Outcome::Refused { .. } | Outcome::Read(_) => {}
            }
        }
        let (mut latest, mut violations) = (Duration::ZERO, Vec::new());
        for element in self.finally {
            if let Some(at) = acknowledged.get(element).filter(|at| **at < latest) {
                violations.push(self.violation(Rule::Reordered, *element, *at));
            }
            latest = latest.max(sent.get(element).copied().unwrap_or_default());
        }
        violations
    }

    /// Every element is where its acknowledgment said.
    fn places(&self) -> Vec<Violation> {
        let wrong = |event: &&&Event| match &event.outcome {
            Outcome::Appended { element, length } => {
                self.place.get(element).is_some_and(|place| place + 1 != *length)
            }
            _ => false,
        };
        let wrong = self.events.iter().filter(wrong);
        wrong
            .filter_map(|event| match &event.outcome {
                Outcome::Appended { element, .. } => {
                    Some(self.violation(Rule::Forked, *element, event.returned))
                }
                _ => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(from: u64, to: u64, outcome: Outcome) -> Event {
        let time = Duration::from_secs;
        Event { list: "l".to_owned(), invoked: time(from), returned: time(to), outcome }
    }

    fn appended(from: u64, to: u64, element: u64, length: usize) -> Event {
        at(from, to, Outcome::Appended { element, length })
    }

    fn read(from: u64, to: u64, elements: &[u64]) -> Event {
        at(from, to, Outcome::Read(elements.to_vec()))
    }

    /// Three appends, of which the second has an unknown outcome, and two reads.
    fn sound() -> History {
        let events = vec![
            appended(0, 1, 1, 1),
            at(2, 5, Outcome::Unknown { element: 2 }),
            read(2, 3, &[1]),
            appended(6, 7, 3, 3),
            at(8, 8, Outcome::Refused { element: 4 }),
            read(8, 9, &[1, 2, 3]),
        ];
        let finally = BTreeMap::from([("l".to_owned(), vec![1, 2, 3])]);
        History { events, finally, windows: Vec::new() }
    }

    fn broken(plant: impl Fn(&mut History)) -> BTreeSet<Rule> {
        let mut history = sound();
        plant(&mut history);
        let violations = history.check().err().unwrap_or_default();
        violations.into_iter().map(|violation| violation.rule).collect()
    }

    type Case<'c> = (&'c str, Rule, &'c dyn Fn(&mut History));

    fn finally(elements: &[u64]) -> impl Fn(&mut History) {
        move |history| drop(history.finally.insert("l".to_owned(), elements.to_vec()))
    }

    #[test]
    fn a_sound_history_passes() {
        assert_eq!(sound().check().unwrap(), Totals { acknowledged: 2, reads: 2, excused: 0 });
    }

    #[test]
    fn planted_bugs_are_found() {
        let cases: [Case; 10] = [
            ("an acknowledged write is lost", Rule::Lost, &finally(&[1, 2])),
            ("a shard is erased", Rule::Lost, &finally(&[])),
            ("a value was read and is lost", Rule::Lost, &finally(&[1, 3])),
            ("a write is executed twice", Rule::Twice, &finally(&[1, 2, 3, 3])),
            ("a value that was never written", Rule::Invented, &finally(&[1, 2, 3, 9])),
            ("a refused write is executed", Rule::RefusedButDone, &finally(&[1, 2, 3, 4])),
            ("a node from the past serves a read", Rule::Backwards, &|history| {
                history.events.push(read(10, 11, &[1, 2]));
            }),
            ("a read of what another client saw", Rule::Backwards, &|history| {
                history.events.push(read(10, 11, &[1, 3]));
            }),
            ("a later write stands first", Rule::Reordered, &finally(&[3, 2, 1])),
            ("two owners append at the same place", Rule::Forked, &|history| {
                history.events.push(appended(6, 7, 5, 3));
                finally(&[1, 2, 3, 5])(history);
            }),
        ];
        for (what, rule, plant) in cases {
            assert!(broken(plant).contains(&rule), "{what}: {:?}", broken(plant));
        }
    }

    #[test]
    fn a_loss_is_excused_only_within_its_window() {
        let lost = |from, to| {
            move |history: &mut History| {
                finally(&[1, 2])(history);
                history.events.truncate(5);
                history.windows =
                    vec![Window { from: Duration::from_secs(from), to: Duration::from_secs(to) }];
            }
        };
        assert_eq!(broken(lost(6, 9)), BTreeSet::new());
        assert_eq!(broken(lost(8, 9)), BTreeSet::from([Rule::Lost]), "acknowledged before it");
        assert_eq!(broken(lost(0, 6)), BTreeSet::from([Rule::Lost]), "acknowledged after it");
    }
}
