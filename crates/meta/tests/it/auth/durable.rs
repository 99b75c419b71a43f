//! Users survive what keys survive: restarts, bases, snapshots. And they are asked for from the first call on.

use capstan_meta::embedded::{self, Embedded};
use capstan_meta::{Backend, Put, Revision, wire};
use capstan_testkit::TempDir;
use etcd_client::Client;

use super::{Side, USERS, denied, refusal};

async fn open(dir: &TempDir, name: &str) -> Embedded {
    Embedded::open(&dir.join(name), embedded::Options { log_file_bytes: 64 * 1024, ..Default::default() })
        .await
        .unwrap()
}

async fn side(store: &Embedded) -> Side {
    Side::serve(store.clone(), wire::Options::default()).await
}

/// Users are asked for, and each may do what it may.
async fn enforced(side: &Side) {
    let mut stranger = Client::connect([&side.endpoint], None).await.unwrap();
    assert_eq!(refusal(stranger.get("a", None).await).1, "etcdserver: user name is empty");
    let mut ann = side.client("ann", "pw").await.unwrap();
    ann.put("a", "1", None).await.unwrap();
    assert_eq!(refusal(ann.put("z", "1", None).await), denied());
    assert!(side.client("root", "wrong").await.is_err());
    side.client("root", "secret").await.unwrap().put("z", "1", None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_survive_restarts_bases_and_snapshots() {
    let dir = TempDir::new("users").unwrap();
    let store = open(&dir, "one").await;
    let server = side(&store).await;
    server.prepare(&USERS).await;
    server.prepare(&["auth enable"]).await;
    enforced(&server).await;
    drop(server);
    store.close().await.unwrap();

    let store = open(&dir, "one").await;
    enforced(&side(&store).await).await;
    // The log that they were written to goes away: they are in the base.
    for n in 0..300 {
        store.put(Put::new(format!("k{n}"), vec![0; 1000])).await.unwrap();
    }
    let now = store.status().await.unwrap().revision;
    store.compact(now).await.unwrap();
    store.defragment().await.unwrap();
    store.close().await.unwrap();
    let store = open(&dir, "one").await;
    enforced(&side(&store).await).await;

    let mut chunks = store.snapshot().await.unwrap();
    let mut saved = Vec::new();
    while let Some(chunk) = chunks.recv().await {
        saved.extend_from_slice(&chunk.unwrap());
    }
    store.close().await.unwrap();
    for secret in ["pw", "secret"] {
        let hidden =
            !saved.windows(secret.len() + 2).any(|bytes| bytes == format!("\"{secret}\"").as_bytes());
        assert!(hidden, "a password is readable in the snapshot");
    }
    let restored = embedded::restore(&saved[..], &dir.join("two")).unwrap();
    assert!(restored > now);
    let store = open(&dir, "two").await;
    enforced(&side(&store).await).await;
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_that_cannot_be_read_let_nobody_in() {
    let store = Embedded::in_memory(embedded::Options::default());
    store.set_users("not a record".into()).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = std::sync::Arc::new(store);
    let served = wire::serve(listener, backend, wire::Options::default(), std::future::pending()).await;
    assert!(
        matches!(served, Err(wire::ServeError::Store(capstan_meta::MetaError::Corrupt(_)))),
        "{served:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_users_make_no_revision() {
    let store = Embedded::in_memory(embedded::Options::default());
    let server = side(&store).await;
    server.prepare(&USERS).await;
    server.prepare(&["auth enable"]).await;
    assert_eq!(store.status().await.unwrap().revision, Revision::FIRST);
}
