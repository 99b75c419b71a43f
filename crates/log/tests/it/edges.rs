//! Edge cases in which acknowledged entries were once lost, or reported incorrectly.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_log::disk::inspect::{Depth, inspect};
use capstan_log::disk::{Disk, DiskError, Loss, Options};
use capstan_log::net::AddressBook;
use capstan_log::replica::{RoleName, Timing};
use capstan_log::{
    Fate, HolderId, Host, HostOptions, Log, LogError, LogName, NoSnapshots, Offset, Refused, Standing,
    referee,
};
use capstan_meta::Store;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::faults::{Faults, Faulty, Link, Rates};
use capstan_meta::session::{Session, SessionOptions};
use capstan_testkit::disk::{Fault, SimDisk};
use capstan_testkit::{TempDir, eventually};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::disk::{append as append_to_disk, entry, flip_group, wreck};
use super::host::id;

const SOON: Duration = Duration::from_secs(60);
/// A copy that made no progress for this long lags.
const LAG: Duration = Duration::from_millis(700);

fn orders() -> LogName {
    "orders".parse().unwrap()
}

fn memory() -> Store {
    Store::new(Embedded::in_memory(embedded::Options::default()))
}

/// Makes a copy the primary, as soon as it is in sync: one whose disk is slow leaves the set for a while.
async fn elect(store: &Store, name: &str) {
    let elected = async || referee::change(store, &orders(), |config| config.elect(&id(name))).await;
    eventually("it is elected", SOON, elected).await;
}

struct Running {
    host: Host,
    _session: Session,
}

async fn start_on(me: &str, disk: Disk, store: &Store, book: &AddressBook) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    book.set(id(me), listener.local_addr().unwrap());
    let session = Session::start(store.clone(), SessionOptions::default());
    session.live().await.unwrap();
    let timing = Timing {
        heartbeat: Duration::from_millis(50),
        resend: Duration::from_millis(150),
        lag: LAG,
        ..Timing::default()
    };
    let options = HostOptions { timing, append_within: Duration::from_secs(3), ..HostOptions::new(id(me)) };
    let state = session.state();
    let host = Host::start(options, disk, store.clone(), state, Some(listener), book.clone()).await.unwrap();
    Running { host, _session: session }
}

async fn start(me: &str, dir: &Path, store: &Store, book: &AddressBook) -> Running {
    start_on(me, Disk::open(dir, Options::default()).unwrap(), store, book).await
}

impl Running {
    async fn open(&self) -> Log {
        self.host.open(&orders(), Arc::new(NoSnapshots)).await.unwrap()
    }

    async fn stop(self) {
        self.host.stop().await.unwrap();
    }
}

fn text(number: usize) -> Bytes {
    Bytes::from(format!("entry {number}"))
}

async fn append(log: &Log, number: usize) -> Offset {
    eventually("the append is committed", SOON, async || log.append(vec![text(number)]).await).await.0
}

async fn in_sync(store: &Store) -> Vec<HolderId> {
    referee::read(store, &orders()).await.unwrap().record.in_sync
}

async fn everything(log: &Log) -> BTreeSet<Bytes> {
    let (mut from, mut all) = (log.status().await.unwrap().start, BTreeSet::new());
    loop {
        let batch = log.read(from, 1 << 20).await.unwrap();
        if batch.next == from {
            return all;
        }
        from = batch.next;
        all.extend(batch.entries.into_iter().map(|entry| entry.data));
    }
}

/// P1: acknowledgments of a follower before it lost entries do not count in its next life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_lost_entries_counts_only_when_it_has_them_again() {
    let dir = TempDir::new("salvaged").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a"), id("b")], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let (log_a, log_b) = (a.open().await, b.open().await);
    for number in 0..20 {
        append(&log_a, number).await;
    }
    eventually("b has everything", SOON, async || {
        let (ours, theirs) = (log_a.status().await.unwrap().end, log_b.status().await.unwrap().durable);
        if ours == theirs { Ok(()) } else { Err(theirs) }
    })
    .await;
    wreck(&dir.join("b"), &dir.join("wreck"));
    drop(log_b);
    b.stop().await;
    flip_group(&dir.join("wreck/journal"), 10);
    Disk::salvage(&dir.join("wreck"), Options::default(), Loss::LearnAnew).unwrap();
    let b = start("b", &dir.join("wreck"), &store, &book).await;
    let log_b = b.open().await;
    eventually("b counts again", SOON, async || {
        let counts = in_sync(&store).await.contains(&id("b"));
        let has = log_b.status().await.unwrap().end;
        let committed = log_a.status().await.unwrap().committed;
        assert!(!counts || has >= committed, "b counts with {has} of {committed} entries");
        if counts { Ok(()) } else { Err(has) }
    })
    .await;
    elect(&store, "b").await;
    append(&log_b, 20).await;
    assert_eq!(everything(&log_b).await, (0..=20).map(text).collect());
}

