//! The worker's one function: every state with every event, and a restart between any two effects.
//!
//! The table is a golden text, `machine.txt` beside this file; `UPDATE=1` writes it anew, and the difference is reviewed
//! like code. A cell says in which state the worker is afterwards, and what it wants done.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use capstan_fleet::Lrn;
use capstan_fleet::agent::{Effect, Event, Fault, Inputs, SeenRequest, State, Worker};
use capstan_fleet::encoding::Moment;
use capstan_fleet::release::Manifest;
use capstan_fleet::release::StepKind::Barrier;
use capstan_fleet::run::Installed;
use capstan_fleet::status::{Desired, HostStatus, Phase, Released, Request};
use capstan_meta::Revision;

use crate::rig::releases::manifest;

fn release() -> Arc<Manifest> {
    manifest("1.1.0", &[Barrier, Barrier])
}

/// A request as it is seen: which one, at which revision, and whether it is stopped.
fn request(generation: u64, version: &str, modified: i64, stop: bool) -> Inputs {
    let request = Request {
        version: version.to_owned(),
        servers: vec![Lrn(0), Lrn(1)],
        stop,
        generation,
        started_at: Moment::from_unix(1_600_000_000),
        ..Request::default()
    };
    let create_revision = Revision(if generation == 1 { 10 } else { 30 });
    let seen = SeenRequest { request, create_revision, mod_revision: Revision(modified) };
    Inputs { request: Some(seen), ..Inputs::default() }
}

fn plain() -> Inputs {
    request(1, "1.1.0", 10, false)
}

fn released(step: u32) -> Inputs {
    let released = Released {
        generation: 1,
        step,
        only: None,
        done: false,
        at: Moment::from_unix(1_600_000_000),
        extra: capstan_meta::record::Extra::default(),
    };
    Inputs { released: Some(released), ..plain() }
}

fn ordered(phase: Phase, attempt: u32) -> Inputs {
    let desired = Desired {
        generation: 1,
        phase,
        through: 2,
        attempt,
        at: Moment::from_unix(1_600_000_000),
        failure: None,
    };
    Inputs { desired: Some(desired), ..plain() }
}

fn back() -> Inputs {
    ordered(Phase::Rollback { to: "1.0.0".to_owned() }, 0)
}

fn seen(inputs: Inputs) -> Event {
    Event::Seen(Box::new(inputs))
}

fn broken() -> Fault {
    Fault::Failed("broken".to_owned())
}

/// Every event, by the name that it has in the table.
fn events() -> Vec<(&'static str, Event)> {
    vec![
        ("sees nothing", seen(Inputs::default())),
        ("sees the request", seen(plain())),
        ("sees step 1 released", seen(released(1))),
        ("sees step 2 released", seen(released(2))),
        ("sees it stopped", seen(request(1, "1.1.0", 11, true))),
        ("sees the next request", seen(request(2, "1.2.0", 30, false))),
        ("sees it overwritten", seen(request(1, "9.9.9", 12, false))),
        ("is ordered back", seen(back())),
        ("is ordered again", seen(ordered(Phase::Run, 1))),
        ("loaded", Event::Loaded(Ok(release()))),
        ("loading failed", Event::Loaded(Err(broken()))),
        ("loading stopped", Event::Loaded(Err(Fault::Stopped))),
        ("ran", Event::Ran(Ok(Installed::default()))),
        ("running failed", Event::Ran(Err(broken()))),
        ("running stopped", Event::Ran(Err(Fault::Stopped))),
        ("finished", Event::Finished(Ok(()))),
        ("finishing failed", Event::Finished(Err(broken()))),
        ("finishing stopped", Event::Finished(Err(Fault::Stopped))),
        ("went back", Event::RolledBack(Ok(()))),
        ("going back failed", Event::RolledBack(Err(broken()))),
        ("going back stopped", Event::RolledBack(Err(Fault::Stopped))),
        ("crashed", Event::Crashed("a defect".to_owned())),
        ("loses its lease", Event::LeaseLost),
        ("has its lease", Event::LeaseHeld),
        ("wrote its report", Event::Reported { written: true }),
        ("could not report", Event::Reported { written: false }),
    ]
}

fn after(events: Vec<Event>) -> Worker {
    let mut worker = Worker::new(Lrn(0), None);
    worker.step(Event::LeaseHeld);
    for event in events {
        worker.step(event);
    }
    worker
}

