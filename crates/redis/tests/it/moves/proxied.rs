//! Half of the slots moves through real proxies, controlled by real coordinators. Do clients that check every
//! reply notice?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use capstan_redis::slots::Slot;
use capstan_testkit::{eventually, seed};
use tokio::task::JoinSet;

use super::clients::{Redirected, fill};
use super::shadow::{Seen, Shadow, work};
use super::stage::{Ground, LONG, Stage};
use super::workload::{Author, Op};

const CLIENTS: u64 = 4;

/// The amount of work.
#[derive(Clone, Copy)]
struct Size {
    keys: u32,
    /// Commands of each client before the move and after it.
    calm: usize,
}

/// The observations of all clients in one part of a run.
#[derive(Default)]
struct Part {
    latencies: Vec<Duration>,
    wrong: Vec<String>,
}

impl Part {
    fn add(&mut self, seen: Seen) {
        self.latencies.extend(seen.latencies);
        self.wrong.extend(seen.wrong);
    }

    fn p99(&mut self) -> Duration {
        self.latencies.sort();
        self.latencies.get(self.latencies.len() * 99 / 100).copied().unwrap_or_default()
    }
}

/// Values pass through a list of the moving range one by one; each must come out once, in order.
async fn pass_through_a_list(mut front: Redirected, mut reader: Redirected, stop: Arc<AtomicBool>) {
    let key = "queue:1";
    assert!(Slot::of(key.as_bytes()).number() < 8192, "{}", Slot::of(key.as_bytes()));
    let sent = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    let (count, stopped) = (sent.clone(), stop.clone());
    tasks.spawn(async move {
        while !stopped.load(Ordering::Relaxed) {
            let value = count.load(Ordering::Relaxed);
            let _: u64 = front.query(redis::cmd("RPUSH").arg(key).arg(value)).await.unwrap();
            count.store(value + 1, Ordering::Relaxed);
        }
        let _: u64 = front.query(redis::cmd("RPUSH").arg(key).arg("end")).await.unwrap();
    });
    for expected in 0.. {
        let (_, value): (String, String) = reader.query(redis::cmd("BLPOP").arg(key).arg(0)).await.unwrap();
        if value == "end" {
            assert_eq!(expected, sent.load(Ordering::Relaxed), "everything that went in came out");
            break;
        }
        assert_eq!(value, expected.to_string(), "each value once and in order");
    }
    tasks.join_all().await;
}

/// A client blocked on a value that arrives when everything is over.
async fn wait_for_the_end(mut reader: Redirected) {
    let (_, value): (String, String) = reader.query(redis::cmd("BLPOP").arg("end:1").arg(0)).await.unwrap();
    assert_eq!(value, "over");
}

/// A counter and a list are always changed together.
async fn transact(mut front: Redirected, stop: Arc<AtomicBool>) {
    let (counter, list) = ("{pair:2}:counter", "{pair:2}:list");
    assert!(Slot::of(b"pair:2").number() < 8192, "{}", Slot::of(b"pair:2"));
    for expected in 1_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // Not as `atomic`: the reply of EXEC itself, when the slots moved after the commands were queued,
        // would be lost.
        let mut pipe = redis::pipe();
        pipe.cmd("MULTI").ignore();
        pipe.cmd("INCR").arg(counter).ignore().cmd("RPUSH").arg(list).arg(expected).ignore().cmd("EXEC");
        let (reply,): ((u64, u64),) = front.transact(&pipe).await.unwrap();
        assert_eq!(reply, (expected, expected));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_proxies_notice_nothing() {
    notice_nothing(Ground::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_proxies_notice_nothing_on_etcd() {
    notice_nothing(Ground::Etcd).await;
}

async fn notice_nothing(ground: Ground) {
    let size = seed::soak(Size { keys: 20_000, calm: 200 }, Size { keys: 300_000, calm: 20_000 });
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let (stage, shadow) = (Stage::set(ground).await, Shadow::start().await);
    let addresses = stage.addresses();
    let stop = Arc::new(AtomicBool::new(false));
    let moving = Arc::new(AtomicBool::new(false));
    let calm = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let mut author =
            Author::new(format!("c{client}"), size.keys / CLIENTS as u32, seed::rng(seed ^ client));
        let ops: Vec<Op> = author.first_ops();
        fill(stage.source.address(), &ops).await;
        fill(shadow.address(), &ops).await;
        let (mut front, mut shadow) = (Redirected::to(addresses).await, shadow.connection().await);
        let (stop, moving, calm) = (stop.clone(), moving.clone(), calm.clone());
        clients.spawn(async move {
            let until_it_begins = |done| {
                calm.fetch_add(u64::from(done == size.calm), Ordering::Relaxed);
                done < size.calm || !moving.load(Ordering::Relaxed)
            };
            let before = work(&mut author, &mut front, &mut shadow, until_it_begins).await;
            let during = work(&mut author, &mut front, &mut shadow, |_| !stop.load(Ordering::Relaxed)).await;
            let after = work(&mut author, &mut front, &mut shadow, |done| done < size.calm).await;
            (before, during, after)
        });
    }
    let mut others = JoinSet::new();
    let (writer, reader) = (Redirected::to(addresses).await, Redirected::to(addresses).await);
    others.spawn(pass_through_a_list(writer, reader, stop.clone()));
    others.spawn(transact(Redirected::to(addresses).await, stop.clone()));
    others.spawn(wait_for_the_end(Redirected::to(addresses).await));

    eventually("all clients have seen calm times", LONG, async || match calm.load(Ordering::Relaxed) {
        CLIENTS => Ok(()),
        some => Err(some),
    })
    .await;
    let began = Instant::now();
    moving.store(true, Ordering::Relaxed);
    stage.begin().await;
    stage.moved().await;
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let (mut before, mut during, mut after) = (Part::default(), Part::default(), Part::default());
    while let Some(seen) = clients.join_next().await {
        let seen = seen.unwrap();
        before.add(seen.0);
        during.add(seen.1);
        after.add(seen.2);
    }
    for part in [&before, &during, &after] {
        assert!(part.wrong.is_empty(), "{:#?}", part.wrong);
    }
    let mut last = Redirected::to(addresses).await;
    let _: u64 = last.query(redis::cmd("RPUSH").arg("end:1").arg("over")).await.unwrap();
    others.join_all().await;
    eprintln!(
        "moved in {took:?}; p99 before {:?}, during {:?}, after {:?}; max during {:?}; {} commands during",
        before.p99(),
        during.p99(),
        after.p99(),
        during.latencies.iter().max().unwrap(),
        during.latencies.len()
    );
    compare(&stage, &shadow).await;
}

/// Both nodes together have what the shadow has, each what belongs to it.
async fn compare(stage: &Stage, shadow: &Shadow) {
    let expected = shadow.contents().await;
    let mine = |key: &str| !key.contains("queue:") && !key.contains("{pair:2}");
    let mut found = stage.holdings().await;
    found.retain(|key, _| mine(key));
    for (key, value) in &expected {
        assert_eq!(found.get(key), Some(value), "{key}");
    }
    assert_eq!(found.len(), expected.len(), "no key came back");
}
