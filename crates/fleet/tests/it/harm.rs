//! The first duty of an updater: no more harm after the first sign of harm. Real workers and updaters on a store in memory.

use std::time::Duration;

use capstan_fleet::Lrn;
use capstan_fleet::api::{Asker, ConfigKey, Lock, LockAnswer};
use capstan_fleet::encoding::Span;
use capstan_fleet::history::Outcome;
use capstan_fleet::keys::default_group;
use capstan_fleet::release::StepKind::{Barrier, Rolling};
use capstan_fleet::release::{SecretKey, Trust, make};
use capstan_fleet::spec::{Amount, Policy};
use capstan_meta::record::Key;
use capstan_testkit::eventually;

use crate::rig::releases::manifest;
use crate::rig::{Rig, SOON};

fn operator() -> Asker {
    Asker { by: "ann".to_owned(), reason: "looks odd".to_owned() }
}

/// One canary, then one host at a time, watched for a moment.
fn careful() -> Policy {
    Policy {
        waves: vec![Amount::Count(1)],
        min_healthy: Span::secs(1),
        bake: Span::secs(3),
        health_deadline: Span::secs(3),
        ..Policy::default()
    }
}

async fn rolling(rig: &mut Rig, hosts: u32, policy: &Policy) {
    rig.join(0..hosts).await;
    for lrn in 0..hosts {
        rig.until_up(lrn).await;
    }
    rig.publish("1.1.0", &[Rolling]).await;
    rig.put(&rig.tree.policy(default_group()), policy).await;
    rig.want("1.1.0").await;
}

/// F1: the canary dies after its step, and the rollout ends there.
#[tokio::test]
async fn a_canary_that_dies_after_its_step_ends_the_rollout() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 4, &careful()).await;
    let _updater = rig.start_updater("a");
    rig.until_status("the canary is through", 0, |status| status.finished).await;
    rig.kill_worker(Lrn(0));
    let ended = rig.until_ended(1).await;
    assert_eq!(ended.outcome, Some(Outcome::Failed), "{ended:?}");
    assert!(ended.reason.contains("host 0") && ended.reason.contains("went away"), "{ended:?}");
    for lrn in 1..4 {
        assert!(rig.hosts[&Lrn(lrn)].begun(1).is_empty(), "host {lrn} was touched");
    }
    let status = rig.fleet().status().await.unwrap();
    assert_eq!(status.state, capstan_fleet::api::FleetState::Stopped);
}

/// F1: a host of an earlier wave dies while a later wave is under way: no further host begins.
#[tokio::test]
async fn a_host_that_dies_after_its_step_keeps_the_next_one_from_beginning() {
    let mut rig = Rig::in_memory();
    let policy = Policy { bake: Span::secs(0), health_deadline: Span::secs(600), ..careful() };
    rolling(&mut rig, 3, &policy).await;
    rig.hosts[&Lrn(1)].hold(1);
    let _updater = rig.start_updater("a");
    rig.until_begun(1, 1, &[1]).await;
    rig.kill_worker(Lrn(0));
    rig.until_gone(0).await;
    rig.hosts[&Lrn(1)].let_go(1);
    rig.until_status("host 1 is through", 1, |status| status.finished).await;
    rig.until_why(2, |why| why.iter().any(|reason| reason.contains("hosts [0]"))).await;
    assert!(rig.hosts[&Lrn(2)].begun(1).is_empty(), "host 2 began while host 0 is gone");
    rig.start_worker(Lrn(0));
    assert_eq!(
        rig.until_ended(1).await.outcome,
        Some(Outcome::Succeeded),
        "it came back and was watched again"
    );
}

/// F1: the last host is watched like all others: a rollout whose hosts are all down is not complete.
#[tokio::test]
async fn the_last_host_is_watched_before_the_rollout_is_complete() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 1, &careful()).await;
    let _updater = rig.start_updater("a");
    rig.until_status("it is through", 0, |status| status.finished).await;
    rig.kill_worker(Lrn(0));
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Failed));
}

/// F2: a stop is obeyed although the leader is dead and its key is still there.
#[tokio::test]
async fn a_stop_needs_no_leader() {
    let mut rig = Rig::in_memory();
    rig.join(0..2).await;
    rig.publish("1.1.0", &[Barrier]).await;
    for host in rig.hosts.values() {
        host.hold(1);
    }
    rig.want("1.1.0").await;
    let updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    rig.until_begun(1, 1, &[1]).await;
    drop(updater);
    rig.fleet().stop(&operator()).await.unwrap();
    let request = rig.request().await.unwrap();
    assert!(request.stop && request.stop_reason.contains("looks odd"), "{request:?}");
    assert_eq!(rig.hosts[&Lrn(0)].running(), 0, "the answer is given when nothing runs any more");
    assert_eq!(rig.hosts[&Lrn(1)].running(), 0);
}

