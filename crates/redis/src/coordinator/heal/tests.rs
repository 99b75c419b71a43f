//! Which replica succeeds a dead primary, and upon what word; and who takes what was moving to a node that is lost.

use capstan_meta::embedded::{self, Embedded};
use capstan_meta::record::Key;
use capstan_meta::{Store, Txn};

use super::*;
use crate::broker::{self, Wish};
use crate::coordinator::NodeFact;
use crate::keys::CoordinatorKey;
use crate::slots::SlotRange;
use crate::spec::ClusterSpec;
use crate::status::{MoveRecord, MoveState};

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

/// A cluster of so many primaries on hosts with so many nodes each, with a move from its first primary to its second,
/// whose server came back without its data.
async fn lost_target(hosts: usize, nodes: usize, primaries: u32) -> (Store, ClusterName, Facts) {
    let (store, name) = (Store::new(Embedded::in_memory(embedded::Options::default())), "c".parse().unwrap());
    for at in 1..=hosts {
        let nodes: Vec<Address> =
            (1..=nodes).map(|n| format!("10.0.0.{at}:700{n}").parse().unwrap()).collect();
        broker::add_host(&store, &proxy(at), &nodes).await.unwrap();
    }
    broker::create_cluster(&store, &name, &ClusterSpec::of(primaries)).await.unwrap();
    let tree = Tree::read(&store).await.unwrap();
    let owners: Vec<NodeRecord> = tree.clusters[&name].primaries().map(|seen| seen.record.clone()).collect();
    let first = u32::from(owners[0].slots[0].range.first());
    let wish = Wish { range: SlotRange::new(first, first + 9).unwrap(), target: owners[1].address.clone() };
    broker::begin_move(&store, &name, &wish, "test").await.unwrap();
    let (target, mut fact) = says(&owners[1], 0, Instant::now());
    fact.nodes.values_mut().for_each(|node| node.health = "lost".to_owned());
    (store, name, [(target, fact)].into())
}

/// What becomes of the move when the loss of its target is acted upon.
async fn after_the_loss(
    store: &Store,
    name: &ClusterName,
    facts: &Facts,
) -> Option<(MoveRecord, MoveRecord)> {
    let tree = Tree::read(store).await.unwrap();
    let before = tree.clusters[name].moves.values().next().unwrap().record.clone();
    let mut steps = dead_nodes(&tree, facts, &Timing::default(), Instant::now(), 1);
    assert_eq!(steps.commits.len(), 1, "{:?}", steps.waits);
    broker::commit(store, steps.commits.remove(0)).await.unwrap();
    let tree = Tree::read(store).await.unwrap();
    let findings = crate::check::check(&tree, 0).findings;
    assert!(findings.is_empty(), "{findings:?}");
    let after = tree.clusters[name].moves.values().next().map(|seen| seen.record.clone());
    after.map(|after| (before, after))
}

#[tokio::test]
async fn what_moves_to_a_lost_node_moves_to_the_node_that_takes_its_place() {
    let (store, name, facts) = lost_target(2, 2, 2).await;
    let (before, after) = after_the_loss(&store, &name, &facts).await.unwrap();
    assert_eq!(after.state, MoveState::Copying);
    assert!(after.target.node != before.target.node && after.epoch > before.epoch, "{after:?}");
}

#[tokio::test]
async fn a_lost_node_is_replaced_at_home_where_no_other_host_has_a_node() {
    let (store, name, facts) = lost_target(1, 3, 2).await;
    let (before, after) = after_the_loss(&store, &name, &facts).await.unwrap();
    assert!(after.target.node != before.target.node && after.target.proxy == before.target.proxy);
}

#[tokio::test]
async fn what_moves_to_a_lost_node_moves_to_another_primary_where_no_node_is_free() {
    let (store, name, facts) = lost_target(3, 1, 3).await;
    let (before, after) = after_the_loss(&store, &name, &facts).await.unwrap();
    assert_eq!(after.state, MoveState::Copying);
    assert!(![&before.target.node, &before.source.node].contains(&&after.target.node), "{after:?}");
}

#[tokio::test]
async fn a_move_ends_where_nobody_else_could_take_it() {
    let (store, name, facts) = lost_target(2, 1, 2).await;
    assert_eq!(after_the_loss(&store, &name, &facts).await, None);
}
