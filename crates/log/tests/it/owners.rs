//! What owners and controllers of logs are given: epochs, pipelining, standing, handover, seal, time, floors, deletion.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_log::disk::Options;
use capstan_log::net::AddressBook;
use capstan_log::{
    Disk, Fate, Host, HostOptions, Log, LogEpoch, LogError, LogName, NoSnapshots, Offset, Refused, Standing,
    referee,
};
use capstan_meta::Store;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::session::{Session, SessionOptions};
use capstan_testkit::{TempDir, eventually};
use tokio::net::TcpListener;

use super::host::id;

const SOON: Duration = Duration::from_secs(30);

fn named(name: &str) -> LogName {
    name.parse().unwrap()
}

fn memory() -> Store {
    Store::new(Embedded::in_memory(embedded::Options::default()))
}

struct Running {
    host: Host,
    _session: Session,
}

impl Running {
    async fn open(&self, name: &str) -> Log {
        self.host.open(&named(name), Arc::new(NoSnapshots)).await.unwrap()
    }
}

async fn start(me: &str, dir: &Path, store: &Store, book: &AddressBook) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    book.set(id(me), listener.local_addr().unwrap());
    let session = Session::start(store.clone(), SessionOptions::default());
    session.live().await.unwrap();
    let options = HostOptions { log_bytes: 1 << 20, ..HostOptions::new(id(me)) };
    let disk = Disk::open(dir, Options { segment_bytes: 64 * 1024, ..Options::default() }).unwrap();
    let state = session.state();
    let host = Host::start(options, disk, store.clone(), state, Some(listener), book.clone());
    Running { host: host.await.unwrap(), _session: session }
}

async fn leads(log: &Log) -> (LogEpoch, Offset) {
    let mut standing = log.standing();
    let leads = standing.wait_for(|standing| matches!(standing, Standing::Leading { .. }));
    match &*tokio::time::timeout(SOON, leads).await.unwrap().unwrap() {
        Standing::Leading { epoch, begun } => (*epoch, *begun),
        other => panic!("{other:?}"),
    }
}

async fn follows(log: &Log, primary: &str) {
    let mut standing = log.standing();
    let wanted = Standing::Following { primary: id(primary) };
    tokio::time::timeout(SOON, standing.wait_for(|s| *s == wanted)).await.unwrap().unwrap();
}

fn text(number: usize) -> Bytes {
    Bytes::from(format!("entry {number}"))
}

