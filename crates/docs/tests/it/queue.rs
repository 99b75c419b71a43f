//! Copies of tokens that come over RabbitMQ: the queue is transport, and never the truth.

use capstan_control::findings::Finding;
use capstan_docs::check::{self, Facts, QUEUE_UNREACHABLE};
use capstan_docs::keys::{Jobs, Nodes};
use capstan_docs::status::Job;
use capstan_testkit::{eventually, seed::soak};
use serde_json::json;

use super::cluster::{Cluster, SOON};
use super::rabbit::Rabbit;

/// Documents that are there before the node comes, each so long.
const DOCUMENTS: usize = 64;
const LENGTH: usize = 64 * 1024;

async fn jobs(cluster: &Cluster) -> Vec<Job> {
    let jobs = cluster.store.list(&Jobs {}).await.unwrap();
    jobs.iter().map(|(_, found)| found.record.clone()).collect()
}

async fn unreachable(cluster: &Cluster) -> Option<Finding> {
    let facts = Facts::read(&cluster.store).await.unwrap();
    check::findings(&facts, 0).into_iter().find(|found| found.code == QUEUE_UNREACHABLE)
}

/// Inserts documents, each as often as it takes: on a busy machine a primary may change.
async fn insert(cluster: &Cluster, from: usize, count: usize, length: usize) {
    for at in from..from + count {
        let doc = json!({ "k": at, "text": "x".repeat(length) });
        eventually("the document is there", SOON, async || {
            let (status, answer) = cluster.post("/db/db/c", json!({ "doc": doc })).await;
            if status == 202 || status == 409 { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    }
}

/// Waits until the node has its share of the copies and nothing moves.
async fn complete(cluster: &Cluster, name: &str) {
    eventually("the node is complete", 2 * SOON, async || {
        let nodes = cluster.store.list(&Nodes {}).await.map_err(|error| error.to_string())?;
        let states: Vec<String> =
            nodes.iter().map(|(key, found)| format!("{} {:?}", key.node, found.record.state)).collect();
        let (held, moving) = cluster.copies_of(name).await;
        let settled = states.iter().all(|state| state.ends_with(" Ok")) && !moving;
        if settled && held == 12 { Ok(()) } else { Err(format!("{states:?}, {held} copies")) }
    })
    .await;
}

async fn missed_by(cluster: &Cluster, nodes: &str) {
    let found = eventually("RabbitMQ is missed", SOON, async || {
        let found = unreachable(cluster).await.ok_or("no finding")?;
        if found.cause.contains(nodes) { Ok(found) } else { Err("not by every node") }
    })
    .await;
    eprintln!("{}", found.cause);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_over_rabbitmq_waits_for_it_and_outlives_its_death() {
    if !soak(false, true) {
        eprintln!("a RabbitMQ takes long to start on a busy machine: only with CAPSTAN_SOAK=1");
        return;
    }
    let begun = std::time::Instant::now();
    let mut rabbit = Rabbit::prepare().await;
    let mut cluster = Cluster::start_with(3, Some(rabbit.url()), true).await;
    cluster.collection(Some("k")).await;
    // Without RabbitMQ everything goes on but copies to a node that has none.
    insert(&cluster, 0, DOCUMENTS, LENGTH).await;
    cluster.begin("n4", 3).await;
    missed_by(&cluster, "n1, n2, n3, n4").await;
    eventually("copies have begun", SOON, async || {
        if jobs(&cluster).await.is_empty() { Err("no job") } else { Ok(()) }
    })
    .await;
    insert(&cluster, DOCUMENTS, 20, 100).await;
    assert_eq!(cluster.copies_of("n4").await.0, 0, "{:?}", jobs(&cluster).await);
    eprintln!("without RabbitMQ until {:?}", begun.elapsed());
    rabbit.start().await;
    eventually("batches have come", SOON, async || {
        let jobs = jobs(&cluster).await;
        if jobs.iter().any(|job| job.copied > 0) { Ok(()) } else { Err(format!("{jobs:?}")) }
    })
    .await;
    rabbit.kill9();
    eprintln!("killed with {} of 12 copies after {:?}", cluster.copies_of("n4").await.0, begun.elapsed());
    insert(&cluster, DOCUMENTS + 20, 20, 100).await;
    missed_by(&cluster, "n1, n2, n3, n4").await;
    rabbit.start().await;
    complete(&cluster, "n4").await;
    eventually("every node is connected", SOON, async || {
        unreachable(&cluster).await.map_or(Ok(()), |found| Err(found.cause))
    })
    .await;
    // The record of a job is written by looks at it, and may be behind the copy.
    eventually("every job says what came over its queue", SOON, async || {
        let over_queue = |job: &Job| {
            let queue = job.progress.queue.as_deref().unwrap_or_default();
            job.copied > 0 && queue.starts_with("capstan.docs.") && queue.ends_with(".n4.batches")
        };
        let jobs = jobs(&cluster).await;
        let mut told = jobs.iter().filter(|job| job.to == "n4");
        if told.all(over_queue) { Ok(()) } else { Err(format!("{jobs:?}")) }
    })
    .await;
    eprintln!("complete after {:?}", begun.elapsed());
    assert_eq!(cluster.digests_agree().await, i64::try_from(DOCUMENTS + 40).unwrap());
}