/// F4: a host that leaves in the middle of its step keeps its slot until it has stopped, and stops nobody else.
#[tokio::test]
async fn a_host_that_leaves_in_the_middle_of_its_step_is_waited_for() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 3, &Policy { min_healthy: Span::secs(0), ..Policy::default() }).await;
    rig.hosts[&Lrn(0)].hold_deaf(1);
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    let fleet = rig.fleet();
    #[allow(clippy::disallowed_methods, reason = "ends with the test")]
    let leaving = tokio::spawn(async move { fleet.leave(Lrn(0), &operator()).await });
    let registered = rig.tree.boot_server(Lrn(0));
    eventually("it is not in the registry", SOON, async || match rig.read(&registered).await {
        None => Ok(()),
        Some(_) => Err("still there"),
    })
    .await;
    rig.until_why(1, |why| !why.is_empty()).await;
    assert!(rig.hosts[&Lrn(1)].begun(1).is_empty(), "host 1 began while host 0 runs");
    rig.hosts[&Lrn(0)].let_go(1);
    leaving.await.unwrap().unwrap();
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    assert_eq!(rig.hosts[&Lrn(2)].has().as_deref(), Some("1.1.0"));
}

fn tolerant() -> Policy {
    Policy { failure_budget: Amount::Count(1), min_healthy: Span::secs(0), ..Policy::default() }
}

/// F5a: a failed host within the budget uses up what may be out of service; `skip` brings it back and goes on.
#[tokio::test]
async fn a_failed_host_is_skipped_and_the_rest_goes_on() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 3, &tolerant()).await;
    rig.hosts[&Lrn(0)].fail_at(1, "disk full");
    let _updater = rig.start_updater("a");
    rig.until_status("it fails", 0, |status| status.error).await;
    rig.until_why(1, |why| why.iter().any(|reason| reason.contains("out of service"))).await;
    rig.fleet().skip(Lrn(0), &operator()).await.unwrap();
    let ended = rig.until_ended(1).await;
    assert_eq!((ended.outcome, ended.without), (Some(Outcome::Succeeded), vec![Lrn(0)]));
    rig.hosts[&Lrn(0)].heal(1);
    rig.fleet().retry(Lrn(0)).await.unwrap();
    rig.until_status("`retry` takes it up again", 0, |status| status.finished).await;
}

/// F5b: a running host is skipped and then fails: its slot goes to the next.
#[tokio::test]
async fn a_running_host_that_is_skipped_and_fails_gives_its_slot_back() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 3, &tolerant()).await;
    rig.hosts[&Lrn(0)].hold(1);
    rig.hosts[&Lrn(0)].fail_at(1, "disk full");
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    rig.fleet().skip(Lrn(0), &operator()).await.unwrap();
    rig.hosts[&Lrn(0)].let_go(1);
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
}

/// F5c: a skipped host that is back catches up when the rollout is over.
#[tokio::test]
async fn a_skipped_host_catches_up_when_the_rollout_is_over() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 3, &Policy { min_healthy: Span::secs(0), ..Policy::default() }).await;
    rig.hosts[&Lrn(2)].hold(1);
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    rig.fleet().skip(Lrn(2), &operator()).await.unwrap();
    assert_eq!(rig.until_ended(1).await.without, [Lrn(2)]);
    rig.hosts[&Lrn(2)].let_go(1);
    rig.until_status("it catches up", 2, |status| status.finished).await;
}

/// F9: a dead host that is skipped is still out of service.
#[tokio::test]
async fn skipping_a_dead_host_does_not_make_room_for_another() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 3, &Policy { absent_grace: Span::secs(1), ..careful() }).await;
    rig.kill_worker(Lrn(2));
    rig.until_gone(2).await;
    let _updater = rig.start_updater("a");
    rig.until_request("it begins", |_| true).await;
    rig.fleet().skip(Lrn(2), &operator()).await.unwrap();
    rig.until_why(0, |why| why.iter().any(|reason| reason.contains("hosts [2]"))).await;
    assert!(rig.hosts[&Lrn(0)].begun(1).is_empty());
    rig.start_worker(Lrn(2));
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
}

/// F6: what is said when a rollout is over names the hosts that do not have the release.
#[tokio::test]
async fn a_rollout_that_went_on_without_hosts_says_so() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 3, &Policy { max_unavailable: Amount::Count(2), ..tolerant() }).await;
    rig.hosts[&Lrn(1)].fail_at(1, "disk full");
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    let status = rig.fleet().status().await.unwrap();
    assert!(!status.why.contains("every host"), "{}", status.why);
    assert!(status.why.contains("[1]"), "{}", status.why);
}

