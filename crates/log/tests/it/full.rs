//! A full disk: appends stop with a clear error, reads go on, and everything works again when there is room.
//!
//! The disk is a small tmpfs in a mount namespace of the child's own, which takes a user namespace but no privileges.

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

const SOON: Duration = Duration::from_secs(30);
const NAME: &str = "full::child";
const PLACE: &str = "CAPSTAN_LOG_FULL_DISK";

#[tokio::test]
async fn a_full_disk_stops_appends_and_only_until_there_is_room() {
    let dir = TempDir::new("full").unwrap();
    let place = dir.join("small");
    std::fs::create_dir(&place).unwrap();
    let script = "mount -t tmpfs -o size=4m tmpfs \"$1\" && exec \"$0\" full::child --exact --nocapture";
    let test = std::env::current_exe().unwrap();
    let child =
        Process::builder("unshare").debian_package("util-linux").args(["-r", "-m", "sh", "-c", script]);
    let child = child.arg(test).arg(&place).env(PLACE, &place);
    let mut child = child.spawn(dir.join("child.log")).unwrap();
    let ended = child.exited(Duration::from_secs(60)).await.unwrap();
    let text = child.log_text();
    assert!(ended.success() && text.contains("has room again"), "{text}");
}

#[test]
fn child() {
    let Ok(place) = std::env::var(PLACE) else { return };
    assert_eq!(NAME, "full::child");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(fill(place.as_ref()));
}

async fn fill(place: &std::path::Path) {
    let store = Store::new(Embedded::in_memory(embedded::Options::default()));
    let log_name = "orders".parse().unwrap();
    let me: capstan_log::HolderId = "a".parse().unwrap();
    referee::create(&store, &log_name, vec![me.clone()], 1).await.unwrap();
    let session = Session::start(store.clone(), SessionOptions::default());
    session.live().await.unwrap();
    let options =
        Options { segment_bytes: 256 << 10, journal_file_bytes: 256 << 10, checkpoint_bytes: 256 << 10 };
    let disk = Disk::open(&place.join("logs"), options).unwrap();
    let state = session.state();
    let host =
        Host::start(HostOptions::new(me), disk, store, state, None, AddressBook::default()).await.unwrap();
    let log = host.open(&log_name, Arc::new(NoSnapshots)).await.unwrap();
    let entry = || vec![Bytes::from(vec![7; 10_000])];
    let mut acknowledged = Vec::new();
    let refused = eventually("the disk is full", SOON, async || match log.append(entry()).await {
        Ok((first, _)) => {
            acknowledged.push(first);
            Err("still room".to_owned())
        }
        Err(error @ LogError::Disk(DiskError::Full(_))) => Ok(error),
        Err(error) => Err(error.to_string()),
    })
    .await;
    eprintln!("{refused}");
    assert!(acknowledged.len() > 50, "{} appends fit", acknowledged.len());
    for offset in &acknowledged {
        assert_eq!(log.read(*offset, 1).await.unwrap().entries[0].offset, *offset);
    }
    let committed = log.committed().unwrap();
    log.truncate_before(Offset(committed.0 / 2)).await.ok();
    eventually("there is room again", SOON, async || {
        log.truncate_before(Offset(committed.0 / 2)).await.ok();
        log.append(entry()).await
    })
    .await;
    host.stop().await.unwrap();
    eprintln!("has room again");
}
