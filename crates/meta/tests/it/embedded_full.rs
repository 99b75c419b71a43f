//! What does the embedded store do when its disk is full? It says so, goes on reading, loses nothing, and writes again
//! as soon as there is room. On a real small disk, in a process of its own.

use std::path::Path;
use std::time::Duration;

use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::{Backend, KeyRange, MetaError, Put, Range, Remedy, Txn};
use capstan_testkit::{TempDir, process};

const DISK_BYTES: u64 = 8 << 20;

/// Takes up most of the disk, so that the store meets its end quickly; removing it makes room.
const FILLER_BYTES: usize = 5 << 20;

/// The child's role: everything happens on the small disk that only this process sees.
#[test]
fn small_disk() {
    let Some(arguments) = process::child_arguments("embedded_full::small_disk") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(fill_and_recover(Path::new(&arguments[0])));
    process::report_ready("done");
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_keeps_everything() {
    let dir = TempDir::new("full").unwrap();
    let mount = dir.join("disk");
    std::fs::create_dir(&mount).unwrap();
    let child = process::child_test("embedded_full::small_disk", &dir.join("ready"), [&mount]).unwrap();
    let mut child = child.on_small_disk(&mount, DISK_BYTES).spawn(dir.join("child.log")).unwrap();
    let status = child.exited(Duration::from_secs(120)).await.unwrap();
    assert!(status.success(), "{}", child.log_tail());
    assert!(dir.join("ready").exists(), "the child did not play its role: {}", child.log_tail());
}

async fn fill_and_recover(disk: &Path) {
    let filler = disk.join("filler");
    std::fs::write(&filler, vec![1; FILLER_BYTES]).unwrap();
    let data = disk.join("data");
    let store = Embedded::open(&data, Options { history: 0, ..Options::default() }).await.unwrap();
    let mut written = 0;
    let error = loop {
        match store.put(value(written)).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 10_000, "the disk never filled up");
    };
    assert_eq!(error, MetaError::NoSpace);
    assert_eq!(error.remedy(), Remedy::Report);
    let before = store.status().await.unwrap().revision;

    // A refused transaction leaves no half of itself behind, and reading goes on.
    let refused = Txn::new().then(value(90_001)).then(value(90_002));
    assert_eq!(store.commit(refused).await, Err(MetaError::NoSpace));
    assert_eq!(keys(&store).await, written);
    assert_eq!(store.status().await.unwrap().revision, before);

    std::fs::remove_file(&filler).unwrap();
    let again = store.put(value(written)).await.unwrap();
    assert_eq!(again.revision, before.next(), "a refused write took a revision");
    assert_eq!(keys(&store).await, written + 1);
    store.close().await.unwrap();

    let store = Embedded::open(&data, Options::default()).await.unwrap();
    assert_eq!(keys(&store).await, written + 1);
    assert_eq!(store.status().await.unwrap().revision, again.revision);
    store.close().await.unwrap();
}

fn value(n: usize) -> Put {
    Put::new(format!("key/{n:06}"), vec![7; 8000])
}

async fn keys(store: &Embedded) -> usize {
    let found = store.range(Range::of(KeyRange::all())).await.unwrap();
    assert!(found.kvs.iter().all(|kv| kv.value.len() == 8000));
    found.count
}
