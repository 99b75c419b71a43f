//! The scenarios of the document's own tests, and those that no test there covers, with real workers and updaters.
//!
//! | scenario | test |
//! |---|---|
//! | **worker (15)** | |
//! | update-neco | `update_neco_the_worker_replaces_itself_first` |
//! | update-neco-fail | `update_neco_fail_is_told_and_does_not_wait_for_the_timeout` |
//! | no-member | `conformance::k24_a_worker_that_is_not_listed_ignores_it` |
//! | previous-abort, previous-abort-clear | `previous_abort_stays_until_it_is_cleared` |
//! | previous-completed | `worker::previous_completed_is_not_done_again_after_a_restart` |
//! | update-successful, -then-new-request | `update_successful_then_new_request_and_a_foreign_host_is_ignored` |
//! | cancel-request | `cancel_request_cuts_a_step_at_once_and_reports_no_error` |
//! | unexpected-request | `unexpected_request_aborts_the_host` |
//! | unexpected-version | `worker::unexpected_version_of_a_peer_counts_as_no_report` |
//! | unexpected-step | `worker::unexpected_step_a_peer_jumps_ahead_and_everything_stops` |
//! | aborted | `worker::aborted_a_peer_fails_and_everything_stops` |
//! | unexpected-completion | `worker::unexpected_completion_a_peer_is_through_before_it_began` |
//! | fail-at-step2 | `worker::fail_at_step2_leaves_the_report_aborted_and_the_other_at_its_step` |
//! | compaction | `trouble::compaction_behind_the_request_does_not_stop_a_worker` |
//! | **decisions (9)** | one test each in `decisions`, named after them |
//! | **first updater (7)** | |
//! | NoMembers | `updater::no_members_nothing_is_asked_for_until_somebody_joins` |
//! | InitialUpdate | `updater::initial_update_asks_three_hosts_and_ends_green` |
//! | UpdateFailure | `updater::update_failure_ends_red` |
//! | UpdateTimeout | `updater::update_timeout_ends_red` |
//! | ContinueUpdate | `continue_update_two_of_three_were_done_before_the_updater_started` |
//! | StopAndRetry | `updater::stop_and_retry_a_stopped_request_stays_until_it_is_cleared` |
//! | NewMembers | `new_members_bring_a_new_request` |
//! | **storage** | |
//! | container tag, package version | `conformance::k11` to `k14` |
//! | request: not found, round trip, no leader | `storage::request`, `conformance::k04`, `k16` |
//! | status, its JSON | `conformance::k27`, `k28` |
//! | clear: not found, not stopped, success | `storage::clear`, `conformance::k22`, `k33` |
//! | done once for all | `rollout::all_kinds_of_steps_go_together`, and the simulation |
//! | snapshot: empty, full | `storage::snapshot_is_empty_and_then_full` |
//! | configuration, vault | `conformance::k34` to `k50` |
//! | **in no test there** | |
//! | leader killed mid-update | `trouble::leader_killed_mid_update_and_the_next_one_goes_on` |
//! | partition | `trouble::partition_a_host_that_is_cut_off_catches_up` |
//! | crash between any two sub-steps | `trouble::crash_in_every_step_resumes_and_repeats_nothing`, `machine::a_restart_between_any_two_effects_changes_nothing`, `install::crash` |
//! | stop during a step | `cancel_request_...`, `install::steps::a_stop_interrupts_a_command_at_once_with_all_its_children` |
//! | recover racing a slow worker | `recover_racing_a_slow_worker_does_not_spoil_the_next_attempt` |
//! | two updaters | `trouble::two_updaters_take_turns_and_nothing_is_done_twice` |
//! | more than ten hosts | `rollout::a_release_of_barrier_steps_reaches_every_host`, `conformance::k14` |

mod trouble;
mod updater;
mod worker;

use std::time::Duration;