/// A worker in every state, reached as it would be.
fn states() -> Vec<(&'static str, Worker)> {
    let written = || Event::Reported { written: true };
    let loading = || vec![seen(plain())];
    let with = |mut before: Vec<Event>, more: Vec<Event>| {
        before.extend(more);
        before
    };
    let announcing = || with(loading(), vec![Event::Loaded(Ok(release()))]);
    let waiting = || with(announcing(), vec![written()]);
    let running = || with(waiting(), vec![seen(released(1))]);
    let in_last = || {
        let first = vec![Event::Ran(Ok(Installed::default())), written()];
        with(with(running(), first), vec![seen(released(2))])
    };
    let finishing = || with(in_last(), vec![Event::Ran(Ok(Installed::default()))]);
    let done = || with(finishing(), vec![Event::Finished(Ok(())), written()]);
    let failed = || with(running(), vec![Event::Ran(Err(broken())), written()]);
    vec![
        ("idle", after(Vec::new())),
        ("loading", after(loading())),
        ("reporting", after(announcing())),
        ("waiting at 1", after(waiting())),
        ("running 1", after(running())),
        ("running 2", after(in_last())),
        ("finishing", after(finishing())),
        ("done", after(done())),
        ("failed at 1", after(failed())),
        ("going back", after(with(failed(), vec![seen(back())]))),
        ("stopping", after(with(running(), vec![seen(request(1, "1.1.0", 11, true))]))),
        ("stopping, overwritten", after(with(running(), vec![seen(request(1, "9.9.9", 12, false))]))),
    ]
}

fn name(state: &State) -> String {
    match state {
        State::Idle => "idle".to_owned(),
        State::Loading(_) => "loading".to_owned(),
        State::Waiting(_, step) => format!("waiting at {step}"),
        State::Running(_, step) => format!("running {step}"),
        State::Finishing(..) => "finishing".to_owned(),
        State::Done(_) => "done".to_owned(),
        State::Failed(_, _, step, _) => format!("failed at {step}"),
        State::RollingBack(_, _, _, to) => format!("going back to {to}"),
        State::Stopping { overwritten: false } => "stopping".to_owned(),
        State::Stopping { overwritten: true } => "stopping, overwritten".to_owned(),
        State::Reporting(_, next) => format!("reporting, then {}", name(next)),
    }
}

fn told(effect: &Effect) -> String {
    match effect {
        Effect::Load { version, .. } => format!("load {version}"),
        Effect::Run(work) => format!("run step {}", work.step),
        Effect::Finish { .. } => "finish".to_owned(),
        Effect::RollBack { to, .. } => format!("go back to {to}"),
        Effect::Cancel => "cancel".to_owned(),
        Effect::Report(report) => {
            let HostStatus { step, finished, error, message, rolled_back_to, .. } = &report.status;
            let mut text = format!("report step {step}");
            if *finished {
                text.push_str(" finished");
            }
            if *error {
                write!(text, " error ({message})").unwrap();
            }
            if !rolled_back_to.is_empty() {
                write!(text, " back on {rolled_back_to}").unwrap();
            }
            text
        }
    }
}

/// Who is cut off may be gone on without: it does not begin what it was told before.
#[test]
fn without_a_lease_nothing_is_begun() {
    let mut worker = after(vec![seen(plain()), Event::Loaded(Ok(release())), Event::LeaseLost]);
    worker.step(Event::Reported { written: true });
    assert_eq!(worker.step(seen(released(1))).len(), 0);
    assert_eq!(name(worker.state()), "waiting at 1");
    assert_eq!(worker.step(Event::LeaseHeld).len(), 0, "what it saw may be old");
    let effects: Vec<String> = worker.step(seen(released(1))).iter().map(told).collect();
    assert_eq!(effects, ["run step 1"]);
    worker.step(Event::LeaseLost);
    assert_eq!(name(worker.state()), "running 1", "what is under way goes on");
}

#[test]
fn every_state_and_every_event() {
    let mut text = String::new();
    for (state, worker) in states() {
        writeln!(text, "{state}").unwrap();
        for (event, happens) in events() {
            let mut next = worker.clone();
            let effects: Vec<String> = next.step(happens).iter().map(told).collect();
            match (name(next.state()) == name(worker.state()), effects.as_slice()) {
                (true, []) => {}
                (true, wants) => writeln!(text, "    {event:22} stays: {}", wants.join(", ")).unwrap(),
                (false, []) => writeln!(text, "    {event:22} {}", name(next.state())).unwrap(),
                (false, wants) => {
                    writeln!(text, "    {event:22} {}: {}", name(next.state()), wants.join(", ")).unwrap();
                }
            }
        }
        writeln!(text, "    whatever else          stays").unwrap();
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/machine.txt");
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "the table is another one; look at it, then UPDATE=1:\n{text}");
}