/// F6: after a stop no host is said to run, and orders that would do nothing are refused.
#[tokio::test]
async fn after_a_stop_nothing_is_said_to_run() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 2, &Policy::default()).await;
    rig.hosts[&Lrn(0)].hold(1);
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    rig.fleet().stop(&operator()).await.unwrap();
    let status = rig.fleet().status().await.unwrap();
    assert_eq!(status.hosts[0].state, "stopped at step 1", "{:?}", status.hosts);
    assert!(rig.fleet().skip(Lrn(0), &operator()).await.is_err(), "a stopped rollout does not go on");
    assert!(rig.fleet().pause(&operator()).await.is_err());
}

async fn spoil<K: Key>(rig: &Rig, key: &K) {
    rig.store.put(capstan_meta::Put::new(key.bytes(), "{nonsense")).await.unwrap();
}

/// F7: rules that cannot be read hold the rollout; they do not become other rules.
#[tokio::test]
async fn rules_that_cannot_be_read_hold_the_rollout() {
    let mut rig = Rig::in_memory();
    let policy = Policy { auto_promote: false, min_healthy: Span::secs(0), ..Policy::default() };
    rolling(&mut rig, 2, &policy).await;
    rig.hosts[&Lrn(0)].hold(1);
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    spoil(&rig, &rig.tree.policy(default_group())).await;
    rig.hosts[&Lrn(0)].let_go(1);
    rig.until_status("the canary is through", 0, |status| status.finished).await;
    let held = eventually("the rollout is held", SOON, async || {
        let status = rig.fleet().status().await.unwrap();
        if status.why.contains("policy/default") { Ok(status) } else { Err(status.why) }
    })
    .await;
    assert!(held.why.contains("policy set"), "it names the repair: {}", held.why);
    tokio::time::timeout(Duration::from_millis(700), rig.until_begun(1, 1, &[1])).await.unwrap_err();
    rig.fleet().policy_set(&default_group(), &policy).await.unwrap();
    rig.until_why(1, |why| why == ["wave 2 waits for `promote`"]).await;
    rig.fleet().promote().await.unwrap();
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
}

/// F7: a stop works whatever cannot be read.
#[tokio::test]
async fn a_stop_works_whatever_cannot_be_read() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 2, &Policy { min_healthy: Span::secs(0), ..Policy::default() }).await;
    rig.hosts[&Lrn(0)].hold(1);
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    spoil(&rig, &rig.tree.orders(1)).await;
    spoil(&rig, &rig.tree.desired(Lrn(1))).await;
    rig.fleet().stop(&operator()).await.unwrap();
    assert!(rig.request().await.unwrap().stop);
    rig.hosts[&Lrn(0)].let_go(1);
    rig.fleet().recover(None, &operator()).await.unwrap();
    assert_eq!(rig.until_ended(2).await.outcome, Some(Outcome::Succeeded), "one `recover` repairs all of it");
}

/// F7: a request that cannot be read runs nowhere; `stop` writes it anew and `recover` clears it away.
#[tokio::test]
async fn a_request_that_cannot_be_read_is_stopped_and_recovered() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 2, &Policy { min_healthy: Span::secs(0), ..Policy::default() }).await;
    rig.hosts[&Lrn(0)].hold(1);
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    spoil(&rig, &rig.tree.current()).await;
    let host = rig.hosts[&Lrn(0)].clone();
    eventually("nothing runs", SOON, async || if host.running() == 0 { Ok(()) } else { Err("it runs") })
        .await;
    rig.fleet().stop(&operator()).await.unwrap();
    host.let_go(1);
    rig.fleet().recover(None, &operator()).await.unwrap();
    assert_eq!(rig.until_ended(2).await.outcome, Some(Outcome::Succeeded));
}

/// Nothing is aimed at that is not signed, or is signed by a key that does not count.
#[tokio::test]
async fn a_release_is_made_known_only_if_its_signatures_are_good() {
    let rig = Rig::in_memory();
    let source = capstan_testkit::TempDir::new("signed").unwrap();
    rig.fleet().config_set(ConfigKey::Source, &source.path().display().to_string()).await.unwrap();
    let dir = source.path().join("releases/1.1.0");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("manifest.json"), manifest("1.1.0", &[Barrier]).to_bytes().unwrap()).unwrap();
    let key = SecretKey::generate().unwrap();
    let trusting = || rig.fleet().trusting(Some(Trust::in_all_of(vec![key.public()])));
    let unsigned = trusting().meant(Some("1.1.0")).await.unwrap_err();
    assert!(unsigned.to_string().contains("not signed"), "{unsigned}");
    let unsigned = rig.fleet().meant(Some("1.1.0")).await.unwrap_err();
    assert!(unsigned.to_string().contains("not signed"), "{unsigned}");
    make::sign(&dir, &SecretKey::generate().unwrap()).unwrap();
    let foreign = trusting().meant(Some("1.1.0")).await.unwrap_err();
    assert!(foreign.to_string().contains("none of these keys"), "{foreign}");
    assert!(rig.fleet().apply("1.1.0", &operator()).await.is_err(), "it is not known");
    make::sign(&dir, &key).unwrap();
    assert_eq!(trusting().meant(Some("1.1.0")).await.unwrap(), "1.1.0");
    rig.fleet().apply("1.1.0", &operator()).await.unwrap();
}