use capstan_fleet::Lrn;
use capstan_fleet::api::{Asker, Lock, LockAnswer};
use capstan_fleet::encoding::Span;
use capstan_fleet::history::Outcome;
use capstan_fleet::keys::default_group;
use capstan_fleet::release::StepKind::{Barrier, Rolling, SelfUpdate};
use capstan_fleet::spec::{Amount, Policy};
use capstan_fleet::status::Request;
use capstan_testkit::eventually;
use tokio::time::Instant;

use crate::rig::{Rig, SOON};

fn operator() -> Asker {
    Asker { by: "ann".to_owned(), reason: "looks odd".to_owned() }
}

async fn two_hosts(rig: &mut Rig) {
    rig.join(0..2).await;
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
}

#[tokio::test]
async fn update_neco_the_worker_replaces_itself_first() {
    let mut rig = Rig::in_memory();
    rig.join(0..2).await;
    rig.publish("1.1.0", &[SelfUpdate, Barrier]).await;
    rig.put(&rig.tree.policy(default_group()), &quick()).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    assert_eq!(rig.hosts[&Lrn(0)].begun(1), [1, 2]);
}

#[tokio::test]
async fn update_neco_fail_is_told_and_does_not_wait_for_the_timeout() {
    let mut rig = Rig::in_memory();
    rig.join(0..2).await;
    rig.hosts[&Lrn(0)].fail_at(1, "dpkg says no");
    rig.publish("1.1.0", &[SelfUpdate, Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Failed));
    assert!(rig.status(0).await.unwrap().error);
}

#[tokio::test]
async fn previous_abort_stays_until_it_is_cleared() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    rig.hosts[&Lrn(0)].fail_at(1, "no");
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_request("it is stopped", |request| request.stop).await;
    rig.kill_worker(Lrn(0));
    rig.hosts[&Lrn(0)].heal(1);
    rig.start_worker(Lrn(0));
    rig.until_up(0).await;
    assert!(rig.status(0).await.unwrap().error, "a restart does not forget");
    rig.fleet().recover(None, &operator()).await.unwrap();
    assert_eq!(rig.until_ended(2).await.outcome, Some(Outcome::Succeeded));
    assert_eq!(rig.hosts[&Lrn(0)].begun(2), [1, 2], "from the first step");
}

#[tokio::test]
async fn update_successful_then_new_request_and_a_foreign_host_is_ignored() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    let foreign = capstan_fleet::status::HostStatus {
        version: "1.2.0".to_owned(),
        step: 9,
        generation: 2,
        ..Default::default()
    };
    rig.put(&rig.tree.host_status(Lrn(3)), &foreign).await;
    rig.publish("1.2.0", &[Barrier]).await;
    rig.want("1.2.0").await;
    assert_eq!(rig.until_ended(2).await.outcome, Some(Outcome::Succeeded));
}

#[tokio::test]
async fn cancel_request_cuts_a_step_at_once_and_reports_no_error() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    rig.hosts[&Lrn(0)].hold(1);
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    rig.fleet().stop(&operator()).await.unwrap();
    rig.until_request("it is stopped", |request| request.stop).await;
    rig.hosts[&Lrn(0)].let_go(1);
    let status = rig.status(0).await.unwrap();
    assert!(!status.error && status.step == 1, "{status:?}");
    rig.fleet().recover(None, &operator()).await.unwrap();
    assert_eq!(rig.until_ended(2).await.outcome, Some(Outcome::Succeeded));
}

#[tokio::test]
async fn unexpected_request_aborts_the_host() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    rig.hosts[&Lrn(0)].hold(1);
    rig.want("1.1.0").await;
    let updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    drop(updater);
    let other = Request { version: "9.9.9".to_owned(), ..rig.request().await.unwrap() };
    rig.put(&rig.tree.current(), &other).await;
    let status = rig.until_status("it is aborted", 0, |status| status.error).await;
    assert!(status.message.contains("unexpected request"), "{status:?}");
}

