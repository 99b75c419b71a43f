//! The disk layer: acknowledged entries survive any end, unacknowledged ones are cut, damage is detected and repaired.
//!
//! A copy of a running process's directory is what kill -9 leaves behind at that moment: everything written, and
//! nothing that the process had not written yet.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use capstan_log::disk::inspect::{Depth, inspect};
use capstan_log::disk::{Disk, DiskError, DiskLog, DiskResult, Options};
use capstan_log::{Entry, EntryKind, LogEpoch, LogName, Offset};
use capstan_testkit::{TempDir, seed};
use rand::RngExt;
use tokio::sync::oneshot;

/// Small, so that a test crosses segments, journal files and checkpoints many times.
pub const SMALL: Options =
    Options { segment_bytes: 8 * 1024, journal_file_bytes: 64 * 1024, checkpoint_bytes: 48 * 1024 };

fn name(text: &str) -> LogName {
    text.parse().unwrap()
}

pub fn entry(epoch: u64, offset: u64, len: usize) -> Entry {
    let data = Bytes::from(vec![(offset % 251) as u8; len]);
    Entry {
        epoch: LogEpoch(epoch),
        offset: Offset(offset),
        kind: EntryKind::Data,
        time: Duration::ZERO,
        data,
    }
}

/// Appends and waits until it is durable.
pub async fn append(log: &DiskLog, entries: Vec<Entry>) -> DiskResult<()> {
    let (done, answer) = oneshot::channel();
    log.append(entries, Box::new(|outcome| drop(done.send(outcome)))).await?;
    answer.await.unwrap()
}

async fn cut(log: &DiskLog, from: u64) {
    let (done, answer) = oneshot::channel();
    log.cut(Offset(from), Box::new(|outcome| drop(done.send(outcome)))).await.unwrap();
    answer.await.unwrap().unwrap();
}

pub fn read_all(log: &DiskLog) -> DiskResult<Vec<Entry>> {
    let mut all = Vec::new();
    let mut from = log.start();
    loop {
        let entries = log.read(from, 5_000)?;
        let Some(last) = entries.last() else { return Ok(all) };
        from = last.offset.plus(1);
        all.extend(entries);
    }
}

/// What kill -9 would leave behind now. The checkpoint is copied first: everything it refers to is in the files by
/// then.
pub fn wreck(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    if from.join("checkpoint").exists() {
        std::fs::copy(from.join("checkpoint"), to.join("checkpoint")).unwrap();
    }
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            wreck(&entry.path(), &target);
        } else if !target.exists() {
            match std::fs::copy(entry.path(), &target) {
                // Renamed or removed meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                copied => drop(copied.unwrap()),
            }
        }
    }
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn a_clean_stop_replays_nothing_and_a_wreck_replays_everything_acknowledged() {
    let dir = TempDir::new("disk").unwrap();
    let disk = Disk::open(&dir.join("a"), SMALL).unwrap();
    let mut logs = Vec::new();
    for number in 0..20 {
        logs.push(disk.log(&name(&format!("log-{number}"))).await.unwrap());
    }
    for offset in 0..40 {
        for log in &logs {
            append(log, vec![entry(1, offset, 100)]).await.unwrap();
        }
    }
    wreck(&dir.join("a"), &dir.join("b"));
    disk.close().await.unwrap();
    for (copy, clean) in [("a", true), ("b", false)] {
        let disk = Disk::open(&dir.join(copy), SMALL).unwrap();
        assert_eq!(disk.recovery().replayed.groups == 0, clean, "{copy}: {:?}", disk.recovery());
        assert_eq!(disk.logs().len(), 20);
        for log in disk.logs() {
            assert_eq!(read_all(&log).unwrap(), (0..40).map(|o| entry(1, o, 100)).collect::<Vec<_>>());
        }
        disk.close().await.unwrap();
    }
}

#[tokio::test]
async fn one_process_at_a_time() {
    let dir = TempDir::new("disk").unwrap();
    let disk = Disk::open(dir.path(), SMALL).unwrap();
    assert!(matches!(Disk::open(dir.path(), SMALL), Err(DiskError::Locked(_))));
    disk.close().await.unwrap();
    Disk::open(dir.path(), SMALL).unwrap().close().await.unwrap();
}

