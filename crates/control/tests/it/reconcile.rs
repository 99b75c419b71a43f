//! The loop plans again when it should, and never acts without authority.

// tidy: the clock is paused in this file

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan_control::Epoch;
use capstan_control::keys::{Candidates, TermKey};
use capstan_control::reconcile::{
    Authority, Controller, Elected, LoopEnd, Pace, Plan, Reconciler, Situation, Step, Told, run_elected,
};
use capstan_meta::election::{Ballot, Election};
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::faults::{Faults, Faulty, Link, Rates};
use capstan_meta::record::Key;
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::view::{Ranges, View, ViewOptions};
use capstan_meta::{Backend, Store, Txn, keys};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

keys! {
    /// Keys of this test.
    const CATALOGUE;

    /// A number to be counted up to ten.
    pub struct CounterKey { name: u64 } at "/counters/{name}" => u64 {
        writer: "the controller",
        lifetime: Durable,
        prefixes: [
            /// All counters.
            pub struct Counters {} at "/counters/",
        ],
    }
}

/// Counts every counter up to ten, one by one, and sends the sum to its receiver.
#[derive(Default)]
struct CountUp {
    told: Arc<Mutex<Vec<u64>>>,
    deaf: Arc<AtomicU64>,
}

impl Controller for CountUp {
    type Message = u64;

    fn name(&self) -> &str {
        "count-up"
    }

    fn plan(&self, situation: &Situation) -> Plan<u64> {
        let counters = situation.snapshot.list(&Counters {});
        let low = counters.iter().filter(|(_, stored)| stored.record < 10);
        let mut steps: Vec<Step<u64>> = low
            .map(|(key, stored)| Step::Commit {
                what: format!("count {key}"),
                txn: Txn::new().when(key.unchanged(stored)).then(key.replace(stored, &(stored.record + 1))),
            })
            .collect();
        if steps.is_empty() {
            let message = counters.iter().map(|(_, stored)| stored.record).sum();
            steps.push(Step::Tell { what: format!("tell {message}"), message });
        }
        let wake_at = Some(situation.now + Duration::from_secs(60));
        Plan { steps, wake_at, why: format!("{} counters", counters.entries.len()) }
    }

    async fn tell(&self, message: u64) -> Told {
        if self.deaf.load(Ordering::Relaxed) > 0 {
            self.deaf.fetch_sub(1, Ordering::Relaxed);
            return Told::Failed("deaf".into());
        }
        self.told.lock().unwrap().push(message);
        Told::Done
    }
}

async fn view(store: &Store) -> Arc<View> {
    Arc::new(
        View::open(store.clone(), Ranges::new().with(&Counters {}), ViewOptions::default()).await.unwrap(),
    )
}

#[tokio::test(start_paused = true)]
async fn work_gets_done_once_in_spite_of_rivals_and_unknown_outcomes() {
    assert_eq!(CATALOGUE.len(), 1);
    let truth = Embedded::in_memory(Options { seed: Some(1), ..Options::default() });
    for name in 0..5 {
        truth.put(CounterKey { name }.put(&0)).await.unwrap();
    }
    let begun = truth.status().await.unwrap().revision;
    let stop = CancellationToken::new();
    let mut loops = tokio::task::JoinSet::new();
    for seed in 0..3 {
        let faults = Faults::seeded(seed);
        faults.set_rates(Rates { lost_answer: 0.2, lost_request: 0.1, unavailable: 0.1, ..Rates::default() });
        let store = Store::new(Faulty::new(truth.clone(), faults));
        let (view, stop) = (view(&store).await, stop.clone());
        let controller = CountUp::default();
        let (told, pace) = (controller.told.clone(), Pace { seed, ..Pace::default() });
        loops.spawn(async move {
            let reconciler = Reconciler::new(controller, store, view, pace);
            let end = reconciler.run(&Authority::Anyone, &stop).await;
            (end, told.lock().unwrap().clone(), reconciler.decisions().borrow().clone())
        });
    }
    sleep(Duration::from_secs(300)).await;
    stop.cancel();
    while let Some(ended) = loops.join_next().await {
        let (end, told, decision) = ended.unwrap();
        assert_eq!(end, LoopEnd::Stopped);
        assert!(told.len() >= 3 && told.iter().all(|sum| *sum == 50), "woken by time: {told:?}");
        assert_eq!((decision.why.as_str(), decision.outcome.as_str()), ("5 counters", "nothing left to do"));
        assert_eq!(decision.steps, ["tell 50"]);
    }
    let newest = truth.status().await.unwrap().revision;
    assert_eq!(newest.0 - begun.0, 50, "every count happened exactly once");
}

