//! Growth from three to eight nodes with data: the storage tasks of each step are the planner's optimum, and clients
//! notice nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Cluster;
use super::workload::Workload;

/// Copies that a node gets when it is the fourth, the fifth, ... of three copies of 16 tokens; as many are deleted.
const TASKS: [usize; 5] = [24, 18, 16, 12, 12];

/// Which tokens each node has, by what the nodes themselves say.
async fn held(cluster: &Cluster) -> BTreeSet<(String, String)> {
    let mut held = BTreeSet::new();
    for (name, node) in &cluster.nodes {
        let answer = cluster.client.get(format!("{}/cluster/digest", node.url)).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        held.extend(answer["tokens"].as_object().unwrap().keys().map(|token| (name.clone(), token.clone())));
    }
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_three_to_eight_nodes_with_the_fewest_copies() {
    let mut cluster = Cluster::start(3).await;
    let work = Workload::prepare(&cluster.client, cluster.urls()).await;
    let clients = work.start(4);
    let mut before = held(&cluster).await;
    assert_eq!(before.len(), 48);
    let mut tasks = Vec::new();
    for number in 4..=8 {
        let begun = std::time::Instant::now();
        let name = format!("h{number}");
        cluster.add(&name).await;
        cluster.all_ok().await;
        let after = held(&cluster).await;
        // A node may still have what it is about to delete; the records say what counts.
        let listed: BTreeMap<String, usize> = cluster
            .listed()
            .unwrap()
            .into_iter()
            .map(|(name, node)| (name, node["copies"].as_u64().unwrap() as usize))
            .collect();
        assert_eq!(listed.values().sum::<usize>(), 48, "{listed:?}");
        let (low, high) = (listed.values().min().unwrap(), listed.values().max().unwrap());
        assert!(high - low <= 1, "{listed:?}");
        let added: Vec<_> = after.difference(&before).collect();
        assert!(added.iter().all(|(node, _)| *node == name), "only the new node gets tokens: {added:?}");
        tasks.push(2 * added.len());
        eprintln!("{name}: {} copies in {:?}", added.len(), begun.elapsed());
        before = after;
    }
    assert_eq!(tasks, TASKS);
    work.end(clients).await;
    eprintln!("{}", work.verify().await);
    cluster.digests_agree().await;
}
