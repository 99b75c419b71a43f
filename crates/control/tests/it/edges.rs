//! Edge cases of the kernel's fences: deleted drains, restarts, two processes with one name, steps that the store
//! rejects, controllers that never rest, terms after a restore.

// tidy: the clock is paused in this file

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use capstan_control::Epoch;
use capstan_control::drain::{Answer, Ask, DrainKeeper, DrainPhase, ask, questions, statuses, undrain};
use capstan_control::hosts::{self, HostRecord};
use capstan_control::keys::{Candidates, DrainKey, HostId, HostKey, ServiceName, TermKey};
use capstan_control::reconcile::{
    Authority, Controller, Elected, NoMessage, Pace, Plan, Reconciler, Situation, Step, Told, run_elected,
};
use capstan_meta::election::{Ballot, Election};
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::record::Key;
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::view::{Ranges, Snapshot, View, ViewOptions};
use capstan_meta::{KeyRange, Put, Store, Txn};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

fn store() -> Store {
    Store::new(Embedded::in_memory(Options { seed: Some(1), ..Options::default() }))
}

fn service() -> ServiceName {
    "redis".parse().unwrap()
}

fn host() -> HostId {
    "h1".parse().unwrap()
}

fn wish() -> Ask {
    Ask { asked_by: "alice".into(), reason: "new disks".into(), asked_at: 1, services: vec![] }
}

fn record(boot: &str) -> HostRecord {
    HostRecord { boot: boot.into(), services: vec![service()], version: "1".into(), ..HostRecord::default() }
}

async fn snapshot(store: &Store) -> Arc<Snapshot> {
    View::open(store.clone(), DrainKeeper::ranges(), ViewOptions::default()).await.unwrap().snapshot()
}

async fn answer_all(store: &Store, answer: Answer) -> usize {
    let mut given = 0;
    for question in questions(&*snapshot(store).await, &service()) {
        if let Some(txn) = question.answer(answer.clone(), 2) {
            assert!(store.commit(txn).await.unwrap().succeeded);
            given += 1;
        }
    }
    given
}

async fn phase(store: &Store) -> DrainPhase {
    statuses(&*snapshot(store).await)[0].phase
}

/// S8: answers to a drain that was deleted by hand do not count for the next one, however that one was written.
#[tokio::test(start_paused = true)]
async fn answers_to_a_deleted_drain_do_not_count() {
    let store = store();
    store.put(HostKey { host: host() }.put(&record("b1"))).await.unwrap();
    ask(&store, &host(), &wish()).await.unwrap();
    assert_eq!(answer_all(&store, Answer::Drained).await, 1);
    assert_eq!(phase(&store).await, DrainPhase::Drained);
    let written = store.read(&DrainKey { host: host() }).await.unwrap().unwrap().record;
    store.delete(DrainKey { host: host() }.delete()).await.unwrap();
    // By another writer, with the same epoch as the first time.
    store.put(DrainKey { host: host() }.put(&written)).await.unwrap();
    assert_eq!(phase(&store).await, DrainPhase::Draining);
    assert_eq!(answer_all(&store, Answer::Drained).await, 1, "it is asked again");
    store.delete(DrainKey { host: host() }.delete()).await.unwrap();
    ask(&store, &host(), &wish()).await.unwrap();
    assert_eq!(phase(&store).await, DrainPhase::Draining);
    assert_eq!(answer_all(&store, Answer::Drained).await, 1);
    assert_eq!(phase(&store).await, DrainPhase::Drained);
}

