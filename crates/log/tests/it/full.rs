//! A full disk: appends fail with a clear error, reads continue, and everything works again when there is space.
//!
//! The disk is a small tmpfs in the child's own mount namespace, which needs a user namespace but no privileges.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_log::disk::{DiskError, Options};
use capstan_log::net::AddressBook;
use capstan_log::{Disk, Host, HostOptions, LogError, NoSnapshots, Offset, referee};
use capstan_meta::Store;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::session::{Session, SessionOptions};
use capstan_testkit::{Process, TempDir, eventually};

use super::disk::{append, entry, read_all};

const SOON: Duration = Duration::from_secs(30);
const NAME: &str = "full::child";
const PLACE: &str = "CAPSTAN_LOG_FULL_DISK";
const PART: &str = "CAPSTAN_LOG_FULL_DISK_PART";

/// Runs children with these parts, one after the other, on one small disk. Returns their output.
async fn on_a_small_disk(parts: &[&str]) -> String {
    let dir = TempDir::new("full").unwrap();
    let place = dir.join("small");
    std::fs::create_dir(&place).unwrap();
    let mut script = "mount -t tmpfs -o size=4m tmpfs \"$1\"".to_owned();
    for part in parts {
        script += &format!("; {PART}={part} \"$0\" full::child --exact --nocapture");
    }
    let test = std::env::current_exe().unwrap();
    let child =
        Process::builder("unshare").debian_package("util-linux").args(["-r", "-m", "sh", "-c", &script]);
    let child = child.arg(test).arg(&place).env(PLACE, &place);
    let mut child = child.spawn(dir.join("child.log")).unwrap();
    let ended = child.exited(Duration::from_secs(60)).await.unwrap();
    let text = child.log_text();
    assert!(ended.success(), "{text}");
    text
}

#[tokio::test]
async fn a_full_disk_stops_appends_and_only_until_there_is_room() {
    let text = on_a_small_disk(&["fill"]).await;
    assert!(text.contains("has room again"), "{text}");
}

#[tokio::test]
async fn a_kill_on_a_full_disk_loses_nothing() {
    let text = on_a_small_disk(&["die", "rise"]).await;
    assert!(text.contains("has room again"), "{text}");
}

#[test]
fn child() {
    let (Ok(place), Ok(part)) = (std::env::var(PLACE), std::env::var(PART)) else { return };
    assert_eq!(NAME, "full::child");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let place = std::path::Path::new(&place);
    match part.as_str() {
        "fill" => runtime.block_on(fill(place)),
        "die" => runtime.block_on(die(place)),
        _ => runtime.block_on(rise(place)),
    }
}

const OPTIONS: Options =
    Options { segment_bytes: 256 << 10, journal_file_bytes: 256 << 10, checkpoint_bytes: 256 << 10 };

/// Appends until the disk is full, and exits without a clean stop.
async fn die(place: &std::path::Path) {
    let disk = Disk::open(&place.join("logs"), OPTIONS).unwrap();
    let log = disk.log(&"orders".parse().unwrap()).await.unwrap();
    let mut offset = 0;
    while append(&log, vec![entry(1, offset, 10_000)]).await.is_ok() {
        offset += 1;
    }
    std::fs::write(place.with_extension("count"), offset.to_string()).unwrap();
    eprintln!("{offset} were acknowledged");
    std::process::abort();
}

/// Opens what it left behind: still full, and everything is there.
async fn rise(place: &std::path::Path) {
    let count: u64 = std::fs::read_to_string(place.with_extension("count")).unwrap().parse().unwrap();
    let disk = Disk::open(&place.join("logs"), OPTIONS).unwrap();
    let log = disk.log(&"orders".parse().unwrap()).await.unwrap();
    let found = read_all(&log).unwrap();
    assert!(found.len() as u64 >= count && count > 50, "{} of {count}", found.len());
    found.iter().enumerate().for_each(|(at, found)| assert_eq!(*found, entry(1, at as u64, 10_000)));
    let end = found.len() as u64;
    eventually("there is room again", SOON, async || {
        log.truncate(Offset(end / 2)).await.ok();
        append(&log, vec![entry(1, log.history().end().0, 10_000)]).await
    })
    .await;
    assert_eq!(read_all(&log).unwrap().len() as u64, end - end / 2 + 1);
    disk.close().await.unwrap();
    eprintln!("has room again");
}

async fn fill(place: &std::path::Path) {
    let store = Store::new(Embedded::in_memory(embedded::Options::default()));
    let log_name = "orders".parse().unwrap();
    let me: capstan_log::HolderId = "a".parse().unwrap();
    referee::create(&store, &log_name, vec![me.clone()], 1).await.unwrap();
    let session = Session::start(store.clone(), SessionOptions::default());
    session.live().await.unwrap();
    let disk = Disk::open(&place.join("logs"), OPTIONS).unwrap();
    let state = session.state();
    let host =
        Host::start(HostOptions::new(me), disk, store, state, None, AddressBook::default()).await.unwrap();
    let log = host.open(&log_name, Arc::new(NoSnapshots)).await.unwrap();
    let data = || vec![Bytes::from(vec![7; 10_000])];
    eventually("the log takes appends", SOON, async || log.append(data()).await).await;
    let mut acknowledged = Vec::new();
    // The disk has space for a few hundred.
    let refused = loop {
        match log.append(data()).await {
            Ok((first, _)) => acknowledged.push(first),
            Err(error) => break error,
        }
    };
    // It had offsets before the disk refused it: only the log can tell whether it is there.
    assert!(matches!(refused, LogError::Uncertain { .. } | LogError::Disk(DiskError::Full(_))), "{refused}");
    assert!(refused.to_string().contains("the disk is full"), "{refused}");
    eprintln!("{refused}");
    assert!(acknowledged.len() > 50, "{} appends fit", acknowledged.len());
    for offset in &acknowledged {
        assert_eq!(log.read(*offset, 1).await.unwrap().entries[0].offset, *offset);
    }
    let committed = log.committed().unwrap();
    eventually("there is room again", SOON, async || {
        log.truncate_before(Offset(committed.0 / 2)).await.ok();
        log.append(data()).await
    })
    .await;
    host.stop().await.unwrap();
    eprintln!("has room again");
}
