//! Unique values, while many requests want the same ones.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cluster::Cluster;

async fn cluster() -> Cluster {
    let cluster = Cluster::start(3).await;
    cluster.collection(Some("k")).await;
    assert_eq!(cluster.post("/db/db/c/index/mail", json!({ "options": { "unique": true } })).await.0, 201);
    cluster
}

fn set(key: &str, mail: &str) -> Value {
    json!({ "filter": { "k": key }, "update": { "$set": { "mail": mail } }, "options": { "one": true } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_insert_keeps_no_value() {
    let cluster = cluster().await;
    let inserts = (0..20).map(|at| {
        let (cluster, doc) = (&cluster, json!({ "doc": { "k": "same", "mail": format!("m{at}") } }));
        async move { cluster.send("POST", at, "/db/db/c", Some(doc)).await.0 }
    });
    let statuses = futures_util::future::join_all(inserts).await;
    assert_eq!(statuses.iter().filter(|status| **status == 202).count(), 1, "{statuses:?}");
    let taken = cluster.get("/db/db/c").await.1["data"][0]["mail"].clone();
    // Every other value is free, at once and not after the time that a request may take.
    for at in 0..20 {
        let begun = Instant::now();
        let mail = json!(format!("m{at}"));
        let expected = if mail == taken { 409 } else { 202 };
        let doc = json!({ "doc": { "k": format!("k{at}"), "mail": mail } });
        assert_eq!(cluster.post("/db/db/c", doc).await.0, expected, "{mail}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
    assert_eq!(cluster.digests_agree().await, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn updates_of_one_document_do_not_give_its_value_away() {
    let cluster = cluster().await;
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "k": "one", "mail": "first" } })).await.0, 202);
    for round in 0..15 {
        // Several requests give one document the same values; those that come too late must not free them.
        let (this, other) = (format!("r{round}"), format!("s{round}"));
        let updates = (0..8).map(|at| {
            let body = set("one", if at % 2 == 0 { &this } else { &other });
            let cluster = &cluster;
            async move { cluster.send("PUT", at, "/db/db/c", Some(body)).await.0 }
        });
        let statuses = futures_util::future::join_all(updates).await;
        assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
        let mail = cluster.get("/db/db/c?query[k]=one").await.1["data"][0]["mail"].clone();
        let doc = json!({ "doc": { "k": format!("thief-{round}"), "mail": mail } });
        assert_eq!(cluster.post("/db/db/c", doc).await.0, 409, "round {round}: {mail}");
    }
    assert_eq!(cluster.get("/db/db/c/count").await.1["count"], 1);
}
