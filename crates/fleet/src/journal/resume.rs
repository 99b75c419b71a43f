//! What is left to do of a step, given what the journal says? A pure function.

use super::record::{Act, Course, Entry, Event};
use crate::release::{StepNumber, Version};
use crate::run::Generation;

/// What is left of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remaining {
    /// Nothing.
    Nothing,
    /// The acts from this one on.
    From {
        /// The first act that is not done.
        number: u32,
        /// What is known about an earlier try of it.
        trace: Trace,
    },
}

/// What is known about an earlier try of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// There was none, or it ended and was reported: a new try is wanted.
    Clean,
    /// It was begun and has no recorded end: the worker died. It may still be running.
    Begun,
}

/// The journal says that this work must not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// An old request.
    #[error("the work belongs to request {asked}, and this host has worked for request {newest} already")]
    Stale {
        /// Whose work it is.
        asked: Generation,
        /// The newest that this host worked for.
        newest: Generation,
    },
    /// Another release under the same number.
    #[error("request {generation} is for release {known} on this host, and not for {asked}")]
    OtherRelease {
        /// Which request.
        generation: Generation,
        /// The release that the journal knows.
        known: Version,
        /// The release of the work.
        asked: Version,
    },
    /// A later step has begun.
    #[error("step {asked} is not done, and step {begun} of the same request has begun already")]
    OutOfOrder {
        /// Which step is asked for.
        asked: StepNumber,
        /// Which has begun.
        begun: StepNumber,
    },
    /// All of it was declared done.
    #[error("request {0} is finished on this host")]
    Finished(Generation),
}

/// What is left of a step with this many acts.
///
/// Only what happened since the host took this course counts: what was done before it turned back was undone, and
/// what was undone before it turns forward again has to be done again.
pub fn resume(
    entries: &[Entry],
    course: &Course,
    step: StepNumber,
    acts: u32,
) -> Result<Remaining, Contradiction> {
    let newest = entries.iter().map(|entry| entry.course.generation).max();
    if let Some(newest) = newest.filter(|newest| *newest > course.generation) {
        return Err(Contradiction::Stale { asked: course.generation, newest });
    }
    let ours = latest_course(entries, course);
    if let Some(other) = ours.iter().find(|entry| entry.course != *course) {
        let (known, asked) = (other.course.release.clone(), course.release.clone());
        return Err(Contradiction::OtherRelease { generation: course.generation, known, asked });
    }
    let done = |number: u32| ours.iter().any(|entry| entry.event == Event::Done(Act { step, number }));
    let Some(number) = (0..acts).find(|number| !done(*number)) else { return Ok(Remaining::Nothing) };
    refuse_what_is_over(ours, course.generation, step)?;
    let last = ours.iter().rev().find(|entry| entry.event.act() == Some(Act { step, number }));
    let trace = match last.map(|entry| &entry.event) {
        Some(Event::Intent(_)) => Trace::Begun,
        Some(Event::Done(_) | Event::Failed { .. } | Event::Finished) | None => Trace::Clean,
    };
    Ok(Remaining::From { number, trace })
}

/// The last entries that go this way, up to the end.
fn latest_course<'a>(entries: &'a [Entry], course: &Course) -> &'a [Entry] {
    let before = entries.iter().rposition(|entry| !entry.course.is_way_of(course));
    &entries[before.map_or(0, |last| last + 1)..]
}

fn refuse_what_is_over(
    ours: &[Entry],
    generation: Generation,
    step: StepNumber,
) -> Result<(), Contradiction> {
    if ours.iter().any(|entry| entry.event == Event::Finished) {
        return Err(Contradiction::Finished(generation));
    }
    let begun = ours.iter().filter_map(|entry| entry.event.act()).map(|act| act.step).max();
    match begun.filter(|begun| *begun > step) {
        Some(begun) => Err(Contradiction::OutOfOrder { asked: step, begun }),
        None => Ok(()),
    }
}

