//! Edges of the embedded store that need its simulated disk.

// tidy: the clock is paused in this file

use std::time::Duration;

use capstan_disk::DiskExt as _;
use capstan_meta::embedded::{Embedded, OpenError};
use capstan_meta::{Backend, Delete, KeyRange, LeaseId, Put, Range};
use capstan_testkit::disk::{CallKind, Cut, Fault, SimDisk};
use capstan_testkit::seed;
use rand::RngExt;

use super::life::State;
use super::{dir, open, runtime};

async fn leases(store: &Embedded) -> Vec<(LeaseId, Duration)> {
    let mut found = Vec::new();
    for id in store.leases().await.unwrap() {
        found.push((id, store.lease_info(id).await.unwrap().unwrap().granted_ttl));
    }
    found.sort();
    found
}

/// Writes enough to complete files of the log, and lets a base take their place.
async fn fold(store: &Embedded) {
    for n in 0..12 {
        store.put(Put::new("k", vec![n + 1; 1000])).await.unwrap();
    }
    store.compact(store.status().await.unwrap().revision).await.unwrap();
    store.defragment().await.unwrap();
}

/// S12: leases are records like all others: a changed bit of one is found or harmless, in the log and in a base.
#[test]
fn a_changed_bit_of_a_lease_is_found_or_harmless() {
    let flips = seed::soak(2_000, 200_000);
    runtime().block_on(async {
        for folded in [false, true] {
            let disk = SimDisk::new();
            let store = open(&disk).await.unwrap();
            for id in 1..=20 {
                store.lease_grant(Duration::from_secs(1_000_000 + id), LeaseId(id as i64)).await.unwrap();
            }
            if folded {
                fold(&store).await;
                let first = disk.files().iter().any(|(path, _)| path.ends_with("base-000000000001"));
                assert!(!first, "no base has the leases: {:?}", disk.files());
            }
            let before = leases(&store).await;
            assert_eq!(before.len(), 20);
            let crashed = disk.crash();
            let files: Vec<_> = crashed.files().into_iter().filter(|(_, size)| *size > 0).collect();
            let (mut rng, mut found) = (seed::rng(5), 0);
            for _ in 0..flips / 2 {
                let copy = crashed.copy();
                let (path, size) = &files[rng.random_range(0..files.len())];
                let bit = rng.random_range(0..size * 8);
                assert!(copy.flip(path, bit));
                match open(&copy).await {
                    Ok(store) => assert_eq!(leases(&store).await, before, "bit {bit} of {}", path.display()),
                    Err(OpenError::Corrupt { .. }) => found += 1,
                    Err(error) => panic!("bit {bit} of {}: {error}", path.display()),
                }
            }
            assert!(found > 0, "no flip was found, folded: {folded}");
        }
    });
}

/// A mark whose sync failed is found by the next process, and must not be missing between two frames after a power cut.
#[test]
fn a_mark_whose_sync_failed_is_written_again() {
    runtime().block_on(async {
        let disk = SimDisk::new();
        let store = open(&disk).await.unwrap();
        store.put(Put::new("a", "1")).await.unwrap();
        disk.break_calls(|call| (call.kind == CallKind::Sync).then_some(Fault::Io));
        // The store marks its last frame when nothing else is to be done.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(store.failure().is_some(), "no mark was written");
        let disk = disk.crash();
        let store = open(&disk).await.unwrap();
        store.put(Put::new("b", "2")).await.unwrap();
        let before = State::of(&store).await;
        for how in Cut::ALL {
            let left = disk.copy().cut(how, &mut seed::rng(1));
            let store = open(&left).await.unwrap_or_else(|error| panic!("{how:?}: {error}"));
            assert_eq!(State::of(&store).await, before, "{how:?}");
        }
    });
}

/// S19: the name of the data directory is durable before anything in it counts, also if the process that made it ended
/// before it was.
#[test]
fn a_directory_that_another_process_made_is_durable_too() {
    runtime().block_on(async {
        for depth in [Some(dir()), dir().parent()] {
            let disk = SimDisk::new();
            let parent = depth.and_then(|dir| dir.parent()).unwrap().to_owned();
            disk.break_calls(move |call| {
                (call.kind == CallKind::SyncDir && call.path == parent).then_some(Fault::Io)
            });
            assert!(matches!(open(&disk).await.err(), Some(OpenError::Unusable { .. })));
            let disk = disk.crash();
            let store = open(&disk).await.unwrap();
            store.put(Put::new("a", "1")).await.unwrap();
            let left = disk.cut(Cut::Lose, &mut seed::rng(1));
            let found = open(&left).await.unwrap().range(Range::one("a")).await.unwrap();
            assert_eq!(found.count, 1, "the directory was lost: {depth:?}");
        }
    });
}

/// Lengths of the frames of a file.
fn frames(content: &[u8]) -> Vec<usize> {
    let (mut at, mut found) = (0, Vec::new());
    while content.get(at..at + 4) == Some(b"CMF1") {
        let length = u32::from_le_bytes(content[at + 8..at + 12].try_into().unwrap()) as usize;
        found.push(length);
        at += (32 + length).next_multiple_of(512);
    }
    assert!(at >= content.len(), "{at} of {} bytes are frames", content.len());
    found
}

/// Whatever a base holds, its frames are small: one that is larger than a frame may be would be called damage when it is
/// read back, and the log before it would be gone.
#[test]
fn frames_of_a_base_are_bounded() {
    runtime().block_on(async {
        let disk = SimDisk::new();
        let store = open(&disk).await.unwrap();
        for n in 0..60 {
            store.put(Put::new(format!("k{n:02}"), vec![n + 1; 50_000])).await.unwrap();
        }
        // All that lived before the change at which history begins stands in the base because that change is undone.
        store.delete(Delete { keys: KeyRange::all(), prev_kv: false }).await.unwrap();
        store.compact(store.status().await.unwrap().revision).await.unwrap();
        store.defragment().await.unwrap();
        let before = State::of(&store).await;
        let disk = disk.crash();
        let base = dir().join("base-000000000002");
        let lengths = frames(&disk.read(&base).unwrap());
        assert!(lengths.iter().sum::<usize>() > 3_000_000, "{lengths:?}");
        let largest = lengths.iter().max().unwrap();
        assert!(*largest < 350_000, "a frame of {largest} bytes");
        assert_eq!(State::of(&open(&disk).await.unwrap()).await, before);
    });
}