async fn read_all(log: &Log, mut from: Offset) -> Vec<Bytes> {
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
async fn appends_of_an_epoch_are_placed_in_it_and_in_order() {
    let dir = TempDir::new("owners").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &named("orders"), vec![id("a")], 1).await.unwrap();
    let a = start("a", dir.path(), &store, &book).await;
    let log = a.open("orders").await;
    let (epoch, begun) = leads(&log).await;
    let refused = log.append_in(LogEpoch(epoch.0 - 1), vec![text(0)]).await.unwrap_err();
    assert!(matches!(refused, LogError::OtherEpoch { present, .. } if present == epoch), "{refused}");
    assert_eq!(refused.fate(), Fate::NotThere);

    // More bytes than may wait: submissions wait for each other, and keep their order.
    let mut pending = Vec::new();
    let data = |number: usize| Bytes::from(vec![number as u8; 50_000]);
    for number in 0..60 {
        pending.push(log.submit(epoch, vec![data(number)]).await.unwrap());
    }
    let mut expected = begun;
    for placed in pending {
        assert_eq!(placed.offsets(), (expected, expected.plus(1)));
        assert_eq!(placed.committed().await.unwrap().0, expected);
        expected = expected.plus(1);
    }
    assert_eq!(log.read_index().await.unwrap(), expected);
    assert_eq!(read_all(&log, begun).await, (0..60).map(data).collect::<Vec<_>>());
    let refused = log.submit(epoch.next(), vec![text(0)]).await.unwrap_err();
    assert_eq!(refused.fate(), Fate::NotThere);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lead_is_handed_over_without_a_lost_or_doubtful_append() {
    let dir = TempDir::new("owners").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &named("orders"), vec![id("a"), id("b")], 2).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let (log_a, log_b) = (a.open("orders").await, b.open("orders").await);
    let (epoch, _) = leads(&log_a).await;
    follows(&log_b, "a").await;
    assert!(matches!(log_b.read_index().await, Err(LogError::NotPrimary(_))));

    let (log, mut appended, mut refused) = (log_a.clone(), Vec::new(), None);
    let appending = async {
        while refused.is_none() {
            let number = appended.len();
            match log.append_in(epoch, vec![text(number)]).await {
                Ok(_) => appended.push(text(number)),
                Err(error) => refused = Some(error),
            }
        }
    };
    let handing = async {
        // tidy: allow, because appends have to be under way
        tokio::time::sleep(Duration::from_millis(50)).await;
        log_a.hand_over(&id("b"), SOON).await
    };
    let ((), handed) = tokio::join!(appending, handing);
    let handed = handed.unwrap();
    assert!(handed > epoch);
    assert_eq!(refused.unwrap().fate(), Fate::NotThere);
    let (epoch, _) = leads(&log_b).await;
    assert_eq!(epoch, handed);
    follows(&log_a, "b").await;
    let index = log_b.read_index().await.unwrap();
    assert_eq!(read_all(&log_b, Offset::ZERO).await, appended);
    assert!(index.0 as usize > appended.len());

    let missing = log_b.hand_over(&id("z"), SOON).await;
    assert_eq!(missing, Err(LogError::Refused(Refused::NotAHolder(id("z")))));
    // The other holder is gone: the log goes on as before, as far as it can.
    a.host.stop().await.unwrap();
    let late = log_b.hand_over(&id("a"), Duration::from_millis(300)).await;
    assert_eq!(late, Err(LogError::NotDrained(named("orders"))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sealed_log_takes_nothing_more_and_is_read_to_its_end() {
    let dir = TempDir::new("owners").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &named("orders"), vec![id("a")], 1).await.unwrap();
    let a = start("a", dir.path(), &store, &book).await;
    let log = a.open("orders").await;
    let (epoch, _) = leads(&log).await;
    let (_, end) = log.append_in(epoch, vec![text(0), text(1)]).await.unwrap();
    assert_eq!(log.seal().await, Ok(end));
    assert_eq!(log.seal().await, Ok(end));
    let refused = log.append(vec![text(2)]).await.unwrap_err();
    assert_eq!((&refused, refused.fate()), (&LogError::Sealed(named("orders")), Fate::NotThere));
    a.host.stop().await.unwrap();
    let a = start("a", dir.path(), &store, &book).await;
    let log = a.open("orders").await;
    leads(&log).await;
    assert!(matches!(log.append(vec![text(2)]).await, Err(LogError::Sealed(_))));
    assert_eq!(read_all(&log, Offset::ZERO).await, [text(0), text(1)]);
    assert_eq!(referee::read(&store, &named("orders")).await.unwrap().record.sealed, Some(end));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_found_by_time_and_whole_segments_are_listed() {
    let dir = TempDir::new("owners").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &named("orders"), vec![id("a")], 1).await.unwrap();
    let a = start("a", dir.path(), &store, &book).await;
    let log = a.open("orders").await;
    let (epoch, begun) = leads(&log).await;
    for _ in 0..40 {
        log.append_in(epoch, vec![Bytes::from(vec![7; 10_000])]).await.unwrap();
    }
    a.host.stop().await.unwrap();
    let a = start("a", dir.path(), &store, &book).await;
    let log = a.open("orders").await;
    let (epoch, between) = leads(&log).await;
    let second = eventually("the clock goes on", SOON, async || {
        let (first, _) = log.append_in(epoch, vec![text(0)]).await.unwrap();
        let time = async |offset| log.read(offset, 1).await.unwrap().entries[0].time;
        let (now, before) = (time(first).await, time(begun).await);
        if now > before { Ok((first, now)) } else { Err(format!("{now:?}")) }
    })
    .await;
    assert_eq!(log.offset_at(Duration::ZERO).await.unwrap(), Offset::ZERO);
    let found = log.offset_at(second.1).await.unwrap();
    assert!(found > begun && found <= second.0, "{found}");
    let late = second.1 + Duration::from_secs(3600);
    assert_eq!(log.offset_at(late).await.unwrap(), log.committed().unwrap());

    let closed = log.closed_segments().unwrap();
    assert!(closed.len() >= 5, "{closed:?}");
    assert!(closed.windows(2).all(|pair| pair[0].end == pair[1].first && pair[0].bytes > 50_000));
    assert!(closed.last().unwrap().end <= between);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_holder_drops_what_lies_below_the_floor() {
    let dir = TempDir::new("owners").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &named("orders"), vec![id("a"), id("b")], 2).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let (log_a, log_b) = (a.open("orders").await, b.open("orders").await);
    let (epoch, begun) = leads(&log_a).await;
    for number in 0..20 {
        log_a.append_in(epoch, vec![text(number)]).await.unwrap();
    }
    referee::change(&store, &named("orders"), |config| Ok(config.raise_floor(begun.plus(10)))).await.unwrap();
    for log in [&log_a, &log_b] {
        eventually("entries below the floor are gone", SOON, async || {
            match log.read(Offset::ZERO, 1_000).await {
                Err(LogError::Truncated(start)) if start == begun.plus(10) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        assert_eq!(read_all(log, begun.plus(10)).await[0], text(10));
    }
    // A floor above the present end takes effect when it is reached.
    referee::change(&store, &named("orders"), |config| Ok(config.raise_floor(begun.plus(25)))).await.unwrap();
    for number in 20..40 {
        log_a.append_in(epoch, vec![text(number)]).await.unwrap();
    }
    eventually("the higher floor is reached", SOON, async || {
        let starts = [log_a.status().await.unwrap().start, log_b.status().await.unwrap().start];
        if starts == [begun.plus(25); 2] { Ok(()) } else { Err(format!("{starts:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_log_loses_its_copies_and_its_name_begins_anew() {
    let dir = TempDir::new("owners").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &named("orders"), vec![id("a"), id("b")], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let (log_a, _) = (a.open("orders").await, b.open("orders").await);
    let (epoch, _) = leads(&log_a).await;
    log_a.append_in(epoch, vec![text(0)]).await.unwrap();
    let first = referee::read(&store, &named("orders")).await.unwrap().record.incarnation;
    let held = a.host.delete(&named("orders")).await;
    assert_eq!(held, Err(LogError::Refused(Refused::StillHeld(id("a")))));

    // One holder is down while the log is deleted and created again.
    b.host.stop().await.unwrap();
    drop(b);
    referee::delete(&store, &named("orders")).await.unwrap();
    eventually("the copy is deleted", SOON, async || {
        let copies = a.host.copies().len();
        if copies == 0 { Ok(()) } else { Err(copies) }
    })
    .await;
    eventually("the handle is closed", SOON, async || match log_a.append(vec![text(1)]).await {
        Err(LogError::Closed(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(placed) => panic!("appended at {placed:?} to a log that was deleted"),
    })
    .await;
    referee::create(&store, &named("orders"), vec![id("a"), id("b")], 1).await.unwrap();
    let log_a = a.open("orders").await;
    let second = referee::read(&store, &named("orders")).await.unwrap().record.incarnation;
    assert!(second > first, "{second:?} {first:?}");
    leads(&log_a).await;
    let b = start("b", &dir.join("b"), &store, &book).await;
    let log_b = eventually("the old copy made way", SOON, async || {
        b.host.open(&named("orders"), Arc::new(NoSnapshots)).await
    })
    .await;
    let (epoch, _) = leads(&log_a).await;
    log_a.append_in(epoch, vec![text(2)]).await.unwrap();
    eventually("both holders have the new log", SOON, async || {
        let seen = read_all(&log_b, Offset::ZERO).await;
        if seen == [text(2)] { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    assert_eq!(referee::grave(&store, &named("orders")).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_nothing_accounts_for_is_kept() {
    let dir = TempDir::new("owners").unwrap();
    let (store, book) = (memory(), AddressBook::default());
    referee::create(&store, &named("orders"), vec![id("a")], 1).await.unwrap();
    let a = start("a", &dir.join("a"), &store, &book).await;
    let log = a.open("orders").await;
    let (epoch, _) = leads(&log).await;
    log.append_in(epoch, vec![text(0)]).await.unwrap();
    a.host.stop().await.unwrap();
    drop(a);
    // A metadata store that has lost everything does not cause any deletion.
    let empty = memory();
    let a = start("a", &dir.join("a"), &empty, &book).await;
    assert_eq!(a.host.delete(&named("orders")).await, Err(LogError::Orphan(named("orders"))));
    referee::create(&empty, &named("other"), vec![id("a")], 1).await.unwrap();
    referee::create(&empty, &named("orders"), vec![id("a")], 1).await.unwrap();
    let opened = a.host.open(&named("orders"), Arc::new(NoSnapshots)).await;
    assert!(matches!(opened, Err(LogError::Orphan(_) | LogError::FromTheFuture(_))), "{opened:?}");
    assert_eq!(a.host.copies().len(), 1);
    a.host.discard(&named("orders")).await.unwrap();
    leads(&a.open("orders").await).await;
}

#[tokio::test]
async fn many_records_change_in_one_transaction() {
    let store = memory();
    let logs: Vec<LogName> = (0..250).map(|number| named(&format!("log-{number}"))).collect();
    for log in &logs {
        referee::create(&store, log, vec![id("a"), id("b"), id("c")], 2).await.unwrap();
    }
    let before = referee::read(&store, &logs[0]).await.unwrap().mod_revision;
    let mut asked = logs.clone();
    asked.push(named("missing"));
    // The future can be spawned, although the decision borrows.
    let (moved, dead) = (logs[7].clone(), [id("a")]);
    let change = |log: &LogName, config: &capstan_log::LogConfig| match *log == moved {
        true => Err(Refused::NotInSync(id("b"))),
        false => config.fail_over(&id("b"), &dead),
    };
    fn sendable<F: Future + Send>(future: F) -> F {
        future
    }
    let changed = sendable(referee::change_all(&store, &asked, change)).await.unwrap();
    assert_eq!((changed.len(), changed.values().filter(|outcome| outcome.is_err()).count()), (250, 1));
    let mut revisions = std::collections::BTreeSet::new();
    for log in &logs {
        let stored = referee::read(&store, log).await.unwrap();
        let config = stored.record;
        if *log == logs[7] {
            assert_eq!((config.epoch, stored.mod_revision > before), (LogEpoch(1), true));
        } else {
            revisions.insert(stored.mod_revision);
            assert_eq!((config.epoch, &config.primary), (LogEpoch(2), &id("b")));
            assert_eq!(config.in_sync, [id("b"), id("c")]);
        }
    }
    assert_eq!(revisions.len(), 3);
}