/// S8: an answer is valid only for the daemon run that it names.
#[tokio::test(start_paused = true)]
async fn an_answer_does_not_outlive_the_run_of_its_host() {
    let store = store();
    store.put(HostKey { host: host() }.put(&record("b1"))).await.unwrap();
    ask(&store, &host(), &wish()).await.unwrap();
    answer_all(&store, Answer::Drained).await;
    store.delete(HostKey { host: host() }.delete()).await.unwrap();
    assert_eq!(phase(&store).await, DrainPhase::Drained, "a host that is down is as empty as it was");
    store.put(HostKey { host: host() }.put(&record("b2"))).await.unwrap();
    assert_eq!(phase(&store).await, DrainPhase::Draining);
    assert_eq!(answer_all(&store, Answer::Drained).await, 1, "it is asked again");
    assert_eq!(phase(&store).await, DrainPhase::Drained);
}

#[tokio::test(start_paused = true)]
async fn drain_undrain_drain_asks_anew_each_time() {
    let store = store();
    store.put(HostKey { host: host() }.put(&record("b1"))).await.unwrap();
    for _ in 0..3 {
        ask(&store, &host(), &wish()).await.unwrap();
        assert_eq!(phase(&store).await, DrainPhase::Draining);
        assert_eq!(answer_all(&store, Answer::Drained).await, 1);
        assert_eq!(phase(&store).await, DrainPhase::Drained);
        undrain(&store, &host(), &wish()).await.unwrap();
        assert_eq!(phase(&store).await, DrainPhase::Returning);
        assert_eq!(answer_all(&store, Answer::Healthy).await, 1);
        assert_eq!(phase(&store).await, DrainPhase::Returned);
    }
}

fn session(store: &Store, seed: u64) -> Session {
    Session::start(store.clone(), SessionOptions { seed, ..SessionOptions::default() })
}

async fn registered(store: &Store) -> Option<String> {
    store.read(&HostKey { host: host() }).await.unwrap().map(|seen| seen.record.boot)
}