/// F8: the store comes back empty, and one `recover` brings number and fleet together.
#[tokio::test]
async fn after_the_store_lost_its_data_one_recover_is_enough() {
    let mut rig = Rig::in_memory();
    rig.join(0..2).await;
    rig.publish("1.1.0", &[Barrier]).await;
    let updater = rig.start_updater("a");
    rig.want("1.1.0").await;
    rig.until_ended(1).await;
    for generation in 2..5 {
        rig.publish(&format!("1.{generation}.0"), &[Barrier]).await;
        rig.want(&format!("1.{generation}.0")).await;
        rig.until_ended(generation).await;
    }
    drop(updater);
    for lrn in [0, 1] {
        rig.kill_worker(Lrn(lrn));
    }
    rig.store.delete(capstan_meta::Delete::prefix("/")).await.unwrap();
    for lrn in [0, 1] {
        rig.register(Lrn(lrn)).await;
    }
    rig.publish("1.5.0", &[Barrier]).await;
    rig.want("1.5.0").await;
    let _updater = rig.start_updater("a");
    rig.until_request("it begins with the numbers that the store has", |request| request.generation == 1)
        .await;
    for lrn in [0, 1] {
        rig.start_worker(Lrn(lrn));
    }
    let ended = rig.until_ended(1).await;
    assert!(ended.reason.contains("has worked for request 4"), "{ended:?}");
    let findings = capstan_fleet::check::findings(&rig.fleet().facts().await.unwrap(), 1);
    assert!(findings.iter().any(|finding| finding.code == capstan_fleet::check::AHEAD), "{findings:?}");
    rig.fleet().recover(None, &operator()).await.unwrap();
    assert_eq!(
        rig.until_ended(5).await.outcome,
        Some(Outcome::Succeeded),
        "behind the highest number of any host"
    );
}

/// FleetLock respects what a rollout respects: pauses, windows and drained or failed neighbours.
#[tokio::test]
async fn fleetlock_is_held_by_pauses_windows_and_failed_neighbours() {
    let mut rig = Rig::in_memory();
    rolling(&mut rig, 3, &Policy { parallelism: Amount::Count(3), ..tolerant() }).await;
    rig.hosts[&Lrn(0)].fail_at(1, "disk full");
    let _updater = rig.start_updater("a");
    rig.until_status("it fails", 0, |status| status.error).await;
    let lock = Lock { id: "2".to_owned(), group: "default".to_owned() };
    let fleet = rig.fleet();
    let held =
        eventually("the failed host holds it", SOON, async || match fleet.pre_reboot(&lock).await.unwrap() {
            LockAnswer::Held { why } => Ok(why),
            other => Err(format!("{other:?}")),
        })
        .await;
    assert!(held.contains("hosts [0]"), "{held}");
    fleet.pause(&operator()).await.unwrap();
    let LockAnswer::Held { why } = fleet.pre_reboot(&lock).await.unwrap() else { panic!("not held") };
    assert!(why.contains("paused by ann"), "{why}");
    let shut = Policy {
        window: Some(serde_json::from_str(r#"{"deny":["* * * * *"]}"#).unwrap()),
        parallelism: Amount::Count(3),
        ..tolerant()
    };
    fleet.policy_set(&default_group(), &shut).await.unwrap();
    fleet.resume().await.unwrap();
    let LockAnswer::Held { why } = fleet.pre_reboot(&lock).await.unwrap() else { panic!("not held") };
    assert!(why.contains("window"), "{why}");
}

/// F9: a switch that says neither yes nor no is off, and is named.
#[tokio::test]
async fn a_switch_that_says_nothing_is_off() {
    let rig = Rig::in_memory();
    rig.put(&rig.tree.auto_update(), &"ture".to_owned()).await;
    let world = rig.fleet().facts().await.unwrap();
    assert!(!world.settings.auto_update);
    assert!(world.problems[0].contains("auto-update"), "{:?}", world.problems);
    rig.put(&rig.tree.proxy(), &"http://ann:s3cret@squid:3128".to_owned()).await;
    rig.put(&rig.tree.slack(), &"https://hooks.slack.com/services/T0/B0/X".to_owned()).await;
    let shown = format!("{:?}", rig.fleet().config().await.unwrap());
    assert!(!shown.contains("s3cret") && !shown.contains("T0"), "{shown}");
    assert!(shown.contains("squid:3128") && shown.contains("hooks.slack.com"), "{shown}");
}
