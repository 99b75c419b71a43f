//! `capstan meta ...` and etcdctl on the same store.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::binary::{Daemon, capstan, command};

async fn store() -> Daemon {
    Daemon::start_in_memory("meta", &["meta", "serve", "--listen", "127.0.0.1:0"]).await
}

#[tokio::test]
async fn etcdctl_and_our_command_see_the_same_store() {
    let store = store().await;
    assert_eq!(store.etcdctl(&["put", "/a/one", "1"]).ok(), "OK\n");
    assert_eq!(store.capstan(&["meta", "get", "/a/one"]).ok(), "1\n");
    assert_eq!(store.capstan(&["meta", "put", "/a/two", "2"]).ok(), "revision 3\n");
    assert_eq!(store.etcdctl(&["get", "/a/", "--prefix", "--print-value-only"]).ok(), "1\n2\n");
    let found = store.capstan(&["meta", "get", "/a/", "--prefix", "-o", "json"]).json()["keys"].take();
    assert_eq!(found[1]["key"], "/a/two");
    assert_eq!(found[1]["mod_revision"], 3);
    let status = store.capstan(&["meta", "status", "-o", "json"]).json();
    assert_eq!(status["revision"], 3);
    assert_eq!(store.etcdctl(&["endpoint", "health"]).code, 0);
}

#[tokio::test]
async fn reads_go_back_in_time_until_it_is_compacted_away() {
    let store = store().await;
    for value in ["1", "2", "3"] {
        store.capstan(&["meta", "put", "/k", value]).ok();
    }
    assert_eq!(store.capstan(&["meta", "get", "/k", "--at", "2"]).ok(), "1\n");
    assert_eq!(store.capstan(&["meta", "compact", "3"]).ok(), "compacted revision 3\n");
    assert_eq!(store.capstan(&["meta", "get", "/k", "--at", "3"]).ok(), "2\n");
    let gone = store.capstan(&["meta", "get", "/k", "--at", "2"]);
    assert_eq!(gone.code, 1);
    assert!(gone.stderr.contains("compacted"), "{gone:#?}");
}

