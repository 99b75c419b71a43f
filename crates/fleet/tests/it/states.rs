//! Leave, skip, retry, failure budget and absent hosts are one state machine: every state of a host with every event, and
//! no state that no command leaves.
//!
//! The table is a golden text, `states.txt` beside this file; `UPDATE=1` writes it anew, and the difference is reviewed like
//! code. A cell says what the updater does next about the host, and, behind `|`, what keeps the other host waiting.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use capstan_fleet::Lrn;
use capstan_fleet::decide::why::why;
use capstan_fleet::decide::{Move, decide};
use capstan_fleet::encoding::{Moment, Span};
use capstan_fleet::facts::{Facts, Seen};
use capstan_fleet::history::HistoryRecord;
use capstan_fleet::keys::default_group;
use capstan_fleet::release::StepKind::Rolling;
use capstan_fleet::spec::{Amount, Order, Orders, Policy, ReleaseRecord};
use capstan_fleet::status::{Desired, HostInfo, HostLease, HostStatus, Phase, Request};
use capstan_meta::record::Stored;
use capstan_meta::{LeaseId, Revision};

use crate::rig::releases::manifest;

const START: u64 = 1_600_000_000;
const SUBJECT: Lrn = Lrn(0);

fn seen<R>(record: R) -> Seen<R> {
    let at = Revision(7);
    Arc::new(Stored { record, create_revision: at, mod_revision: at, lease: LeaseId::NONE })
}

fn status(step: u32, finished: bool, error: bool) -> HostStatus {
    let message = if error { "disk full".to_owned() } else { String::new() };
    HostStatus {
        version: "1.1.0".to_owned(),
        generation: 2,
        step,
        finished,
        error,
        message,
        ..HostStatus::default()
    }
}

/// Two hosts, one rolling step; the other host waits for its turn.
fn fleet() -> Facts {
    let mut world = Facts { now: Moment::from_unix(START + 60), last_generation: 2, ..Facts::default() };
    let release = ReleaseRecord::of(&manifest("1.1.0", &[Rolling]), world.now);
    world.releases.insert("1.1.0".to_owned(), seen(release));
    for lrn in [Lrn(0), Lrn(1)] {
        world.registry.insert(lrn);
        world.infos.insert(lrn, seen(HostInfo::default()));
        world.leases.insert(lrn, seen(HostLease::default()));
        world.statuses.insert(lrn, seen(status(1, false, false)));
    }
    let request = Request {
        version: "1.1.0".to_owned(),
        servers: vec![Lrn(0), Lrn(1)],
        started_at: Moment::from_unix(START),
        generation: 2,
        ..Request::default()
    };
    world.request = Some(seen(request));
    world.history = Some(seen(HistoryRecord { version: "1.1.0".to_owned(), ..HistoryRecord::default() }));
    let policy =
        Policy { failure_budget: Amount::Count(1), min_healthy: Span::secs(30), ..Policy::default() };
    world.policies.insert(default_group(), policy);
    world
}

fn wanted(world: &mut Facts, phase: Phase, failure: Option<&str>) {
    let desired = Desired {
        generation: 2,
        phase,
        through: 1,
        attempt: 0,
        at: Moment::from_unix(START + 50),
        failure: failure.map(str::to_owned),
    };
    world.desired.insert(SUBJECT, seen(desired));
}

/// Every state of a host.
fn states() -> Vec<(&'static str, Facts)> {
    let with = |phase: Option<Phase>, report: HostStatus, failure: Option<&str>| {
        let mut world = fleet();
        world.statuses.insert(SUBJECT, seen(report));
        if let Some(phase) = phase {
            wanted(&mut world, phase, failure);
        }
        world
    };
    let at = || status(1, false, false);
    let done = || status(1, true, false);
    let failed = || status(1, false, true);
    let back = || Phase::Rollback { to: "1.0.0".to_owned() };
    let mut silent = fleet();
    silent.statuses.remove(&SUBJECT);
    vec![
        ("silent", silent),
        ("waiting", with(None, at(), None)),
        ("draining", with(Some(Phase::Drain), at(), None)),
        ("running", with(Some(Phase::Run), at(), None)),
        ("running, has failed", with(Some(Phase::Run), failed(), None)),
        ("running, is through", with(Some(Phase::Run), done(), None)),
        ("going back", with(Some(back()), failed(), Some("disk full"))),
        ("returning", with(Some(Phase::Return), done(), None)),
        ("settling", with(Some(Phase::Settle), done(), None)),
        ("done", with(Some(Phase::Done), done(), None)),
        ("gone, had begun", with(Some(Phase::Gone), at(), None)),
        ("gone, was through", with(Some(Phase::Gone), done(), None)),
        ("failed", with(Some(Phase::Failed), failed(), Some("disk full"))),
    ]
}

