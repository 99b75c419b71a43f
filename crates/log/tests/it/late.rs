//! Directories whose segments are filled later: killed before anything was filled, full while being filled, damaged in
//! the journal.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_log::LogConfig;
use capstan_log::disk::inspect::{Depth, inspect};
use capstan_log::disk::{Disk, DiskError, DiskLog, Loss, Options};
use capstan_log::keys::LogKey;
use capstan_log::net::AddressBook;
use capstan_log::{
    Entry, HolderId, Host, HostOptions, Log, LogError, LogName, Offset, Refused, Snapshot, StateMachine,
    referee,
};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::record::Key;
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::{Store, Txn};
use capstan_testkit::{TempDir, eventually};
use tokio::net::TcpListener;

use super::disk::{append, entry, flip_group, read_all, wreck};

const SOON: Duration = Duration::from_secs(30);

fn name(text: &str) -> LogName {
    text.parse().unwrap()
}

fn segment_bytes(dir: &Path) -> u64 {
    let files = std::fs::read_dir(dir.join("segments")).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

async fn fill(log: &DiskLog, entries: std::ops::Range<u64>) {
    for offset in entries {
        append(log, vec![entry(1, offset, 1_000)]).await.unwrap();
    }
}

fn expected(upto: u64) -> Vec<Entry> {
    (0..upto).map(|offset| entry(1, offset, 1_000)).collect()
}

#[tokio::test]
async fn killed_between_the_journal_and_the_segments_nothing_is_missing() {
    let dir = TempDir::new("late").unwrap();
    let disk = Disk::open(&dir.join("a"), Options::default()).unwrap();
    let (one, other) = (disk.log(&name("one")).await.unwrap(), disk.log(&name("other")).await.unwrap());
    fill(&one, 0..100).await;
    fill(&other, 0..3).await;
    // Everything is in the journal and in memory, nothing in segments.
    assert_eq!(segment_bytes(&dir.join("a")), 0);
    assert_eq!(read_all(&one).unwrap(), expected(100));
    assert_eq!(one.read(Offset(40), 2_500).unwrap(), expected(100)[40..43]);
    wreck(&dir.join("a"), &dir.join("b"));
    let report = inspect(&dir.join("b"), Depth::EveryEntry).unwrap();
    assert_eq!((report.is_whole(), report.logs[0].history.end()), (true, Offset(100)));
    disk.close().await.unwrap();
    assert!(segment_bytes(&dir.join("a")) > 100_000);
    for place in ["a", "b"] {
        let disk = Disk::open(&dir.join(place), Options::default()).unwrap();
        let (one, other) = (disk.log(&name("one")).await.unwrap(), disk.log(&name("other")).await.unwrap());
        assert_eq!(read_all(&one).unwrap(), expected(100));
        assert_eq!(read_all(&other).unwrap(), expected(3));
        fill(&one, 100..110).await;
        assert_eq!(read_all(&one).unwrap(), expected(110));
        disk.close().await.unwrap();
    }
}

#[tokio::test]
async fn entries_are_read_while_they_move_from_memory_into_segments() {
    let dir = TempDir::new("late").unwrap();
    let small = Options { segment_bytes: 16 << 10, journal_file_bytes: 64 << 10, checkpoint_bytes: 32 << 10 };
    let disk = Disk::open(dir.path(), small).unwrap();
    let log = disk.log(&name("orders")).await.unwrap();
    let reader = log.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let mut seen = 0;
        while seen < 2_000 {
            let entries = reader.read(Offset(seen), 3_000).unwrap();
            entries.iter().enumerate().for_each(|(index, found)| {
                assert_eq!(*found, entry(1, seen + index as u64, 1_000));
            });
            seen += entries.len() as u64;
        }
    });
    fill(&log, 0..2_000).await;
    reading.await.unwrap();
    assert!(log.segments().len() > 100, "{} segments", log.segments().len());
    disk.close().await.unwrap();
    assert!(inspect(dir.path(), Depth::EveryEntry).unwrap().is_whole());
}

/// A directory whose journal has a hole: group 1 created the log, group n+2 is entry n.
async fn damaged(dir: &TempDir, place: &str) {
    let disk = Disk::open(&dir.join("whole"), Options::default()).unwrap();
    fill(&disk.log(&name("orders")).await.unwrap(), 0..10).await;
    wreck(&dir.join("whole"), &dir.join(place));
    disk.close().await.unwrap();
    flip_group(&dir.join(place).join("journal"), 8);
}

