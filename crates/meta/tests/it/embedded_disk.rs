//! Does the embedded store survive what disks do? Restarts, torn tails, flipped bits, foreign and locked directories.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use capstan_meta::embedded::{Embedded, OpenError, Options, RESTORE_RAISE, RestoreError, restore};
use capstan_meta::{
    Backend, Compare, Delete, KeyRange, KeyValue, LeaseId, MetaError, Put, Range, RangeResult, Revision,
    SortOrder, SortTarget, Txn, Watch, WatchMessage, WatchStream,
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
    let file = dir.join("base-000000000001");
    let newer = base_of_format(99);
    std::fs::write(&file, &newer).unwrap();
    let error = Embedded::open(dir.path(), options()).await.err().unwrap();
    assert!(matches!(error, OpenError::Newer { found: 99, known: 3, .. }), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), newer, "it was changed");
}

/// The head of a base, as a later version might write it.
fn base_of_format(format: u32) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        digest.update(&0u32.to_le_bytes());
        digest.update(bytes);
        (digest.finalize() as u32).to_le_bytes()
    };
    let payload = [&format.to_le_bytes()[..], b"whatever comes then"].concat();
    let mut head = b"CMF1".to_vec();
    for number in [1u32.to_le_bytes(), (payload.len() as u32).to_le_bytes(), sum(&payload)] {
        head.extend(number);
    }
    head.extend([0; 12]);
    head.extend(sum(&head.clone()));
    head.extend(payload);
    head.resize(512, 0);
    head
}

#[tokio::test]
async fn a_foreign_file_is_not_a_store() {
    let text = "this is a letter, long enough to be read as a header of something ".repeat(20);
    for name in ["meta.db", "base-000000000001", "log-000000000001"] {
        let dir = TempDir::new("foreign").unwrap();
        std::fs::write(dir.join(name), &text).unwrap();
        let error = Embedded::open(dir.path(), options()).await.err().unwrap();
        assert!(matches!(error, OpenError::Corrupt { .. }), "{name}: {error}");
        assert_eq!(std::fs::read_to_string(dir.join(name)).unwrap(), text, "it was changed");
    }
}

#[tokio::test]
async fn a_restore_leaves_a_directory_with_foreign_files_alone() {
    let snapshot = {
        let store = Embedded::in_memory(options());
        store.put(Put::new("a", "1")).await.unwrap();
        saved(&store).await
    };
    for name in ["letter", "meta.db", "meta.db.imported", "member"] {
        let dir = TempDir::new("foreign").unwrap();
        std::fs::write(dir.join(name), "dear store").unwrap();
        let refused = restore(&snapshot[..], dir.path());
        assert!(matches!(refused, Err(RestoreError::Open(OpenError::NotEmpty(_)))), "{name}: {refused:?}");
        assert_eq!(std::fs::read_to_string(dir.join(name)).unwrap(), "dear store");
        std::fs::remove_file(dir.join(name)).unwrap();
        restore(&snapshot[..], dir.path()).unwrap();
        let store = open(dir.path()).await;
        assert_eq!(store.range(Range::one("a")).await.unwrap().kvs[0].value, "1");
        store.close().await.unwrap();
    }
}

#[tokio::test]
async fn only_the_owner_can_read_the_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = TempDir::new("modes").unwrap();
    let data = dir.join("deep/data");
    let store = open(&data).await;
    store.put(Put::new("secret", "1")).await.unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    for entry in std::fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    store.close().await.unwrap();
}