type Change = fn(&mut Facts);

fn orders(world: &mut Facts, change: impl FnOnce(&mut Orders)) {
    let mut next = world.orders.as_ref().map(|seen| seen.record.clone()).unwrap_or_default();
    change(&mut next);
    world.orders = Some(seen(next));
}

fn skip(world: &mut Facts) {
    orders(world, |orders| {
        orders.skip.insert(SUBJECT, Order::default());
    });
}

fn retry(world: &mut Facts) {
    orders(world, |orders| {
        orders.skip.remove(&SUBJECT);
        *orders.retry.entry(SUBJECT).or_default() += 1;
    });
}

fn dies(world: &mut Facts) {
    world.leases.remove(&SUBJECT);
}

fn comes(world: &mut Facts) {
    world.leases.insert(SUBJECT, seen(HostLease::default()));
}

fn leaves(world: &mut Facts) {
    world.registry.remove(&SUBJECT);
    world.statuses.insert(SUBJECT, seen(HostStatus { stopped: true, ..status(0, false, false) }));
}

/// Every event.
fn events() -> Vec<(&'static str, Change)> {
    vec![
        ("nothing happens", |_| {}),
        ("its worker dies", dies),
        ("it is skipped", skip),
        ("it is skipped and dies", |world| {
            skip(world);
            dies(world);
        }),
        ("it is tried again", retry),
        ("it leaves, and runs on", |world| {
            world.registry.remove(&SUBJECT);
        }),
        ("it leaves and has stopped", leaves),
        ("it stays so for an hour", |world| world.now = Moment::from_unix(START + 3_000)),
        ("it is dead for an hour", |world| {
            dies(world);
            world.now = Moment::from_unix(START + 3_000);
        }),
    ]
}

/// What the updater does next, and what the other host waits for.
fn told(world: &Facts) -> String {
    let next = match decide(world).next {
        None => "waits".to_owned(),
        Some(Move::Hosts(moves)) => {
            let texts = moves.iter().map(|host| {
                let failure =
                    host.desired.failure.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
                format!("host {} to {:?}{failure}", host.lrn, host.desired.phase)
            });
            texts.collect::<Vec<_>>().join(", ")
        }
        Some(Move::Stop { reason, .. }) => format!("stops: {reason}"),
        Some(Move::End { without, .. }) => format!("ends without {without:?}"),
        Some(other) => format!("{other:?}"),
    };
    format!("{next} | {}", why(world, Lrn(1)).reasons.join("; "))
}

#[test]
fn every_state_of_a_host_with_every_event() {
    let mut text = String::new();
    for (state, world) in states() {
        writeln!(text, "{state}").unwrap();
        for (event, change) in events() {
            let mut next = world.clone();
            change(&mut next);
            writeln!(text, "    {event:26} {}", told(&next)).unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/states.txt");
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "the table is another one; look at it, then UPDATE=1:\n{text}");
}

/// Whatever has happened: if the updater waits and no time will pass by itself, an operator's command changes that.
#[test]
fn no_state_is_without_a_command_that_leaves_it() {
    let commands: [(&str, Change); 4] =
        [("start its worker", comes), ("retry", retry), ("skip", skip), ("leave", leaves)];
    for (state, world) in states() {
        for (event, change) in events() {
            let mut next = world.clone();
            change(&mut next);
            let waits = decide(&next).next.is_none() && decide(&next).wake_at.is_none();
            let left = commands.iter().filter(|(_, command)| {
                let mut after = next.clone();
                command(&mut after);
                told(&after) != told(&next)
            });
            let left: Vec<&str> = left.map(|(name, _)| *name).collect();
            assert!(!waits || !left.is_empty(), "{state}, {event}: no command leaves {}", told(&next));
        }
    }
}
