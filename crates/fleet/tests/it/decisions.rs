//! The decision table of the document's updater, as pure calls; and what it decides beyond it.

use std::sync::Arc;
use std::time::Duration;

use capstan_fleet::Lrn;
use capstan_fleet::check::findings;
use capstan_fleet::decide::{Move, decide, stuck};
use capstan_fleet::encoding::Moment;
use capstan_fleet::facts::{Facts, Seen};
use capstan_fleet::history::{HistoryRecord, Outcome};
use capstan_fleet::keys::default_group;
use capstan_fleet::release::StepKind::{self, Barrier, Once, Rolling};
use capstan_fleet::spec::{Amount, Orders, Policy, ReleaseRecord, Target};
use capstan_fleet::status::{Desired, HostInfo, HostLease, HostStatus, Phase, Released, Request};
use capstan_meta::record::{Extra, Stored};
use capstan_meta::{LeaseId, Revision};

use crate::rig::releases::manifest;

const START: u64 = 1_600_000_000;

fn seen<R>(record: R) -> Seen<R> {
    let at = Revision(7);
    Arc::new(Stored { record, create_revision: at, mod_revision: at, lease: LeaseId::NONE })
}

/// Two hosts that are up, and a release.
fn fleet(kinds: &[StepKind]) -> Facts {
    let mut world = Facts { now: Moment::from_unix(START + 60), ..Facts::default() };
    for version in ["1.0.0", "1.1.0"] {
        let record = ReleaseRecord::of(&manifest(version, kinds), world.now);
        world.releases.insert(version.to_owned(), seen(record));
    }
    for lrn in [0, 1] {
        join(&mut world, lrn);
    }
    world.target = Some(seen(Target { version: "1.0.0".to_owned(), ..Target::default() }));
    world
}

fn join(world: &mut Facts, lrn: u32) {
    world.registry.insert(Lrn(lrn));
    world.leases.insert(Lrn(lrn), seen(HostLease::default()));
}

/// The same with a request for the release under way.
fn requested(kinds: &[StepKind]) -> Facts {
    let mut world = fleet(kinds);
    let request = Request {
        version: "1.0.0".to_owned(),
        servers: vec![Lrn(0), Lrn(1)],
        started_at: Moment::from_unix(START),
        generation: 1,
        ..Request::default()
    };
    world.history = Some(seen(HistoryRecord { version: "1.0.0".to_owned(), ..HistoryRecord::default() }));
    world.last_generation = 1;
    world.request = Some(seen(request));
    world
}

fn report(world: &mut Facts, lrn: u32, status: HostStatus) {
    let status = HostStatus { version: "1.0.0".to_owned(), generation: 1, ..status };
    world.statuses.insert(Lrn(lrn), seen(status));
}

fn at(step: u32) -> HostStatus {
    HostStatus { step, ..HostStatus::default() }
}

fn finished() -> HostStatus {
    HostStatus { step: 1, finished: true, ..HostStatus::default() }
}

/// The same with everybody through, and that noted.
fn completed() -> Facts {
    let mut world = requested(&[Barrier]);
    release(&mut world, 1);
    report(&mut world, 0, finished());
    report(&mut world, 1, finished());
    let history = HistoryRecord {
        version: "1.0.0".to_owned(),
        outcome: Some(Outcome::Succeeded),
        ..HistoryRecord::default()
    };
    world.history = Some(seen(history));
    world
}

fn release(world: &mut Facts, step: u32) {
    let released =
        Released { generation: 1, step, only: None, done: false, at: world.now, extra: Extra::default() };
    world.released = Some(seen(released));
}

