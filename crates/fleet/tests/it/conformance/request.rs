//! K5: `status/current`.

use capstan_fleet::api::Asker;
use capstan_fleet::history::Outcome;
use capstan_fleet::release::StepKind::Barrier;
use capstan_fleet::status::{Released, Request};
use capstan_fleet::{FleetError, Lrn};
use capstan_meta::record::{Extra, Key, Prefix};
use capstan_meta::{KeyValue, Put, Range};
use capstan_testkit::eventually;

use crate::rig::{Rig, SOON};

async fn raw(rig: &Rig) -> KeyValue {
    (*rig.store.get(rig.tree.current().bytes()).await.unwrap().unwrap()).clone()
}

fn operator() -> Asker {
    Asker { by: "ann".to_owned(), reason: "looks odd".to_owned() }
}

/// Three hosts of which one is held in the first of two steps.
async fn under_way(rig: &mut Rig) -> crate::rig::Running {
    rig.join(0..3).await;
    rig.hosts[&Lrn(2)].hold(1);
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    let updater = rig.start_updater("a");
    rig.until_begun(2, 1, &[1]).await;
    updater
}

pub(super) async fn k15_only_the_leader_writes_the_request(mut rig: Rig) {
    let _updater = under_way(&mut rig).await;
    rig.hosts[&Lrn(2)].let_go(1);
    rig.until_ended(1).await;
    assert_eq!(raw(&rig).await.version, 1, "written once, by the start, and by no worker");
}

pub(super) async fn k16_the_request_has_the_documents_fields(mut rig: Rig) {
    let _updater = under_way(&mut rig).await;
    let text = String::from_utf8(raw(&rig).await.value.to_vec()).unwrap();
    let expected = r#"{"version":"1.1.0","servers":[0,1,2],"stop":false,"started_at":""#;
    assert!(text.starts_with(expected), "{text}");
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(document["started_at"].as_str().unwrap().ends_with('Z'));
}

pub(super) async fn k17_the_list_of_hosts_is_a_copy(mut rig: Rig) {
    let _updater = under_way(&mut rig).await;
    rig.join([3]).await;
    rig.until_up(3).await;
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    assert_eq!(rig.request().await.unwrap().servers, [0, 1, 2].map(Lrn));
    rig.hosts[&Lrn(2)].let_go(1);
    rig.until_ended(1).await;
    rig.until_ended(2).await;
    assert_eq!(rig.request().await.unwrap().servers, [0, 1, 2, 3].map(Lrn), "the next one has the new host");
}

pub(super) async fn k18_a_stop_changes_nothing_else(mut rig: Rig) {
    let _updater = under_way(&mut rig).await;
    let before = rig.request().await.unwrap();
    rig.fleet().stop(&operator()).await.unwrap();
    let after = rig.until_request("it is stopped", |request| request.stop).await;
    assert_eq!(Request { stop: false, stop_reason: String::new(), ..after }, before);
}

pub(super) async fn k19_times_are_utc_and_other_offsets_are_kept(mut rig: Rig) {
    rig.join([0]).await;
    rig.hosts[&Lrn(0)].hold(1);
    rig.publish("1.1.0", &[Barrier]).await;
    let text = r#"{"version":"1.1.0","servers":[0],"stop":false,"started_at":"2999-11-02T17:23:49.9+09:00"}"#;
    rig.store.put(Put::new(rig.tree.current().bytes(), text)).await.unwrap();
    let _updater = rig.start_updater("a");
    rig.until_begun(0, 0, &[1]).await;
    rig.fleet().stop(&operator()).await.unwrap();
    rig.until_request("it is stopped", |request| request.stop).await;
    let text = String::from_utf8(raw(&rig).await.value.to_vec()).unwrap();
    assert!(text.contains(r#""started_at":"2999-11-02T17:23:49.9+09:00""#), "{text}");
}

pub(super) async fn k20_without_hosts_nothing_begins(rig: Rig) {
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    let term = rig.tree.term();
    eventually("somebody leads", SOON, async || rig.read(&term).await.ok_or("no term")).await;
    let status = rig.fleet().status().await.unwrap();
    assert_eq!(status.why, "release 1.1.0 waits: no host has joined the fleet");
    assert_eq!(rig.request().await, None);
}

pub(super) async fn k21_a_running_request_is_not_written_again(mut rig: Rig) {
    let _updater = under_way(&mut rig).await;
    let before = raw(&rig).await.mod_revision;
    rig.publish("1.2.0", &[Barrier]).await;
    rig.want("1.2.0").await;
    rig.fleet().pause(&operator()).await.unwrap();
    rig.fleet().resume().await.unwrap();
    rig.hosts[&Lrn(2)].let_go(1);
    rig.until_ended(1).await;
    let history = rig.until_ended(2).await;
    assert_eq!(history.version, "1.2.0", "what came meanwhile comes next");
    let started = rig.store.range(Range::one(rig.tree.current().bytes()).at(before)).await.unwrap();
    assert_eq!(raw(&rig).await.version, started.kvs[0].version + 1, "one put per request");
}

pub(super) async fn k22_only_recover_deletes_it_and_only_when_stopped(mut rig: Rig) {
    let fleet = rig.fleet();
    let nothing = fleet.recover(None, &operator()).await;
    assert_eq!(nothing, Err(FleetError::NotFound("a request".to_owned())));
    let updater = under_way(&mut rig).await;
    let running = fleet.recover(None, &operator()).await;
    assert_eq!(running, Err(FleetError::NotStopped("1.1.0".to_owned())));
    fleet.stop(&operator()).await.unwrap();
    rig.until_request("it is stopped", |request| request.stop).await;
    drop(updater);
    fleet.recover(None, &operator()).await.unwrap();
    assert_eq!(rig.request().await, None);
    assert_eq!(rig.status(0).await, None);
}

pub(super) async fn k23_another_host_list_clears_the_reports_in_one_transaction(mut rig: Rig) {
    rig.join(0..2).await;
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    rig.join([2]).await;
    rig.publish("1.1.0", &[Barrier]).await;
    rig.until_ended(2).await;
    let at = raw(&rig).await.mod_revision;
    let reports = Range::of(Prefix::range(&rig.tree.host_statuses()));
    let then = rig.store.range(reports.at(at)).await.unwrap();
    assert!(then.kvs.is_empty(), "no report at the revision of the request");
}

pub(super) async fn k24_a_worker_that_is_not_listed_ignores_it(mut rig: Rig) {
    rig.join([0, 7]).await;
    rig.publish("1.1.0", &[Barrier]).await;
    let request =
        Request { version: "1.1.0".to_owned(), servers: vec![Lrn(0)], generation: 1, ..Request::default() };
    rig.put(&rig.tree.current(), &request).await;
    let released = Released {
        generation: 1,
        step: 1,
        only: None,
        done: false,
        at: capstan_fleet::encoding::Moment::now(),
        extra: Extra::default(),
    };
    rig.put(&rig.tree.released(), &released).await;
    rig.until_status("host 0 finishes", 0, |status| status.finished).await;
    assert_eq!(rig.status(7).await, None);
    assert!(rig.hosts[&Lrn(7)].all_begun().is_empty());
}

pub(super) async fn k25_a_worker_that_starts_late_finds_it(mut rig: Rig) {
    rig.join(0..2).await;
    rig.register(Lrn(2)).await;
    rig.hosts.entry(Lrn(2)).or_default();
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_status("host 0 waits", 0, |status| status.step == 1).await;
    rig.start_worker(Lrn(2));
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    assert_eq!(rig.hosts[&Lrn(2)].begun(1), [1]);
}