/// P2: an emptied or unmounted directory does not count as a copy without entries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_directory_is_not_taken_for_a_complete_copy() {
    let dir = TempDir::new("emptied").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a")], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let log = a.open().await;
    for number in 0..10 {
        append(&log, number).await;
    }
    drop(log);
    a.stop().await;
    std::fs::remove_dir_all(dir.join("a")).unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let opened = a.host.open(&orders(), Arc::new(NoSnapshots)).await;
    let refused = opened.map(|log| log.name().clone());
    assert_eq!(refused, Err(LogError::Refused(Refused::OnlyCopy(id("a")))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_primary_gives_up_the_lead_and_learns_everything_anew() {
    let dir = TempDir::new("emptied-primary").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a"), id("b")], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let (log_a, log_b) = (a.open().await, b.open().await);
    for number in 0..10 {
        append(&log_a, number).await;
    }
    drop(log_a);
    a.stop().await;
    std::fs::remove_dir_all(dir.join("a")).unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let log_a = a.open().await;
    append(&log_b, 10).await;
    eventually("a counts again", SOON, async || {
        if in_sync(&store).await.contains(&id("a")) { Ok(()) } else { Err("not yet") }
    })
    .await;
    elect(&store, "a").await;
    append(&log_a, 11).await;
    assert_eq!(everything(&log_a).await, (0..=11).map(text).collect());
}

/// P3: a grow whose answer was lost may have happened, whatever the next attempt returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_may_have_joined_counts_until_the_store_says_otherwise() {
    let dir = TempDir::new("unknown").unwrap();
    let embedded = Embedded::in_memory(embedded::Options::default());
    let store = Store::new(embedded.clone());
    let faults = Faults::seeded(7);
    let faulty = Store::new(Faulty::new(embedded, faults.clone()));
    let book = AddressBook::default();
    referee::create(&store, &orders(), vec![id("a")], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &faulty, &book).await;
    let log_a = a.open().await;
    for number in 0..10 {
        append(&log_a, number).await;
    }
    let b = start("b", &dir.join("b"), &store, &book).await;
    referee::change(&store, &orders(), |config| config.add_learner(&id("b"))).await.unwrap();
    eventually("a knows its learner", SOON, async || {
        let config = log_a.status().await.unwrap().config.unwrap();
        config.learner.map(|_| ()).ok_or("no learner")
    })
    .await;
    faults.set_rates(Rates { lost_answer: 1.0, cut_watch: 1.0, ..Rates::default() });
    let log_b = b.open().await;
    eventually("b joined", SOON, async || {
        if in_sync(&store).await.contains(&id("b")) { Ok(()) } else { Err("not yet") }
    })
    .await;
    faults.set_link(Link::Refused);
    drop(log_b);
    b.stop().await;
    let outcome = log_a.append(vec![text(100)]).await;
    let error = outcome.expect_err("b counts and does not have it");
    assert_eq!(error.fate(), Fate::Unknown, "{error}");
}

/// P4: a dead follower of an idle log is removed once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_follower_of_an_idle_log_is_removed_once() {
    let dir = TempDir::new("idle").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a"), id("b")], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let log = a.open().await;
    b.open().await;
    append(&log, 0).await;
    b.stop().await;
    eventually("b is removed", SOON, async || {
        if in_sync(&store).await.contains(&id("b")) { Err("not yet") } else { Ok(()) }
    })
    .await;
    let before = referee::read(&store, &orders()).await.unwrap().mod_revision;
    // tidy: allow, because nothing may happen in this time
    tokio::time::sleep(LAG * 5).await;
    assert_eq!(referee::read(&store, &orders()).await.unwrap().mod_revision, before);
}

