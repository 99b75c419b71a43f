//! A host is drained step by step and undrained; every answer is what an operator should read.

use std::collections::BTreeMap;
use std::sync::Arc;

use capstan_control::drain::{Ask, DrainAnswer, ask, undrain};
use capstan_control::hosts::HostRecord;
use capstan_control::keys::AnswerKey;
use capstan_meta::Store;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::record::Key;
use capstan_meta::view::{View, ViewOptions};
use tokio::time::Instant;

use super::*;
use crate::agent::Health;
use crate::board::{NodeFact, ProxyFact};
use crate::broker;
use crate::commit;
use crate::decide::{self, plan_commit};
use crate::decide::{Content, in_sync};
use crate::spec::ClusterSpec;
use crate::status::NodeRecord;
use crate::timing::Timing;

/// A pool of hosts `h1`, `h2`, ... with proxies of these numbers, and one cluster.
struct World {
    store: Store,
    view: View,
    facts: Facts,
}

fn proxy(at: usize) -> Address {
    format!("10.0.0.{at}:5299").parse().unwrap()
}

fn name() -> ClusterName {
    "c".parse().unwrap()
}

impl World {
    async fn new(hosts: usize, nodes: usize, spec: ClusterSpec) -> World {
        let store = Store::new(Embedded::in_memory(embedded::Options::default()));
        for at in 1..=hosts {
            let nodes: Vec<Address> =
                (1..=nodes).map(|n| format!("10.0.0.{at}:700{n}").parse().unwrap()).collect();
            broker::add_host(&store, &proxy(at), &nodes).await.unwrap();
            let record = HostRecord {
                boot: "b".to_owned(),
                roles: Vec::new(),
                services: vec![SERVICE.parse().unwrap()],
                addresses: BTreeMap::from([(PROXY_ADDRESS.to_owned(), proxy(at).to_string())]),
                version: "1".to_owned(),
                labels: BTreeMap::new(),
                started_at: 0,
                extra: Default::default(),
            };
            let key = HostKey { host: format!("h{at}").parse().unwrap() };
            store.commit(Txn::new().then(key.put(&record))).await.unwrap();
        }
        broker::create_cluster(&store, &name(), &spec).await.unwrap();
        let view = View::open(store.clone(), Tree::ranges(), ViewOptions::default()).await.unwrap();
        let mut world = World { store, view, facts: Facts::new() };
        world.complete().await;
        world.everybody_is_in_sync().await;
        world
    }

    async fn tree(&self) -> Tree {
        Tree::read(&self.store).await.unwrap()
    }

    /// Completes recorded work as coordinators do; sources release at once.
    async fn complete(&self) {
        loop {
            let tree = self.tree().await;
            let moves = tree.active().flat_map(|(name, of)| of.moves.iter().map(move |one| (name, one)));
            let commit = moves
                .filter_map(|(name, (id, seen))| plan_commit(&tree, name, *id, seen.record.epoch, 1).ok());
            let recorded = decide::recorded(&tree, 1).commits.into_iter().next();
            let Some(draft) = recorded.or_else(|| commit.into_iter().next()) else { return };
            commit::commit(&self.store, draft).await.unwrap();
        }
    }

    /// The reports of proxies when all is well.
    async fn everybody_is_in_sync(&mut self) {
        let tree = self.tree().await;
        for (proxy, _) in tree.registered() {
            let fact = |node: &NodeRecord| NodeFact {
                health: Health::Ready,
                replica_of: node.replica_of.clone(),
                linked: true,
                owner: Some("c/1".to_owned()),
                offset: 100,
                ..NodeFact::default()
            };
            let nodes = tree.cluster(&name()).into_iter().flat_map(|cluster| &cluster.nodes);
            let fact = ProxyFact {
                reached: true,
                confirmed: Content::unsettled(&tree, proxy).map(Arc::new),
                nodes: nodes.map(|(node, seen)| (node.clone(), fact(&seen.record))).collect(),
                nodes_at: Some(Instant::now()),
                ..ProxyFact::default()
            };
            self.facts.insert(proxy.clone(), fact);
        }
        self.settle_sets().await;
    }

