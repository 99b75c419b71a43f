//! The edges of the embedded store: quotas, snapshots under load, slow watches, locks and forks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use capstan_meta::embedded::{Embedded, Options, restore};
use capstan_meta::{
    Backend, Delete, KeyRange, LeaseId, MetaError, Put, Range, Revision, Txn, Watch, WatchMessage,
};
use capstan_testkit::{TempDir, seed};
use tokio::task::JoinSet;

fn keep_all() -> Options {
    Options { history: 0, history_bytes: 0, ..Options::default() }
}

async fn saved(store: &Embedded) -> Vec<u8> {
    let mut frames = store.snapshot().await.unwrap();
    let mut bytes = Vec::new();
    while let Some(frame) = frames.recv().await {
        bytes.extend_from_slice(&frame.unwrap());
    }
    bytes
}

/// S4: a snapshot under load has the lease of every key in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_has_the_leases_of_its_keys() {
    let dir = TempDir::new("snapshot-leases").unwrap();
    let store = Embedded::in_memory(keep_all());
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let (store, stop) = (store.clone(), stop.clone());
        writers.spawn(async move {
            let mut before = None;
            while !stop.load(Ordering::Relaxed) {
                let lease = store.lease_grant(Duration::from_secs(60), LeaseId::NONE).await.unwrap();
                store.put(Put::new(format!("s/{writer}"), "x").lease(lease.id)).await.unwrap();
                // As few as possible: a snapshot has them all.
                if let Some(before) = before.replace(lease.id) {
                    store.lease_revoke(before).await.unwrap();
                }
            }
        });
    }
    for round in 0..seed::soak(40, 1000) {
        let to = dir.join(format!("r{round}"));
        restore(&saved(&store).await[..], &to).unwrap();
        let copy = Embedded::open(&to, keep_all()).await.unwrap();
        let leases = copy.leases().await.unwrap();
        let found = copy.range(Range::of(KeyRange::all())).await.unwrap();
        let orphan = found.kvs.iter().find(|kv| !leases.contains(&kv.lease));
        assert!(orphan.is_none(), "round {round}: {orphan:?} has a lease that the snapshot lacks");
        copy.close().await.unwrap();
        std::fs::remove_dir_all(&to).unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    writers.join_all().await;
}

/// Frames of a snapshot are small however large the values are: they bound the memory of a snapshot, and a frame that is
/// larger than a frame may be could not be restored.
#[tokio::test]
async fn frames_of_a_snapshot_are_bounded() {
    let store = Embedded::in_memory(keep_all());
    for n in 0..200 {
        store.put(Put::new(format!("k{n:03}"), vec![n as u8; 50_000])).await.unwrap();
    }
    let mut frames = store.snapshot().await.unwrap();
    let mut bytes = Vec::new();
    while let Some(frame) = frames.recv().await {
        let frame = frame.unwrap();
        assert!(frame.len() < 350_000, "a frame of {} bytes", frame.len());
        bytes.extend_from_slice(&frame);
    }
    let dir = TempDir::new("snapshot-frames").unwrap();
    restore(&bytes[..], &dir.join("data")).unwrap();
    let copy = Embedded::open(&dir.join("data"), keep_all()).await.unwrap();
    let all = || Range::of(KeyRange::all());
    assert_eq!(copy.range(all()).await.unwrap().kvs, store.range(all()).await.unwrap().kvs);
    copy.close().await.unwrap();
}

/// S18: a watch of quiet keys that is too slow once misses nothing, and is not called compacted.
#[tokio::test]
async fn a_slow_watch_of_quiet_keys_goes_on() {
    let store = Embedded::in_memory(keep_all());
    let mut watch = store.watch(Watch::from(KeyRange::prefix("quiet/"), Revision::ZERO)).await.unwrap();
    for n in 0..200 {
        store.put(Put::new("busy", format!("{n}"))).await.unwrap();
    }
    store.compact(store.status().await.unwrap().revision).await.unwrap();
    for n in 0..40 {
        store.put(Put::new("quiet/a", format!("{n}"))).await.unwrap();
    }
    let mut seen = Vec::new();
    while seen.len() < 40 {
        let WatchMessage::Events { events, .. } = watch.next().await.unwrap() else { continue };
        seen.extend(events.iter().map(|event| String::from_utf8_lossy(&event.kv.value).into_owned()));
    }
    assert_eq!(seen, (0..40).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// A long read of the newest revision is never called compacted, whatever is compacted meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_read_is_not_overtaken_by_a_compaction() {
    const KEYS: usize = 20_000;
    let store = Embedded::in_memory(keep_all());
    for n in 0..KEYS / 100 {
        let puts = (0..100).map(|m| Put::new(format!("k{:05}", 100 * n + m), "v"));
        store.commit(puts.fold(Txn::new(), Txn::then)).await.unwrap();
    }
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (store, stop) = (store.clone(), stop.clone());
        let mut writers = JoinSet::new();
        writers.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let at = store.put(Put::new("k00000", "w")).await.unwrap().revision;
                store.compact(at).await.unwrap();
            }
        });
        writers
    };
    for round in 0..seed::soak(50, 2_000) {
        let store = store.clone();
        let mut reader = JoinSet::new();
        reader.spawn(async move { store.range(Range::of(KeyRange::all())).await });
        let found = reader.join_next().await.unwrap().unwrap();
        assert_eq!(found.map(|found| found.count), Ok(KEYS), "round {round}");
    }
    stop.store(true, Ordering::Relaxed);
    writer.join_all().await;
}

