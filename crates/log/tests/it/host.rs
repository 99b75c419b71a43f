//! Whole hosts in one process: append, read, tail, replicate, hand over, learn, repair, over real disks and sockets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_log::disk::Options;
use capstan_log::net::AddressBook;
use capstan_log::replica::{RoleName, Timing};
use capstan_log::{Disk, HolderId, Host, HostOptions, Log, LogError, LogName, NoSnapshots, Offset, referee};
use capstan_meta::Store;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::session::{Session, SessionOptions};
use capstan_testkit::{TempDir, eventually};
use tokio::net::TcpListener;

const SOON: Duration = Duration::from_secs(20);

pub fn id(name: &str) -> HolderId {
    name.parse().unwrap()
}

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

async fn start(me: &str, dir: &Path, store: &Store, book: &AddressBook) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    book.set(id(me), listener.local_addr().unwrap());
    let session = Session::start(store.clone(), SessionOptions::default());
    session.live().await.unwrap();
    let lag = Duration::from_millis(700);
    let timing = Timing {
        heartbeat: Duration::from_millis(50),
        resend: Duration::from_millis(150),
        lag,
        ..Timing::default()
    };
    let options = HostOptions { timing, append_within: Duration::from_secs(3), ..HostOptions::new(id(me)) };
    let disk = Disk::open(dir, Options { segment_bytes: 64 * 1024, ..Options::default() }).unwrap();
    let state = session.state();
    let host = Host::start(options, disk, store.clone(), state, Some(listener), book.clone()).await.unwrap();
    Running { host, _session: session }
}

impl Running {
    async fn open(&self) -> Log {
        self.host.open(&orders(), Arc::new(NoSnapshots)).await.unwrap()
    }
}

fn text(number: usize) -> Bytes {
    Bytes::from(format!("entry {number}"))
}

/// Appends until it is committed; for tests that change the primary meanwhile.
async fn append(log: &Log, number: usize) -> Offset {
    eventually("the append is committed", SOON, async || log.append(vec![text(number)]).await).await.0
}