    /// Updates the in-sync sets as coordinators do.
    async fn settle_sets(&self) {
        loop {
            let changes =
                in_sync::changes(&self.tree().await, &self.facts, &Timing::default(), Instant::now());
            let Some(draft) = changes.commits.into_iter().next() else { return };
            commit::commit(&self.store, draft).await.unwrap();
        }
    }

    async fn drain(&self, at: usize) {
        ask(&self.store, &format!("h{at}").parse().unwrap(), &wish()).await.unwrap();
    }

    async fn undrain(&self, at: usize) {
        undrain(&self.store, &format!("h{at}").parse().unwrap(), &wish()).await.unwrap();
    }

    /// One round: writes answers, and takes the first step. Returns the service's answer and the step.
    async fn look(&self, at: usize) -> (Answer, Option<String>) {
        let snapshot = self.view.catch_up(std::time::Duration::from_secs(20)).await.unwrap();
        let (steps, answers) = answers(&snapshot, &Tree::of(&snapshot), &self.facts, 1);
        for txn in answers {
            assert!(self.store.commit(txn).await.unwrap().succeeded);
        }
        let step = steps.commits.into_iter().next();
        let what = step.as_ref().map(|step| step.what.clone());
        if let Some(step) = step {
            commit::commit(&self.store, step).await.unwrap();
        }
        let key = AnswerKey { host: format!("h{at}").parse().unwrap(), service: SERVICE.parse().unwrap() };
        let answer: DrainAnswer = self.store.read(&key).await.unwrap().unwrap().record;
        (answer.answer, what)
    }

    async fn slots_at(&self, at: usize) -> u32 {
        let tree = self.tree().await;
        let here = tree.clusters[&name()].primaries().filter(|node| node.record.proxy_address == proxy(at));
        here.map(|node| node.record.slot_count()).sum()
    }

    /// A host with slots.
    async fn owner(&self) -> usize {
        for at in 1..=9 {
            if self.slots_at(at).await > 0 {
                return at;
            }
        }
        panic!("no host has slots")
    }
}

fn wish() -> Ask {
    Ask { asked_by: "test".to_owned(), reason: "test".to_owned(), asked_at: 1, services: Vec::new() }
}

fn pending(answer: &Answer) -> &str {
    match answer {
        Answer::Pending { reason } => reason,
        Answer::Drained | Answer::Healthy => panic!("{answer:?}"),
    }
}

#[tokio::test]
async fn a_primary_hands_over_to_its_replica_in_sync() {
    let mut world = World::new(2, 1, ClusterSpec { replicas: 1, ..ClusterSpec::of(1) }).await;
    let at = world.owner().await;
    world.drain(at).await;
    let (answer, what) = world.look(at).await;
    assert!(pending(&answer).contains("16384 slots of cluster c are on it"), "{answer:?}");
    assert!(what.is_some());
    world.complete().await;
    assert_eq!(world.slots_at(at).await, 0);
    let (answer, _) = world.look(at).await;
    assert!(pending(&answer).contains("keeps clients waiting"), "{answer:?}");
    world.everybody_is_in_sync().await;
    assert_eq!(world.look(at).await, (Answer::Drained, None));
    let tree = world.tree().await;
    let follows = tree.clusters[&name()].nodes.values().find(|node| node.record.proxy_address == proxy(at));
    assert!(follows.unwrap().record.replica_of.is_some(), "the old primary stays, as a replica");
    let key = AnswerKey { host: format!("h{at}").parse().unwrap(), service: SERVICE.parse().unwrap() };
    let answer: DrainAnswer = world.store.read(&key).await.unwrap().unwrap().record;
    assert_eq!(answer.units.len(), 1, "the shard goes down with the host: {answer:?}");
    world.drain(3 - at).await;
    let snapshot = world.view.catch_up(std::time::Duration::from_secs(20)).await.unwrap();
    let of = |at| units(&Tree::of(&snapshot), &proxy(at));
    assert_eq!(of(at), of(3 - at), "both hosts hold the same shard");
}

