//! Nodes that lose the documents or the logs of them, and keep the other.

use capstan_docs::api::Nodes;
use capstan_docs::check::{Facts, TOKEN_LOST, findings};
use capstan_docs::decide::NodeState;
use capstan_log::Offset;
use capstan_log::keys::DirectoryKey;
use capstan_meta::Txn;
use capstan_meta::record::Key as _;
use capstan_testkit::eventually;
use serde_json::json;

use crate::cluster::{Cluster, SOON};

/// Documents before the loss: many of each token.
const DOCUMENTS: i64 = 640;
/// Documents after it.
const MORE: i64 = 48;

async fn filled(count: usize) -> Cluster {
    let cluster = Cluster::start(count).await;
    cluster.collection(Some("k")).await;
    let documents: Vec<_> = (0..DOCUMENTS).map(|k| json!({ "k": k })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    assert_eq!(cluster.digests_agree().await, DOCUMENTS);
    cluster
}

/// Drops the entries of every log that are applied, on every node.
async fn shorten(cluster: &Cluster) {
    for (number, running) in cluster.nodes.values().enumerate() {
        // tidy: allow, because it is a path of the HTTP API
        let (_, digests) = cluster.send("GET", number, "/cluster/digest", None).await;
        let tokens = digests["tokens"].as_object().unwrap();
        assert_eq!(tokens.len(), 16);
        for (token, about) in tokens {
            let log = running.holder.opened(&format!("docs-{token}").parse().unwrap()).unwrap();
            log.truncate_before(Offset(about["applied"].as_u64().unwrap())).await.unwrap();
            assert!(log.status().await.unwrap().start.0 > 0);
        }
    }
}

/// Waits until writes and reads of every token succeed, and every node has everything.
async fn recovers(cluster: &Cluster) {
    for k in DOCUMENTS..DOCUMENTS + MORE {
        eventually("the document is there", SOON, async || {
            let (status, answer) = cluster.post("/db/db/c", json!({ "doc": { "k": k } })).await;
            if status == 202 || status == 409 { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    }
    assert_eq!(cluster.digests_agree().await, DOCUMENTS + MORE);
    let nodes = Nodes::open(cluster.store.clone()).await.unwrap();
    eventually("every node is complete and leads", SOON, async || {
        let list = nodes.list();
        let done = list.iter().all(|line| line.state == NodeState::Ok && line.masters > 0);
        if done { Ok(()) } else { Err(format!("{list:?}")) }
    })
    .await;
    assert_eq!(cluster.get("/db/db/c/count").await.1["count"], DOCUMENTS + MORE);
}

async fn loses(cluster: &mut Cluster, part: &str) {
    cluster.end("n1").await;
    std::fs::remove_dir_all(cluster.dir_of("n1", part)).unwrap();
    cluster.begin("n1", cluster.nodes.len() + 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_documents_are_made_again_from_a_whole_log() {
    let mut cluster = filled(3).await;
    loses(&mut cluster, "engine").await;
    recovers(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_documents_come_from_other_nodes_if_the_log_was_shortened() {
    let mut cluster = filled(3).await;
    shorten(&cluster).await;
    loses(&mut cluster, "engine").await;
    recovers(&cluster).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_logs_come_from_other_nodes() {
    let mut cluster = filled(3).await;
    shorten(&cluster).await;
    loses(&mut cluster, "log").await;
    recovers(&cluster).await;
}

/// Waits until the loss is reported.
async fn is_found(cluster: &Cluster) {
    eventually("the loss is found", SOON, async || {
        let facts = Facts::read(&cluster.store).await.map_err(|error| error.to_string())?;
        let found = findings(&facts, 0);
        let is_found =
            found.iter().any(|one| one.code == TOKEN_LOST && one.cause.starts_with("16 of its tokens"));
        if is_found { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_copy_of_lost_documents_is_not_served_empty() {
    let mut cluster = filled(1).await;
    shorten(&cluster).await;
    loses(&mut cluster, "engine").await;
    is_found(&cluster).await;
    let (status, answer) = cluster.post("/db/db/c", json!({ "doc": { "k": 1 } })).await;
    assert_eq!(status, 503, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_lost_entries_takes_no_writes() {
    let mut cluster = filled(1).await;
    cluster.end("n1").await;
    std::fs::remove_dir_all(cluster.dir_of("n1", "log")).unwrap();
    // As after an accepted loss: the store does not know that the node had another directory.
    let key = DirectoryKey { holder: "docs.n1".parse().unwrap() };
    assert!(cluster.store.commit(Txn::new().then(key.delete())).await.unwrap().succeeded);
    cluster.begin("n1", 1).await;
    is_found(&cluster).await;
    let (status, answer) = cluster.post("/db/db/c", json!({ "doc": { "k": 1_000 } })).await;
    assert_eq!(status, 500, "{answer}");
    assert_eq!(cluster.get("/db/db/c/count").await.1["count"], DOCUMENTS);
}
