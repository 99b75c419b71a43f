//! Which replica succeeds a dead primary, and upon what word.

use capstan_meta::embedded::{self, Embedded};
use capstan_meta::record::Key;
use capstan_meta::{Store, Txn};

use super::*;
use crate::broker;
use crate::coordinator::NodeFact;
use crate::keys::CoordinatorKey;
use crate::spec::ClusterSpec;

fn proxy(at: usize) -> Address {
    format!("10.0.0.{at}:5299").parse().unwrap()
}

/// A primary with two replicas, each on a host of its own, whose proxy is reported by the only coordinator.
async fn reported() -> (Tree, NodeRecord, Vec<NodeRecord>) {
    let store = Store::new(Embedded::in_memory(embedded::Options::default()));
    let name: ClusterName = "c".parse().unwrap();
    for at in 1..=3 {
        let node = format!("10.0.0.{at}:7001").parse().unwrap();
        broker::add_host(&store, &proxy(at), &[node]).await.unwrap();
    }
    broker::create_cluster(&store, &name, &ClusterSpec { replicas: 2, ..ClusterSpec::of(1) }).await.unwrap();
    let tree = Tree::read(&store).await.unwrap();
    let nodes = tree.clusters[&name].nodes.values().map(|seen| seen.record.clone());
    let (primary, replicas): (Vec<_>, Vec<_>) = nodes.partition(NodeRecord::is_primary);
    let me: crate::keys::ReportId = "r".parse().unwrap();
    let registered = CoordinatorKey { address: proxy(9), report_id: me.clone() }.put(&me);
    let report = FailureKey { address: primary[0].proxy_address.clone(), report_id: me }.put(&1);
    store.commit(Txn::new().then(registered).then(report)).await.unwrap();
    (Tree::read(&store).await.unwrap(), primary[0].clone(), replicas)
}

fn says(node: &NodeRecord, offset: u64, at: Instant) -> (Address, ProxyFact) {
    let fact = NodeFact { health: "ready".to_owned(), offset, ..NodeFact::default() };
    let nodes = BTreeMap::from([(node.address.clone(), fact)]);
    let fact = ProxyFact { reached: true, nodes, nodes_at: Some(at), ..ProxyFact::default() };
    (node.proxy_address.clone(), fact)
}

#[tokio::test]
async fn the_replica_that_is_ahead_is_promoted_once_all_were_heard_since_the_death() {
    let (tree, primary, replicas) = reported().await;
    let died = Instant::now();
    let (before, after) = (died + SEEN_WITHIN / 2, died + SEEN_WITHIN);
    let gone = ProxyFact { missed_since: Some(died), ..ProxyFact::default() };
    let mut facts: Facts = [(primary.proxy_address.clone(), gone)].into();
    let decided = |facts: &Facts| {
        let steps = dead_proxies(&tree, facts, &Timing::default(), 1);
        steps.commits.first().map(|draft| draft.what.clone()).ok_or(steps.waits)
    };
    let waits = vec![format!("node {}: waiting for what its replicas say", primary.address)];
    assert_eq!(decided(&facts), Err(waits.clone()), "nobody was heard");
    facts.extend([says(&replicas[0], 90, after), says(&replicas[1], 80, before)]);
    assert_eq!(decided(&facts), Err(waits), "it may have received more since");
    facts.extend([says(&replicas[1], 100, after)]);
    assert!(decided(&facts).unwrap().starts_with(&format!("promote {}", replicas[1].address)));
    facts.extend([says(&replicas[0], 101, after)]);
    assert!(decided(&facts).unwrap().starts_with(&format!("promote {}", replicas[0].address)));
    let lost = facts.get_mut(&replicas[0].proxy_address).unwrap();
    lost.nodes.values_mut().for_each(|node| node.health = "lost".to_owned());
    assert!(decided(&facts).unwrap().starts_with(&format!("promote {}", replicas[1].address)));
}
