//! What a node counts.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::json;

use crate::cluster::{Cluster, SOON};

fn shown(cluster: &Cluster) -> String {
    let mut registry = Registry::default();
    cluster.metrics.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

/// The sum of a metric's lines that contain a text.
fn value(text: &str, metric: &str, part: &str) -> f64 {
    let lines = text.lines().filter(|line| line.starts_with(metric) && line.contains(part));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_tokens_and_moves_are_counted() {
    let mut cluster = Cluster::start(3).await;
    // What was never asked for is shown as zero.
    assert!(shown(&cluster).contains("docs_requests_total{kind=\"find\"} 0"), "{}", shown(&cluster));
    cluster.collection(Some("k")).await;
    let documents: Vec<_> = (0..200).map(|k| json!({ "k": k, "text": "x".repeat(300) })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "k": 1 } })).await.0, 409);
    assert_eq!(cluster.get("/db/db/c").await.0, 200);
    assert_eq!(cluster.get("/db/db/c?query=%7B").await.0, 400);
    let text = shown(&cluster);
    assert_eq!(value(&text, "docs_requests_total", "\"insert\""), 2.0, "{text}");
    assert_eq!(value(&text, "docs_requests_total", "\"find\""), 2.0, "{text}");
    assert_eq!(value(&text, "docs_request_seconds_count", "\"find\""), 2.0, "{text}");
    assert_eq!(value(&text, "docs_errors_total", "kind=\"insert\",reason=\"duplicate\""), 1.0, "{text}");
    assert_eq!(value(&text, "docs_errors_total", "kind=\"find\",reason=\"refused\""), 1.0, "{text}");
    capstan_testkit::eventually("every node has counted what it has", SOON, async || {
        let text = shown(&cluster);
        let documents = value(&text, "docs_documents", "node");
        let tokens = (value(&text, "docs_tokens", "\"led\""), value(&text, "docs_tokens", "\"held\""));
        let bytes = value(&text, "docs_stored_bytes", "n1");
        let is_so = documents == 600.0 && tokens == (16.0, 48.0) && bytes > 60_000.0;
        if is_so { Ok(()) } else { Err(text) }
    })
    .await;
    cluster.begin("n4", 3).await;
    capstan_testkit::eventually("tokens have moved to the fourth node", SOON, async || {
        let (held, is_moving) = cluster.copies_of("n4").await;
        let text = shown(&cluster);
        let moves = value(&text, "docs_moves_total", "");
        let is_so = !is_moving && held > 0 && value(&text, "docs_tokens", "node=\"n4\",role=\"held\"") > 0.0;
        let is_counted = moves > 0.0 && value(&text, "docs_moved_bytes_total", "") > 0.0;
        if is_so && is_counted { Ok(()) } else { Err(format!("{held} held\n{text}")) }
    })
    .await;
}