#[tokio::test]
async fn continue_update_two_of_three_were_done_before_the_updater_started() {
    let mut rig = Rig::in_memory();
    rig.join(0..3).await;
    rig.hosts[&Lrn(2)].hold(1);
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let first = rig.start_updater("a");
    rig.until_status("host 0 is through", 0, |status| status.finished).await;
    drop(first);
    rig.hosts[&Lrn(2)].let_go(1);
    let _second = rig.start_updater("b");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
}

#[tokio::test]
async fn new_members_bring_a_new_request() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    rig.join([4]).await;
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    assert_eq!(rig.until_ended(2).await.cause, "hosts joined or left, from 1.1.0");
    assert_eq!(rig.hosts[&Lrn(4)].has().as_deref(), Some("1.1.0"));
}

#[tokio::test]
async fn recover_racing_a_slow_worker_does_not_spoil_the_next_attempt() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    rig.hosts[&Lrn(0)].hold(1);
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    rig.fleet().stop(&operator()).await.unwrap();
    rig.until_request("it is stopped", |request| request.stop).await;
    rig.fleet().recover(None, &operator()).await.unwrap();
    rig.hosts[&Lrn(0)].let_go(1);
    assert_eq!(rig.until_ended(2).await.outcome, Some(Outcome::Succeeded));
}

#[tokio::test]
async fn a_config_change_aborts_nothing() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    rig.hosts[&Lrn(0)].hold(1);
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    rig.fleet().config_set(capstan_fleet::api::ConfigKey::WorkerTimeout, "2h").await.unwrap();
    rig.hosts[&Lrn(0)].let_go(1);
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    assert_eq!(rig.hosts[&Lrn(0)].begun(1), [1, 2]);
}

/// The rest goes on after the dead host's lease and one planning pass: two seconds here, an hour in the document.
#[tokio::test]
async fn a_dead_host_delays_the_rest_by_its_lease_and_no_more() {
    let mut rig = Rig::in_memory();
    rig.join(0..4).await;
    for lrn in 0..4 {
        rig.until_up(lrn).await;
    }
    rig.hosts[&Lrn(3)].hold(1);
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    // By default a barrier waits for all.
    let policy = Policy { barrier_budget: Amount::Percent(34), ..quick() };
    rig.put(&rig.tree.policy(default_group()), &policy).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_begun(3, 1, &[1]).await;
    rig.kill_worker(Lrn(3));
    let died = Instant::now();
    let ended = rig.until_ended(1).await;
    assert_eq!((ended.outcome, ended.without), (Some(Outcome::Succeeded), vec![Lrn(3)]));
    let took = died.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}: a lease of two seconds, and a loaded machine");
    rig.hosts[&Lrn(3)].let_go(1);
    rig.start_worker(Lrn(3));
    rig.until_status("it catches up", 3, |status| status.finished).await;
    assert_eq!(rig.hosts[&Lrn(3)].begun(1), [1, 2]);
}

fn quick() -> Policy {
    Policy { min_healthy: Span::secs(0), ..Policy::default() }
}

#[tokio::test]
async fn a_failed_host_within_the_budget_is_retried_on_order() {
    let mut rig = Rig::in_memory();
    rig.join(0..3).await;
    rig.hosts[&Lrn(1)].fail_at(1, "disk full");
    rig.publish("1.1.0", &[Rolling]).await;
    let policy = Policy { failure_budget: Amount::Count(1), max_unavailable: Amount::Count(2), ..quick() };
    rig.put(&rig.tree.policy(default_group()), &policy).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    let ended = rig.until_ended(1).await;
    assert_eq!((ended.outcome, ended.without), (Some(Outcome::Succeeded), vec![Lrn(1)]));
    let why = rig.fleet().why(Lrn(1)).await.unwrap();
    assert!(why.state.contains("disk full"), "{why:?}");
    assert!(rig.fleet().retry(Lrn(0)).await.is_err(), "host 0 has not failed");
    rig.hosts[&Lrn(1)].heal(1);
    rig.fleet().retry(Lrn(1)).await.unwrap();
    rig.until_status("it has the release", 1, |status| status.finished).await;
}

