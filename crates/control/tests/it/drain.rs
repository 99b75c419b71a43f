//! The drain contract, call by call.

use capstan_control::ControlError;
use capstan_control::api;
use capstan_control::drain::{
    Answer, Ask, DrainChange, DrainKeeper, DrainPhase, DrainRecord, Intent, ask, questions, undrain,
};
use capstan_control::hosts::HostRecord;
use capstan_control::keys::{CATALOGUE, DrainKey, HostId, HostKey, ServiceName};
use capstan_control::reconcile::{Controller, Situation};
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::record::{Key, Record};
use capstan_meta::view::{View, ViewOptions};
use capstan_meta::{Put, Store, Txn};
use tokio::time::Instant;

fn service(name: &str) -> ServiceName {
    name.parse().unwrap()
}

fn host() -> HostId {
    "h1".parse().unwrap()
}

fn wish() -> Ask {
    Ask { asked_by: "alice".into(), reason: "new disks".into(), asked_at: 1_700_000_000, services: vec![] }
}

async fn store_with_host() -> Store {
    let store = Store::new(Embedded::in_memory(Options { seed: Some(1), ..Options::default() }));
    let record = HostRecord {
        boot: "b1".into(),
        roles: vec!["redis".parse().unwrap()],
        services: vec![service("redis"), service("docs")],
        version: "1.0.0".into(),
        ..HostRecord::default()
    };
    store.put(HostKey { host: host() }.put(&record)).await.unwrap();
    store
}

async fn snapshot(store: &Store) -> std::sync::Arc<capstan_meta::view::Snapshot> {
    View::open(store.clone(), DrainKeeper::ranges(), ViewOptions::default()).await.unwrap().snapshot()
}

async fn answer_all(store: &Store, say: Answer) {
    for name in ["redis", "docs"] {
        for question in questions(&*snapshot(store).await, &service(name)) {
            let txn = question.answer(say.clone(), 1_700_000_001).unwrap();
            assert!(store.commit(txn).await.unwrap().succeeded);
        }
    }
}

async fn keep(store: &Store) -> (usize, String) {
    let snapshot = snapshot(store).await;
    let situation = Situation { snapshot, now: Instant::now(), unix_now: 0, term: Default::default() };
    let plan = DrainKeeper.plan(&situation);
    let steps = plan.steps.len();
    for step in plan.steps {
        match step {
            capstan_control::reconcile::Step::Commit { txn, .. } => {
                assert!(store.commit(txn).await.unwrap().succeeded);
            }
            capstan_control::reconcile::Step::Tell { message, .. } => match message {},
        }
    }
    (steps, plan.why)
}