#[tokio::test]
async fn guarded_puts_refuse_and_say_why() {
    let store = store().await;
    store.capstan(&["meta", "put", "/k", "1", "--if-absent"]).ok();
    let refused = store.capstan(&["meta", "put", "/k", "2", "--if-absent"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("/k was last changed at revision 2"), "{refused:#?}");
    store.capstan(&["meta", "put", "/k", "2", "--if-revision", "2"]).ok();
    assert_eq!(store.capstan(&["meta", "put", "/k", "3", "--if-revision", "2"]).code, 1);
    assert_eq!(store.capstan(&["meta", "get", "/k"]).ok(), "2\n");
}

#[tokio::test]
async fn a_whole_prefix_is_deleted_only_on_purpose() {
    let store = store().await;
    for key in ["/p/1", "/p/2", "/q"] {
        store.capstan(&["meta", "put", key, "x"]).ok();
    }
    let asked = store.capstan(&["meta", "del", "/p/", "--prefix"]);
    assert_eq!(asked.code, 1);
    assert!(asked.stderr.contains("2 keys begin with /p/"), "{asked:#?}");
    assert_eq!(store.capstan(&["meta", "del", "/p/", "--prefix", "--yes"]).ok(), "deleted 2, revision 5\n");
    assert_eq!(store.capstan(&["meta", "get", "/", "--prefix", "--keys-only"]).ok(), "/q\n");
    assert_eq!(store.capstan(&["meta", "del", "/nothing"]).code, 1);
}

#[tokio::test]
async fn a_missing_key_is_exit_code_one() {
    let store = store().await;
    let run = store.capstan(&["meta", "get", "/nothing"]);
    assert_eq!((run.code, run.stdout.as_str()), (1, ""));
    assert_eq!(run.stderr, "capstan: there is no key /nothing\n");
}

#[tokio::test]
async fn the_tree_shows_branches() {
    let store = store().await;
    for (key, value) in [("/a/b", "1"), ("/a/c", "{\"x\":1}"), ("/d", "two\nlines")] {
        store.capstan(&["meta", "put", key, value]).ok();
    }
    let tree = store.capstan(&["meta", "tree"]).ok();
    assert_eq!(tree, "├─ a\n│  ├─ b = 1\n│  └─ c = {\"x\":1}\n└─ d = two\\nlines\n");
}

/// Ends with the test.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_watch_prints_every_change_from_a_revision_on() {
    let store = store().await;
    store.capstan(&["meta", "put", "/w/old", "0"]).ok();
    let mut watch = command(store.dir.path());
    watch.args(["meta", "watch", "/w/", "--from", "2", "-o", "json", "--meta", &store.endpoint("meta")]);
    let mut watch = Watching(watch.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let mut next = move || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    assert_eq!((next()["key"].clone(), 0), ("/w/old".into(), 0));
    store.capstan(&["meta", "put", "/w/new", "1"]).ok();
    store.capstan(&["meta", "put", "/elsewhere", "1"]).ok();
    store.capstan(&["meta", "del", "/w/new"]).ok();
    let (put, delete) = (next(), next());
    assert_eq!((&put["event"], &put["key"]), (&"put".into(), &"/w/new".into()));
    assert_eq!((&delete["event"], &delete["mod_revision"]), (&"delete".into(), &5.into()));
}

#[tokio::test]
async fn a_value_may_come_from_stdin() {
    let store = store().await;
    let mut put = command(store.dir.path());
    put.args(["meta", "put", "/k", "-", "--meta", &store.endpoint("meta")]);
    let mut put = put.stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(b"long\nvalue").unwrap();
    assert!(put.wait().unwrap().success());
    assert_eq!(store.capstan(&["meta", "get", "/k"]).ok(), "long\nvalue\n");
}

#[tokio::test]
async fn a_snapshot_becomes_a_store_with_the_same_keys() {
    let first = store().await;
    for number in 0..50 {
        first.capstan(&["meta", "put", &format!("/s/{number:02}"), "value"]).ok();
    }
    let file = first.dir.join("backup.snap");
    first.capstan(&["meta", "snapshot", file.to_str().unwrap()]).ok();
    let restored = first.dir.join("restored");
    let restored = restored.to_str().unwrap();
    let said = capstan(first.dir.path(), &["meta", "restore", "backup.snap", "--dir", restored]).ok();
    // Beyond every revision that the former store may have reached after the snapshot.
    let revision: i64 = said.split(' ').nth(2).unwrap().parse().unwrap();
    assert!(said.starts_with("restored revision ") && revision >= 1_000_000_051, "{said}");
    let second =
        Daemon::start_in("restored", &["meta", "serve", "--listen", "127.0.0.1:0"], restored.as_ref()).await;
    assert_eq!(second.capstan(&["meta", "get", "/s/", "--prefix", "--keys-only"]).ok().lines().count(), 50);
    let again = capstan(first.dir.path(), &["meta", "restore", "backup.snap", "--dir", restored]);
    assert_eq!(again.code, 73, "{again:#?}");
    assert!(again.stderr.contains("in use by another process"), "{again:#?}");
    drop(second);
    let args = ["meta", "restore", "backup.snap", "--dir", "twice"];
    capstan(first.dir.path(), &args).ok();
    let refused = capstan(first.dir.path(), &args);
    assert_eq!(refused.code, 1, "{refused:#?}");
    assert!(refused.stderr.contains("is not empty"), "{refused:#?}");
}

#[tokio::test]
async fn a_damaged_snapshot_is_refused_and_leaves_nothing() {
    let store = store().await;
    store.capstan(&["meta", "put", "/k", "v"]).ok();
    let file = store.dir.join("backup.snap");
    store.capstan(&["meta", "snapshot", file.to_str().unwrap()]).ok();
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let run = capstan(store.dir.path(), &["meta", "restore", "backup.snap", "--dir", "restored"]);
    assert_eq!(run.code, 74, "{run:#?}");
    assert!(!store.dir.join("restored").exists());
}
