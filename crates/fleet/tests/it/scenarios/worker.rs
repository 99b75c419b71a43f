//! The worker of the document's program: those of its fifteen scenarios that are about more than one key. Two hosts and
//! two steps; what its workers saw in each other's reports, the updater sees here for all of them.

use capstan_fleet::Lrn;
use capstan_fleet::history::Outcome;
use capstan_fleet::release::StepKind::Barrier;
use capstan_fleet::status::HostStatus;

use super::{operator, two_hosts};
use crate::rig::Rig;

/// Host 1 of two is played by the test: it says what no worker would.
async fn with_a_strange_peer(says: HostStatus) -> (Rig, String) {
    let mut rig = Rig::in_memory();
    rig.join([0]).await;
    rig.register(Lrn(1)).await;
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    let updater = rig.start_updater("a");
    rig.until_status("host 0 waits at the first step", 0, |status| status.step == 1).await;
    let says = HostStatus { generation: 1, ..says };
    rig.put(&rig.tree.host_status(Lrn(1)), &says).await;
    let ended = rig.until_ended(1).await;
    assert_eq!(ended.outcome, Some(Outcome::Failed));
    rig.until_request("it is stopped", |request| request.stop).await;
    assert!(rig.hosts[&Lrn(0)].begun(1).is_empty(), "nobody began what not everybody had announced");
    drop(updater);
    (rig, ended.reason)
}

#[tokio::test]
async fn previous_completed_is_not_done_again_after_a_restart() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    let before = rig.status(0).await;
    rig.stop_worker(Lrn(0)).await;
    rig.start_worker(Lrn(0));
    rig.until_up(0).await;
    // The next request shows that it has looked at this one and was done with it.
    rig.publish("1.2.0", &[Barrier]).await;
    rig.want("1.2.0").await;
    rig.until_ended(2).await;
    assert_eq!(rig.hosts[&Lrn(0)].begun(1), [1, 2]);
    assert!(before.unwrap().finished);
}

#[tokio::test]
async fn unexpected_version_of_a_peer_counts_as_no_report() {
    let mut rig = Rig::in_memory();
    rig.join([0]).await;
    rig.register(Lrn(1)).await;
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_status("host 0 waits at the first step", 0, |status| status.step == 1).await;
    let other = HostStatus { version: "6.6.6".to_owned(), step: 1, generation: 1, ..HostStatus::default() };
    rig.put(&rig.tree.host_status(Lrn(1)), &other).await;
    // The updater has looked since: it answers an order about the request.
    rig.fleet().stop(&operator()).await.unwrap();
    rig.until_request("it is stopped", |request| request.stop).await;
    assert!(rig.hosts[&Lrn(0)].begun(1).is_empty(), "host 1 has not announced this release");
}

#[tokio::test]
async fn unexpected_step_a_peer_jumps_ahead_and_everything_stops() {
    let says = HostStatus { version: "1.1.0".to_owned(), step: 3, ..HostStatus::default() };
    let (_, reason) = with_a_strange_peer(says).await;
    assert_eq!(reason, "host 1 says that it is at step 3 although only step 0 was released");
}

#[tokio::test]
async fn aborted_a_peer_fails_and_everything_stops() {
    let says = HostStatus {
        version: "1.1.0".to_owned(),
        step: 1,
        error: true,
        message: "cke update failed".to_owned(),
        ..HostStatus::default()
    };
    let (_, reason) = with_a_strange_peer(says).await;
    assert_eq!(reason, "host 1 failed: cke update failed");
}

#[tokio::test]
async fn unexpected_completion_a_peer_is_through_before_it_began() {
    let says = HostStatus { version: "1.1.0".to_owned(), step: 2, finished: true, ..HostStatus::default() };
    let (_, reason) = with_a_strange_peer(says).await;
    assert_eq!(reason, "host 1 says that it is finished although only step 0 was released");
}

#[tokio::test]
async fn fail_at_step2_leaves_the_report_aborted_and_the_other_at_its_step() {
    let mut rig = Rig::in_memory();
    two_hosts(&mut rig).await;
    rig.hosts[&Lrn(0)].fail_at(2, "no space left");
    rig.hosts[&Lrn(1)].hold(2);
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Failed));
    let failed = rig.status(0).await.unwrap();
    assert!(failed.error && !failed.finished && failed.step == 2, "{failed:?}");
    assert!(failed.message.contains("no space left"), "{failed:?}");
    let other = rig.status(1).await.unwrap();
    assert!(!other.error && !other.finished && other.step == 2, "cut, and not failed: {other:?}");
}
