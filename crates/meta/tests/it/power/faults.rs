//! What does a disk that fails, lies or is full do to the embedded store?

// tidy: the clock is paused in this file

use std::sync::{Arc, Mutex};

use capstan_meta::embedded::{Embedded, OpenError, Options, RestoreError, restore_on};
use capstan_meta::{Backend, KeyRange, LeaseId, MetaError, Put, Range, Revision, Txn, Watch, WatchMessage};
use capstan_testkit::disk::{CallKind, Cut, Fault, SimDisk};
use capstan_testkit::seed;
use futures_util::FutureExt as _;
use rand::RngExt;
use std::time::Duration;

use super::life::{Life, State};
use super::{dir, open, runtime};

/// Some ticks of the store.
async fn ticks() {
    tokio::time::sleep(Duration::from_millis(1700)).await;
}

async fn written(disk: &SimDisk, puts: usize) -> Embedded {
    let store = open(disk).await.unwrap();
    for n in 0..puts {
        store.put(Put::new(format!("k{:03}", n % 17), vec![n as u8 + 1; 300])).await.unwrap();
    }
    store
}

/// At the moment of every sync of the log, what it makes durable has been shown to no reader and no watcher.
#[test]
fn nothing_is_visible_before_it_is_durable() {
    runtime().block_on(async {
        let disk = SimDisk::new();
        let store = open(&disk).await.unwrap();
        let watch = store.watch(Watch::from(KeyRange::all(), Revision(2))).await.unwrap();
        let seen = Arc::new(Mutex::new((watch, Revision(1), 0)));
        let acknowledged = Arc::new(Mutex::new(Revision(1)));
        let (looker, looked, known) = (store.clone(), seen.clone(), acknowledged.clone());
        disk.break_calls(move |call| {
            let known = *known.lock().unwrap();
            if call.kind == CallKind::Sync && call.path.to_string_lossy().contains("log-") {
                let mut looked = looked.lock().unwrap();
                while let Some(Ok(message)) = looked.0.next().now_or_never() {
                    if let WatchMessage::Events { revision, .. } = message {
                        looked.1 = revision;
                    }
                }
                looked.2 += 1;
                assert!(looked.1 <= known, "a watcher saw revision {} before its sync", looked.1);
                let read = looker.range(Range::one("k")).now_or_never().unwrap().unwrap();
                assert!(read.revision <= known, "a reader saw revision {} before its sync", read.revision);
            }
            None
        });
        for n in 0..50 {
            let put = store.put(Put::new("k", format!("{n}"))).await.unwrap();
            *acknowledged.lock().unwrap() = put.revision;
        }
        assert!(seen.lock().unwrap().2 >= 50, "no sync was looked at");
    });
}

/// S5 and the rule behind it: after a failed write or sync the store stops, and what a restart finds in spite of it is on
/// disk before it is served.
#[test]
fn a_disk_that_fails_stops_the_store() {
    runtime().block_on(async {
        for (kind, fault) in
            [(CallKind::Sync, Fault::Io), (CallKind::Write, Fault::Io), (CallKind::Sync, Fault::Full)]
        {
            let disk = SimDisk::new();
            let store = written(&disk, 20).await;
            disk.break_calls(move |call| (call.kind == kind).then_some(fault));
            // Large, so that something of it may be left behind what is written over it; small where the file must not grow
            // for it, because growing meets a full disk before anything is written.
            let bytes = if fault == Fault::Full { 1 } else { 2000 };
            let refused = store.put(Put::new("late", vec![7; bytes])).await;
            assert!(matches!(refused, Err(MetaError::Storage(_))), "{kind:?} {fault:?}: {refused:?}");
            disk.repair();
            let dead = store.range(Range::one("late")).await;
            assert!(
                matches!(dead, Err(MetaError::Storage(_))),
                "{kind:?} {fault:?}: it still answers: {dead:?}"
            );
            assert!(matches!(store.failure(), Some(MetaError::Storage(_))));
            assert!(matches!(store.failed().await, MetaError::Storage(_)), "its process would not end");
            store.close().await.unwrap();
            let after = disk.crash();
            let found = State::of(&open(&after).await.unwrap()).await;
            let rest = after.cut(Cut::Lose, &mut seed::rng(1));
            let again = State::of(&open(&rest).await.unwrap()).await;
            assert_eq!(again, found, "{kind:?} {fault:?}: served, and lost with a power cut");
        }
    });
}