#[tokio::test]
async fn a_bad_release_goes_back_by_itself_and_stops_at_the_canary() {
    let mut rig = Rig::in_memory();
    rig.join(0..4).await;
    rig.put(&rig.tree.policy(default_group()), &Policy { auto_rollback: true, ..quick() }).await;
    rig.publish("1.0.0", &[Rolling]).await;
    rig.publish("1.1.0", &[Rolling, Rolling]).await;
    rig.want("1.0.0").await;
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    for host in rig.hosts.values() {
        host.fail_at(2, "does not start");
    }
    rig.want("1.1.0").await;
    let ended = rig.until_ended(2).await;
    assert_eq!(ended.outcome, Some(Outcome::Failed));
    let canary = rig.status(0).await.unwrap();
    assert_eq!((canary.error, canary.rolled_back_to.as_str()), (true, "1.0.0"));
    assert!(rig.hosts[&Lrn(1)].begun(2).is_empty(), "nobody else was touched");
}

#[tokio::test]
async fn pause_resume_skip_and_promote_steer_a_rollout() {
    let mut rig = Rig::in_memory();
    rig.join(0..3).await;
    rig.publish("1.1.0", &[Rolling]).await;
    let policy = Policy { auto_promote: false, ..quick() };
    rig.put(&rig.tree.policy(default_group()), &policy).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_status("the canary is through", 0, |status| status.finished).await;
    eventually("host 1 waits for a word", SOON, async || {
        let why = rig.fleet().why(Lrn(1)).await.unwrap();
        if why.reasons == ["wave 2 waits for `promote`"] { Ok(()) } else { Err(format!("{why:?}")) }
    })
    .await;
    rig.fleet().pause(&operator()).await.unwrap();
    rig.fleet().promote().await.unwrap();
    eventually("the pause holds it", SOON, async || {
        let why = rig.fleet().why(Lrn(1)).await.unwrap();
        if why.reasons == ["paused by ann: looks odd"] { Ok(()) } else { Err(format!("{why:?}")) }
    })
    .await;
    rig.fleet().skip(Lrn(2), &operator()).await.unwrap();
    rig.fleet().resume().await.unwrap();
    let ended = rig.until_ended(1).await;
    assert_eq!((ended.outcome, ended.without), (Some(Outcome::Succeeded), vec![Lrn(2)]));
    rig.until_status("the skipped host catches up", 2, |status| status.finished).await;
}

#[tokio::test]
async fn fleetlock_takes_the_same_slots() {
    let mut rig = Rig::in_memory();
    rig.join(0..2).await;
    rig.publish("1.1.0", &[Rolling]).await;
    rig.put(&rig.tree.policy(default_group()), &quick()).await;
    let fleet = rig.fleet();
    let lock = |id: &str| Lock { id: id.to_owned(), group: "default".to_owned() };
    assert_eq!(fleet.pre_reboot(&lock("node-a")).await, Ok(LockAnswer::Granted));
    assert_eq!(
        fleet.pre_reboot(&lock("node-a")).await,
        Ok(LockAnswer::Granted),
        "asking twice is asking once"
    );
    let taken = LockAnswer::AllSlotsTaken { holders: vec!["lock:node-a".to_owned()] };
    assert_eq!(fleet.pre_reboot(&lock("node-b")).await, Ok(taken));
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    eventually("host 0 waits for the slot", SOON, async || {
        let why = fleet.why(Lrn(0)).await.unwrap();
        let expected = ["all slots are taken: lock:node-a"];
        if why.reasons == expected { Ok(()) } else { Err(format!("{why:?}")) }
    })
    .await;
    fleet.steady_state(&lock("node-a")).await.unwrap();
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
}
