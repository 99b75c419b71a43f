//! Half of the slots moves while processes are killed. Is every acknowledged write there afterwards?
//!
//! Every writer has keys of its own and retries failed commands, which are idempotent. So the expected value
//! of each of its keys is always known, and every read must return it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use capstan_testkit::{eventually, seed};
use rand::RngExt;
use rand::rngs::StdRng;
use redis::Cmd;
use tokio::task::JoinSet;

use super::clients::{Patient, fill};
use super::host::SOON;
use super::stage::{Ground, Seen, Stage};
use super::workload::Op;

const WRITERS: u64 = 3;
const KEYS_OF_A_WRITER: u32 = 60;
/// A target's node that dies after the release loses what it had received; such a run shows nothing and is
/// repeated.
const MOST_REPEATS: usize = 20;

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    SourceProxy,
    TargetProxy,
    TargetNode,
    /// One of three: the others are enough to grant proxies the right to serve.
    Coordinator,
}

impl Victim {
    /// The proxy whose clients may see errors: 0 is the source, 1 the target.
    fn disturbed(self) -> Option<usize> {
        match self {
            Victim::SourceProxy => Some(0),
            Victim::TargetProxy => Some(1),
            // Before the release no client uses it; a coordinator has no clients.
            Victim::TargetNode | Victim::Coordinator => None,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_source_proxy_loses_nothing() {
    survives(Victim::SourceProxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_target_proxy_loses_nothing() {
    survives(Victim::TargetProxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_target_node_loses_nothing_before_the_release() {
    survives(Victim::TargetNode).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_coordinator_is_not_noticed() {
    survives(Victim::Coordinator).await;
}

async fn survives(victim: Victim) {
    let (mut shown, runs) = (0, seed::soak(1, 10));
    for _ in 0..MOST_REPEATS {
        let seed = rand::random();
        eprintln!("seed {seed}");
        shown += usize::from(survives_once(victim, seed).await);
        if shown == runs {
            return;
        }
    }
    panic!("only {shown} of {MOST_REPEATS} runs were killed in time");
}

/// One run; false if the kill came when nothing is promised any more.
async fn survives_once(victim: Victim, seed: u64) -> bool {
    let mut rng = seed::rng(seed);
    let mut stage = Stage::set(Ground::Embedded).await;
    let still: u32 = seed::soak(4_000, 300_000);
    fill(stage.source.address(), &still_ops(still)).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let client = Patient::new(stage.addresses(), victim.disturbed());
        let rng = seed::rng(seed ^ (number + 1));
        let stop = stop.clone();
        writers.spawn(async move { Writer::new(number, client, rng).work(stop).await });
    }
    stage.begin().await;
    let in_time = strike(&mut stage, victim, still, &mut rng).await;
    if !in_time {
        return false;
    }
    stage.moved().await;
    stop.store(true, Ordering::Relaxed);
    let mut expected = BTreeMap::new();
    while let Some(written) = writers.join_next().await {
        expected.extend(written.unwrap());
    }
    for number in 0..still {
        expected.insert(format!("still:{number}"), Some(number.to_string()));
    }
    compare(&stage, expected).await;
    true
}

/// Kills at a random instant: after a random part of the copy, or after a random time of the handover.
async fn strike(stage: &mut Stage, victim: Victim, keys: u32, rng: &mut StdRng) -> bool {
    // Sometimes before the first key, mostly in the middle.
    let enough = if rng.random_bool(0.2) { 0 } else { rng.random_range(0..u64::from(keys)) };
    eventually("the copy is under way", SOON, async || match stage.progress() {
        Some(Seen { stage, scanned }) => match stage.as_str() {
            "starting" | "copying" | "failed" if scanned < enough => Err(format!("{stage} {scanned}")),
            _ => Ok(()),
        },
        None => Err("not begun".to_owned()),
    })
    .await;
    if victim != Victim::TargetNode {
        let patience = Duration::from_millis(rng.random_range(0..300));
        // tidy: allow, because the kill comes at a random instant
        tokio::time::sleep(patience).await;
    }
    let before = stage.progress();
    match victim {
        Victim::SourceProxy => stage.source.crash().await,
        Victim::TargetProxy => stage.target.crash().await,
        Victim::TargetNode => stage.kill_target_node().await,
        Victim::Coordinator => {
            let one = rng.random_range(0..stage.coordinators.len());
            stage.coordinators[one].crash().await;
        }
    }
    let after = stage.progress();
    eprintln!("{victim:?} killed: {before:?}, then {after:?}");
    // In the stage "holding" the source checks the target's node once more, and then records the release: whether
    // the node died before or after that check cannot be seen from here.
    let may_be_released =
        |seen: &Option<Seen>| seen.as_ref().is_none_or(|seen| matches!(&*seen.stage, "holding" | "released"));
    victim != Victim::TargetNode || !may_be_released(&after)
}

fn still_ops(keys: u32) -> Vec<Op> {
    let set = |number: u32| {
        let mut cmd = redis::cmd("SET");
        cmd.arg(format!("still:{number}")).arg(number);
        Op { cmd, keys: vec![], writes: true }
    };
    (0..keys).map(set).collect()
}

/// Everything is where it belongs, and nothing else is.
async fn compare(stage: &Stage, expected: BTreeMap<String, Option<String>>) {
    let mut found = stage.holdings().await;
    for (key, value) in expected {
        let is = found.remove(&key);
        match value {
            None => assert_eq!(is, None, "{key} came back"),
            Some(value) => assert!(
                is.as_ref().is_some_and(|is| is.contains(&format!("\"{value}\""))),
                "{key}: {is:?} instead of {value}"
            ),
        }
    }
    assert!(found.is_empty(), "keys that were not written: {found:?}");
}

/// One writer and the expected values of its keys.
struct Writer {
    number: u64,
    client: Patient,
    rng: StdRng,
    holds: BTreeMap<String, Option<String>>,
}

impl Writer {
    fn new(number: u64, client: Patient, rng: StdRng) -> Writer {
        Writer { number, client, rng, holds: BTreeMap::new() }
    }

    async fn work(mut self, stop: Arc<AtomicBool>) -> BTreeMap<String, Option<String>> {
        let mut turn: u64 = 0;
        while !stop.load(Ordering::Relaxed) {
            turn += 1;
            let key = format!("w{}:{}", self.number, self.rng.random_range(0..KEYS_OF_A_WRITER));
            match self.rng.random_range(0..10) {
                0..3 => self.set(redis::cmd("SET").arg(&key).arg(turn), &key, Some(turn)).await,
                3 => self.set(redis::cmd("DEL").arg(&key), &key, None).await,
                4 => self.set(redis::cmd("PEXPIREAT").arg(&key).arg(1), &key, None).await,
                5 => self.script(&key, turn).await,
                6 => self.transact(&key, turn).await,
                _ => self.read(&key).await,
            }
        }
        self.holds
    }

    async fn set(&mut self, cmd: &Cmd, key: &str, value: Option<u64>) {
        let _: redis::Value = self.client.query(cmd).await;
        self.holds.insert(key.to_owned(), value.map(|value| value.to_string()));
    }

    async fn script(&mut self, key: &str, turn: u64) {
        let mut cmd = redis::cmd("EVAL");
        cmd.arg("return redis.call('SET', KEYS[1], ARGV[1])").arg(1).arg(key).arg(turn);
        self.set(&cmd, key, Some(turn)).await;
    }

    /// Two keys of one slot at once.
    async fn transact(&mut self, key: &str, turn: u64) {
        let keys = [1, 2].map(|of| format!("{{{key}}}:{of}"));
        let mut pipe = redis::pipe();
        // Not as `atomic`, which hides the reply of EXEC itself.
        pipe.cmd("MULTI").cmd("SET").arg(&keys[0]).arg(turn).cmd("SET").arg(&keys[1]).arg(turn).cmd("EXEC");
        let _: redis::Value = self.client.send(&pipe).await;
        for key in keys {
            self.holds.insert(key, Some(turn.to_string()));
        }
    }

    async fn read(&mut self, key: &str) {
        let began = Instant::now();
        let is: Option<String> = self.client.query(redis::cmd("GET").arg(key)).await;
        let expected = self.holds.get(key).cloned().flatten();
        assert_eq!(is, expected, "{key}, asked {:?} ago", began.elapsed());
    }
}