/// Short writes are gone on with.
#[test]
fn short_writes_are_completed() {
    runtime().block_on(async {
        let disk = SimDisk::new();
        disk.break_calls(|call| (call.kind == CallKind::Write).then_some(Fault::Short(100)));
        let store = written(&disk, 10).await;
        let before = State::of(&store).await;
        let after = disk.cut(Cut::Lose, &mut seed::rng(1));
        assert_eq!(State::of(&open(&after).await.unwrap()).await, before);
    });
}

/// S7: a changed bit anywhere is found or harmless; it never takes an acknowledged write away.
#[test]
fn a_changed_bit_is_found_or_harmless() {
    let flips = seed::soak(4_000, 400_000);
    runtime().block_on(async {
        for settled in [false, true] {
            let disk = SimDisk::new();
            let store = written(&disk, 60).await;
            store.compact(Revision(40)).await.unwrap();
            ticks().await;
            store.put(Put::new("last", vec![5; 700])).await.unwrap();
            if settled {
                ticks().await;
            }
            let before = State::of(&store).await;
            let crashed = disk.crash();
            let mut rng = seed::rng(3);
            let (mut found, mut tried) = (0, 0);
            let files: Vec<_> = crashed.files().into_iter().filter(|(_, size)| *size > 0).collect();
            assert!(files.iter().any(|(path, _)| path.to_string_lossy().contains("base-")));
            for _ in 0..flips / 2 {
                let copy = crashed.copy();
                let (path, size) = &files[rng.random_range(0..files.len())];
                let bit = rng.random_range(0..size * 8);
                assert!(copy.flip(path, bit));
                tried += 1;
                match open(&copy).await {
                    Ok(store) => {
                        assert_eq!(State::of(&store).await, before, "bit {bit} of {}", path.display())
                    }
                    Err(OpenError::Corrupt { what, .. }) => {
                        found += 1;
                        assert!(what.contains("0000"), "the message does not name the file: {what}");
                    }
                    Err(error) => panic!("bit {bit} of {}: {error}", path.display()),
                }
            }
            assert!(found > tried / 4, "only {found} of {tried} changed bits were found");
        }
    });
}

/// S7: two torn writes, one after the other, lose nothing and are not called damage.
#[test]
fn torn_writes_in_a_row_are_not_damage() {
    runtime().block_on(async {
        let mut rng = seed::rng(5);
        for _ in 0..200 {
            let disk = SimDisk::new();
            let before = State::of(&written(&disk, 3).await).await;
            let mut disk = disk.crash();
            for _ in 0..3 {
                let store = open(&disk).await.unwrap();
                // The power goes with the sync of a large write.
                disk.break_calls(|call| (call.kind == CallKind::Sync).then_some(Fault::Panic));
                let put = store.put(Put::new("large", vec![1; rng.random_range(500..9000)]));
                let torn = std::panic::AssertUnwindSafe(put).catch_unwind().await;
                assert!(torn.is_err() || torn.is_ok_and(|put| put.is_err()));
                disk = disk.cut(Cut::Shuffle, &mut rng);
                disk.repair();
            }
            let store = open(&disk).await.unwrap();
            let found = State::of(&store).await;
            assert!(found.revision() >= before.revision());
            assert!(before.kvs.iter().all(|kv| found.kvs.contains(kv)));
        }
    });
}

/// Every file of the store that is lost is missed.
#[test]
fn a_lost_file_is_missed() {
    runtime().block_on(async {
        let disk = SimDisk::new();
        let store = written(&disk, 60).await;
        store.compact(Revision(20)).await.unwrap();
        ticks().await;
        drop(store);
        let files: Vec<_> = disk.files().into_iter().map(|(path, _)| path).collect();
        let logs = files.iter().filter(|path| path.to_string_lossy().contains("log-")).count();
        assert!(logs > 2, "{files:?}");
        let newest = files.iter().rfind(|path| path.to_string_lossy().contains("log-")).unwrap();
        for path in files.iter().filter(|path| !path.ends_with("lock") && path != &newest) {
            let copy = disk.crash();
            copy.lose(path);
            let error = open(&copy).await.err();
            assert!(
                matches!(error, Some(OpenError::Corrupt { .. })),
                "without {}: {error:?}",
                path.display()
            );
        }
    });
}

