//! Moves through real proxies, under clients that check every reply, and under kills.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use capstan_redis::slots::Slot;
use capstan_testkit::{eventually, seed};
use rand::RngExt;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::task::JoinSet;

use super::host::{SOON, connect};
use super::proxies::Pair;
use super::shadow::{Front, Seen, Shadow, contents, work};
use super::workload::{Author, Op};

/// A client that knows where the other proxy is and goes there when told; every other error is its user's.
#[derive(Clone)]
struct Redirected {
    proxies: [MultiplexedConnection; 2],
    at: usize,
}

/// How often a client follows before that is an error of its own.
const MAX_HOPS: usize = 200;

impl Redirected {
    async fn to(pair: &Pair) -> Redirected {
        let open = async |address| {
            let client = redis::Client::open(format!("redis://{address}/")).unwrap();
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
        };
        Redirected { proxies: [open(pair.source.address()).await, open(pair.target.address()).await], at: 0 }
    }

    async fn query<T: redis::FromRedisValue>(&mut self, cmd: &redis::Cmd) -> redis::RedisResult<T> {
        for _ in 0..MAX_HOPS {
            match cmd.query_async(&mut self.proxies[self.at]).await {
                Err(error) if error.code() == Some("MOVED") => self.at = 1 - self.at,
                other => return other,
            }
        }
        panic!("sent to and fro");
    }
}

impl Front for Redirected {
    async fn call(&mut self, op: &Op) -> redis::RedisResult<Value> {
        self.query(&op.cmd).await
    }
}

async fn fill(connection: &mut MultiplexedConnection, ops: &[Op]) {
    for chunk in ops.chunks(1000) {
        let mut pipe = redis::pipe();
        for op in chunk {
            pipe.add_command(op.cmd.clone());
        }
        let _: Vec<Value> = pipe.query_async(connection).await.unwrap();
    }
}

fn p99(latencies: &mut [Duration]) -> Duration {
    latencies.sort();
    latencies.get(latencies.len() * 99 / 100).copied().unwrap_or_default()
}

/// Values go through a list of the moving range one by one; each must come out once, in order.
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