fn started(world: &Facts) -> Request {
    match decide(world).next {
        Some(Move::Start(start)) => start.request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn wait_latest_without_a_release_nothing_begins() {
    let mut world = fleet(&[Barrier]);
    world.target = None;
    assert_eq!(decide(&world).next, None);
    assert_eq!(decide(&world).why, "no release is asked for yet");
}

#[test]
fn recover_without_a_request_a_new_one_begins() {
    let mut world = fleet(&[Barrier]);
    world.last_generation = 4;
    let request = started(&world);
    assert_eq!((request.generation, request.servers.as_slice()), (5, &[Lrn(0), Lrn(1)][..]));
}

#[test]
fn stopped_waits_for_a_person() {
    let mut world = requested(&[Barrier]);
    let mut request = world.request.as_ref().unwrap().record.clone();
    request.stop = true;
    world.request = Some(seen(request));
    let history = HistoryRecord { outcome: Some(Outcome::Failed), ..HistoryRecord::default() };
    world.history = Some(seen(history));
    assert_eq!(decide(&world).next, None);
}

#[test]
fn aborted_is_stopped() {
    let mut world = requested(&[Barrier]);
    report(&mut world, 0, at(1));
    report(&mut world, 1, HostStatus { error: true, message: "no".to_owned(), ..at(1) });
    let next = decide(&world).next;
    assert_eq!(next, Some(Move::Stop { outcome: Outcome::Failed, reason: "host 1 failed: no".to_owned() }));
}

#[test]
fn timeout_is_stopped() {
    let mut world = requested(&[Barrier]);
    report(&mut world, 0, at(1));
    world.now = Moment::from_unix(START + 7_200);
    world.leases.remove(&Lrn(1));
    world.settings.worker_timeout = Duration::from_secs(3_600);
    // One of two is beyond what may be absent by default.
    assert!(matches!(decide(&world).next, Some(Move::Stop { outcome: Outcome::TimedOut, .. })));
}

#[test]
fn not_completed_waits_until_the_deadline() {
    let mut world = requested(&[Barrier]);
    release(&mut world, 1);
    report(&mut world, 0, finished());
    report(&mut world, 1, at(1));
    let decision = decide(&world);
    assert_eq!(decision.next, None);
    assert_eq!(decision.wake_at, Some(Moment::from_unix(START + 3_600)));
    assert_eq!(decision.why, "waiting for hosts [1] to run step 1");
}

#[test]
fn reconfigure_when_the_registry_changed() {
    let mut world = completed();
    join(&mut world, 2);
    let request = started(&world);
    assert_eq!((request.version.as_str(), request.servers.len(), request.generation), ("1.0.0", 3, 2));
}

#[test]
fn update_when_the_release_changed() {
    let mut world = completed();
    world.target = Some(seen(Target { version: "1.1.0".to_owned(), ..Target::default() }));
    assert_eq!(started(&world).version, "1.1.0");
}

#[test]
fn completed_waits() {
    assert_eq!(decide(&completed()).next, None);
    let mut open = completed();
    open.history = Some(seen(HistoryRecord::default()));
    assert!(
        matches!(decide(&open).next, Some(Move::End { outcome: Outcome::Succeeded, .. })),
        "and is noted once"
    );
}

#[test]
fn a_downgrade_is_refused_unless_it_is_meant() {
    let mut world = completed();
    world.target = Some(seen(Target { version: "0.9.0".to_owned(), ..Target::default() }));
    assert_eq!(decide(&world).next, None);
    assert!(decide(&world).why.contains("older than 1.0.0"), "{}", decide(&world).why);
    let record = ReleaseRecord::of(&manifest("0.9.0", &[Barrier]), world.now);
    world.releases.insert("0.9.0".to_owned(), seen(record));
    let meant = Target { version: "0.9.0".to_owned(), rollback: true, ..Target::default() };
    world.target = Some(seen(meant));
    assert!(started(&world).rollback);
}

#[test]
fn an_impossible_report_stops_the_update() {
    for strange in [at(3), finished()] {
        let mut world = requested(&[Barrier, Barrier]);
        report(&mut world, 0, at(1));
        report(&mut world, 1, strange.clone());
        let next = decide(&world).next;
        assert!(matches!(next, Some(Move::Stop { outcome: Outcome::Failed, .. })), "{strange:?}: {next:?}");
    }
}

#[test]
fn a_host_without_a_lease_is_gone_on_without() {
    let mut world = requested(&[Barrier]);
    for lrn in 2..6 {
        join(&mut world, lrn);
    }
    let request = world.request.as_ref().unwrap().record.clone();
    world.request = Some(seen(Request { servers: (0..6).map(Lrn).collect(), ..request }));
    for lrn in 0..5 {
        report(&mut world, lrn, at(1));
    }
    assert_eq!(decide(&world).next, None, "host 5 may still come");
    world.leases.remove(&Lrn(5));
    assert_eq!(decide(&world).next, None, "by default a barrier waits for all");
    let policy = Policy { barrier_budget: Amount::Percent(34), ..Policy::default() };
    world.policies.insert(default_group(), policy);
    assert!(matches!(decide(&world).next, Some(Move::Release(Released { step: 1, .. }))));
}

#[test]
fn slots_are_limited_and_the_rest_knows_why_it_waits() {
    let mut world = requested(&[Rolling]);
    report(&mut world, 0, at(1));
    report(&mut world, 1, at(1));
    let Some(Move::Hosts(moves)) = decide(&world).next else { panic!("{:?}", decide(&world)) };
    assert_eq!(moves.len(), 1, "one canary");
    assert_eq!((moves[0].lrn, &moves[0].desired.phase), (Lrn(0), &Phase::Run), "nothing to drain");
    world.desired.insert(Lrn(0), seen(moves[0].desired.clone()));
    let why = capstan_fleet::decide::why::why(&world, Lrn(1));
    assert_eq!(why.reasons, ["wave 1 is not through: hosts [0]"]);
    let through = Desired { phase: Phase::Settle, ..moves[0].desired.clone() };
    world.desired.insert(Lrn(0), seen(through));
    report(&mut world, 0, finished());
    assert_eq!(decide(&world).next, None);
    assert!(decide(&world).wake_at.is_some(), "it settles");
}

/// Every host has a name in the kernel, and findings about services count.
fn observed(kinds: &[StepKind]) -> Facts {
    let mut world = requested(kinds);
    for lrn in [0, 1] {
        let info = HostInfo { host: Some(format!("h{lrn}").parse().unwrap()), ..HostInfo::default() };
        world.infos.insert(Lrn(lrn), seen(info));
        report(&mut world, lrn, finished());
    }
    release(&mut world, 1);
    world.policies.insert(default_group(), Policy { services: true, ..Policy::default() });
    world
}

fn moved(world: &Facts) -> (Lrn, Phase) {
    match decide(world).next {
        Some(Move::Hosts(moves)) => (moves[0].lrn, moves[0].desired.phase.clone()),
        other => panic!("{other:?}"),
    }
}

/// Host 0 failed at a step and is to try again; host 1 has announced that step.
fn to_retry(kinds: &[StepKind], failed: HostStatus) -> Facts {
    let mut world = requested(kinds);
    world.policies.insert(default_group(), Policy { failure_budget: Amount::Count(1), ..Policy::default() });
    report(&mut world, 1, at(failed.step));
    report(&mut world, 0, HostStatus { error: true, message: "no".to_owned(), ..failed });
    let orders = Orders { retry: [(Lrn(0), 1)].into(), ..Orders::default() };
    world.orders = Some(seen(orders));
    world
}

/// What host 0 is let do: its phase, the last step that it may run alone, and its attempt.
fn let_do(world: &Facts) -> (Phase, u32, u32) {
    match decide(world).next {
        Some(Move::Hosts(moves)) if moves[0].lrn == Lrn(0) => {
            let desired = moves[0].desired.clone();
            (desired.phase, desired.through, desired.attempt)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_host_that_is_to_retry_a_once_step_takes_up_the_order_first() {
    let mut world = to_retry(&[Once], at(1));
    let chosen = Released {
        generation: 1,
        step: 1,
        only: Some(Lrn(0)),
        done: false,
        at: world.now,
        extra: Extra::default(),
    };
    world.released = Some(seen(chosen));
    assert_eq!(let_do(&world), (Phase::Run, 0, 1), "it may not run the step alone, only announce it");
    let Some(Move::Hosts(moves)) = decide(&world).next else { panic!("{:?}", decide(&world)) };
    world.desired.insert(Lrn(0), seen(moves[0].desired.clone()));
    assert_eq!(decide(&world).why, "host 0 does step 1 for all");
    report(&mut world, 0, HostStatus { attempt: 1, ..at(1) });
    assert_eq!(let_do(&world).0, Phase::Return);
}

#[test]
fn a_host_that_is_to_retry_is_not_chosen_for_a_once_step() {
    let mut world = to_retry(&[Once], at(1));
    let Some(Move::Hosts(moves)) = decide(&world).next else { panic!("{:?}", decide(&world)) };
    world.desired.insert(Lrn(0), seen(moves[0].desired.clone()));
    let next = decide(&world).next;
    assert!(matches!(next, Some(Move::Release(Released { only: Some(Lrn(1)), .. }))), "{next:?}");
}

#[test]
fn a_host_that_went_back_is_to_begin_with_the_first_step() {
    let back = HostStatus { rolled_back_to: "0.9.0".to_owned(), ..at(3) };
    let partly = HostStatus { rollback_failed: true, ..at(3) };
    for (failed, through) in [(back, 1), (partly, 1), (at(3), 3)] {
        let mut world = to_retry(&[Rolling, Barrier, Rolling], failed);
        release(&mut world, 2);
        assert_eq!(let_do(&world), (Phase::Run, through, 1));
    }
}

#[test]
fn a_host_whose_services_are_ill_behind_a_barrier_is_watched_and_then_fails() {
    let mut world = observed(&[Barrier]);
    assert!(matches!(decide(&world).next, Some(Move::End { outcome: Outcome::Succeeded, .. })));
    world.ailing.insert("h1".parse().unwrap(), "redis-node-down: it is down".to_owned());
    assert_eq!(moved(&world), (Lrn(1), Phase::Settle));
    let desired =
        Desired { generation: 1, phase: Phase::Settle, through: 0, attempt: 0, at: world.now, failure: None };
    world.desired.insert(Lrn(1), seen(desired));
    assert_eq!(decide(&world).next, None, "it is waited for");
    world.now = world.now.plus(Policy::default().health_deadline.0 + Duration::from_secs(1));
    assert_eq!(moved(&world), (Lrn(1), Phase::Failed));
    world.ailing.clear();
    assert_eq!(moved(&world), (Lrn(1), Phase::Done), "it is well again");
}

#[test]
fn services_count_only_where_somebody_asks_for_them() {
    let mut world = observed(&[Barrier]);
    world.ailing.insert("h1".parse().unwrap(), "redis-node-down: it is down".to_owned());
    world.policies.clear();
    assert!(matches!(decide(&world).next, Some(Move::End { outcome: Outcome::Succeeded, .. })));
}

#[test]
fn a_rollout_that_waits_for_dead_hosts_is_stuck() {
    let mut world = requested(&[Barrier]);
    report(&mut world, 0, at(1));
    report(&mut world, 1, at(1));
    release(&mut world, 1);
    assert_eq!(stuck(&world), None);
    world.leases.remove(&Lrn(1));
    assert!(stuck(&world).unwrap().0.contains("hosts [1]"), "{:?}", stuck(&world));
    let codes = |world: &Facts| -> Vec<String> {
        findings(world, 0).into_iter().map(|finding| finding.code.to_string()).collect()
    };
    assert_eq!(
        codes(&world),
        ["fleet-no-updater", "fleet-worker-down", "fleet-rollout", "fleet-rollout-stuck"]
    );
    world.leases.insert(Lrn(1), seen(HostLease::default()));
    world.now = world.now.plus(Duration::from_secs(2000));
    assert!(stuck(&world).unwrap().0.contains("nothing has happened"), "{:?}", stuck(&world));
}
