//! What `capstan log` says about directories that are whole, killed, damaged and salvaged.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use bytes::Bytes;
use capstan_log::disk::{Disk, Options};
use capstan_log::{Entry, EntryKind, LogEpoch, LogName, Offset};
use capstan_testkit::{TempDir, eventually};

use crate::binary::{DEADLINE, Daemon, Run, capstan};
use crate::golden::golden;

/// Small, so that a few entries make several segments.
const SMALL: Options =
    Options { segment_bytes: 4 << 10, journal_file_bytes: 64 << 10, checkpoint_bytes: 1 << 20 };

async fn append(disk: &Disk, log: &str, epoch: u64, offsets: std::ops::Range<u64>) {
    let name: LogName = log.parse().unwrap();
    let log = disk.log(&name).await.unwrap();
    for offset in offsets {
        let data = Bytes::from(vec![7; 500]);
        let entry = Entry {
            epoch: LogEpoch(epoch),
            offset: Offset(offset),
            kind: EntryKind::Data,
            time: std::time::Duration::ZERO,
            data,
        };
        let (done, answer) = tokio::sync::oneshot::channel();
        log.append(vec![entry], Box::new(|outcome| drop(done.send(outcome)))).await.unwrap();
        answer.await.unwrap().unwrap();
    }
}

/// What a kill -9 leaves behind.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Damages the group with this number; groups begin on blocks.
fn flip_group(dir: &Path, number: u64) {
    for file in std::fs::read_dir(dir.join("journal")).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let is_it =
            |at: &usize| bytes[*at..*at + 4] == *b"CAPJ" && bytes[at + 8..at + 16] == number.to_le_bytes();
        if let Some(at) = (0..bytes.len()).step_by(4096).find(is_it) {
            return flip(&path, at as u64 + 40);
        }
    }
    panic!("no group {number}");
}

/// Directories `whole` (stopped cleanly), `killed`, `torn`, `rotten` (a flipped byte and a segment that is gone) and
/// `holed` (damage in the middle of the journal).
async fn directories() -> TempDir {
    let dir = TempDir::new("log").unwrap();
    let disk = Disk::open(&dir.join("whole"), SMALL).unwrap();
    append(&disk, "orders", 1, 0..20).await;
    append(&disk, "orders", 3, 20..25).await;
    append(&disk, "payments", 2, 0..3).await;
    disk.close().await.unwrap();
    let disk = Disk::open(&dir.join("whole"), SMALL).unwrap();
    disk.log(&"orders".parse().unwrap()).await.unwrap().truncate(Offset(8)).await.unwrap();
    append(&disk, "orders", 3, 25..28).await;
    append(&disk, "refunds", 4, 0..2).await;
    for place in ["killed", "torn", "holed"] {
        copy(&dir.join("whole"), &dir.join(place));
    }
    disk.close().await.unwrap();
    copy(&dir.join("whole"), &dir.join("rotten"));
    // Groups 1 to 30 are checkpointed; 31 truncates, 32 to 34 append, 35 makes a log, 36 and 37 append to it.
    flip_group(&dir.join("torn"), 37);
    flip_group(&dir.join("holed"), 33);
    flip(&dir.join("rotten/segments/00000001-00000000000000000012.seg"), 512 + 2 * 532 + 100);
    std::fs::remove_file(dir.join("rotten/segments/00000002-00000000000000000000.seg")).unwrap();
    dir
}

fn said(run: &Run) -> String {
    format!("{}{}exit code {}\n", run.stdout, run.stderr, run.code)
}

#[tokio::test]
async fn every_state_of_a_directory_is_explained() {
    let dir = directories().await;
    let mut text = String::new();
    for args in [
        ["inspect", "whole"],
        ["verify", "whole"],
        ["inspect", "killed"],
        ["verify", "torn"],
        ["verify", "rotten"],
        ["verify", "holed"],
        ["salvage", "holed"],
        ["verify", "holed"],
        ["salvage", "whole"],
        ["verify", "nowhere"],
    ] {
        let run = capstan(dir.path(), &["log", args[0], args[1]]);
        text += &format!("$ capstan log {} {}\n{}\n", args[0], args[1], said(&run));
    }
    golden("log.txt", &text);
}

#[tokio::test]
async fn logs_of_a_running_installation_are_listed_shown_and_led_by_another_holder() {
    let up = Daemon::start("logs", &["up", "--port-base", "0", "--set", "up.hosts=2"]).await;
    eventually("all holders are up", DEADLINE, async || {
        let holders = up.capstan(&["log", "holders", "-o", "json"]).json();
        let up = holders["holders"].as_array().unwrap().iter().filter(|line| line["state"] == "up").count();
        if up == 4 { Ok(()) } else { Err(holders.to_string()) }
    })
    .await;
    assert!(up.capstan(&["log", "show", "orders"]).stderr.contains("there is no log orders"));
    let record = r#"{"epoch":1,"primary":"topics.local-1","holders":["topics.local-1","topics.local-2"],
        "in_sync":["topics.local-1","topics.local-2"],"min_copies":2}"#;
    up.capstan(&["meta", "put", "/capstan/logs/orders", record]).ok();
    let line = eventually("its primary has begun an epoch", DEADLINE, async || {
        let line = up.capstan(&["log", "show", "orders", "-o", "json"]).json();
        if line["epoch"].as_u64() > Some(1) { Ok(line) } else { Err(line.to_string()) }
    })
    .await;
    assert_eq!((&line["state"], &line["primary"]), (&"ok".into(), &"topics.local-1".into()));
    up.capstan(&["log", "elect", "orders", "topics.local-2"]).ok();
    let list = up.capstan(&["log", "list"]).ok();
    assert!(list.contains("topics.local-2"), "{list}");
    let shown = up.capstan(&["log", "show", "orders"]).ok();
    assert!(shown.contains("in sync, up") && shown.contains("primary, up"), "{shown}");
    up.capstan(&["log", "retire", "docs.local-1"]).ok();
    assert!(up.capstan(&["log", "holders"]).ok().contains("retiring"));
    up.capstan(&["log", "retire", "docs.local-1", "--undo"]).ok();
    assert!(!up.capstan(&["log", "holders"]).ok().contains("retiring"));
}