/// A counter and a list are changed together, always.
async fn transact(mut front: Redirected, stop: Arc<AtomicBool>) {
    let (counter, list) = ("{pair:1}:counter", "{pair:1}:list");
    for expected in 1_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("INCR").arg(counter).cmd("RPUSH").arg(list).arg(expected);
        let reply: (u64, u64) = loop {
            match pipe.query_async(&mut front.proxies[front.at]).await {
                // Neither of them has done anything then.
                Err(error) if matches!(error.code(), Some("MOVED" | "EXECABORT")) => front.at = 1 - front.at,
                other => break other.unwrap(),
            }
        };
        assert_eq!(reply, (expected, expected));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts six servers; run it with --run-ignored, and CAPSTAN_SOAK=1 for its long form"]
async fn clients_of_proxies_notice_nothing() {
    const CLIENTS: u64 = 4;
    let (keys, calm) = seed::soak((20_000, 300), (300_000, 20_000));
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let (mut pair, shadow) = (Pair::start().await, Shadow::start().await);
    let mut authors = Vec::new();
    for client in 0..CLIENTS {
        let mut author = Author::new(format!("c{client}"), keys / CLIENTS as u32, seed::rng(seed ^ client));
        let ops = author.first_ops();
        fill(&mut connect(pair.source.node.address()).await, &ops).await;
        fill(&mut shadow.connection().await, &ops).await;
        authors.push(author);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let moving = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for mut author in authors {
        let (mut front, mut shadow) = (Redirected::to(&pair).await, shadow.connection().await);
        let (stop, moving) = (stop.clone(), moving.clone());
        clients.spawn(async move {
            let before = work(&mut author, &mut front, &mut shadow, |done| {
                done < calm || !moving.load(Ordering::Relaxed)
            })
            .await;
            let during = work(&mut author, &mut front, &mut shadow, |_| !stop.load(Ordering::Relaxed)).await;
            let after = work(&mut author, &mut front, &mut shadow, |done| done < calm).await;
            (before, during, after)
        });
    }
    let mut others = JoinSet::new();
    let (writer, reader) = (Redirected::to(&pair).await, Redirected::to(&pair).await);
    others.spawn(pass_through_a_list(writer, reader, stop.clone()));
    others.spawn(transact(Redirected::to(&pair).await, stop.clone()));

    let began = Instant::now();
    moving.store(true, Ordering::Relaxed);
    pair.begin().await;
    pair.released().await;
    pair.commit().await;
    let took = began.elapsed();
    stop.store(true, Ordering::Relaxed);
    let (mut before, mut during, mut after) = (Seen::default(), Seen::default(), Seen::default());
    while let Some(seen) = clients.join_next().await {
        let seen = seen.unwrap();
        for (all, one) in [(&mut before, seen.0), (&mut during, seen.1), (&mut after, seen.2)] {
            all.latencies.extend(one.latencies);
            all.wrong.extend(one.wrong);
        }
    }
    for seen in [&before, &during, &after] {
        assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    }
    others.join_all().await;
    eprintln!(
        "moved in {took:?}; p99 before {:?}, during {:?}, after {:?}; max during {:?}; {} commands during",
        p99(&mut before.latencies),
        p99(&mut during.latencies),
        p99(&mut after.latencies),
        during.latencies.iter().max().unwrap(),
        during.latencies.len()
    );
    compare(&pair, &shadow).await;
}

/// Both nodes together hold what the shadow holds, each what belongs to it.
async fn compare(pair: &Pair, shadow: &Shadow) {
    let expected = shadow.contents().await;
    let mine = |key: &str| !key.contains("queue:") && !key.contains("{pair:1}");
    let lower = |key: &str| Slot::of(key.as_bytes()).number() < 8192;
    eventually("leftovers are removed", SOON, async || {
        let here = contents(&mut connect(pair.source.node.address()).await).await;
        match here.keys().filter(|key| lower(key)).count() {
            0 => Ok(()),
            left => Err(format!("{left} keys")),
        }
    })
    .await;
    let mut found = contents(&mut connect(pair.source.node.address()).await).await;
    found.extend(contents(&mut connect(pair.target.node.address()).await).await);
    found.retain(|key, _| mine(key));
    for (key, value) in &expected {
        assert_eq!(found.get(key), Some(value), "{key}");
    }
    assert_eq!(found.len(), expected.len(), "no key came back");
}

/// What is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    SourceProxy,
    TargetProxy,
    TargetNode,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts six servers; run it with --run-ignored, and CAPSTAN_SOAK=1 for its long form"]
async fn a_killed_source_proxy_loses_nothing() {
    survives(Victim::SourceProxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts six servers; run it with --run-ignored, and CAPSTAN_SOAK=1 for its long form"]
async fn a_killed_target_proxy_loses_nothing() {
    survives(Victim::TargetProxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts six servers; run it with --run-ignored, and CAPSTAN_SOAK=1 for its long form"]
async fn a_killed_target_node_loses_nothing_before_the_release() {
    survives(Victim::TargetNode).await;
}

async fn survives(victim: Victim) {
    for _ in 0..seed::soak(1, 10) {
        survives_once(victim, rand::random()).await;
    }
}

/// One writer of increasing numbers on each of some keys, through kills. Afterwards each key holds a number that was
/// acknowledged last, or one that was under way then.
async fn survives_once(victim: Victim, seed: u64) {
    eprintln!("seed {seed}");
    let mut rng = seed::rng(seed);
    let mut pair = Pair::start().await;
    let keys: u32 = seed::soak(5_000, 30_000);
    let mut node = connect(pair.source.node.address()).await;
    let mut ops = Vec::new();
    for number in 0..keys {
        let mut cmd = redis::cmd("SET");
        cmd.arg(format!("still:{number}")).arg(number);
        ops.push(Op { cmd, keys: vec![], writes: true });
    }
    fill(&mut node, &ops).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    let addresses = [pair.source.address(), pair.target.address()];
    for writer in 0..4 {
        let stop = stop.clone();
        writers.spawn(async move { write_through_kills(writer, addresses, stop).await });
    }
    pair.begin().await;
    let patience = Duration::from_millis(rng.random_range(0..400));
    // tidy: allow, because the kill comes at a random instant
    tokio::time::sleep(patience).await;
    match victim {
        Victim::SourceProxy => pair.source.crash().await,
        Victim::TargetProxy => pair.target.crash().await,
        Victim::TargetNode => {
            pair.target.node.kill9().unwrap();
            pair.target.node.restart().await.unwrap();
        }
    }
    pair.released().await;
    pair.commit().await;
    stop.store(true, Ordering::Relaxed);
    let mut client = Patient::new(addresses);
    while let Some(written) = writers.join_next().await {
        for (key, (acknowledged, tried)) in written.unwrap() {
            let found: Option<u64> = client.query(redis::cmd("GET").arg(&key)).await;
            let found = found.unwrap_or(0);
            assert!((acknowledged..=tried).contains(&found), "{key}: {found}, not {acknowledged}..={tried}");
        }
    }
    let mut found = contents(&mut connect(pair.source.node.address()).await).await;
    found.retain(|key, _| Slot::of(key.as_bytes()).number() >= 8192);
    found.extend(contents(&mut connect(pair.target.node.address()).await).await);
    for number in 0..keys {
        let value = found.get(&format!("still:{number}")).map(String::as_str).unwrap_or_default();
        assert!(value.contains(&format!("\"{number}\"")), "still:{number}: {value}");
    }
}

/// Keys of one writer: what was acknowledged last, and what was sent last.
async fn write_through_kills(
    writer: u32,
    addresses: [std::net::SocketAddr; 2],
    stop: Arc<AtomicBool>,
) -> Vec<(String, (u64, u64))> {
    let mut written: Vec<(String, (u64, u64))> =
        (0..50).map(|number| (format!("w{writer}:{number}"), (0, 0))).collect();
    let mut client = Patient::new(addresses);
    for turn in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let place = turn as usize * 7 % written.len();
        let (key, (acknowledged, tried)) = &mut written[place];
        *tried = turn;
        // A repeated SET of the same number changes nothing.
        let (): () = client.query(redis::cmd("SET").arg(&*key).arg(turn)).await;
        *acknowledged = turn;
    }
    written
}

/// A client that tries again until it gets an answer.
struct Patient {
    addresses: [std::net::SocketAddr; 2],
    connections: [Option<MultiplexedConnection>; 2],
    at: usize,
}

impl Patient {
    fn new(addresses: [std::net::SocketAddr; 2]) -> Patient {
        Patient { addresses, connections: [None, None], at: 0 }
    }

    async fn query<T: redis::FromRedisValue>(&mut self, cmd: &redis::Cmd) -> T {
        let end = Instant::now() + SOON;
        loop {
            let error = match self.ask(cmd).await {
                Ok(reply) => return reply,
                Err(error) => error,
            };
            assert!(Instant::now() < end, "{error}");
            match error.code() {
                Some("MOVED") => self.at = 1 - self.at,
                _ => self.connections[self.at] = None,
            }
            // tidy: allow, because a client that tries again pauses
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn ask<T: redis::FromRedisValue>(&mut self, cmd: &redis::Cmd) -> redis::RedisResult<T> {
        let connection = match &mut self.connections[self.at] {
            Some(connection) => connection,
            none => {
                let client = redis::Client::open(format!("redis://{}/", self.addresses[self.at]))?;
                none.insert(client.get_multiplexed_async_connection().await?)
            }
        };
        cmd.query_async(connection).await
    }
}