async fn read_all(log: &Log) -> Vec<Bytes> {
    let mut from = Offset::ZERO;
    let mut all = Vec::new();
    loop {
        let batch = log.read(from, 100_000).await.unwrap();
        if batch.next == from {
            return all;
        }
        from = batch.next;
        all.extend(batch.entries.into_iter().map(|entry| entry.data));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_holder_is_a_plain_durable_log() {
    let dir = TempDir::new("host").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a")], 1).await.unwrap();
    let a = start("a", dir.path(), &store, &book).await;
    let log = a.open().await;
    let mut tail = log.tail(Offset::ZERO);
    for number in 0..100 {
        append(&log, number).await;
    }
    let mut seen = Vec::new();
    while seen.len() < 100 {
        seen.extend(tail.next(1_000).await.unwrap().into_iter().map(|entry| entry.data));
    }
    assert_eq!(seen, (0..100).map(text).collect::<Vec<_>>());
    assert_eq!(log.append(vec![]).await, Err(LogError::Empty));
    a.host.stop().await.unwrap();

    let a = start("a", dir.path(), &store, &book).await;
    let log = a.open().await;
    append(&log, 100).await;
    assert_eq!(read_all(&log).await, (0..101).map(text).collect::<Vec<_>>());
    log.truncate_before(Offset(50)).await.unwrap();
    assert!(matches!(log.read(Offset(0), 10).await, Err(LogError::Truncated(_))));
    assert_eq!(log.status().await.unwrap().role, RoleName::Primary);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_holders_agree_and_the_log_moves_on_when_one_is_gone() {
    let dir = TempDir::new("host").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a"), id("b"), id("c")], 2).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let c = start("c", &dir.join("c"), &store, &book).await;
    let (log_a, log_b, _) = (a.open().await, b.open().await, c.open().await);
    for number in 0..50 {
        append(&log_a, number).await;
    }
    assert!(matches!(log_b.append(vec![text(0)]).await, Err(LogError::NotPrimary(_))));

    c.host.stop().await.unwrap();
    append(&log_a, 50).await;
    let config = referee::read(&store, &orders()).await.unwrap().record;
    assert_eq!(config.in_sync, [id("a"), id("b")]);

    elect(&store, "b").await;
    append(&log_b, 51).await;
    assert_eq!(read_all(&log_b).await, (0..52).map(text).collect::<Vec<_>>());

    let c = start("c", &dir.join("c"), &store, &book).await;
    let log_c = c.open().await;
    eventually("everyone has everything", SOON, async || {
        let config = referee::read(&store, &orders()).await.unwrap().record;
        let (there, here) = (read_all(&log_a).await.len(), read_all(&log_c).await.len());
        if config.in_sync.len() == 3 && (there, here) == (52, 52) {
            Ok(())
        } else {
            Err(format!("{there} {here} {config:?}"))
        }
    })
    .await;
    assert_eq!(read_all(&log_c).await, (0..52).map(text).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_moves_to_another_host_and_damage_is_repaired_from_there() {
    let dir = TempDir::new("host").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a")], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let log_a = a.open().await;
    for number in 0..200 {
        append(&log_a, number).await;
    }
    // Retention: a learner gets a snapshot of the dropped entries and the entries after it.
    let b = start("b", &dir.join("b"), &store, &book).await;
    referee::change(&store, &orders(), |config| config.add_learner(&id("b"))).await.unwrap();
    let log_b = b.open().await;
    eventually("the learner is in sync", SOON, async || {
        let config = referee::read(&store, &orders()).await.unwrap().record;
        if config.is_in_sync(&id("b")) { Ok(()) } else { Err(format!("{config:?}")) }
    })
    .await;
    elect(&store, "b").await;
    append(&log_b, 200).await;

    // A clean stop moves everything into segments.
    b.host.stop().await.unwrap();
    let segment = std::fs::read_dir(dir.join("b/segments")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[512 + 40 * 10 + 35] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let b = start("b", &dir.join("b"), &store, &book).await;
    let log_b = b.open().await;
    append(&log_b, 201).await;
    assert_eq!(read_all(&log_b).await, (0..202).map(text).collect::<Vec<_>>());

    referee::change(&store, &orders(), |config| config.mark_leaving(&id("a"))?.remove_leaving())
        .await
        .unwrap();
    append(&log_b, 202).await;
    let config = referee::read(&store, &orders()).await.unwrap().record;
    assert_eq!((config.holders, config.in_sync), (vec![id("b")], vec![id("b")]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_that_is_too_late_for_the_entries_begins_with_a_snapshot() {
    let dir = TempDir::new("host").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a")], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let log_a = a.open().await;
    for number in 0..20 {
        append(&log_a, number).await;
    }
    log_a.truncate_before(Offset(15)).await.unwrap();
    let b = start("b", &dir.join("b"), &store, &book).await;
    referee::change(&store, &orders(), |config| config.add_learner(&id("b"))).await.unwrap();
    let log_b = b.open().await;
    eventually("the learner is in sync", SOON, async || {
        let config = referee::read(&store, &orders()).await.unwrap().record;
        if config.is_in_sync(&id("b")) { Ok(()) } else { Err(format!("{config:?}")) }
    })
    .await;
    assert!(matches!(log_b.read(Offset(3), 100).await, Err(LogError::Truncated(Offset(15)))));
    append(&log_a, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_copies_stop_appends_with_a_clear_error_and_reads_go_on() {
    let dir = TempDir::new("host").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &orders(), vec![id("a"), id("b")], 2).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let (log_a, _) = (a.open().await, b.open().await);
    append(&log_a, 0).await;
    b.host.stop().await.unwrap();
    let refused = log_a.append(vec![text(1)]).await;
    assert!(matches!(refused, Err(LogError::NotCommitted { in_sync: 2, min_copies: 2, .. })), "{refused:?}");
    assert_eq!(read_all(&log_a).await, [text(0)]);
    let b = start("b", &dir.join("b"), &store, &book).await;
    b.open().await;
    append(&log_a, 2).await;
}