#[tokio::test(start_paused = true)]
async fn a_drain_from_the_wish_to_its_end() {
    let store = store_with_host().await;
    assert_eq!(ask(&store, &host(), &wish()).await.unwrap(), DrainChange::Asked);
    assert_eq!(ask(&store, &host(), &wish()).await.unwrap(), DrainChange::Already);
    let shown = api::host_show(&store, &host()).await.unwrap().drain.unwrap();
    assert_eq!(shown.phase, DrainPhase::Draining);
    assert_eq!(shown.waiting(), ["docs: has not answered yet", "redis: has not answered yet"]);

    answer_all(&store, Answer::Pending { reason: "3 slots left".into() }).await;
    let (steps, why) = keep(&store).await;
    assert_eq!((steps, why.as_str()), (0, "h1 waits for docs: 3 slots left; redis: 3 slots left"));
    answer_all(&store, Answer::Drained).await;
    let shown = api::host_show(&store, &host()).await.unwrap().drain.unwrap();
    assert_eq!((shown.phase, shown.waiting().len()), (DrainPhase::Drained, 0));
    assert_eq!(keep(&store).await.0, 0, "a drained host stays drained until somebody wants it back");

    assert_eq!(undrain(&store, &host(), &wish()).await.unwrap(), DrainChange::Asked);
    let shown = api::host_show(&store, &host()).await.unwrap().drain.unwrap();
    assert_eq!(
        shown.phase,
        DrainPhase::Returning,
        "what was said about the drain says nothing about the return"
    );
    answer_all(&store, Answer::Healthy).await;
    assert_eq!(keep(&store).await.0, 1);
    assert_eq!(api::host_show(&store, &host()).await.unwrap().drain, None);
    assert_eq!(undrain(&store, &host(), &wish()).await.unwrap(), DrainChange::NotDraining);
    assert_eq!(keep(&store).await, (0, "no host is drained".into()));
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_an_earlier_wish_is_refused_and_does_not_count() {
    let store = store_with_host().await;
    ask(&store, &host(), &wish()).await.unwrap();
    let old = questions(&*snapshot(&store).await, &service("redis")).remove(0);
    let late = old.answer(Answer::Drained, 0).unwrap();
    undrain(&store, &host(), &wish()).await.unwrap();
    assert!(!store.commit(late.clone()).await.unwrap().succeeded);
    ask(&store, &host(), &wish()).await.unwrap();
    assert!(!store.commit(late).await.unwrap().succeeded);
    let drain = store.read(&DrainKey { host: host() }).await.unwrap().unwrap().record;
    assert_eq!((drain.intent, drain.epoch.0), (Intent::Drain, 3));
}

#[tokio::test(start_paused = true)]
async fn unknown_hosts_and_hosts_without_services_are_refused_with_a_reason() {
    let store = store_with_host().await;
    let ghost: HostId = "ghost".parse().unwrap();
    let error = ask(&store, &ghost, &wish()).await.unwrap_err();
    assert_eq!(error, ControlError::UnknownHost(ghost.clone()));
    let named = Ask { services: vec![service("redis")], ..wish() };
    assert_eq!(ask(&store, &ghost, &named).await.unwrap(), DrainChange::Asked);
    let shown = api::host_show(&store, &ghost).await.unwrap();
    assert!(!shown.up);
    assert_eq!(shown.drain.unwrap().waiting(), ["redis: has not answered, and the host is down"]);
    undrain(&store, &ghost, &wish()).await.unwrap();
    assert_eq!(keep(&store).await.0, 1, "a host that is gone comes back without a drain");
    let bare: HostId = "bare".parse().unwrap();
    store.put(HostKey { host: bare.clone() }.put(&HostRecord::default())).await.unwrap();
    assert_eq!(ask(&store, &bare, &wish()).await.unwrap_err(), ControlError::NothingToDrain(bare));
}

#[tokio::test(start_paused = true)]
async fn answers_without_a_drain_are_swept_and_bad_values_are_shown() {
    let store = store_with_host().await;
    ask(&store, &host(), &wish()).await.unwrap();
    answer_all(&store, Answer::Drained).await;
    store.commit(Txn::new().then(DrainKey { host: host() }.delete())).await.unwrap();
    assert_eq!(keep(&store).await.0, 1);
    assert_eq!(keep(&store).await.0, 0);
    store.put(Put::new("/capstan/drains/h1", "{")).await.unwrap();
    store.put(Put::new("/capstan/drains/h1/services/redis", "{}")).await.unwrap();
    let (steps, why) = keep(&store).await;
    assert_eq!(steps, 0, "an unreadable drain is not a missing one");
    assert!(why.starts_with("bad value at /capstan/drains/h1: "), "{why}");
    let list = api::hosts_list(&store).await.unwrap();
    assert_eq!((list.hosts.len(), list.problems.len()), (1, 2));
    assert!(ask(&store, &host(), &wish()).await.is_err());
}

#[test]
fn records_look_like_this() {
    let drain = DrainRecord {
        intent: Intent::Drain,
        epoch: capstan_control::Epoch(1),
        asked_by: "alice".into(),
        reason: "new disks".into(),
        asked_at: 1_700_000_000,
        services: vec![service("redis")],
        extra: Default::default(),
    };
    let text = r#"{"intent":"drain","epoch":1,"asked_by":"alice","reason":"new disks","asked_at":1700000000,"services":["redis"]}"#;
    assert_eq!(drain.encode().unwrap(), text.as_bytes());
    let answer = r#"{"epoch":1,"state":"pending","reason":"3 slots left","answered_at":5}"#;
    let read = capstan_control::drain::DrainAnswer::decode(answer.as_bytes()).unwrap();
    assert_eq!(read.answer, Answer::Pending { reason: "3 slots left".into() });
    assert_eq!(read.encode().unwrap(), answer.as_bytes());
    let patterns: Vec<_> = CATALOGUE.iter().map(|doc| doc.pattern).collect();
    assert!(patterns.is_sorted(), "{patterns:?}");
}

/// A step is decided on what was read: if anything of that has changed since, the drain does not end.
#[tokio::test(start_paused = true)]
async fn a_drain_ends_only_as_it_was_seen() {
    let store = store_with_host().await;
    ask(&store, &host(), &wish()).await.unwrap();
    answer_all(&store, Answer::Drained).await;
    undrain(&store, &host(), &wish()).await.unwrap();
    answer_all(&store, Answer::Healthy).await;
    let seen = snapshot(&store).await;
    let situation = Situation { snapshot: seen, now: Instant::now(), unix_now: 0, term: Default::default() };
    let end = DrainKeeper.plan(&situation).steps.pop().unwrap();
    let capstan_control::reconcile::Step::Commit { txn, .. } = end;
    // The operator wants it empty after all.
    ask(&store, &host(), &wish()).await.unwrap();
    assert!(!store.commit(txn).await.unwrap().succeeded, "a new request was removed with the old one");
    assert!(store.read(&DrainKey { host: host() }).await.unwrap().is_some());
}

/// A service that was started after the request must answer too.
#[tokio::test(start_paused = true)]
async fn a_service_that_starts_late_is_waited_for() {
    let store = store_with_host().await;
    ask(&store, &host(), &wish()).await.unwrap();
    answer_all(&store, Answer::Drained).await;
    let mut record = store.read(&HostKey { host: host() }).await.unwrap().unwrap().record;
    record.services.push(service("topics"));
    store.put(HostKey { host: host() }.put(&record)).await.unwrap();
    let shown = api::host_show(&store, &host()).await.unwrap().drain.unwrap();
    assert_eq!(shown.phase, DrainPhase::Draining);
    assert_eq!(shown.waiting(), ["topics: has not answered yet"]);
}

/// An answer counts only for the request that it names, wherever it comes from.
#[tokio::test(start_paused = true)]
async fn an_answer_to_another_epoch_does_not_count() {
    let store = store_with_host().await;
    ask(&store, &host(), &wish()).await.unwrap();
    answer_all(&store, Answer::Drained).await;
    let drain = DrainKey { host: host() };
    let mut record = store.read(&drain).await.unwrap().unwrap().record;
    record.epoch = record.epoch.next();
    // Not through `ask`, which removes old answers: a restored store, or a tool, may leave both.
    store.put(drain.put(&record)).await.unwrap();
    let shown = api::host_show(&store, &host()).await.unwrap().drain.unwrap();
    assert_eq!(shown.phase, DrainPhase::Draining);
}