/// P5: an append that had offsets when its log was closed is not reported as one that never happened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_of_a_closed_log_are_not_called_absent_if_they_stay() {
    let dir = TempDir::new("closed").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a")], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let mut absent = BTreeSet::new();
    for round in 0..10 {
        let log = a.open().await;
        append(&log, round).await;
        let mut appends = JoinSet::new();
        for number in 0..64 {
            let log = log.clone();
            appends.spawn(async move {
                let data = Bytes::from(format!("{round}-{number}"));
                (data.clone(), log.append(vec![data]).await)
            });
        }
        // tidy: allow, because the instant of the close is the input
        tokio::time::sleep(Duration::from_micros(200)).await;
        a.host.close(&orders());
        while let Some(appended) = appends.join_next().await {
            let (data, outcome) = appended.unwrap();
            if outcome.is_err_and(|error| error.fate() == Fate::NotThere) {
                absent.insert(data);
            }
        }
    }
    let log = a.open().await;
    append(&log, 100).await;
    let there = everything(&log).await;
    assert_eq!(there.intersection(&absent).count(), 0);
}

/// P5 and P6: a full disk reports the outcome of appends correctly, and begins no epochs while it waits for space.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_says_what_is_there_and_waits_without_new_epochs() {
    const MIB: u64 = 1 << 20;
    let options = Options { segment_bytes: MIB, journal_file_bytes: MIB, checkpoint_bytes: MIB };
    let (store, book) = (memory(), AddressBook::default());
    let device = SimDisk::new();
    device.set_capacity(Some(6 * MIB));
    referee::create(&store, &orders(), vec![id("a")], 1).await.unwrap();
    let disk = Disk::open_on(Arc::new(device.clone()), Path::new("/logs"), options).unwrap();
    let a = start_on("a", disk, &store, &book).await;
    let log = a.open().await;
    append(&log, 0).await;
    let mut appends = JoinSet::new();
    for appender in 0..16 {
        let log = log.clone();
        appends.spawn(async move {
            for number in 0.. {
                let mut data = format!("{appender}-{number}-").into_bytes();
                data.resize(16 << 10, b'.');
                let data = Bytes::from(data);
                if let Err(error) = log.append(vec![data.clone()]).await {
                    return (error.fate() == Fate::NotThere).then_some(data);
                }
            }
            None
        });
    }
    let mut absent = BTreeSet::new();
    while let Some(appended) = appends.join_next().await {
        absent.extend(appended.unwrap());
    }
    let refused = log.append(vec![Bytes::from(vec![0; 16 << 10])]).await;
    assert!(refused.is_err(), "{refused:?}");
    let epoch = async || referee::read(&store, &orders()).await.unwrap().record.epoch;
    let before = epoch().await;
    // tidy: allow, because nothing may happen in this time
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(epoch().await.0 <= before.0 + 1, "{before} to {}", epoch().await);
    device.set_capacity(None);
    append(&log, 1).await;
    let there = everything(&log).await;
    assert_eq!(there.intersection(&absent).count(), 0);
}

/// P6: a primary whose disk fails hands over to another complete copy at once, while its lease continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_disk_hands_its_lead_over() {
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a"), id("b"), id("c")], 2).await.unwrap();
    let devices = [SimDisk::new(), SimDisk::new(), SimDisk::new()];
    let mut hosts = Vec::new();
    for (name, device) in ["a", "b", "c"].into_iter().zip(&devices) {
        let options =
            Options { segment_bytes: 64 << 10, journal_file_bytes: 256 << 10, checkpoint_bytes: 256 << 10 };
        let disk = Disk::open_on(Arc::new(device.clone()), Path::new("/logs"), options).unwrap();
        hosts.push(start_on(name, disk, &store, &book).await);
    }
    let mut logs = Vec::new();
    for host in &hosts {
        logs.push(host.open().await);
    }
    for number in 0..10 {
        append(&logs[0], number).await;
    }
    let before = referee::read(&store, &orders()).await.unwrap().record;
    devices[0].break_calls(|_| Some(Fault::Io));
    let outcome = logs[0].append(vec![text(10)]).await;
    assert_eq!(outcome.unwrap_err().fate(), Fate::Unknown);
    let config = eventually("another one leads", SOON, async || {
        let config = referee::read(&store, &orders()).await.unwrap().record;
        if config.primary == id("a") { Err("a leads") } else { Ok(config) }
    })
    .await;
    assert!(config.epoch.0 <= before.epoch.0 + 2, "{} to {}", before.epoch, config.epoch);
    assert!(!matches!(*logs[0].standing().borrow(), Standing::Leading { .. }));
    assert!(logs[0].read_index().await.is_err());
    let heir = if config.primary == id("b") { &logs[1] } else { &logs[2] };
    append(heir, 11).await;
    let there = everything(heir).await;
    assert!((0..10).chain([11]).all(|number| there.contains(&text(number))));
    let settled = referee::read(&store, &orders()).await.unwrap().record.epoch;
    // tidy: allow, because nothing may happen in this time
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(referee::read(&store, &orders()).await.unwrap().record.epoch, settled);
}

