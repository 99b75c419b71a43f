//! Does the embedded store survive what disks do? Restarts, torn tails, flipped bits, foreign and locked directories.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::embedded::{Embedded, OpenError, Options, RestoreError, restore};
use capstan_meta::{
    Backend, Compare, Delete, KeyRange, LeaseId, MetaError, Put, Range, RangeResult, Revision, SortOrder,
    SortTarget, Txn, Watch, WatchMessage, WatchStream,
};
use capstan_testkit::{TempDir, seed};
use rand::RngExt;
use rand::rngs::StdRng;

/// No history is dropped unless a test asks for it.
fn options() -> Options {
    Options { history: 0, seed: Some(7), ..Options::default() }
}

async fn open(dir: &Path) -> Embedded {
    Embedded::open(dir, options()).await.unwrap_or_else(|error| panic!("cannot open: {error}"))
}

async fn everything(store: &Embedded, at: Revision) -> Result<RangeResult, MetaError> {
    store.range(Range::of(KeyRange::all()).at(at)).await
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// One random write, the same on any store in the same state.
async fn random_write(store: &Embedded, rng: &mut StdRng, leases: &[LeaseId]) {
    let key = format!("k{}", rng.random_range(0..12));
    let value = format!("v{}", rng.random::<u32>());
    let lease = if rng.random_bool(0.2) { leases[rng.random_range(0..leases.len())] } else { LeaseId::NONE };
    let outcome = match rng.random_range(0..10) {
        0..5 => store.put(Put::new(key, value).lease(lease)).await.map(drop),
        5..7 => store.delete(Delete::one(key)).await.map(drop),
        7 => store.delete(Delete { keys: KeyRange::span("k1", "k3"), prev_kv: false }).await.map(drop),
        _ => {
            let txn = Txn::new()
                .when(Compare::present(key.clone()))
                .then(Put::new(format!("{key}/a"), value.clone()))
                .then(Delete::one(key.clone()))
                .otherwise(Put::new(key, value));
            store.commit(txn).await.map(drop)
        }
    };
    match outcome {
        Ok(()) | Err(MetaError::LeaseNotFound) => {}
        Err(error) => panic!("unexpected: {error}"),
    }
}

/// A durable store that is reopened again and again answers as one in memory that never stopped.
#[test]
fn a_reopened_store_is_the_same_store() {
    seed::seeds(seed::soak(12, 400), |seed| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let dir = TempDir::new("reopen").unwrap();
            let mut durable = open(dir.path()).await;
            let memory = Embedded::in_memory(options());
            let leases = [LeaseId(11), LeaseId(12), LeaseId(13)];
            for store in [&durable, &memory] {
                for lease in leases {
                    store.lease_grant(Duration::from_secs(3600), lease).await.unwrap();
                }
            }
            let mut rng = seed::rng(seed);
            for _ in 0..60 {
                let op = rng.random::<u64>();
                for store in [&durable, &memory] {
                    random_write(store, &mut seed::rng(op), &leases).await;
                }
                same_fate(&durable, &memory, &mut rng).await;
                if rng.random_bool(0.15) {
                    durable.close().await.unwrap();
                    durable = open(dir.path()).await;
                }
                let head = memory.status().await.unwrap().revision;
                let at = Revision(rng.random_range(1..=head.0));
                assert_eq!(
                    everything(&durable, at).await,
                    everything(&memory, at).await,
                    "at revision {at} of {head}"
                );
            }
            same_history(&durable, &memory).await;
        });
    });
}

/// Rare things: a lease ends, history is compacted.
async fn same_fate(durable: &Embedded, memory: &Embedded, rng: &mut StdRng) {
    let head = memory.status().await.unwrap().revision;
    if rng.random_bool(0.03) {
        let lease = LeaseId(rng.random_range(11..14));
        assert_eq!(durable.lease_revoke(lease).await, memory.lease_revoke(lease).await);
    }
    if rng.random_bool(0.08) {
        let at = Revision(rng.random_range(1..=head.0));
        assert_eq!(durable.compact(at).await, memory.compact(at).await);
    }
}