#[tokio::test]
async fn a_torn_tail_is_cut_and_reported_and_damage_before_it_is_refused() {
    let dir = TempDir::new("disk").unwrap();
    let disk = Disk::open(&dir.join("a"), Options::default()).unwrap();
    let log = disk.log(&name("orders")).await.unwrap();
    for offset in 0..10 {
        append(&log, vec![entry(1, offset, 6_000)]).await.unwrap();
    }
    wreck(&dir.join("a"), &dir.join("torn"));
    wreck(&dir.join("a"), &dir.join("damaged"));
    disk.close().await.unwrap();

    // Group 1 created the log; group 11 is the last.
    flip_group(&dir.join("torn").join("journal"), 11);
    let disk = Disk::open(&dir.join("torn"), Options::default()).unwrap();
    assert!(disk.recovery().replayed.torn.is_some(), "{:?}", disk.recovery());
    assert_eq!(read_all(&disk.logs()[0]).unwrap().len(), 9);
    append(&disk.logs()[0], vec![entry(1, 9, 10)]).await.unwrap();
    disk.close().await.unwrap();

    flip_group(&dir.join("damaged").join("journal"), 10);
    let opened = Disk::open(&dir.join("damaged"), Options::default());
    assert!(matches!(opened, Err(DiskError::Corrupt { .. })), "{opened:?}");
    assert!(!inspect(&dir.join("damaged"), Depth::Outline).unwrap().is_whole());
}

/// Damages the group with this number, wherever it is.
pub fn flip_group(journal: &Path, number: u64) {
    for path in files(journal) {
        let bytes = std::fs::read(&path).unwrap();
        let is_it =
            |at: &usize| bytes[*at..*at + 4] == *b"CAPJ" && bytes[at + 8..at + 16] == number.to_le_bytes();
        if let Some(at) = (0..bytes.len()).step_by(4096).find(is_it) {
            return flip(&path, at as u64 + 40);
        }
    }
    panic!("no group {number}");
}

fn flip(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x40], at).unwrap();
}

#[tokio::test]
async fn a_flipped_byte_is_refused_found_by_verify_and_repaired_in_place() {
    let dir = TempDir::new("disk").unwrap();
    let disk = Disk::open(dir.path(), SMALL).unwrap();
    let log = disk.log(&name("orders")).await.unwrap();
    for offset in 0..60 {
        append(&log, vec![entry(1, offset, 500)]).await.unwrap();
    }
    disk.close().await.unwrap();
    assert!(inspect(dir.path(), Depth::EveryEntry).unwrap().is_whole());
    // The third entry of the second segment: its data, and the length of the fourth.
    let victim = &files(&dir.join("segments"))[1];
    flip(victim, 512 + 2 * 532 + 100);
    flip(victim, 512 + 3 * 532 + 5);
    let report = inspect(dir.path(), Depth::EveryEntry).unwrap();
    assert_eq!(report.logs[0].segments.iter().filter(|segment| segment.damage.is_some()).count(), 1);

    let disk = Disk::open(dir.path(), SMALL).unwrap();
    let log = disk.log(&name("orders")).await.unwrap();
    let mut repaired = 0;
    while let Err(error) = read_all(&log) {
        let DiskError::Damaged { offset, .. } = error else { panic!("{error}") };
        let other = Entry { epoch: LogEpoch(2), ..entry(1, offset.0, 500) };
        assert!(log.repair(vec![other]).await.is_err(), "an entry of another epoch is no repair");
        log.repair(vec![entry(1, offset.0, 500)]).await.unwrap();
        repaired += 1;
    }
    assert_eq!(repaired, 2);
    assert_eq!(read_all(&log).unwrap().len(), 60);
    disk.close().await.unwrap();
    assert!(inspect(dir.path(), Depth::EveryEntry).unwrap().is_whole());
}