/// S11: the second process with a host id is refused and gets the holder's identity; the first one continues.
#[tokio::test(start_paused = true)]
async fn the_second_process_with_a_host_id_is_refused() {
    let store = store();
    let (one, two) = (session(&store, 1), session(&store, 2));
    hosts::register(&one, &host(), &record("one")).await.unwrap();
    let refused = timeout(Duration::from_secs(60), hosts::register(&two, &host(), &record("two"))).await;
    let taken = refused.expect("no decision").unwrap_err();
    assert!(taken.holder.contains("\"one\""), "{taken}");
    for _ in 0..20 {
        sleep(Duration::from_secs(15)).await;
        assert_eq!(registered(&store).await.as_deref(), Some("one"));
    }
    // The first one stops cleanly: the name is free.
    one.close().await.unwrap();
    timeout(Duration::from_secs(60), async {
        while registered(&store).await.as_deref() != Some("two") {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("the name stays taken");
}

/// A process that restarts after a crash gets its name back before its old lease expires.
#[tokio::test(start_paused = true)]
async fn a_process_that_is_gone_gives_its_name_up() {
    let store = store();
    let one = session(&store, 1);
    hosts::register(&one, &host(), &record("one")).await.unwrap();
    drop(one);
    let two = session(&store, 2);
    let within = SessionOptions::default().ttl;
    let claimed = timeout(within, hosts::register(&two, &host(), &record("two"))).await;
    claimed.expect("it waits for the end of the old lease").unwrap();
    assert_eq!(registered(&store).await.as_deref(), Some("two"));
}

/// Its first step is always rejected by the store (too many operations); its second one is valid.
struct Poisoned;

impl Controller for Poisoned {
    type Message = NoMessage;
    fn name(&self) -> &str {
        "poisoned"
    }
    fn plan(&self, situation: &Situation) -> Plan<NoMessage> {
        let big = (0..129).fold(Txn::new(), |txn, n| txn.then(Put::new(format!("/x/{n}"), "")));
        let mut steps = vec![Step::Commit { what: "too big".into(), txn: big }];
        if situation.snapshot.iter_raw().next().is_none() {
            let txn = Txn::new().then(Put::new("/fine", "done"));
            steps.push(Step::Commit { what: "fine".into(), txn });
        }
        Plan { steps, wake_at: None, why: "test".into() }
    }
    async fn tell(&self, message: NoMessage) -> Told {
        match message {}
    }
}

/// Always finds something to write.
struct Restless;

impl Controller for Restless {
    type Message = NoMessage;
    fn name(&self) -> &str {
        "restless"
    }
    fn plan(&self, _: &Situation) -> Plan<NoMessage> {
        let txn = Txn::new().then(Put::new("/again", "x"));
        Plan { steps: vec![Step::Commit { what: "again".into(), txn }], wake_at: None, why: "test".into() }
    }
    async fn tell(&self, message: NoMessage) -> Told {
        match message {}
    }
}

async fn view(store: &Store) -> Arc<View> {
    let ranges = Ranges::new().with_range(KeyRange::prefix("/"));
    Arc::new(View::open(store.clone(), ranges, ViewOptions::default()).await.unwrap())
}

/// S10: a rejected step does not block the others, and is reported.
#[tokio::test(start_paused = true)]
async fn a_refused_step_does_not_starve_the_others() {
    let store = store();
    let reconciler = Reconciler::new(Poisoned, store.clone(), view(&store).await, Pace::default());
    let stop = CancellationToken::new();
    timeout(Duration::from_secs(60), reconciler.run(&Authority::Anyone, &stop)).await.ok();
    assert!(store.get("/fine").await.unwrap().is_some(), "the second step never happened");
    let decision = reconciler.decisions().borrow().clone();
    assert_eq!(decision.refused, ["too big"]);
    assert!(decision.passes < 60, "{} passes in a minute", decision.passes);
}

/// S10: a controller that always changes something is slowed down.
#[tokio::test(start_paused = true)]
async fn a_controller_that_never_rests_is_paced() {
    let store = store();
    let reconciler = Reconciler::new(Restless, store.clone(), view(&store).await, Pace::default());
    let stop = CancellationToken::new();
    timeout(Duration::from_secs(10), reconciler.run(&Authority::Anyone, &stop)).await.ok();
    let passes = reconciler.decisions().borrow().passes;
    assert!((100..400).contains(&passes), "{passes} passes in 10 seconds");
}

/// Sends to one receiver, which has a term from before the store was restored.
struct Teller {
    known: Arc<AtomicU64>,
}

impl Controller for Teller {
    type Message = Epoch;
    fn name(&self) -> &str {
        "teller"
    }
    fn plan(&self, situation: &Situation) -> Plan<Epoch> {
        let steps = vec![Step::Tell { what: "tell".into(), message: situation.term }];
        Plan { steps, wake_at: Some(situation.now + Duration::from_secs(5)), why: "test".into() }
    }
    async fn tell(&self, message: Epoch) -> Told {
        let known = self.known.load(Ordering::SeqCst);
        if message.0 < known {
            return Told::Outdated;
        }
        self.known.store(message.0, Ordering::SeqCst);
        Told::Done
    }
}

/// S16: after a restore a leader raises its term above the receivers'; terms only grow.
#[tokio::test(start_paused = true)]
async fn a_term_that_went_back_is_raised() {
    let (store, known) = (store(), Arc::new(AtomicU64::new(1_000_000)));
    let session = session(&store, 1);
    let election = Election::new(store.clone(), session, Ballot::queue(&Candidates {}), "me", 1);
    let mut elected = Elected { election, term_key: TermKey {} };
    let teller = Teller { known: known.clone() };
    let reconciler = Reconciler::new(teller, store.clone(), view(&store).await, Pace::default());
    let stop = CancellationToken::new();
    timeout(Duration::from_secs(600), run_elected(&reconciler, &mut elected, &stop)).await.ok();
    let term = store.read(&TermKey {}).await.unwrap().unwrap().record.0;
    assert!(known.load(Ordering::SeqCst) == term && term >= 1_000_000, "term {term}");
}
