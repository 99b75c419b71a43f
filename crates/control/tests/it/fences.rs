//! The fences of a leader, each where the other one does not help: the guard on its election key while its clock says that
//! it leads, and its clock while nothing has told it that it does not.

// tidy: the clock is paused in this file

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use capstan_control::Epoch;
use capstan_control::keys::{Candidates, TermKey};
use capstan_control::reconcile::{
    Controller, Elected, NoMessage, Pace, Plan, Reconciler, Situation, Step, Told, run_elected,
};
use capstan_meta::election::{Ballot, Election};
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::faults::{Faults, Faulty, Rates};
use capstan_meta::record::Prefix;
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::view::{Ranges, View, ViewOptions};
use capstan_meta::{Backend, KeyRange, KeyValue, OwnedTask, Put, Revision, Store, Txn, Watch, WatchMessage};
use capstan_testkit::seed;
use rand::RngExt;
use tokio::time::{Instant, advance, sleep};
use tokio_util::sync::CancellationToken;

const WRITTEN: &str = "/written";

fn truth(seed: u64) -> Embedded {
    Embedded::in_memory(Options { seed: Some(seed), ..Options::default() })
}

/// Runs a controller as a candidate.
async fn candidate<C: Controller>(store: Store, controller: C, seed: u64) -> OwnedTask {
    let session = Session::start(store.clone(), SessionOptions { seed, ..SessionOptions::default() });
    let election =
        Election::new(store.clone(), session, Ballot::queue(&Candidates {}), seed.to_string(), seed);
    let ranges = Ranges::new().with_range(KeyRange::one("/never"));
    let view = View::open(store.clone(), ranges, ViewOptions { seed, ..ViewOptions::default() }).await;
    let pace = Pace { seed, ..Pace::default() };
    let reconciler = Reconciler::new(controller, store, Arc::new(view.unwrap()), pace);
    OwnedTask::spawn(async move {
        let mut elected = Elected { election, term_key: TermKey {} };
        run_elected(&reconciler, &mut elected, &CancellationToken::new()).await;
    })
}

/// Writes its term, again and again.
struct Scribe;

impl Controller for Scribe {
    type Message = NoMessage;

    fn name(&self) -> &str {
        "scribe"
    }

    fn plan(&self, situation: &Situation) -> Plan<NoMessage> {
        let txn = Txn::new().then(Put::new(WRITTEN, situation.term.to_string()));
        Plan { steps: vec![Step::Commit { what: "write".into(), txn }], wake_at: None, why: "test".into() }
    }

    async fn tell(&self, message: NoMessage) -> Told {
        match message {}
    }
}

/// Everything that was ever written.
async fn written(truth: &Embedded) -> Vec<Arc<KeyValue>> {
    let mut watch = truth.watch(Watch::from(KeyRange::one(WRITTEN), Revision::FIRST)).await.unwrap();
    watch.request_progress().await.unwrap();
    let mut all = Vec::new();
    loop {
        match watch.next().await.unwrap() {
            WatchMessage::Events { events, .. } => all.extend(events.iter().map(|event| event.kv.clone())),
            WatchMessage::Progress(_) => return all,
        }
    }
}

async fn term(truth: &Embedded) -> Epoch {
    Store::new(truth.clone()).read(&TermKey {}).await.unwrap().unwrap().record
}

/// Once the key of a leader is gone, none of its transactions commits: not even those that were on their way, while its
/// lease lives and its clock says that it leads.
#[test]
fn a_deposed_leader_commits_nothing() {
    seed::seeds(seed::soak(40, 4_000), |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let (truth, faults) = (truth(seed), Faults::seeded(seed));
            let store = Store::new(Faulty::new(truth.clone(), faults.clone()));
            let _leader = candidate(store, Scribe, seed).await;
            sleep(Duration::from_secs(3)).await;
            faults.set_rates(Rates { delay: Duration::from_millis(400), ..Rates::default() });
            sleep(Duration::from_millis(seed::rng(seed).random_range(0..2_000))).await;
            let first = term(&truth).await;
            let removed = truth.delete(Candidates {}.delete_all()).await.unwrap();
            assert_eq!(removed.deleted, 1);
            sleep(Duration::from_secs(20)).await;
            let (before, after): (Vec<_>, Vec<_>) =
                written(&truth).await.into_iter().partition(|kv| kv.mod_revision < removed.revision);
            let by = |term: Epoch| move |kv: &&Arc<KeyValue>| kv.value == term.to_string();
            assert!(before.iter().filter(by(first)).count() > 0, "it never led");
            let late: Vec<_> = after.iter().filter(by(first)).map(|kv| kv.mod_revision).collect();
            assert!(late.is_empty(), "deposed at revision {}, and wrote at {late:?}", removed.revision);
            assert!(!after.is_empty() && term(&truth).await > first, "it does not lead again");
        });
    });
}

/// What a leader did, and its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Stopped(Epoch),
    Sent(Epoch),
}

/// Sends its term; on demand its process is stopped in the middle of a plan.
struct Sleeper {
    stop_for: Arc<Mutex<Option<Duration>>>,
    deeds: Arc<Mutex<Vec<Deed>>>,
}

/// Stops everything for a time, as SIGSTOP or a suspended machine does: time passes, and no task runs.
fn stand_still(time: Duration) {
    // The clock moves at the first poll; the rest would let other tasks run.
    let _ = pin!(advance(time)).poll(&mut Context::from_waker(Waker::noop()));
}

impl Controller for Sleeper {
    type Message = Epoch;

    fn name(&self) -> &str {
        "sleeper"
    }

    fn plan(&self, situation: &Situation) -> Plan<Epoch> {
        let term = situation.term;
        if let Some(time) = self.stop_for.lock().unwrap().take() {
            self.deeds.lock().unwrap().push(Deed::Stopped(term));
            stand_still(time);
        }
        let steps = vec![Step::Tell { what: "tell".into(), message: term }];
        Plan { steps, wake_at: Some(situation.now + Duration::from_secs(1)), why: "test".into() }
    }

    async fn tell(&self, term: Epoch) -> Told {
        self.deeds.lock().unwrap().push(Deed::Sent(term));
        Told::Done
    }
}

/// A leader that was stopped past its deadline between a plan and its steps performs none of them: nothing has told it that
/// it does not lead any more, and its clock is the only one that can.
#[tokio::test(start_paused = true)]
async fn a_leader_that_was_stopped_past_its_deadline_does_nothing() {
    let truth = truth(1);
    let (stop_for, deeds) = (Arc::default(), Arc::default());
    let sleeper = Sleeper { stop_for: Arc::clone(&stop_for), deeds: Arc::clone(&deeds) };
    let _leader = candidate(Store::new(truth.clone()), sleeper, 1).await;
    for round in 0..20 {
        sleep(Duration::from_secs(30)).await;
        let first = term(&truth).await;
        deeds.lock().unwrap().clear();
        *stop_for.lock().unwrap() = Some(Duration::from_secs(9));
        let asked = Instant::now();
        while term(&truth).await == first {
            assert!(asked.elapsed() < Duration::from_secs(60), "it never began another term");
            sleep(Duration::from_millis(100)).await;
        }
        let happened = deeds.lock().unwrap().clone();
        let stopped =
            happened.iter().position(|deed| *deed == Deed::Stopped(first)).expect("it was not stopped");
        let sent_late = happened[stopped..].contains(&Deed::Sent(first));
        assert!(!sent_late, "round {round}: it sent something after it was stopped: {happened:?}");
    }
}