/// A host that has the release and is ordered back takes its report back before it changes anything: a worker that is
/// killed from then on finds a failure of its own, and confirms a stop with that.
#[test]
fn a_host_that_goes_back_no_longer_claims_to_have_the_release() {
    let (own, done) = live(None, usize::MAX, &mut Vec::new());
    assert!(done);
    let mut worker = Worker::new(Lrn(0), own);
    worker.step(Event::LeaseHeld);
    worker.step(seen(released(2)));
    worker.step(Event::Loaded(Ok(release())));
    let effects = worker.step(seen(back()));
    assert!(
        matches!(&effects[..], [Effect::Report(report)] if report.status.error && !report.status.finished),
        "{effects:?}"
    );
    let effects = worker.step(Event::Reported { written: true });
    assert!(matches!(&effects[..], [Effect::RollBack { .. }]), "{effects:?}");

    let mut restarted = Worker::new(Lrn(0), worker.own().cloned());
    let effects = restarted.step(seen(request(1, "1.1.0", 11, true)));
    assert!(
        matches!(&effects[..], [Effect::Report(report)] if report.status.stopped && !report.status.finished),
        "{effects:?}"
    );
}

/// A host that went back has nothing of the release: an order to try again begins with the first step, also if the worker
/// was restarted meanwhile. A host that did not goes on where it failed.
#[test]
fn a_retry_after_a_rollback_begins_with_the_first_step() {
    let written = || Event::Reported { written: true };
    let ran = |ran: Result<(), Fault>| Event::Ran(ran.map(|()| Installed::default()));
    let first = vec![seen(plain()), Event::Loaded(Ok(release())), written(), seen(released(1))];
    let second = vec![ran(Ok(())), written(), seen(released(2)), ran(Err(broken())), written()];
    let failed: Vec<Event> = first.into_iter().chain(second).collect();
    let retried = |mut worker: Worker| -> Vec<String> {
        worker.step(Event::LeaseHeld);
        worker.step(seen(ordered(Phase::Run, 1))).iter().map(told).collect()
    };
    let worker = after(failed);
    assert_eq!(retried(worker.clone()), ["report step 2"]);
    for ended in [Ok(()), Err(broken())] {
        let mut worker = worker.clone();
        for event in [seen(back()), Event::RolledBack(ended), written()] {
            worker.step(event);
        }
        let restarted = Worker::new(Lrn(0), worker.own().cloned());
        assert_eq!(retried(worker), ["report step 1"]);
        assert_eq!(retried(restarted), ["report step 1"]);
    }
}

/// What a host does on its own with everything released, from its last report on. Gives up after `cut` effects, as a
/// crash would; the effect that was under way then is lost, or done and not known of.
fn live(own: Option<HostStatus>, cut: usize, journal: &mut Vec<u32>) -> (Option<HostStatus>, bool) {
    let mut worker = Worker::new(Lrn(0), own);
    worker.step(Event::LeaseHeld);
    let mut effects: std::collections::VecDeque<Effect> = worker.step(seen(released(2))).into();
    let mut performed = 0;
    while let Some(effect) = effects.pop_front() {
        if performed == cut {
            return (worker.own().cloned(), false);
        }
        performed += 1;
        let event = match effect {
            Effect::Load { .. } => Event::Loaded(Ok(release())),
            Effect::Run(work) => {
                journal.push(work.step.get());
                Event::Ran(Ok(Installed::default()))
            }
            Effect::Finish { .. } => Event::Finished(Ok(())),
            Effect::Report(_) => Event::Reported { written: true },
            Effect::RollBack { .. } | Effect::Cancel => panic!("nobody asked for {effect:?}"),
        };
        effects.extend(worker.step(event));
    }
    (worker.own().cloned(), matches!(worker.state(), State::Done(_)))
}

/// The journal of the host makes a step that is run again a resumed one; so it may be asked for twice, and only the
/// step that was cut.
#[test]
fn a_restart_between_any_two_effects_changes_nothing() {
    let mut whole = Vec::new();
    let (status, done) = live(None, usize::MAX, &mut whole);
    assert!(done && status.as_ref().is_some_and(|status| status.finished), "{status:?}");
    assert_eq!(whole, [1, 2]);
    for first in 0..12 {
        for second in 0..12 {
            let mut journal = Vec::new();
            let (own, _) = live(None, first, &mut journal);
            let (own, _) = live(own, second, &mut journal);
            let (own, done) = live(own, usize::MAX, &mut journal);
            assert!(done && own.is_some_and(|own| own.finished), "cut after {first} and {second}");
            assert!(journal.is_sorted(), "cut after {first} and {second}: {journal:?}");
            journal.dedup();
            assert_eq!(journal, [1, 2], "cut after {first} and {second}");
        }
    }
}