/// What a watch from the compacted revision on replays is the same too, former versions included.
async fn same_history(durable: &Embedded, memory: &Embedded) {
    let status = memory.status().await.unwrap();
    let from = Revision(status.compacted.0.max(1));
    let (mut logs, mut ends) = (Vec::new(), Vec::new());
    for store in [durable, memory] {
        let mut watch =
            store.watch(Watch { prev_kv: true, ..Watch::from(KeyRange::all(), from) }).await.unwrap();
        watch.request_progress().await.unwrap();
        let mut events = Vec::new();
        loop {
            match watch.next().await.unwrap() {
                WatchMessage::Events { events: some, .. } => {
                    events.extend(some.iter().map(|event| event.kv.clone()))
                }
                WatchMessage::Progress(revision) => break ends.push(revision),
            }
        }
        logs.push(events);
    }
    assert_eq!(logs[0], logs[1]);
    assert_eq!(ends, [status.revision, status.revision]);
}

/// A store with some sequential writes, copied while it is open: what a crash leaves behind.
async fn crashed(dir: &TempDir, writes: usize) -> Vec<RangeResult> {
    let live = dir.join("live");
    let store = open(&live).await;
    let mut states = Vec::new();
    for n in 0..writes {
        let value = vec![u8::try_from(n % 251).unwrap(); 300];
        store.put(Put::new(format!("k{:03}", n % 17), value)).await.unwrap();
        states.push(everything(&store, Revision::ZERO).await.unwrap());
    }
    copy_dir(&live, &dir.join("crashed"));
    store.close().await.unwrap();
    states
}

/// Whatever opens must be a state that was acknowledged; says how many of the last writes are missing.
async fn missing_writes(dir: &Path, states: &[RangeResult]) -> Result<usize, OpenError> {
    let store = Embedded::open(dir, options()).await?;
    let found = everything(&store, Revision::ZERO).await.unwrap();
    store.close().await.unwrap();
    let place = states.iter().position(|state| *state == found);
    let written = place.map_or(0, |place| place + 1);
    assert!(written > 0 || found.count == 0, "a state that never was, at revision {}", found.revision);
    Ok(states.len() - written)
}

#[tokio::test]
async fn a_torn_tail_costs_only_what_was_torn() {
    let dir = TempDir::new("torn").unwrap();
    let states = crashed(&dir, 30).await;
    let wal = std::fs::read(dir.join("crashed/meta.db-wal")).unwrap();
    let mut rng = seed::rng(1);
    let mut before = 0;
    let mut cuts: Vec<usize> = (0..40).map(|_| rng.random_range(32..wal.len())).collect();
    cuts.push(wal.len());
    cuts.sort_unstable_by(|a, b| b.cmp(a));
    for (n, cut) in cuts.into_iter().enumerate() {
        let copy = dir.join(format!("cut{n}"));
        copy_dir(&dir.join("crashed"), &copy);
        std::fs::write(copy.join("meta.db-wal"), &wal[..cut]).unwrap();
        let missing = match missing_writes(&copy, &states).await {
            Ok(missing) => missing,
            // The cut took the tables themselves: nothing was ever acknowledged from there.
            Err(OpenError::Corrupt { .. }) => states.len(),
            Err(error) => panic!("cut at {cut}: {error}"),
        };
        assert!(n > 0 || missing == 0, "nothing was cut, but {missing} writes are missing");
        assert!(missing >= before, "a shorter log has more writes");
        before = missing;
    }
}

#[tokio::test]
async fn a_flipped_bit_is_found_or_harmless() {
    let dir = TempDir::new("flip").unwrap();
    let states = crashed(&dir, 30).await;
    let mut rng = seed::rng(2);
    let mut found = 0;
    for n in 0..120 {
        let copy = dir.join(format!("flip{n}"));
        copy_dir(&dir.join("crashed"), &copy);
        let file = copy.join(if rng.random_bool(0.7) { "meta.db-wal" } else { "meta.db" });
        let mut bytes = std::fs::read(&file).unwrap();
        if bytes.is_empty() {
            continue;
        }
        let at = rng.random_range(0..bytes.len());
        bytes[at] ^= 1 << rng.random_range(0..8);
        std::fs::write(&file, bytes).unwrap();
        match missing_writes(&copy, &states).await {
            // A flip in the last write looks like a torn one, and is reported as that.
            Ok(missing) => {
                assert!(missing <= 1, "flip at {at} of {}: {missing} writes are missing", file.display())
            }
            Err(OpenError::Corrupt { .. } | OpenError::Unusable { .. }) => found += 1,
            Err(error) => panic!("flip at {at}: {error}"),
        }
        std::fs::remove_dir_all(&copy).unwrap();
    }
    assert!(found > 50, "only {found} of 120 flips were found");
}