#[tokio::test]
async fn a_hole_in_the_journal_is_explained_and_what_comes_before_it_is_salvaged() {
    let dir = TempDir::new("late").unwrap();
    damaged(&dir, "a").await;
    let report = inspect(&dir.join("a"), Depth::Outline).unwrap();
    let lost = report.journal.lost.unwrap();
    assert_eq!((lost.group, lost.behind, lost.last), (8, 3, 11));
    let refused = Disk::open(&dir.join("a"), Options::default());
    assert!(matches!(refused, Err(DiskError::Corrupt { .. })), "{refused:?}");

    let salvaged = Disk::salvage(&dir.join("a"), Options::default(), Loss::Accept).unwrap();
    assert_eq!(salvaged.replayed.lost.map(|lost| lost.group), Some(8));
    let disk = Disk::open(&dir.join("a"), Options::default()).unwrap();
    let log = disk.log(&name("orders")).await.unwrap();
    assert!(!log.is_incomplete());
    assert_eq!(read_all(&log).unwrap(), expected(6));
    fill(&log, 6..20).await;
    wreck(&dir.join("a"), &dir.join("again"));
    disk.close().await.unwrap();
    let disk = Disk::open(&dir.join("again"), Options::default()).unwrap();
    assert_eq!(read_all(&disk.logs()[0]).unwrap(), expected(20));
    disk.close().await.unwrap();
    let nothing = Disk::salvage(&dir.join("again"), Options::default(), Loss::LearnAnew).unwrap();
    assert_eq!(nothing.replayed.lost, None);
}

struct Running {
    host: Host,
    _session: Session,
}

async fn start(me: &str, dir: &Path, store: &Store, book: &AddressBook) -> Running {
    let me: HolderId = me.parse().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    book.set(me.clone(), listener.local_addr().unwrap());
    let session = Session::start(store.clone(), SessionOptions::default());
    session.live().await.unwrap();
    let disk = Disk::open(dir, Options::default()).unwrap();
    let state = session.state();
    let host = Host::start(HostOptions::new(me), disk, store.clone(), state, Some(listener), book.clone());
    Running { host: host.await.unwrap(), _session: session }
}

/// A snapshot of this many bytes, and what was installed of others' snapshots.
#[derive(Default)]
struct Large {
    bytes: usize,
    installed: std::sync::Mutex<Option<(Offset, Bytes)>>,
}

impl Large {
    fn content(&self) -> Bytes {
        Bytes::from((0..self.bytes).map(|at| (at % 251) as u8).collect::<Vec<_>>())
    }
}

impl StateMachine for Large {
    fn snapshot(&self, _: &LogName, start: Offset) -> io::Result<Snapshot> {
        // A state that is slightly newer than the dropped entries.
        Ok(Snapshot { at: start.plus(2), content: Box::new(io::Cursor::new(self.content())) })
    }

    fn install(&self, _: &LogName, at: Offset, snapshot: &mut dyn io::Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        snapshot.read_to_end(&mut bytes)?;
        *self.installed.lock().unwrap() = Some((at, bytes.into()));
        Ok(())
    }
}

async fn append_to(log: &Log, number: u64) {
    let data = Bytes::from(format!("entry {number}"));
    eventually("the append is committed", SOON, async || log.append(vec![data.clone()]).await).await;
}