#[tokio::test]
async fn a_replica_that_is_behind_is_not_handed_to() {
    let mut world = World::new(2, 1, ClusterSpec { replicas: 1, ..ClusterSpec::of(1) }).await;
    let at = world.owner().await;
    world.drain(at).await;
    let replica = world.facts.get_mut(&proxy(3 - at)).unwrap();
    replica.nodes.values_mut().for_each(|node| node.linked = false);
    let (answer, what) = world.look(at).await;
    assert_eq!(what, None);
    assert!(pending(&answer).contains("no node is free elsewhere"), "{answer:?}");
    let replica = world.facts.get_mut(&proxy(3 - at)).unwrap();
    replica.nodes.values_mut().for_each(|node| node.linked = true);
    let ahead = IN_SYNC_BYTES + 101;
    world.facts.get_mut(&proxy(at)).unwrap().nodes.values_mut().for_each(|node| node.offset = ahead);
    assert_eq!(world.look(at).await.1, None, "it lacks more than a handover waits for");
    world.facts.get_mut(&proxy(at)).unwrap().nodes.values_mut().for_each(|node| node.offset = ahead - 1);
    assert!(world.look(at).await.1.is_some());
}

#[tokio::test]
async fn slots_move_where_there_is_no_replica_and_return_with_the_host() {
    let mut world = World::new(3, 1, ClusterSpec::of(3)).await;
    let before = world.slots_at(2).await;
    world.drain(2).await;
    let (answer, what) = world.look(2).await;
    assert!(pending(&answer).contains("slots of cluster c are on it"), "{answer:?}");
    assert!(what.unwrap().contains("move"), "slots are moved");
    let (answer, what) = world.look(2).await;
    assert!(pending(&answer).contains("moves in progress"), "{answer:?}");
    assert_eq!(what, None, "while they move nothing else is begun");
    world.complete().await;
    assert_eq!(world.slots_at(2).await, 0);
    world.everybody_is_in_sync().await;
    assert_eq!(world.look(2).await, (Answer::Drained, None));
    // Undrained: not before the proxy has confirmed its content, and then with its share of the slots.
    world.undrain(2).await;
    world.facts.get_mut(&proxy(2)).unwrap().confirmed = None;
    let (answer, what) = world.look(2).await;
    assert!(pending(&answer).contains("has not confirmed"), "{answer:?}");
    assert_eq!(what, None);
    world.everybody_is_in_sync().await;
    let (answer, what) = world.look(2).await;
    assert_eq!(answer, Answer::Healthy);
    assert!(what.is_some(), "slots are to be spread again");
    world.complete().await;
    let back = world.slots_at(2).await;
    assert!(back.abs_diff(before) <= 1, "{back} of {before}");
}

#[tokio::test]
async fn the_only_primary_gets_company_first() {
    let mut world = World::new(2, 1, ClusterSpec::of(1)).await;
    let at = world.owner().await;
    world.drain(at).await;
    let (answer, what) = world.look(at).await;
    assert!(pending(&answer).contains("16384 slots"), "{answer:?}");
    assert!(what.is_some(), "a node joins elsewhere");
    for _ in 0..3 {
        world.complete().await;
        world.look(at).await;
    }
    assert_eq!(world.slots_at(at).await, 0);
    world.everybody_is_in_sync().await;
    assert_eq!(world.look(at).await.0, Answer::Drained);
    assert_eq!(world.slots_at(3 - at).await, 16_384);
}

#[tokio::test]
async fn a_host_without_a_proxy_has_nothing_to_give() {
    let world = World::new(1, 1, ClusterSpec::of(1)).await;
    let host = HostKey { host: "h1".parse().unwrap() };
    let mut record = world.store.read(&host).await.unwrap().unwrap().record.clone();
    record.addresses.clear();
    world.store.commit(Txn::new().then(host.put(&record))).await.unwrap();
    world.drain(1).await;
    assert_eq!(world.look(1).await, (Answer::Drained, None));
    world.undrain(1).await;
    assert_eq!(world.look(1).await, (Answer::Healthy, None));
}
