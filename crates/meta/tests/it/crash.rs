//! Does an acknowledged write survive kill -9? The embedded store in a process of its own, killed at random instants
//! under 64 writers; every operation is recorded and the whole history is judged at the end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::{
    Backend, Compare, Delete, KeyRange, MetaError, Put, Range, Revision, Txn, Watch, WatchMessage,
    WatchStream, wire,
};
use capstan_testkit::crash::CrashLoop;
use capstan_testkit::history::{self, Call, Change, Event, Guard, Outcome, Recorder, Seen};
use capstan_testkit::{Port, Ready, TempDir, process, seed};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::task::JoinSet;

const WRITERS: usize = 64;
/// Connections that the writers share.
const CLIENTS: usize = 8;
/// Watchers that must all see the same.
const WATCHERS: usize = 3;
const KEYS: u32 = 40;

type Recording = Recorder<String, u64>;

/// The child's role: serve the store in the given directory on the given port until killed.
#[test]
fn server() {
    let Some(arguments) = process::child_arguments("crash::server") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let options = Options { history: 0, ..Options::default() };
        let store = Embedded::open(Path::new(&arguments[0]), options).await.unwrap();
        let listener = tokio::net::TcpListener::bind(&arguments[1]).await.unwrap();
        process::report_ready(&arguments[1]);
        wire::serve(listener, Arc::new(store), wire::Options::default(), std::future::pending())
            .await
            .unwrap();
    });
}

#[test]
fn what_is_acknowledged_survives_kill9_and_histories_are_linearizable() {
    let rounds = seed::soak(30, 300);
    seed::seeds(1, |seed| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(crash_rounds(rounds, seed));
    });
}

async fn crash_rounds(rounds: usize, seed: u64) {
    let dir = TempDir::new("crash").unwrap();
    let port = Port::reserve().unwrap();
    let ready = dir.join("ready");
    let arguments = [dir.join("data").display().to_string(), port.addr().to_string()];
    let child = process::child_test("crash::server", &ready, arguments).unwrap();
    let mut server = child.spawn(dir.join("server.log")).unwrap();
    let ready = Ready::File(ready);
    server.ready(&ready, Duration::from_secs(30)).await.unwrap();

    let endpoint = format!("http://{}", port.addr());
    let recording = Arc::new(Recording::new());
    let stop = Arc::new(AtomicBool::new(false));
    let mut watchers = JoinSet::new();
    for _ in 0..WATCHERS {
        let store = Etcd::connect(EtcdOptions::new([endpoint.clone()])).await.unwrap();
        let watch = store.watch(Watch::from(KeyRange::all(), Revision::FIRST)).await.unwrap();
        watchers.spawn(follow(watch));
    }
    let writers = start_writers(&endpoint, &recording, &stop, seed).await;

    let mut crashes = CrashLoop {
        process: &mut server,
        ready,
        restart_deadline: Duration::from_secs(30),
        lifetime: Duration::from_millis(50)..Duration::from_millis(500),
        seed,
    };
    crashes.run(rounds, async |_| Ok(())).await.unwrap();

    stop.store(true, Ordering::Relaxed);
    writers.join_all().await;
    let store = Etcd::connect(EtcdOptions::new([endpoint])).await.unwrap();
    // The writers have stopped: this last write tells the watchers where the end is.
    store.put(Put::new("end", "0")).await.unwrap();
    let logs = watchers.join_all().await;
    let checked = history::assert_linearizable(&recording.operations(), &logs[0]);
    for log in &logs[1..] {
        history::check_resumed(&logs[0], 0, log).unwrap_or_else(|violation| panic!("{violation}"));
    }
    eprintln!("{rounds} kills: {checked:?}");
    assert!(checked.revisions > rounds * 10, "hardly anything was written: {checked:?}");
}

async fn start_writers(
    endpoint: &str,
    recording: &Arc<Recording>,
    stop: &Arc<AtomicBool>,
    seed: u64,
) -> JoinSet<()> {
    let values = Arc::new(AtomicU64::new(1));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Arc::new(Etcd::connect(EtcdOptions::new([endpoint])).await.unwrap()));
    }
    let mut writers = JoinSet::new();
    for n in 0..WRITERS {
        let (client, recording) = (clients[n % CLIENTS].clone(), recording.clone());
        let (stop, values) = (stop.clone(), values.clone());
        let mut rng = seed::rng(seed ^ n as u64);
        writers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let call = random_call(&mut rng, &values);
                let outcome = recording.record(call.clone(), perform(&client, call)).await;
                if matches!(outcome, Outcome::Failed | Outcome::Unknown) {
                    // tidy: allow, because the server is down, and refusals should not fill the history
                    tokio::time::sleep(Duration::from_millis(rng.random_range(1..20))).await;
                }
            }
        });
    }
    writers
}