#[tokio::test(start_paused = true)]
async fn the_loop_wakes_on_change_and_tells_again_what_did_not_arrive() {
    let truth = Embedded::in_memory(Options { seed: Some(1), ..Options::default() });
    let store = Store::new(truth.clone());
    let controller = CountUp::default();
    let (told, deaf) = (controller.told.clone(), controller.deaf.clone());
    deaf.store(3, Ordering::Relaxed);
    let reconciler =
        Arc::new(Reconciler::new(controller, store.clone(), view(&store).await, Pace::default()));
    let stop = CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    let (in_task, in_task_stop) = (reconciler.clone(), stop.clone());
    running.spawn(async move { in_task.run(&Authority::Anyone, &in_task_stop).await });
    let begun = Instant::now();
    while told.lock().unwrap().is_empty() {
        sleep(Duration::from_millis(10)).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "three failures, three short pauses");
    let changed = Instant::now();
    truth.put(CounterKey { name: 7 }.put(&9)).await.unwrap();
    while told.lock().unwrap().last() != Some(&10) {
        sleep(Duration::from_millis(1)).await;
    }
    assert!(changed.elapsed() < Duration::from_secs(1));
    stop.cancel();
    assert_eq!(running.join_next().await.unwrap().unwrap(), LoopEnd::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_leader_counts_its_term_and_stops_when_it_is_cut_off() {
    let truth = Embedded::in_memory(Options { seed: Some(1), ..Options::default() });
    let stop = CancellationToken::new();
    let mut running = tokio::task::JoinSet::new();
    let mut all_faults = Vec::new();
    for seed in 0..2 {
        let faults = Faults::seeded(seed);
        let store = Store::new(Faulty::new(truth.clone(), faults.clone()));
        let session = Session::start(store.clone(), SessionOptions { seed, ..SessionOptions::default() });
        let election =
            Election::new(store.clone(), session, Ballot::queue(&Candidates {}), format!("c{seed}"), seed);
        let reconciler =
            Reconciler::new(CountUp::default(), store.clone(), view(&store).await, Pace::default());
        let stop = stop.clone();
        running.spawn(async move {
            let mut elected = Elected { election, term_key: TermKey {} };
            run_elected(&reconciler, &mut elected, &stop).await;
        });
        all_faults.push(faults);
    }
    let store = Store::new(truth.clone());
    let term = async || store.read(&TermKey {}).await.unwrap().map(|stored| stored.record);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(term().await, Some(Epoch(1)));
    let leader = Ballot::queue(&Candidates {}).leader(&store).await.unwrap().unwrap();
    let led_by: usize = leader.id.trim_start_matches('c').parse().unwrap();
    all_faults[led_by].set_link(Link::Silent);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(term().await, Some(Epoch(2)));
    truth.put(CounterKey { name: 1 }.put(&0)).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!(store.read(&CounterKey { name: 1 }).await.unwrap().unwrap().record, 10);
    all_faults[led_by].set_link(Link::Up);
    sleep(Duration::from_secs(20)).await;
    stop.cancel();
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    assert_eq!(term().await, Some(Epoch(2)), "who comes back queues behind the leader");
    let candidates = store.list(&Candidates {}).await.unwrap();
    assert!(candidates.entries.is_empty(), "who stops leaves the queue");
}