/// S1 and S2 on a disk that fills up at every size: what is refused leaves no trace, what is acknowledged stays.
#[test]
fn a_disk_that_fills_up_loses_nothing() {
    runtime().block_on(async {
        for room in (0..12_000).step_by(seed::soak(400, 50)) {
            let disk = SimDisk::new();
            let store = written(&disk, 40).await;
            disk.set_capacity(Some(disk.used() + room));
            let head = store.status().await.unwrap().revision;
            store.compact(Revision(head.0 - 3)).await.ok();
            ticks().await;
            for n in 0..6 {
                store.put(Put::new("new", vec![n; 1000])).await.ok();
                store.compact(store.status().await.unwrap().revision).await.ok();
                ticks().await;
            }
            let before = State::of(&store).await;
            let old = Revision(before.compacted.0.max(1));
            let at_old = store.range(Range::of(KeyRange::all()).at(old)).await.unwrap().kvs;
            disk.set_capacity(None);
            ticks().await;
            assert_eq!(State::of(&store).await, before);
            store.close().await.unwrap();
            let store = open(&disk).await.unwrap();
            assert_eq!(State::of(&store).await, before, "{room} bytes of room");
            assert_eq!(store.range(Range::of(KeyRange::all()).at(old)).await.unwrap().kvs, at_old);
            assert!(store.put(Put::new("room", "again")).await.is_ok());
        }
    });
}

/// S14: a store on a completely full disk opens, is read, and says that it is full.
#[test]
fn a_full_disk_can_be_opened() {
    runtime().block_on(async {
        let disk = SimDisk::new();
        let store = written(&disk, 40).await;
        let before = State::of(&store).await;
        drop(store);
        let disk = disk.crash();
        disk.set_capacity(Some(disk.used()));
        let store = open(&disk).await.unwrap();
        assert_eq!(State::of(&store).await, before);
        let mut refused = None;
        for n in 0..40 {
            refused = store.put(Put::new("more", vec![n; 900])).await.err();
        }
        assert_eq!(refused, Some(MetaError::NoSpace));
    });
}

async fn saved(store: &Embedded) -> Vec<u8> {
    let mut frames = store.snapshot().await.unwrap();
    let mut bytes = Vec::new();
    while let Some(frame) = frames.recv().await {
        bytes.extend_from_slice(&frame.unwrap());
    }
    bytes
}

/// S3: a restore that is interrupted at any call leaves nothing that opens, or all of it; and it can be done again.
#[test]
fn an_interrupted_restore_leaves_no_store() {
    runtime().block_on(async {
        let source = Embedded::in_memory(Options::default());
        source.lease_grant(Duration::from_secs(600), LeaseId(5)).await.unwrap();
        for n in 0..30 {
            source.put(Put::new(format!("k{n}"), vec![1; 900]).lease(LeaseId(5))).await.unwrap();
        }
        let snapshot = saved(&source).await;
        let disk = SimDisk::new();
        disk.film();
        restore_on(&disk, &snapshot[..], dir()).unwrap();
        let film = disk.developed();
        let expected = State::of(&open(&disk).await.unwrap()).await;
        let mut rng = seed::rng(9);
        for frame in 0..film.len() {
            for how in Cut::ALL {
                let left = film.cut(frame, how, &mut rng);
                if left.files().iter().all(|(path, _)| !path.ends_with("restoring")) {
                    let found = State::of(&open(&left).await.unwrap()).await;
                    let nothing = found.kvs.is_empty() && found.revision() == Revision(1);
                    assert!(nothing || found == expected, "{how:?} at {:?}", film.call(frame));
                    // Only before the first call of the restore, and after its last one.
                    assert!(!nothing || left.files().len() <= 3, "{how:?} at {:?}", film.call(frame));
                    continue;
                }
                let refused = open(&left).await.err();
                assert!(matches!(refused, Some(OpenError::Unfinished(_))), "{refused:?}");
                restore_on(&left, &snapshot[..], dir()).unwrap();
                let again = State::of(&open(&left).await.unwrap()).await;
                assert!(
                    again.kvs == expected.kvs && again.leases == expected.leases,
                    "{how:?} at frame {frame}"
                );
                // A later restore goes on further.
                assert!(again.revision() >= expected.revision());
            }
        }
    });
}

