//! The states of nodes, as the manual shows them and as a cluster lives them.

use capstan_docs::api::Nodes;
use capstan_docs::decide::{NodeState, diagram};
use capstan_steward::facts::Records;
use capstan_steward::keys::{HolderKey, Holders};
use capstan_steward::{Policy, forecast};
use capstan_testkit::eventually;
use serde_json::json;

use crate::cluster::{Cluster, SOON};

#[test]
fn the_manual_has_the_diagram_of_the_table() {
    let manual = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/docs.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    assert!(manual.contains(&diagram()), "docs/docs.md lacks the diagram:\n{}", diagram());
}

async fn becomes(nodes: &Nodes, name: &str, state: NodeState) {
    eventually("the node has the state", SOON, async || {
        let list = nodes.list();
        let found = list.iter().find(|line| line.node == name).map(|line| line.state);
        if found == Some(state) { Ok(()) } else { Err(format!("{list:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_onboarded_and_retired_while_clients_write() {
    let mut cluster = Cluster::start(3).await;
    cluster.collection(None).await;
    let nodes = Nodes::open(cluster.store.clone()).await.unwrap();
    for name in ["n1", "n2", "n3"] {
        becomes(&nodes, name, NodeState::Ok).await;
    }
    let documents: Vec<_> = (0..300).map(|k| json!({ "k": k })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    cluster.begin("n4", 3).await;
    eventually("tokens are balanced over four nodes", SOON, async || {
        let (status, answer) = cluster.post("/db/db/c", json!({ "doc": { "more": 1 } })).await;
        // A token that is just being handed over may ask to try again.
        assert!(matches!(status, 202 | 503), "{status}: {answer}");
        let copies: Vec<usize> = nodes.list().iter().map(|line| line.copies).collect();
        if copies == [12, 12, 12, 12] { Ok(()) } else { Err(format!("{copies:?}")) }
    })
    .await;
    becomes(&nodes, "n4", NodeState::Ok).await;
    nodes.retire(&"n2".parse().unwrap()).await.unwrap();
    becomes(&nodes, "n2", NodeState::Retired).await;
    let copies: Vec<usize> = nodes.list().iter().map(|line| line.copies).collect();
    assert_eq!(copies, [16, 0, 16, 16]);
    let (_, counted) = cluster.get("/db/db/c/count").await;
    assert_eq!(cluster.digests_agree().await, counted["count"].as_i64().unwrap());
    // It can be deleted, also after the steward has forgotten its holder.
    cluster.end("n2").await;
    eventually("its holder is forgotten", SOON, async || {
        let holders = cluster.store.list(&Holders {}).await.map_err(|error| error.to_string())?;
        let known = holders.iter().any(|(key, _)| key.holder.as_str() == "docs.n2");
        if known { Err("still there".to_owned()) } else { Ok(()) }
    })
    .await;
    eventually("the node is deleted", SOON, async || {
        nodes.delete(&"n2".parse().unwrap()).await.map_err(|error| error.to_string())
    })
    .await;
    eventually("the node is not listed", SOON, async || {
        let list = nodes.list();
        if list.iter().all(|line| line.node != "n2") { Ok(()) } else { Err(format!("{list:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_never_comes_back_is_deleted_when_its_copies_are_elsewhere() {
    let mut cluster = Cluster::start(4).await;
    cluster.collection(Some("k")).await;
    for k in 0..40 {
        // On a busy machine a primary may change, and the answer of an earlier attempt may be lost.
        eventually("the document is there", SOON, async || {
            let (status, answer) = cluster.post("/db/db/c", json!({ "doc": { "k": k } })).await;
            if status == 202 || status == 409 { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    }
    let nodes = Nodes::open(cluster.store.clone()).await.unwrap();
    becomes(&nodes, "n4", NodeState::Ok).await;
    let n4 = "n4".parse().unwrap();
    let refused = nodes.delete(&n4).await.unwrap_err().to_string();
    assert!(refused.contains("holds"), "{refused}");
    cluster.end("n4").await;
    eventually("the node is deleted", SOON, async || {
        nodes.delete(&n4).await.map_err(|error| error.to_string())
    })
    .await;
    eventually("nothing is known of it", SOON, async || {
        let holders = cluster.store.list(&Holders {}).await.map_err(|error| error.to_string())?;
        let known = holders.iter().any(|(key, _)| key.holder.as_str() == "docs.n4");
        let copies: Vec<usize> = nodes.list().iter().map(|line| line.copies).collect();
        if !known && copies == [16, 16, 16] { Ok(()) } else { Err(format!("{known}, {copies:?}")) }
    })
    .await;
    assert_eq!(cluster.digests_agree().await, 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_auto_add_a_new_node_waits_to_be_added() {
    let mut cluster = Cluster::start_closed(3).await;
    cluster.collection(Some("k")).await;
    let documents: Vec<_> = (0..100).map(|k| json!({ "k": k })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    let nodes = Nodes::open(cluster.store.clone()).await.unwrap();
    for name in ["n1", "n2", "n3"] {
        becomes(&nodes, name, NodeState::Ok).await;
    }
    cluster.begin("n4", 3).await;
    becomes(&nodes, "n4", NodeState::New).await;
    let holder = HolderKey { holder: "docs.n4".parse().unwrap() };
    assert!(cluster.store.read(&holder).await.unwrap().unwrap().record.waiting);
    // It serves clients, and still waits when it comes back.
    assert_eq!(cluster.send("GET", 3, "/db/db/c/count", None).await.1["count"], 100);
    cluster.end("n4").await;
    cluster.begin("n4", 3).await;
    let records = Records::read(&cluster.store).await.unwrap();
    assert!(forecast(records, &Policy::default(), 0).steps.is_empty(), "nothing would move to it");
    assert_eq!(nodes.list().iter().map(|line| line.copies).collect::<Vec<_>>(), [16, 16, 16, 0]);
    // tidy: allow, because it is a path of the HTTP API
    assert_eq!(cluster.send("POST", 0, "/cluster/node?pod=n4", None).await.0, 200);
    becomes(&nodes, "n4", NodeState::Ok).await;
    eventually("it has its share", SOON, async || {
        let copies: Vec<usize> = nodes.list().iter().map(|line| line.copies).collect();
        if copies == [12, 12, 12, 12] { Ok(()) } else { Err(format!("{copies:?}")) }
    })
    .await;
    assert_eq!(cluster.digests_agree().await, 100);
}