/// A directory that format 1 (SQLite) left, after a clean stop and after a kill, is read and written anew.
#[tokio::test]
async fn a_directory_of_format_1_is_imported() {
    for how in ["closed", "killed"] {
        let dir = TempDir::new("format-1").unwrap();
        copy_dir(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format-1").join(how), dir.path());
        for round in ["import", "afterwards"] {
            let store = open(dir.path()).await;
            let found = everything(&store, Revision::ZERO).await.unwrap();
            let mut text = format!("revision {}\n", found.revision);
            for kv in &found.kvs {
                let (key, value) = (kv.key_text(), String::from_utf8_lossy(&kv.value));
                let KeyValue { create_revision, mod_revision, version, lease, .. } = **kv;
                text += &format!("{key} {value} {create_revision} {mod_revision} {version} {}\n", lease.0);
            }
            let at = everything(&store, Revision(25)).await.unwrap();
            text += &format!("at 25: {} keys\n", at.count);
            assert_eq!(text, include_str!("../data/format-1/expected"), "{how}, {round}");
            assert!(matches!(everything(&store, Revision(19)).await, Err(MetaError::Compacted { .. })));
            assert_eq!(store.leases().await.unwrap(), [LeaseId(11)], "{how}, {round}");
            store.close().await.unwrap();
            assert!(dir.join("meta.db.imported").exists() && !dir.join("meta.db").exists());
        }
    }
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
    assert!(revision.0 >= expected.revision.0 + RESTORE_RAISE, "no revision comes to mean something else");
    let restored = open(&target).await;
    let found = everything(&restored, Revision::ZERO).await.unwrap();
    assert_eq!((found.revision, found.kvs), (revision, expected.kvs));
    let lease = restored.lease_info(LeaseId(5)).await.unwrap().unwrap();
    assert_eq!(lease.keys, store.lease_info(LeaseId(5)).await.unwrap().unwrap().keys);
    let old = Range::one("k0001").at(Revision(revision.0 - 1));
    assert!(matches!(restored.range(old).await, Err(MetaError::Compacted { .. })));
    assert_eq!(restored.put(Put::new("next", "")).await.unwrap().revision, revision.next());
    let again = restore(&snapshot[..], &target);
    assert!(matches!(again, Err(RestoreError::Open(OpenError::Locked(_)))), "{again:?}");
    restored.close().await.unwrap();
    let again = restore(&snapshot[..], &target);
    assert!(matches!(again, Err(RestoreError::Open(OpenError::NotEmpty(_)))), "{again:?}");
}

/// A snapshot that is restored twice makes two stores without a revision in common: clients of the first one see that the
/// second is another.
#[tokio::test]
async fn a_second_restore_goes_on_after_the_first() {
    let dir = TempDir::new("twice").unwrap();
    let store = open(&dir.join("first")).await;
    store.put(Put::new("k", "v")).await.unwrap();
    let snapshot = saved(&store).await;
    restore(&snapshot[..], &dir.join("second")).unwrap();
    let second = open(&dir.join("second")).await;
    let mut last = Revision::ZERO;
    for n in 0..300 {
        last = second.put(Put::new("k", n.to_string())).await.unwrap().revision;
    }
    assert!(restore(&snapshot[..], &dir.join("third")).unwrap() > last);
}

/// S13: what is watched from a revision of the former store is not silently incomplete.
#[tokio::test]
async fn a_watch_from_before_a_restore_is_refused() {
    let dir = TempDir::new("restored-watch").unwrap();
    let store = Embedded::in_memory(options());
    store.put(Put::new("a", "1")).await.unwrap();
    let last = store.put(Put::new("b", "1")).await.unwrap().revision;
    let restored = restore(&saved(&store).await[..], dir.path()).unwrap();
    let copy = open(dir.path()).await;
    for from in [Revision(1), last, last.next(), Revision(restored.0 - 1)] {
        let refused = copy.watch(Watch::from(KeyRange::all(), from)).await.err();
        assert_eq!(refused, Some(MetaError::Compacted { oldest: restored }), "from {from}");
    }
    let mut watch = copy.watch(Watch::from(KeyRange::all(), restored.next())).await.unwrap();
    copy.put(Put::new("c", "1")).await.unwrap();
    let WatchMessage::Events { events, .. } = watch.next().await.unwrap() else { panic!("no events") };
    assert_eq!(events[0].kv.mod_revision, restored.next());
    copy.close().await.unwrap();
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