/// The same when the disk is full on the way.
#[test]
fn a_restore_without_room_can_be_done_again() {
    runtime().block_on(async {
        let source = Embedded::in_memory(Options::default());
        for n in 0..30 {
            source.put(Put::new(format!("k{n}"), vec![1; 30_000])).await.unwrap();
        }
        let snapshot = saved(&source).await;
        let disk = SimDisk::new();
        disk.set_capacity(Some(400_000));
        let refused = restore_on(&disk, &snapshot[..], dir());
        assert!(matches!(refused, Err(RestoreError::Open(OpenError::Unusable { .. }))), "{refused:?}");
        disk.set_capacity(None);
        assert!(matches!(open(&disk).await.err(), Some(OpenError::Unfinished(_))));
        restore_on(&disk, &snapshot[..], dir()).unwrap();
        assert_eq!(State::of(&open(&disk).await.unwrap()).await.kvs.len(), 30);
    });
}

/// S17: a panic in the middle of a write stops the store; what it left in memory is never shown.
#[test]
fn a_panic_during_a_write_stops_the_store() {
    runtime().block_on(async {
        let disk = SimDisk::new();
        let store = written(&disk, 5).await;
        let before = State::of(&store).await;
        disk.break_calls(|call| (call.kind == CallKind::Write).then_some(Fault::Panic));
        let txn = Txn::new().then(Put::new("half", "1")).then(Put::new("half/2", "2"));
        let torn = std::panic::AssertUnwindSafe(store.commit(txn)).catch_unwind().await;
        assert!(!matches!(torn, Ok(Ok(_))));
        disk.repair();
        let refused = store.put(Put::new("after", "1")).await;
        assert!(refused.is_err(), "it goes on writing after a panic: {refused:?}");
        assert!(store.failure().is_some() && store.range(Range::one("half")).await.is_err());
        let found = State::of(&open(&disk.crash()).await.unwrap()).await;
        assert_eq!(found, before);
    });
}

/// A life with errors at random calls: the store stops, and a restart has what was acknowledged.
#[test]
fn errors_at_random_calls_lose_nothing() {
    seed::seeds(seed::soak(60, 5_000), |seed| {
        runtime().block_on(async {
            let life = Life::live(seed, 25).await;
            let calls = life.film.call(life.film.len() - 1).number;
            let mut rng = seed::rng(seed);
            for _ in 0..4 {
                let at = rng.random_range(20..calls.max(21));
                let fault = [Fault::Io, Fault::Full, Fault::Short(7)][rng.random_range(0..3)];
                life_with_fault(seed, at, fault).await;
            }
        });
    });
}

async fn life_with_fault(seed: u64, at: u64, fault: Fault) {
    let disk = SimDisk::new();
    let Ok(store) = open(&disk).await else { return };
    disk.break_call(at, fault);
    let mut rng = seed::rng(seed);
    let mut last = State::of(&store).await;
    for n in 0..40 {
        let put = store.put(Put::new(format!("k{}", rng.random_range(0..5)), vec![n; 700])).await;
        if store.failure().is_some() {
            break;
        }
        let now = State::of(&store).await;
        match put {
            Ok(_) => last = now,
            Err(MetaError::NoSpace) => assert_eq!(now, last),
            Err(error) => panic!("{error}"),
        }
        if n % 10 == 9 {
            store.compact(now_revision(&last)).await.ok();
            ticks().await;
            if store.failure().is_some() {
                break;
            }
            last = State::of(&store).await;
        }
    }
    disk.repair();
    drop(store);
    let after = disk.cut(Cut::Lose, &mut rng);
    let found = State::of(&open(&after).await.unwrap()).await;
    assert!(found.revision() >= last.revision(), "{fault:?} at call {at}");
    assert!(found.revision() > last.revision() || found.kvs == last.kvs, "{fault:?} at call {at}");
}

fn now_revision(state: &State) -> Revision {
    state.revision()
}

/// Times to live are not kept on disk: after a restart a lease has its full time again.
#[test]
fn a_lease_has_its_full_time_again_after_a_restart() {
    runtime().block_on(async {
        let disk = SimDisk::new();
        let store = open(&disk).await.unwrap();
        store.lease_grant(Duration::from_secs(60), LeaseId(5)).await.unwrap();
        store.put(Put::new("k", "v").lease(LeaseId(5))).await.unwrap();
        tokio::time::sleep(Duration::from_secs(50)).await;
        store.close().await.unwrap();
        let store = open(&disk).await.unwrap();
        tokio::time::sleep(Duration::from_secs(50)).await;
        assert_eq!(store.range(Range::one("k")).await.unwrap().count, 1, "it ended too early");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(store.range(Range::one("k")).await.unwrap().count, 0, "it never ended");
    });
}