/// The entries that later decisions can depend on: of the last course, the last one of each act, and its end.
#[must_use]
pub fn essence(entries: &[Entry]) -> Vec<Entry> {
    let Some(last) = entries.last() else { return Vec::new() };
    let mut kept: Vec<&Entry> = Vec::new();
    for entry in latest_course(entries, &last.course) {
        kept.retain(|old| old.event.act().is_none() || old.event.act() != entry.event.act());
        kept.push(entry);
    }
    kept.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::run::Permission;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn step(number: u32) -> StepNumber {
        StepNumber::new(number).unwrap()
    }

    fn act(at: u32, number: u32) -> Act {
        Act { step: step(at), number }
    }

    fn forward(generation: u64, release: &str) -> Course {
        let (generation, permission) = (Generation(generation), Permission::Upgrade);
        Course { generation, permission, release: version(release) }
    }

    fn back(generation: u64, release: &str) -> Course {
        Course { permission: Permission::RollBack, ..forward(generation, release) }
    }

    fn journal(course: &Course, events: &[Event]) -> Vec<Entry> {
        let entry = |(number, event): (usize, &Event)| Entry {
            number: number as u64,
            at: Timestamp::UNIX_EPOCH,
            course: course.clone(),
            event: event.clone(),
        };
        events.iter().enumerate().map(entry).collect()
    }

    #[test]
    fn every_crash_leaves_exactly_the_rest() {
        let failed = |act| Event::Failed { act, why: "exit 1".to_owned() };
        let from = |number, trace| Ok(Remaining::From { number, trace });
        let (i0, d0) = (Event::Intent(act(1, 0)), Event::Done(act(1, 0)));
        let (i1, d1) = (Event::Intent(act(1, 1)), Event::Done(act(1, 1)));
        let table: Vec<(&str, Vec<Event>, Result<Remaining, Contradiction>)> = vec![
            ("a new journal", vec![], from(0, Trace::Clean)),
            ("died in the first act", vec![i0.clone()], from(0, Trace::Begun)),
            ("died between two acts", vec![i0.clone(), d0.clone()], from(1, Trace::Clean)),
            ("died in the second act", vec![i0.clone(), d0.clone(), i1.clone()], from(1, Trace::Begun)),
            ("failed, to be tried again", vec![i0.clone(), failed(act(1, 0))], from(0, Trace::Clean)),
            (
                "died in the second try",
                vec![i0.clone(), failed(act(1, 0)), i0.clone()],
                from(0, Trace::Begun),
            ),
            ("done", vec![i0.clone(), d0.clone(), i1.clone(), d1.clone()], Ok(Remaining::Nothing)),
            (
                "done, and the next has begun",
                vec![i0.clone(), d0.clone(), i1.clone(), d1.clone(), Event::Intent(act(2, 0))],
                Ok(Remaining::Nothing),
            ),
            (
                "not done, and the next has begun",
                vec![i0.clone(), d0.clone(), Event::Intent(act(2, 0))],
                Err(Contradiction::OutOfOrder { asked: step(1), begun: step(2) }),
            ),
            (
                "not done, and all was declared finished",
                vec![i0.clone(), d0.clone(), Event::Finished],
                Err(Contradiction::Finished(Generation(7))),
            ),
        ];
        for (name, events, expected) in table {
            let course = forward(7, "1.0");
            let entries = journal(&course, &events);
            assert_eq!(resume(&entries, &course, step(1), 2), expected, "{name}");
            let compacted = resume(&essence(&entries), &course, step(1), 2);
            assert_eq!(compacted, expected, "{name}, compacted");
        }
    }

    #[test]
    fn a_new_request_begins_anew_and_an_old_one_is_refused() {
        let entries = journal(&forward(7, "1.0"), &[Event::Intent(act(1, 0)), Event::Done(act(1, 0))]);
        let begin = Ok(Remaining::From { number: 0, trace: Trace::Clean });
        assert_eq!(resume(&entries, &forward(8, "1.0"), step(1), 1), begin);
        let stale = Contradiction::Stale { asked: Generation(6), newest: Generation(7) };
        assert_eq!(resume(&entries, &forward(6, "1.0"), step(1), 1), Err(stale));
    }

    #[test]
    fn one_request_is_for_one_release() {
        let entries = journal(&forward(7, "1.0"), &[Event::Intent(act(1, 0))]);
        let error = resume(&entries, &forward(7, "1.1"), step(1), 1).unwrap_err();
        assert_eq!(error.to_string(), "request 7 is for release 1.0 on this host, and not for 1.1");
    }

    #[test]
    fn turning_back_and_forward_again_begins_anew_each_time() {
        let all = [Event::Intent(act(1, 0)), Event::Done(act(1, 0))];
        let begin = Ok(Remaining::From { number: 0, trace: Trace::Clean });
        let mut entries = journal(&forward(7, "1.1"), &all);
        assert_eq!(resume(&entries, &back(7, "1.0"), step(1), 1), begin);
        entries.extend(journal(&back(7, "1.0"), &all[..1]));
        let begun = Ok(Remaining::From { number: 0, trace: Trace::Begun });
        assert_eq!(resume(&entries, &back(7, "1.0"), step(1), 1), begun, "died on the way back");
        entries.extend(journal(&back(7, "1.0"), &[all[1].clone(), Event::Finished]));
        assert_eq!(resume(&entries, &back(7, "1.0"), step(1), 1), Ok(Remaining::Nothing));
        assert_eq!(resume(&entries, &forward(7, "1.1"), step(1), 1), begin, "a retry of what was undone");
        assert_eq!(resume(&essence(&entries), &forward(7, "1.1"), step(1), 1), begin);
    }

    #[test]
    fn compaction_forgets_old_requests_and_old_tries() {
        let mut entries = journal(&forward(6, "0.9"), &[Event::Intent(act(1, 0)), Event::Finished]);
        let events = [
            Event::Intent(act(1, 0)),
            Event::Failed { act: act(1, 0), why: "x".to_owned() },
            Event::Intent(act(1, 0)),
            Event::Done(act(1, 0)),
            Event::Finished,
        ];
        entries.extend(journal(&forward(7, "1.0"), &events));
        let events: Vec<Event> = essence(&entries).into_iter().map(|entry| entry.event).collect();
        assert_eq!(events, [Event::Done(act(1, 0)), Event::Finished]);
    }
}
