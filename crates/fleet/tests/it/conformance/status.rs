//! K6: `status/bootservers/<LRN>`.

use capstan_fleet::Lrn;
use capstan_fleet::api::Asker;
use capstan_fleet::history::Outcome;
use capstan_fleet::release::StepKind::Barrier;
use capstan_fleet::status::{Condition, HostStatus};
use capstan_meta::record::{Key, Record};
use capstan_meta::{KeyRange, Range, Revision, Watch, WatchMessage};

use crate::rig::Rig;

/// Every report that a host ever wrote, oldest first.
async fn reports(rig: &Rig, lrn: u32) -> Vec<HostStatus> {
    let key = KeyRange::one(rig.tree.host_status(Lrn(lrn)).bytes());
    let last = rig.store.range(Range::of(key.clone())).await.unwrap().kvs[0].mod_revision;
    let mut watch = rig.store.watch(Watch::from(key, Revision(1))).await.unwrap();
    let mut found = Vec::new();
    loop {
        if let WatchMessage::Events { events, .. } = watch.next().await.unwrap() {
            for event in events.iter().filter(|event| !event.kv.is_tombstone()) {
                found.push(HostStatus::decode(&event.kv.value).unwrap());
                if event.kv.mod_revision == last {
                    return found;
                }
            }
        }
    }
}

async fn three_steps(rig: &mut Rig) -> crate::rig::Running {
    rig.join(0..2).await;
    rig.publish("1.1.0", &[Barrier, Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    rig.start_updater("a")
}

pub(super) async fn k26_a_host_reports_every_step_itself(mut rig: Rig) {
    let _updater = three_steps(&mut rig).await;
    rig.until_ended(1).await;
    let told: Vec<(u32, bool)> =
        reports(&rig, 0).await.iter().map(|status| (status.step, status.finished)).collect();
    assert_eq!(told, [(1, false), (2, false), (3, false), (3, true)]);
}

pub(super) async fn k27_a_report_has_the_documents_fields(mut rig: Rig) {
    let _updater = three_steps(&mut rig).await;
    rig.until_ended(1).await;
    let kv = rig.store.get(rig.tree.host_status(Lrn(1)).bytes()).await.unwrap().unwrap();
    let text = String::from_utf8(kv.value.to_vec()).unwrap();
    let expected = r#"{"version":"1.1.0","step":3,"finished":true,"error":false,"message":"","#;
    assert!(text.starts_with(expected), "{text}");
}

pub(super) async fn k28_an_error_counts_whatever_finished_says(mut rig: Rig) {
    let both = HostStatus { finished: true, error: true, ..HostStatus::default() };
    assert_eq!(both.condition(), Condition::Aborted);
    assert_eq!(HostStatus::default().condition(), Condition::Running);
    assert_eq!(HostStatus { finished: true, ..HostStatus::default() }.condition(), Condition::Completed);
    rig.join(0..2).await;
    rig.hosts[&Lrn(1)].hold(1);
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_begun(1, 1, &[1]).await;
    let request = rig.request().await.unwrap();
    let strange = HostStatus {
        version: "1.1.0".to_owned(),
        step: 1,
        generation: request.generation,
        message: "both".to_owned(),
        ..both
    };
    rig.put(&rig.tree.host_status(Lrn(1)), &strange).await;
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Failed));
}

pub(super) async fn k29_steps_count_from_one_and_only_grow(mut rig: Rig) {
    let _updater = three_steps(&mut rig).await;
    rig.until_status("it is on its way", 0, |status| status.step >= 1).await;
    rig.kill_worker(Lrn(0));
    rig.start_worker(Lrn(0));
    rig.until_ended(1).await;
    let steps: Vec<u32> = reports(&rig, 0).await.iter().map(|status| status.step).collect();
    assert_eq!(steps[0], 1);
    assert!(steps.windows(2).all(|pair| pair[0] <= pair[1]), "{steps:?}");
}

pub(super) async fn k30_an_error_says_why(mut rig: Rig) {
    rig.join(0..2).await;
    rig.hosts[&Lrn(1)].fail_at(2, "cke update failed");
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    let status = rig.until_status("it fails", 1, |status| status.error).await;
    assert!(status.message.contains("cke update failed"), "{status:?}");
    let ended = rig.until_ended(1).await;
    assert!(
        ended.reason.contains("host 1 failed") && ended.reason.contains("cke update failed"),
        "{ended:?}"
    );
}

pub(super) async fn k31_reports_about_other_versions_are_ignored(mut rig: Rig) {
    rig.join(0..2).await;
    rig.hosts[&Lrn(0)].hold(1);
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    let foreign = HostStatus {
        version: "0.9.0".to_owned(),
        step: 7,
        error: true,
        message: "long ago".to_owned(),
        generation: 1,
        ..HostStatus::default()
    };
    rig.put(&rig.tree.host_status(Lrn(9)), &foreign).await;
    rig.hosts[&Lrn(0)].let_go(1);
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    assert!(rig.fleet().status().await.unwrap().hosts.iter().all(|line| line.message.is_empty()));
}

pub(super) async fn k32_a_restarted_worker_goes_on_by_its_journal(mut rig: Rig) {
    rig.join(0..2).await;
    rig.hosts[&Lrn(0)].hold(2);
    rig.publish("1.1.0", &[Barrier, Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 1, &[1, 2]).await;
    rig.kill_worker(Lrn(0));
    rig.hosts[&Lrn(0)].let_go(2);
    rig.start_worker(Lrn(0));
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded), "resumed, not aborted");
    assert_eq!(rig.hosts[&Lrn(0)].begun(1), [1, 2, 3], "and nothing was begun twice");
}

pub(super) async fn k33_recover_and_reconfigure_delete_reports(mut rig: Rig) {
    rig.join(0..2).await;
    rig.hosts[&Lrn(1)].fail_at(1, "no");
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let updater = rig.start_updater("a");
    rig.until_request("it is stopped", |request| request.stop).await;
    drop(updater);
    rig.fleet().recover(None, &Asker::default()).await.unwrap();
    assert_eq!((rig.status(0).await, rig.status(1).await), (None, None));
    rig.hosts[&Lrn(1)].heal(1);
    let _updater = rig.start_updater("b");
    rig.until_ended(2).await;
    assert_eq!(rig.status(1).await.unwrap().generation, 2);
}
