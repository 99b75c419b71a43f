//! Moves between two plain servers. Clients go through the gate as a proxy's workers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use capstan_redis::slots::Slot;
use capstan_redis_proxy::gate::{Admission, Gate, Phase};
use capstan_redis_proxy::moves::Stage;
use capstan_testkit::{eventually, seed};
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use super::host::{Host, SOON, coming, leaving, paired, range, stable};
use super::shadow::{Front, Seen, Shadow, contents, work};
use super::workload::{Author, Op};

const HALF: u32 = 8191;
const LAST: u32 = 16_383;

/// A client's path to the keys: the lower half of the slots moves from source to target.
#[derive(Clone)]
struct GatedFront {
    gate: Arc<Gate>,
    source: MultiplexedConnection,
    target: MultiplexedConnection,
}

impl Front for GatedFront {
    async fn call(&mut self, op: &Op) -> redis::RedisResult<Value> {
        if u32::from(Slot::of(op.keys[0].as_bytes()).number()) > HALF {
            return op.cmd.query_async(&mut self.source).await;
        }
        loop {
            match self.gate.admit() {
                Admission::Pass(ticket) => {
                    let reply = op.cmd.query_async(&mut self.source).await;
                    if op.writes {
                        ticket.wrote(&op.keys)
                    } else {
                        ticket.read()
                    }
                    return reply;
                }
                Admission::Hold | Admission::Released => drop(self.gate.passable().await),
                Admission::Open => return op.cmd.query_async(&mut self.source).await,
                Admission::Gone => return op.cmd.query_async(&mut self.target).await,
            }
        }
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

async fn size(host: &Host) -> u64 {
    redis::cmd("DBSIZE").query_async(&mut host.connection().await).await.unwrap()
}

async fn swept(host: &Host, left: u64) {
    eventually("leftovers are removed", SOON, async || match size(host).await {
        size if size == left => Ok(()),
        size => Err(format!("{size} keys, not {left}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_type_arrives_with_its_expiry() {
    let (mut source, mut target) = (Host::start().await, Host::start().await);
    let mut connection = source.connection().await;
    let mut author = Author::new("a", seed::soak(5_000, 100_000), seed::rng(7));
    fill(&mut connection, &author.first_ops()).await;
    let big = vec![b'x'; 3 << 20];
    redis::cmd("SET").arg("big").arg(&big).exec_async(&mut connection).await.unwrap();
    for number in 0..100 {
        let mut cmd = redis::cmd("SET");
        cmd.arg(format!("brief:{number}")).arg(1).arg("PX").arg(number % 7 + 1);
        cmd.exec_async(&mut connection).await.unwrap();
        let key = format!("long:{number}");
        redis::cmd("SET").arg(key).arg(1).arg("EX").arg(10_000).exec_async(&mut connection).await.unwrap();
    }
    let mut at_target = target.connection().await;
    redis::cmd("SET").arg("foo").arg("not moved").exec_async(&mut at_target).await.unwrap();
    redis::cmd("SET").arg("bar").arg("in the way").exec_async(&mut at_target).await.unwrap();
    let before = contents(&mut connection).await;

    target.set(&[coming(&source, 0, HALF)]);
    source.set(&[leaving(&target, 0, HALF), stable(HALF + 1, LAST)]);
    source.released(range(0, HALF)).await;
    let after = contents(&mut at_target).await;
    let (moves, stays): (Vec<_>, Vec<_>) = before
        .into_iter()
        .filter(|(key, _)| !key.starts_with("brief"))
        .partition(|(key, _)| u32::from(Slot::of(key.as_bytes()).number()) <= HALF);
    for (key, value) in &moves {
        assert_eq!(after.get(key), Some(value), "{key}");
    }
    assert!(moves.iter().any(|(key, _)| key == "big") || stays.iter().any(|(key, _)| key == "big"));
    assert_eq!(after.get("bar"), None, "the range was emptied first");
    assert_eq!(after.len(), moves.len() + 1, "nothing but the range and what was outside of it");
    assert!(!after.keys().any(|key| key.starts_with("brief")), "short lives end at the target too");

    target.set(&[stable(0, HALF)]);
    source.set(&[stable(HALF + 1, LAST)]);
    swept(&source, stays.len() as u64).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_notice_nothing() {
    let keys = seed::soak(2_000, 75_000);
    under_load(rand::random(), keys).await;
}

/// Clients work while the lower half moves from source to target; afterwards everything must equal the
/// shadow.
async fn under_load(seed: u64, keys: u32) {
    const CLIENTS: u64 = 4;
    eprintln!("seed {seed}");
    let (mut source, mut target, shadow) = (Host::start().await, Host::start().await, Shadow::start().await);
    let mut authors = Vec::new();
    for client in 0..CLIENTS {
        let mut author = Author::new(format!("c{client}"), keys / 4, seed::rng(seed ^ client));
        let ops = author.first_ops();
        fill(&mut source.connection().await, &ops).await;
        fill(&mut shadow.connection().await, &ops).await;
        authors.push(author);
    }
    target.set(&[coming(&source, 0, HALF)]);
    let gate = source.set(&[leaving(&target, 0, HALF), stable(HALF + 1, LAST)]).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for mut author in authors {
        let mut front = GatedFront {
            gate: gate.clone(),
            source: source.connection().await,
            target: target.connection().await,
        };
        let (mut shadow, stop) = (shadow.connection().await, stop.clone());
        clients.spawn(async move {
            work(&mut author, &mut front, &mut shadow, |done| done < 300 || !stop.load(Ordering::Relaxed))
                .await
        });
    }
    source.released(range(0, HALF)).await;
    assert_eq!(gate.phase(), Phase::Released);
    target.set(&[stable(0, HALF)]);
    source.set(&[stable(HALF + 1, LAST)]);
    stop.store(true, Ordering::Relaxed);
    let mut all = Seen::default();
    while let Some(seen) = clients.join_next().await {
        let seen = seen.unwrap();
        all.latencies.extend(seen.latencies);
        all.wrong.extend(seen.wrong);
    }
    assert!(all.wrong.is_empty(), "{:#?}", all.wrong);
    let expected = shadow.contents().await;
    let here = |key: &str| u32::from(Slot::of(key.as_bytes()).number()) > HALF;
    swept(&source, expected.keys().filter(|key| here(key)).count() as u64).await;
    let mut found = contents(&mut source.connection().await).await;
    found.extend(contents(&mut target.connection().await).await);
    for (key, value) in &expected {
        assert_eq!(found.get(key), Some(value), "{key}");
    }
    assert_eq!(found.len(), expected.len(), "no key came back");
    eprintln!("{} commands", all.latencies.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_begins_the_copy_again() {
    let (mut source, mut target) = (Host::start().await, Host::start().await);
    let mut connection = source.connection().await;
    fill(&mut connection, &Author::new("a", 3000, seed::rng(1)).first_ops()).await;
    target.set(&[coming(&source, 0, LAST)]);
    let gate = source.set(&[leaving(&target, 0, LAST)]).unwrap();
    let caught_up = || source.moves.all().iter().all(|(_, seen)| seen.stage == Stage::CatchingUp);
    eventually("it has copied all", SOON, async || if caught_up() { Ok(()) } else { Err("not yet") }).await;
    assert!(size(&target).await > 1000);
    let Admission::Pass(ticket) = gate.admit() else { panic!() };
    redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
    ticket.wrote_anything();
    redis::cmd("SET").arg("k").arg("1").exec_async(&mut connection).await.unwrap();
    gate.note(["k"]);
    source.released(range(0, LAST)).await;
    assert_eq!((size(&target).await, source.moves.all()[0].1.attempts), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_can_be_cancelled_turned_and_survives_its_processes() {
    let (mut source, mut target) = (Host::start().await, Host::start().await);
    let mut other = Host::start().await;
    fill(&mut source.connection().await, &Author::new("a", 7000, seed::rng(1)).first_ops()).await;
    let all = size(&source).await;
    source.moves.set_rate(500);
    target.set(&[coming(&source, 0, LAST)]);
    let gate = source.set(&[leaving(&target, 0, LAST)]).unwrap();
    eventually("some keys have arrived", SOON, async || match size(&target).await {
        0 => Err("none"),
        _ => Ok(()),
    })
    .await;
    assert!(source.release(range(0, LAST)).await.unwrap_err().to_string().starts_with("MIGRATING copying"));

    // Cancelled: commands pass, and the imported keys are removed.
    source.set(&[stable(0, LAST)]);
    assert_eq!(gate.phase(), Phase::Open);
    target.set(&[]);
    swept(&target, 0).await;
    assert_eq!(size(&source).await, all);

    // To another target, whose process dies on the way, and then the source's.
    other.set(&[coming(&source, 0, LAST)]);
    source.set(&[leaving(&other, 0, LAST)]).unwrap();
    let mut other = other.crash().await;
    other.set(&[coming(&source, 0, LAST)]);
    source.moves.set_rate(0);
    let mut source = source.crash().await;
    source.set(&[leaving(&other, 0, LAST)]).unwrap();
    source.released(range(0, LAST)).await;
    assert_eq!(size(&other).await, all);

    // Once released, it stays so over a restart.
    let mut source = source.crash().await;
    let gate = source.set(&[leaving(&other, 0, LAST)]).unwrap();
    assert_eq!(gate.phase(), Phase::Released);
    source.released(range(0, LAST)).await;
    other.set(&[stable(0, LAST)]);
    source.set(&[]);
    assert_eq!(gate.phase(), Phase::Gone);
    swept(&source, 0).await;
    assert_eq!(size(&other).await, all);
}

/// The target got the cancellation and the new record of the move, the source neither: it serves again, and
/// copies everything anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_let_go_for_one_move_is_not_let_go_for_the_next() {
    let (mut source, mut target) = (Host::start().await, Host::start().await);
    fill(&mut source.connection().await, &Author::new("a", 2000, seed::rng(1)).first_ops()).await;
    let all = size(&source).await;
    target.set(&[paired(coming(&source, 0, LAST), 3)]);
    let first = source.set(&[paired(leaving(&target, 0, LAST), 3)]).unwrap();
    source.released(range(0, LAST)).await;
    target.set(&[]);
    swept(&target, 0).await;
    target.set(&[paired(coming(&source, 0, LAST), 5)]);
    let second = source.set(&[paired(leaving(&target, 0, LAST), 5)]).unwrap();
    assert_eq!((first.phase(), second.phase()), (Phase::Open, Phase::Recording));
    source.released(range(0, LAST)).await;
    assert_eq!(size(&target).await, all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_that_loses_its_data_gets_all_of_it_again() {
    let (mut source, mut target) = (Host::start().await, Host::start().await);
    fill(&mut source.connection().await, &Author::new("a", 7000, seed::rng(1)).first_ops()).await;
    let all = size(&source).await;
    target.set(&[coming(&source, 0, LAST)]);
    source.set(&[leaving(&target, 0, LAST)]).unwrap();
    let caught_up = || source.moves.all().iter().all(|(_, seen)| seen.stage == Stage::CatchingUp);
    eventually("it has copied all", SOON, async || if caught_up() { Ok(()) } else { Err("not yet") }).await;
    target.node.kill9().unwrap();
    target.node.restart().await.unwrap();
    source.released(range(0, LAST)).await;
    assert_eq!(size(&target).await, all);
}
