//! Writes while nodes end and come back: nothing acknowledged is lost, and nothing is counted twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use serde_json::json;

use crate::cluster::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_increment_is_lost_through_three_nodes() {
    let cluster = Arc::new(Cluster::start(3).await);
    cluster.collection(Some("k")).await;
    let documents: Vec<_> = (0..20).map(|k| json!({ "k": k, "n": 0 })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    let acknowledged = Arc::new(AtomicI64::new(0));
    let clients = (0..16).map(|client| {
        let (cluster, acknowledged) = (Arc::clone(&cluster), Arc::clone(&acknowledged));
        async move {
            for at in 0..50 {
                let filter = json!({ "k": (client * 7 + at) % 20 });
                let body =
                    json!({ "filter": filter, "update": { "$inc": { "n": 1 } }, "options": { "one": true } });
                let (status, answer) = cluster.send("PUT", client + at, "/db/db/c", Some(body)).await;
                assert_eq!((status, answer["_ok"].as_bool()), (200, Some(true)), "{answer}");
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    futures_util::future::join_all(clients).await;
    let (_, all) = cluster.get("/db/db/c").await;
    let sum: i64 = all["data"].as_array().unwrap().iter().map(|found| found["n"].as_i64().unwrap()).sum();
    assert_eq!((sum, acknowledged.load(Ordering::Relaxed)), (800, 800));
    assert_eq!(cluster.digests_agree().await, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_ends_and_returns_has_everything() {
    let mut cluster = Cluster::start(3).await;
    cluster.collection(Some("k")).await;
    let insert = async |cluster: &Cluster, from: i64, to: i64| {
        for k in from..to {
            capstan_testkit::eventually("a document is inserted", crate::cluster::SOON, async || {
                let body = json!({ "doc": { "k": k } });
                match cluster.send("POST", usize::try_from(k).unwrap(), "/db/db/c", Some(body)).await {
                    // The answer of an earlier attempt may be lost: then it is there.
                    (202 | 409, _) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
        }
    };
    insert(&cluster, 0, 50).await;
    cluster.end("n2").await;
    insert(&cluster, 50, 100).await;
    cluster.begin("n2", 3).await;
    insert(&cluster, 100, 120).await;
    assert_eq!(cluster.digests_agree().await, 120);
    assert_eq!(cluster.get("/db/db/c/count").await.1["count"], 120);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fourth_node_takes_over_tokens_while_clients_write() {
    let mut cluster = Cluster::start(3).await;
    cluster.collection(None).await;
    for _ in 0..4 {
        let documents: Vec<_> = (0..250).map(|k| json!({ "k": k, "text": "x".repeat(300) })).collect();
        assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    }
    cluster.begin("n4", 3).await;
    let mut written = 1_000;
    capstan_testkit::eventually("the fourth node holds 12 tokens", crate::cluster::SOON, async || {
        let (status, answer) =
            cluster.send("POST", 0, "/db/db/c", Some(json!({ "doc": { "more": true } }))).await;
        // A token that is just being handed over may ask to try again.
        assert!(matches!(status, 202 | 503), "{status}: {answer}");
        written += i64::from(status == 202);
        let (_, answer) = cluster.send("GET", 3, "/cluster/digest", None).await;
        let held = answer["tokens"].as_object().unwrap().len();
        if held >= 12 { Ok(()) } else { Err(held) }
    })
    .await;
    let found = cluster.digests_agree().await;
    assert_eq!(cluster.get("/db/db/c/count").await.1["count"], found);
    assert!(found >= written, "{found} of {written}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_with_a_limit_begin_with_a_snapshot_and_are_complete() {
    let mut cluster = Cluster::start(1).await;
    cluster.end("n1").await;
    cluster.move_bytes_per_second = std::num::NonZeroU64::new(1 << 20);
    cluster.begin("n1", 1).await;
    cluster.collection(None).await;
    let documents: Vec<_> = (0..500).map(|k| json!({ "k": k, "text": "x".repeat(2_000) })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    // A node with a limit lets logs begin behind their first entries, so that copies are counted.
    capstan_testkit::eventually("every log begins later", crate::cluster::SOON, async || {
        let mut starts = Vec::new();
        for log in cluster.nodes["n1"].holder.host().logs() {
            starts.push(log.status().await.map_err(|error| error.to_string())?.start.0);
        }
        if starts.len() == 16 && starts.iter().all(|start| *start > 0) {
            Ok(())
        } else {
            Err(format!("{starts:?}"))
        }
    })
    .await;
    cluster.begin("n2", 1).await;
    capstan_testkit::eventually("the second node holds its share", crate::cluster::SOON, async || {
        let held = cluster.copies_of("n2").await;
        if held == (8, false) { Ok(()) } else { Err(format!("{held:?}")) }
    })
    .await;
    assert_eq!(cluster.digests_agree().await, 500);
}
