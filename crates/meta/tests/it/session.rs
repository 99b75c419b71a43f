//! Does a process stay registered, and does it stop in time when it cannot know that it is?

// tidy: the clock is paused in this file

use std::time::Duration;

use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::faults::{Faults, Faulty, Link, Rates};
use capstan_meta::record::Key;
use capstan_meta::session::{Session, SessionOptions, SessionState};
use capstan_meta::{Backend, Store, keys};
use tokio::time::{Instant, sleep};

keys! {
    /// Keys of this test.
    const CATALOGUE;

    /// A process.
    pub struct ProcessKey { name: u64 } at "/processes/{name}" => String {
        writer: "the process",
        lifetime: Leased,
    }
}

const TTL: Duration = Duration::from_secs(10);

struct Bench {
    truth: Embedded,
    faults: Faults,
    session: Session,
}

fn bench(seed: u64) -> Bench {
    let truth = Embedded::in_memory(Options { seed: Some(seed), ..Options::default() });
    let faults = Faults::seeded(seed);
    let store = Store::new(Faulty::new(truth.clone(), faults.clone()));
    let session = Session::start(store, SessionOptions { seed, ..SessionOptions::default() });
    Bench { truth, faults, session }
}

impl Bench {
    async fn holder(&self, name: u64) -> Option<i64> {
        let key = ProcessKey { name };
        let found = Store::new(self.truth.clone()).get(key.bytes()).await.unwrap();
        found.map(|kv| kv.lease.0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_registered_key_lives_as_long_as_its_process() {
    let bench = bench(1);
    let key = ProcessKey { name: 1 };
    assert_eq!(CATALOGUE.len(), 1);
    bench.session.register(&key, &"one".to_owned()).await;
    let lease = bench.session.lease().unwrap();
    sleep(20 * TTL).await;
    assert_eq!(bench.session.lease(), Some(lease), "kept alive");
    assert_eq!(bench.holder(1).await, Some(lease.0));
    bench.session.close().await.unwrap();
    assert_eq!(bench.holder(1).await, None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_replaced_and_everything_registered_again() {
    let bench = bench(2);
    for name in 0..100 {
        bench.session.declare(&ProcessKey { name }, &name.to_string());
    }
    bench.session.register(&ProcessKey { name: 100 }, &"last".to_owned()).await;
    let first = bench.session.live().await.unwrap();
    bench.truth.lease_revoke(first).await.unwrap();
    assert_eq!(bench.holder(100).await, None);
    bench.session.doubt();
    bench.session.ended(first).await;
    let second = bench.session.live().await.unwrap();
    assert_ne!(first, second);
    sleep(TTL).await;
    for name in 0..=100 {
        assert_eq!(bench.holder(name).await, Some(second.0), "key {name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_owner_stops_before_the_store_lets_others_take_over() {
    let bench = bench(3);
    bench.session.register(&ProcessKey { name: 1 }, &"one".to_owned()).await;
    let lease = bench.session.live().await.unwrap();
    bench.faults.set_link(Link::Silent);
    bench.session.ended(lease).await;
    assert!(bench.session.lease().is_none());
    let stopped = Instant::now();
    assert_eq!(bench.holder(1).await, Some(lease.0), "the store still believes in it");
    while bench.holder(1).await.is_some() {
        sleep(Duration::from_millis(10)).await;
    }
    assert!(stopped.elapsed() >= Duration::from_secs(1), "only {:?} between", stopped.elapsed());
    bench.faults.set_link(Link::Up);
    let second = bench.session.live().await.unwrap();
    assert_ne!(second, lease);
    bench.session.register(&ProcessKey { name: 2 }, &"two".to_owned()).await;
    assert_eq!(bench.holder(1).await, Some(second.0));
}

#[tokio::test(start_paused = true)]
async fn a_short_silence_keeps_the_lease() {
    let bench = bench(4);
    let lease = bench.session.live().await.unwrap();
    bench.faults.set_link(Link::Refused);
    sleep(Duration::from_secs(5)).await;
    bench.faults.set_link(Link::Up);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(bench.session.lease(), Some(lease));
    assert!(bench.session.deadline().unwrap() > Instant::now());
}

#[tokio::test(start_paused = true)]
async fn unknown_outcomes_leave_exactly_what_was_wished() {
    let bench = bench(5);
    let rates = Rates { unavailable: 0.2, lost_request: 0.2, lost_answer: 0.3, ..Rates::default() };
    bench.faults.set_rates(rates);
    for name in 0..30 {
        bench.session.register(&ProcessKey { name }, &"old".to_owned()).await;
        bench.session.register(&ProcessKey { name }, &"new".to_owned()).await;
        if name % 2 == 0 {
            bench.session.withdraw(&ProcessKey { name }).await;
        }
    }
    bench.faults.set_rates(Rates::default());
    sleep(4 * TTL).await;
    let lease = bench.session.live().await.unwrap();
    for name in 0..30 {
        assert_eq!(bench.holder(name).await, (name % 2 == 1).then_some(lease.0), "key {name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_deleted_by_hand_comes_back() {
    let bench = bench(6);
    let key = ProcessKey { name: 1 };
    bench.session.register(&key, &"one".to_owned()).await;
    bench.truth.delete(key.delete()).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert!(bench.holder(1).await.is_some());
    assert!(matches!(*bench.session.state().borrow(), SessionState::Live { .. }));
}

/// The deadline counts from the sending of a renewal: its answer may be late, and the store counts from its arrival.
#[tokio::test(start_paused = true)]
async fn a_late_answer_does_not_move_the_deadline() {
    let bench = bench(7);
    let lease = bench.session.live().await.unwrap();
    bench.faults.set_rates(Rates { delay: Duration::from_secs(2), ..Rates::default() });
    for _ in 0..200 {
        sleep(Duration::from_millis(290)).await;
        let Some(deadline) = bench.session.deadline() else { continue };
        let left = bench.truth.lease_info(lease).await.unwrap().expect("the lease lives").remaining;
        // The store shows whole seconds.
        let end = Instant::now() + left + Duration::from_secs(1);
        assert!(
            deadline + Duration::from_millis(500) <= end,
            "the owner acts until {deadline:?}, its lease ends {end:?}"
        );
    }
}

/// A name that another process has taken since is not withdrawn with one's own.
#[tokio::test(start_paused = true)]
async fn a_withdrawal_leaves_the_key_of_another_process_alone() {
    let bench = bench(8);
    let key = ProcessKey { name: 1 };
    bench.session.register(&key, &"one".to_owned()).await;
    let others =
        bench.truth.lease_grant(Duration::from_secs(600), capstan_meta::LeaseId::NONE).await.unwrap().id;
    bench.faults.set_link(Link::Refused);
    bench.truth.put(key.put(&"another".to_owned()).lease(others)).await.unwrap();
    bench.faults.set_link(Link::Up);
    bench.session.withdraw(&key).await;
    sleep(2 * TTL).await;
    assert_eq!(bench.holder(1).await, Some(others.0));
}