/// P7: a new primary does not serve a log in which acknowledged entries are missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_primary_shows_everything_that_was_acknowledged_or_nothing() {
    let dir = TempDir::new("failover").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a"), id("b"), id("c")], 2).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let c = start("c", &dir.join("c"), &store, &book).await;
    let (log_a, log_b, _log_c) = (a.open().await, b.open().await, c.open().await);
    for number in 0..10 {
        append(&log_a, number).await;
    }
    let at = append(&log_a, 10).await;
    drop(log_a);
    a.stop().await;
    referee::change(&store, &orders(), |config| config.fail_over(&id("b"), &[id("a")])).await.unwrap();
    eventually("b serves", SOON, async || {
        let leads = log_b.status().await.unwrap().role == RoleName::Primary;
        let read = log_b.read(at, 1000).await;
        if let (true, Ok(batch)) = (leads, &read) {
            assert_eq!(batch.entries.len(), 1, "b leads and does not show an acknowledged entry");
        }
        if leads && read.is_ok() { Ok(()) } else { Err(format!("{read:?}")) }
    })
    .await;
    assert!(log_b.read_index().await.unwrap() > at);
}

/// P8: a reader during retention sees entries or the new beginning, and creates no files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_beside_readers_is_not_damage() {
    let dir = TempDir::new("retention").unwrap();
    let small = Options { segment_bytes: 4 << 10, journal_file_bytes: 1 << 20, checkpoint_bytes: 1 << 20 };
    let disk = Disk::open(dir.path(), small).unwrap();
    let log = disk.log(&orders()).await.unwrap();
    for first in (0..1_500).step_by(50) {
        let entries = (first..first + 50).map(|offset| entry(1, offset, 1_000)).collect();
        append_to_disk(&log, entries).await.unwrap();
    }
    disk.close().await.unwrap();
    let disk = Disk::open(dir.path(), small).unwrap();
    let log = disk.log(&orders()).await.unwrap();
    let mut readers = JoinSet::new();
    for _ in 0..4 {
        let reader = log.clone();
        readers.spawn_blocking(move || {
            while reader.start() < Offset(1_400) {
                match reader.read(reader.start(), 1_000) {
                    Ok(_) | Err(DiskError::Truncated { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
    }
    for before in (3..1_450).step_by(3) {
        log.truncate(Offset(before)).await.unwrap();
    }
    while let Some(read) = readers.join_next().await {
        read.unwrap().unwrap();
    }
    disk.close().await.unwrap();
    let segments = std::fs::read_dir(dir.join("segments")).unwrap();
    let empty = segments.filter(|entry| entry.as_ref().unwrap().metadata().unwrap().len() == 0);
    assert_eq!(empty.count(), 0);
}

/// P9: an entry of an epoch that was cut off is damage, on a read and for the verification.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_of_an_epoch_that_was_cut_off_is_damage() {
    let dir = TempDir::new("stale-epoch").unwrap();
    let disk = Disk::open(dir.path(), Options::default()).unwrap();
    let log = disk.log(&orders()).await.unwrap();
    for offset in 0..10 {
        append_to_disk(&log, vec![entry(1, offset, 100)]).await.unwrap();
    }
    disk.close().await.unwrap();
    let segment = std::fs::read_dir(dir.join("segments")).unwrap().next().unwrap().unwrap().path();
    let old = std::fs::read(&segment).unwrap();
    let disk = Disk::open(dir.path(), Options::default()).unwrap();
    let log = disk.log(&orders()).await.unwrap();
    let (done, answer) = tokio::sync::oneshot::channel();
    log.cut(Offset(5), Box::new(|outcome| drop(done.send(outcome)))).await.unwrap();
    answer.await.unwrap().unwrap();
    for offset in 5..10 {
        append_to_disk(&log, vec![entry(2, offset, 100)]).await.unwrap();
    }
    disk.close().await.unwrap();
    assert!(inspect(dir.path(), Depth::EveryEntry).unwrap().is_whole());
    std::fs::write(&segment, old).unwrap();
    assert!(!inspect(dir.path(), Depth::EveryEntry).unwrap().is_whole());
    let disk = Disk::open(dir.path(), Options::default()).unwrap();
    let log = disk.log(&orders()).await.unwrap();
    let read = log.read(Offset(7), 10);
    assert!(matches!(read, Err(DiskError::Damaged { offset: Offset(5), .. })), "{read:?}");
    assert_eq!(log.read(Offset(2), 10).unwrap().first(), Some(&entry(1, 2, 100)));
}