/// One that missed something that was compacted is told so.
#[tokio::test]
async fn a_slow_watch_of_busy_keys_is_told_that_it_missed_something() {
    let store = Embedded::in_memory(keep_all());
    let mut watch = store.watch(Watch::from(KeyRange::prefix("busy"), Revision::ZERO)).await.unwrap();
    for n in 0..200 {
        store.put(Put::new("busy", format!("{n}"))).await.unwrap();
    }
    let head = store.status().await.unwrap().revision;
    store.compact(head).await.unwrap();
    assert_eq!(watch.next().await, Err(MetaError::Compacted { oldest: head }));
}

fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// S9: memory is bounded by bytes, however often keys are written, and after a restart too. Nothing that lives is refused
/// for the sake of history, also while bases are written.
#[tokio::test]
async fn history_is_bounded_in_bytes() {
    let (quota, writes) = (seed::soak(32_u64 << 20, 256 << 20), seed::soak(200, 8_000));
    for live in seed::soak([1, 8], [1, 64]) {
        written_over(quota, writes, live).await;
    }
}

/// Writes so many megabytes to so many keys.
async fn written_over(quota: u64, writes: usize, live: usize) {
    let options = Options { quota_bytes: quota, history: 0, ..Options::default() };
    let dir = TempDir::new("bytes").unwrap();
    let store = Embedded::open(dir.path(), options.clone()).await.unwrap();
    let before = memory();
    let key = |n: usize| format!("key {:03}", n % live);
    for n in 0..writes {
        store.put(Put::new(key(n), vec![n as u8; 1_000_000])).await.unwrap();
    }
    let written = memory().saturating_sub(before);
    assert!(written < 4 * quota, "{} MB of memory after {writes} MB of writes", written >> 20);
    assert_eq!(store.status().await.unwrap().revision, Revision(writes as i64 + 1));
    store.close().await.unwrap();
    drop(store);
    let store = Embedded::open(dir.path(), options).await.unwrap();
    let reopened = memory().saturating_sub(before);
    assert!(reopened < 6 * quota, "{} MB of memory after a restart", reopened >> 20);
    eprintln!(
        "{live} keys, quota {} MB: {} MB after {writes} MB of writes, {} MB after a restart",
        quota >> 20,
        written >> 20,
        reopened >> 20
    );
    for n in writes - live..writes {
        let kept = store.range(Range::one(key(n))).await.unwrap();
        assert_eq!((kept.kvs[0].value[0], kept.kvs[0].version), (n as u8, (writes / live) as i64));
    }
    store.close().await.unwrap();
}

/// Over the quota puts are refused with etcd's error and its alarm is raised; deleting goes on, and after the alarm was
/// ended, putting too.
#[tokio::test]
async fn over_its_quota_a_store_raises_the_alarm() {
    let options = Options { quota_bytes: 1 << 20, history: 0, ..Options::default() };
    let store = Embedded::in_memory(options);
    let mut put = 0;
    let refused = loop {
        match store.put(Put::new(format!("k{put}"), vec![0; 50_000])).await {
            Ok(_) => put += 1,
            Err(error) => break error,
        }
        assert!(put < 30, "the quota is not kept");
    };
    assert_eq!(refused, MetaError::NoSpace);
    assert!(store.has_no_space_alarm().await.unwrap());
    assert_eq!(store.range(Range::prefix("k")).await.unwrap().count, put);
    assert_eq!(store.put(Put::new("small", "1")).await, Err(MetaError::NoSpace), "until the alarm is ended");
    store.delete(Delete::prefix("k1")).await.unwrap();
    store.delete(Delete::prefix("k")).await.unwrap();
    store.compact(store.status().await.unwrap().revision).await.unwrap();
    store.set_no_space_alarm(false).await.unwrap();
    store.put(Put::new("small", "1")).await.unwrap();
}

/// S20: a directory can be opened again at once, also while other threads start processes, which inherit everything for
/// an instant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_not_inherited_by_child_processes() {
    let dir = TempDir::new("forks").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    #[allow(clippy::disallowed_methods, reason = "a thread of the test, joined at its end")]
    let forking = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::process::Command::new("true").status().unwrap();
            }
        })
    };
    for round in 0..seed::soak(100, 5_000) {
        let store = Embedded::open(dir.path(), keep_all()).await;
        let store = store.unwrap_or_else(|error| panic!("round {round}: {error}"));
        store.close().await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    forking.join().unwrap();
}