#[tokio::test]
async fn retention_frees_segments_and_reads_say_where_the_log_begins() {
    let dir = TempDir::new("disk").unwrap();
    let disk = Disk::open(dir.path(), SMALL).unwrap();
    let log = disk.log(&name("orders")).await.unwrap();
    for offset in 0..100 {
        append(&log, vec![entry(1, offset, 500)]).await.unwrap();
    }
    // A clean stop moves everything into segments.
    disk.close().await.unwrap();
    let before = files(&dir.join("segments")).len();
    let disk = Disk::open(dir.path(), SMALL).unwrap();
    let log = disk.log(&name("orders")).await.unwrap();
    log.truncate(Offset(50)).await.unwrap();
    assert!(files(&dir.join("segments")).len() <= before / 2 + 1);
    assert!(matches!(log.read(Offset(49), 100), Err(DiskError::Truncated { start: Offset(50), .. })));
    assert_eq!(read_all(&log).unwrap().len(), 50);
    disk.close().await.unwrap();
    let disk = Disk::open(dir.path(), SMALL).unwrap();
    assert_eq!(disk.logs()[0].start(), Offset(50));
    assert_eq!(read_all(&disk.logs()[0]).unwrap().len(), 50);
}

/// What a log should hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    start: u64,
    entries: BTreeMap<u64, Entry>,
}

#[test]
fn any_sequence_of_changes_survives_any_number_of_ends() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    seed::seeds(seed::soak(12, 1_000), |seed| runtime.block_on(random_changes(seed)));
}

/// A segment shortened by a cut was once written behind its new end, and had a hole after the next start.
#[test]
fn a_segment_that_was_cut_goes_on_at_its_new_end() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(random_changes(15_739_135_873_545_561_935));
}

async fn random_changes(seed: u64) {
    let mut rng = seed::rng(seed);
    let dir = TempDir::new("disk").unwrap();
    let mut lives = 0;
    let mut disk = Disk::open(&dir.join("0"), SMALL).unwrap();
    let mut models = vec![Model::default(); 3];
    for step in 0..300u64 {
        let which = rng.random_range(0..models.len());
        let log = disk.log(&name(&format!("log-{which}"))).await.unwrap();
        let model = &mut models[which];
        let end = log.history().end().0;
        match rng.random_range(0..30) {
            0 => {
                lives += 1;
                let (old, new) = (dir.join((lives - 1).to_string()), dir.join(lives.to_string()));
                if rng.random_bool(0.5) {
                    disk.close().await.unwrap();
                }
                wreck(&old, &new);
                disk = Disk::open(&new, SMALL).unwrap();
                for log in disk.logs() {
                    let number: usize = log.name().as_ref()[4..].parse().unwrap();
                    compare(&log, &models[number]);
                }
            }
            1 | 2 => {
                let from = rng.random_range(model.start..=end);
                cut(&log, from).await;
                model.entries.split_off(&from);
            }
            3 => {
                let before = rng.random_range(model.start..=end);
                log.truncate(Offset(before)).await.unwrap();
                model.start = before;
                model.entries = model.entries.split_off(&before);
            }
            4 => {
                let mut history = log.history();
                history.extend(LogEpoch(step + 1), 7);
                let (done, answer) = oneshot::channel();
                let start = history.end().0;
                log.reset(history, Box::new(|outcome| drop(done.send(outcome)))).await.unwrap();
                answer.await.unwrap().unwrap();
                *model = Model { start, entries: BTreeMap::new() };
            }
            _ => {
                let lens = (0..rng.random_range(1..5u64)).map(|n| (end + n, rng.random_range(0..2_000)));
                let entries: Vec<Entry> = lens.map(|(offset, len)| entry(step + 1, offset, len)).collect();
                model.entries.extend(entries.iter().map(|entry| (entry.offset.0, entry.clone())));
                append(&log, entries).await.unwrap();
            }
        }
        compare(&log_of(&disk, which).await, &models[which]);
    }
    disk.close().await.unwrap();
    assert!(inspect(&dir.join(lives.to_string()), Depth::EveryEntry).unwrap().is_whole());
}

async fn log_of(disk: &Disk, which: usize) -> DiskLog {
    disk.log(&name(&format!("log-{which}"))).await.unwrap()
}

fn compare(log: &DiskLog, model: &Model) {
    assert_eq!(log.start().0, model.start);
    assert_eq!(read_all(log).unwrap(), model.entries.values().cloned().collect::<Vec<_>>());
}