/// The same after a clean stop, when everything is in the database and the base.
#[tokio::test]
async fn a_flipped_bit_in_the_base_is_found() {
    let dir = TempDir::new("flip-base").unwrap();
    let store = open(&dir.join("live")).await;
    for n in 0..200 {
        store.put(Put::new(format!("k{n:03}"), vec![7; 300])).await.unwrap();
    }
    store.compact(Revision(150)).await.unwrap();
    let expected = everything(&store, Revision::ZERO).await.unwrap();
    store.close().await.unwrap();
    let mut rng = seed::rng(3);
    let mut found = 0;
    for _ in 0..80 {
        let copy = dir.join("copy");
        copy_dir(&dir.join("live"), &copy);
        let mut bytes = std::fs::read(copy.join("meta.db")).unwrap();
        let at = rng.random_range(0..bytes.len());
        bytes[at] ^= 1 << rng.random_range(0..8);
        std::fs::write(copy.join("meta.db"), bytes).unwrap();
        match Embedded::open(&copy, options()).await {
            Ok(store) => {
                assert_eq!(everything(&store, Revision::ZERO).await.unwrap(), expected, "flip at {at}");
                store.close().await.unwrap();
            }
            Err(OpenError::Corrupt { .. } | OpenError::Unusable { .. } | OpenError::Newer { .. }) => {
                found += 1
            }
            Err(error) => panic!("flip at {at}: {error}"),
        }
        std::fs::remove_dir_all(&copy).unwrap();
    }
    assert!(found > 20, "only {found} of 80 flips were found");
}

#[tokio::test]
async fn a_directory_belongs_to_one_process() {
    let dir = TempDir::new("locked").unwrap();
    let store = open(dir.path()).await;
    let second = Embedded::open(dir.path(), options()).await;
    assert!(matches!(second.err(), Some(OpenError::Locked(_))));
    store.put(Put::new("still", "works")).await.unwrap();
    store.close().await.unwrap();
    open(dir.path()).await.close().await.unwrap();
}

#[tokio::test]
async fn data_of_a_newer_version_is_left_alone() {
    let dir = TempDir::new("newer").unwrap();
    open(dir.path()).await.close().await.unwrap();
    let file = dir.join("meta.db");
    let mut bytes = std::fs::read(&file).unwrap();
    // SQLite keeps the format's number at byte 60 of its header, big-endian.
    bytes[63] = 99;
    std::fs::write(&file, &bytes).unwrap();
    let error = Embedded::open(dir.path(), options()).await.err().unwrap();
    assert!(matches!(error, OpenError::Newer { found: 99, .. }), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), bytes, "it was changed");
}

#[tokio::test]
async fn a_foreign_file_is_not_a_store() {
    let dir = TempDir::new("foreign").unwrap();
    std::fs::write(
        dir.join("meta.db"),
        "this is somebody's letter, long enough to be read as a header of something ".repeat(20),
    )
    .unwrap();
    let error = Embedded::open(dir.path(), options()).await.err().unwrap();
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
}

async fn saved(store: &Embedded) -> Vec<u8> {
    let mut frames = store.snapshot().await.unwrap();
    let mut bytes = Vec::new();
    while let Some(frame) = frames.recv().await {
        bytes.extend_from_slice(&frame.unwrap());
    }
    bytes
}

