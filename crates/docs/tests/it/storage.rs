//! One suite for every engine, and the power cut for the one on disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use capstan_docs::storage::{Change, DiskEngine, Engine, MemoryEngine};
use capstan_testkit::{TempDir, seed};
use rand::RngExt as _;
use rand::rngs::StdRng;

fn put(key: &str, value: &str) -> Change {
    Change::Put(Bytes::from(key.to_owned()), Bytes::from(value.to_owned()))
}

fn keys(engine: &dyn Engine, from: &str, before: &str) -> Vec<String> {
    let pairs = engine.snapshot().range(from.as_bytes(), before.as_bytes());
    pairs.map(|pair| String::from_utf8(pair.unwrap().0.to_vec()).unwrap()).collect()
}

fn suite(engine: &dyn Engine) {
    engine.write(vec![put("a", "1"), put("b1", "2"), put("b2", "3"), put("c", "4")]).unwrap();
    assert_eq!(engine.get(b"b1").unwrap().unwrap(), "2");
    assert_eq!(engine.get(b"x").unwrap(), None);
    assert_eq!(keys(engine, "a", "c"), ["a", "b1", "b2"]);
    assert_eq!(keys(engine, "c", "a"), Vec::<String>::new());
    let before = engine.snapshot();
    let prefix = Change::DeletePrefix(Bytes::from_static(b"b"));
    engine.write(vec![prefix, put("b3", "5"), Change::Delete(Bytes::from_static(b"a"))]).unwrap();
    assert_eq!(keys(engine, "a", "z"), ["b3", "c"]);
    assert_eq!(before.get(b"b1").unwrap().unwrap(), "2");
    assert_eq!(before.range(b"a", b"z").count(), 4);
    engine.sync().unwrap();
}

#[test]
fn every_engine_passes_the_suite() {
    let dir = TempDir::new("engine").unwrap();
    suite(&MemoryEngine::default());
    suite(&DiskEngine::open(&dir.join("e"), 1 << 20).unwrap());
    let reopened = DiskEngine::open(&dir.join("e"), 1 << 20).unwrap();
    assert_eq!(keys(&reopened, "a", "z"), ["b3", "c"]);
}

/// Batches of one life, and after which of them the engine is synced.
const BATCHES: u32 = 24;
const SYNC_EVERY: u32 = 7;

/// Each batch changes every key, so that a torn one is seen, and counts itself.
fn batch(number: u32) -> Vec<Change> {
    let value = format!("{number}-{}", "x".repeat(300));
    (0..8).map(|key| put(&format!("k{key}"), &value)).chain([put("count", &number.to_string())]).collect()
}

/// The number of the last batch that is there; all of it, and nothing of a later one.
fn last_batch(engine: &DiskEngine) -> u32 {
    let text = |key: &str| {
        engine.get(key.as_bytes()).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
    };
    let Some(count) = text("count") else { return 0 };
    for key in 0..8 {
        let value = text(&format!("k{key}")).unwrap();
        assert!(value.starts_with(&format!("{count}-")), "key {key} has {value} after batch {count}");
    }
    count.parse().unwrap()
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

/// What a power cut leaves of a file that was growing: a part of what is new has reached the disk.
fn torn(before: &[u8], after: &[u8], random: &mut StdRng) -> Vec<u8> {
    let same = before.iter().zip(after).take_while(|(one, other)| one == other).count();
    let cut = random.random_range(same..=after.len());
    let mut left = after[..cut].to_vec();
    // A file that was made longer may have its new length and not its content.
    if random.random_bool(0.5) {
        left.resize(after.len(), 0);
        let kept = before.get(cut..).unwrap_or_default();
        left[cut..cut + kept.len()].copy_from_slice(kept);
    }
    left
}

#[test]
fn after_a_power_cut_the_engine_is_behind_but_never_torn() {
    seed::seeds(seed::soak(4, 400), |seed| {
        let (mut random, dir) = (seed::rng(seed), TempDir::in_memory("engine-cut").unwrap());
        let (from, to) = (dir.join("e"), dir.join("after"));
        let engine = DiskEngine::open(&from, 1 << 20).unwrap();
        let cut = random.random_range(1..=BATCHES);
        let (mut synced, mut before) = (0, files(&from));
        for number in 1..=cut {
            engine.write(batch(number)).unwrap();
            if number % SYNC_EVERY == 0 {
                engine.sync().unwrap();
                (synced, before) = (number, files(&from));
            }
        }
        // A write that is under way when the power is cut is in the files, or it is not.
        for (path, after) in files(&from) {
            let old = before.get(&path).map_or(&[][..], Vec::as_slice);
            let path = to.join(path.strip_prefix(&from).unwrap());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, torn(old, &after, &mut random)).unwrap();
        }
        drop(engine);
        let last = last_batch(&DiskEngine::open(&to, 1 << 20).unwrap());
        assert!((synced..=cut).contains(&last), "batch {last} is the last of {cut}, and {synced} was synced");
    });
}