async fn is_in_sync(store: &Store, holder: &str) {
    let holder: HolderId = holder.parse().unwrap();
    eventually("it is in sync", SOON, async || {
        let config = referee::read(store, &name("orders")).await.unwrap().record;
        if config.is_in_sync(&holder) { Ok(()) } else { Err(format!("{config:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_travels_in_pieces_and_arrives_whole() {
    let dir = TempDir::new("late").unwrap();
    let store = Store::new(Embedded::in_memory(embedded::Options::default()));
    let book = AddressBook::default();
    referee::create(&store, &name("orders"), vec!["a".parse().unwrap()], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let giver = Arc::new(Large { bytes: 9 << 20, ..Large::default() });
    let log = a.host.open(&name("orders"), giver.clone()).await.unwrap();
    for number in 0..20 {
        append_to(&log, number).await;
    }
    log.truncate_before(Offset(15)).await.unwrap();
    let b = start("b", &dir.join("b"), &store, &book).await;
    referee::change(&store, &name("orders"), |config| config.add_learner(&"b".parse().unwrap()))
        .await
        .unwrap();
    let taker = Arc::new(Large::default());
    b.host.open(&name("orders"), taker.clone()).await.unwrap();
    is_in_sync(&store, "b").await;
    let installed = taker.installed.lock().unwrap().clone();
    assert!(installed == Some((Offset(17), giver.content())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_salvaged_copy_leaves_the_in_sync_set_and_learns_what_it_lacks() {
    let dir = TempDir::new("late").unwrap();
    let store = Store::new(Embedded::in_memory(embedded::Options::default()));
    let book = AddressBook::default();
    let holders = vec!["a".parse().unwrap(), "b".parse().unwrap()];
    referee::create(&store, &name("orders"), holders, 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let snapshots = || Arc::new(Large::default());
    let log_a = a.host.open(&name("orders"), snapshots()).await.unwrap();
    b.host.open(&name("orders"), snapshots()).await.unwrap();
    for number in 0..20 {
        append_to(&log_a, number).await;
    }
    let primary = referee::read(&store, &name("orders")).await.unwrap().record;
    assert_eq!((primary.primary.as_str(), primary.in_sync.len()), ("a", 2));
    // Kill -9 of the primary, and a hole in its journal.
    wreck(&dir.join("a"), &dir.join("wreck"));
    a.host.stop().await.unwrap();
    drop(a);
    flip_group(&dir.join("wreck/journal"), 10);
    Disk::salvage(&dir.join("wreck"), Options::default(), Loss::LearnAnew).unwrap();
    assert!(inspect(&dir.join("wreck"), Depth::EveryEntry).unwrap().logs[0].incomplete);

    let a = start("a", &dir.join("wreck"), &store, &book).await;
    let log_a = a.host.open(&name("orders"), snapshots()).await.unwrap();
    let config = referee::read(&store, &name("orders")).await.unwrap().record;
    assert_eq!(config.primary.as_str(), "b");
    is_in_sync(&store, "a").await;
    eventually("it has everything again", SOON, async || {
        let (mut from, mut entries) = (Offset(0), 0);
        loop {
            let batch = log_a.read(from, 1 << 20).await.unwrap();
            entries += batch.entries.len();
            if batch.next == from {
                return if entries == 20 { Ok(()) } else { Err(entries) };
            }
            from = batch.next;
        }
    })
    .await;
    a.host.stop().await.unwrap();
    assert!(!inspect(&dir.join("wreck"), Depth::EveryEntry).unwrap().logs[0].incomplete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_copy_is_not_salvaged_in_silence() {
    let dir = TempDir::new("late").unwrap();
    damaged(&dir, "a").await;
    Disk::salvage(&dir.join("a"), Options::default(), Loss::LearnAnew).unwrap();
    let store = Store::new(Embedded::in_memory(embedded::Options::default()));
    // Of the incarnation that the directory has.
    let config = LogConfig::new(vec!["a".parse().unwrap()], 1).unwrap();
    store.commit(Txn::new().then(LogKey { log: name("orders") }.put(&config))).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &AddressBook::default()).await;
    // According to the metadata nothing was ever written to it, so nothing can be missing; then an entry is written.
    referee::change(&store, &name("orders"), |config| config.elect(&"a".parse().unwrap())).await.unwrap();
    let opened = a.host.open(&name("orders"), Arc::new(Large::default())).await;
    assert!(matches!(opened, Err(LogError::Refused(Refused::OnlyCopy(_)))), "{opened:?}");

    // A log that was made behind the hole is not in the directory at all: it may not begin as a complete, empty copy.
    for (log, touched) in [("lost", true), ("new", false)] {
        referee::create(&store, &name(log), vec!["a".parse().unwrap()], 1).await.unwrap();
        if touched {
            referee::change(&store, &name(log), |config| config.elect(&"a".parse().unwrap())).await.unwrap();
        }
        let opened = a.host.open(&name(log), Arc::new(Large::default())).await;
        assert_eq!(opened.is_err(), touched, "{log}: {opened:?}");
    }
}