#[tokio::test]
async fn a_snapshot_is_the_store_without_its_history() {
    let dir = TempDir::new("snapshot").unwrap();
    let store = open(&dir.join("first")).await;
    store.lease_grant(Duration::from_secs(600), LeaseId(5)).await.unwrap();
    for n in 0..3000 {
        let lease = if n % 1000 == 0 { LeaseId(5) } else { LeaseId::NONE };
        let put = Put::new(format!("k{:04}", n % 2500), format!("v{n}")).lease(lease);
        if n % 100 == 0 {
            store.put(put).await.unwrap()
        } else {
            store.commit(Txn::new().then(put)).await.map(|_| Default::default()).unwrap()
        };
    }
    let snapshot = saved(&store).await;
    let expected = everything(&store, Revision::ZERO).await.unwrap();
    let target = dir.join("second");
    let revision = restore(&snapshot[..], &target).unwrap();
    assert_eq!(revision, expected.revision);
    let restored = open(&target).await;
    assert_eq!(everything(&restored, Revision::ZERO).await.unwrap(), expected);
    let lease = restored.lease_info(LeaseId(5)).await.unwrap().unwrap();
    assert_eq!(lease.keys, store.lease_info(LeaseId(5)).await.unwrap().unwrap().keys);
    let old = Range::one("k0001").at(Revision(revision.0 - 1));
    assert!(matches!(restored.range(old).await, Err(MetaError::Compacted { .. })));
    assert_eq!(restored.put(Put::new("next", "")).await.unwrap().revision, revision.next());
    assert!(matches!(restore(&snapshot[..], &target), Err(RestoreError::NotEmpty(_))));
}

#[tokio::test]
async fn a_damaged_snapshot_restores_nothing() {
    let store = Embedded::in_memory(options());
    store.put(Put::new("key", "value")).await.unwrap();
    let snapshot = saved(&store).await;
    let dir = TempDir::new("bad-snapshot").unwrap();
    for at in 0..snapshot.len() {
        let mut flipped = snapshot.clone();
        flipped[at] ^= 0x10;
        let outcome = restore(&flipped[..], &dir.join("data"));
        assert!(matches!(outcome, Err(RestoreError::Damaged(_))), "byte {at}: {outcome:?}");
        let outcome = restore(&snapshot[..at], &dir.join("data"));
        assert!(matches!(outcome, Err(RestoreError::Damaged(_))), "cut at {at}: {outcome:?}");
    }
    assert!(!dir.join("data").exists());
}

#[tokio::test]
async fn history_is_dropped_by_itself_and_folded_on_disk() {
    let dir = TempDir::new("fold").unwrap();
    let keep = Options { history: 100, ..options() };
    let store = Embedded::open(dir.path(), keep.clone()).await.unwrap();
    for n in 0..2000 {
        store.put(Put::new(format!("k{:02}", n % 50), format!("v{n}"))).await.unwrap();
    }
    let compacted = capstan_testkit::eventually("old history is gone", Duration::from_secs(20), || async {
        let status = store.status().await.unwrap();
        if status.compacted.0 > 1800 {
            Ok(status.compacted)
        } else {
            Err(format!("compacted at {}", status.compacted))
        }
    })
    .await;
    let before = everything(&store, Revision::ZERO).await.unwrap();
    assert!(matches!(everything(&store, Revision(compacted.0 - 1)).await, Err(MetaError::Compacted { .. })));
    let newest = Range::of(KeyRange::all()).sorted(SortTarget::ModRevision, SortOrder::Descend).limit(1);
    assert_eq!(store.range(newest).await.unwrap().kvs[0].value, Bytes::from("v1999"));
    store.close().await.unwrap();
    let store = Embedded::open(dir.path(), keep).await.unwrap();
    assert_eq!(everything(&store, Revision::ZERO).await.unwrap(), before);
    assert!(everything(&store, compacted).await.is_ok());
    store.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_renews_takes_its_keys_along() {
    let store = Embedded::in_memory(options());
    let lease = store.lease_grant(Duration::from_secs(10), LeaseId::NONE).await.unwrap();
    store.put(Put::new("a", "1").lease(lease.id)).await.unwrap();
    store.put(Put::new("b", "2").lease(lease.id)).await.unwrap();
    let mut watch: Box<dyn WatchStream> =
        store.watch(Watch::from(KeyRange::all(), Revision::ZERO)).await.unwrap();
    tokio::time::advance(Duration::from_secs(8)).await;
    assert_eq!(store.lease_keep_alive(lease.id).await.unwrap(), lease.ttl);
    tokio::time::advance(Duration::from_secs(9)).await;
    assert_eq!(everything(&store, Revision::ZERO).await.unwrap().count, 2);
    let WatchMessage::Events { events, .. } = watch.next().await.unwrap() else { panic!("no events") };
    assert_eq!(events.len(), 2, "both deletions in one revision");
    assert_eq!(store.lease_keep_alive(lease.id).await, Err(MetaError::LeaseNotFound));
}