fn random_call(rng: &mut StdRng, values: &AtomicU64) -> Call<String, u64> {
    let mut key = || format!("k{:02}", rng.random_range(0..KEYS));
    let (first, second) = (key(), key());
    let value = || values.fetch_add(1, Ordering::Relaxed);
    let commit = |guards, changes| Call::Commit { guards, changes };
    match rng.random_range(0..10) {
        0..4 => commit(vec![], vec![Change::Put(first, value())]),
        4 => commit(vec![], vec![Change::Delete(first)]),
        5 if first != second => commit(
            vec![Guard::Modified(first.clone(), 0)],
            vec![Change::Put(first, value()), Change::Put(second, value())],
        ),
        6 if first != second => commit(vec![], vec![Change::Put(first, value()), Change::Delete(second)]),
        7 => Call::Range("k".into().."l".into()),
        _ => Call::Get(first),
    }
}

async fn perform(store: &Etcd, call: Call<String, u64>) -> Outcome<String, u64> {
    let outcome = match call {
        Call::Get(key) => read(store, Range::one(key)).await,
        Call::Range(keys) => read(store, Range::of(KeyRange::span(keys.start, keys.end))).await,
        Call::Commit { guards, changes } => commit(store, guards, changes).await,
    };
    outcome.unwrap_or_else(|error| match error {
        MetaError::Unavailable(_) | MetaError::Stopped => Outcome::Failed,
        MetaError::Unknown(_) => Outcome::Unknown,
        error => panic!("unexpected: {error:?}"),
    })
}

async fn read(store: &Etcd, range: Range) -> Result<Outcome<String, u64>, MetaError> {
    let found = store.range(range).await?;
    let entries = found.kvs.iter().map(|kv| {
        (kv.key_text().into_owned(), Seen { value: number(&kv.value), modified: kv.mod_revision.0 as u64 })
    });
    Ok(Outcome::Found { revision: found.revision.0 as u64, entries: entries.collect() })
}

async fn commit(
    store: &Etcd,
    guards: Vec<Guard<String, u64>>,
    changes: Vec<Change<String, u64>>,
) -> Result<Outcome<String, u64>, MetaError> {
    let mut txn = Txn::new();
    for guard in guards {
        txn = txn.when(match guard {
            Guard::Value(key, value) => Compare::value(key, value.to_string()),
            Guard::Modified(key, revision) => Compare::mod_revision(key, Revision(revision as i64)),
        });
    }
    let puts = changes.iter().any(|change| matches!(change, Change::Put(..)));
    for change in changes {
        txn = match change {
            Change::Put(key, value) => txn.then(Put::new(key, value.to_string())),
            Change::Delete(key) => txn.then(Delete::one(key)),
        };
    }
    let result = store.commit(txn).await?;
    let revision = result.revision.0 as u64;
    let deleted = result.responses.iter().any(|response| match response {
        capstan_meta::OpResult::Delete(delete) => delete.deleted > 0,
        _ => false,
    });
    Ok(match (result.succeeded, puts || deleted) {
        (true, true) => Outcome::Committed { revision },
        (true, false) => Outcome::Unchanged { revision },
        (false, _) => Outcome::Refused { revision },
    })
}

/// Reads a watch of everything from the beginning, through every crash, until the key `end` appears.
async fn follow(mut watch: Box<dyn WatchStream>) -> Vec<Event<String, u64>> {
    let mut log = Vec::new();
    loop {
        let WatchMessage::Events { events, .. } = watch.next().await.unwrap() else { continue };
        for event in events.iter() {
            let key = event.kv.key_text().into_owned();
            if key == "end" {
                return log;
            }
            let change = if event.kv.is_tombstone() {
                Change::Delete(key)
            } else {
                Change::Put(key, number(&event.kv.value))
            };
            log.push(Event { revision: event.kv.mod_revision.0 as u64, change });
        }
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).unwrap().parse().unwrap()
}
