//! Two concurrent operations: one waits before each of its transactions in turn while the other runs to its
//! end. Whatever their results, the rest is completed and the tree is consistent.

use capstan_meta::record::Key;
use capstan_meta::{LeaseId, Store, Txn};
use capstan_redis::Address;
use capstan_redis::board::ProxyFact;
use capstan_redis::broker;
use capstan_redis::commit::{self, Committed};
use capstan_redis::decide;
use capstan_redis::decide::Steps;
use capstan_redis::decide::{Facts, Sight, dead_proxies};
use capstan_redis::facts::Tree;
use capstan_redis::keys::{CoordinatorKey, FailureKey, ReportId};
use capstan_redis::spec::{ClusterSpec, Serving};
use capstan_redis::timing::Timing;
use capstan_testkit::seed::soak;
use tokio::time::Instant;

use super::deeds::{Deed, Scene, c, scene};
use super::tap::{Cut, Tap};
use super::world::*;

const MOST_COMMITS: u32 = 12;

/// One waits before its n-th transaction; the other runs. Returns whether there was an n-th transaction.
async fn race_at(store: &Store, scene: &Scene, waits: Deed, runs: Deed, at: u32) -> bool {
    let tap = Tap::cut(store, at, Cut::Paused);
    let waiting = tap.store();
    let first = scene.perform(waits, &waiting);
    let second = async {
        tap.reached.notified().await;
        let done = scene.perform(runs, store).await;
        tap.go_on.notify_one();
        done
    };
    tokio::pin!(first, second);
    let mut reached = false;
    tokio::select! {
        biased;
        // It ended without an n-th transaction.
        _ = &mut first => {}
        _ = &mut second => reached = true,
    }
    if reached {
        let _ = first.await;
    }
    reached
}

/// Returns whether there was an n-th transaction to wait before.
async fn judged_race_at(world: &World, store: Store, waits: Deed, runs: Deed, at: u32) -> bool {
    begin_from(&store, &world.everything).await;
    let before = tree(&store).await;
    let reached = race_at(&store, &world.scene, waits, runs, at).await;
    let after = tree(&store).await;
    assert_sound(&after);
    assert_promises(&before, &after);
    assert_promises(&before, &assert_comes_to_rest(&store).await);
    reached
}

struct World {
    scene: Scene,
    everything: Vec<(bytes::Bytes, bytes::Bytes)>,
}

impl World {
    async fn new() -> World {
        let store = embedded_store();
        World { scene: scene(&store).await, everything: everything(&store).await }
    }
}

async fn race(world: &World, waits: Deed, runs: Deed, mut fresh: impl AsyncFnMut() -> Store) {
    for at in 1..=MOST_COMMITS {
        if !judged_race_at(world, fresh().await, waits, runs, at).await {
            return;
        }
    }
    panic!("{waits:?} does not end");
}

/// The pairs of the checklist, and a few more that touch the same records.
const PAIRS: [(Deed, Deed); 19] = [
    (Deed::CreateCluster, Deed::CreateCluster),
    (Deed::CreateCluster, Deed::DeleteNew),
    (Deed::DeleteCluster, Deed::CreateAgain),
    (Deed::ReplaceSpare, Deed::DeleteNode),
    (Deed::CreateNode, Deed::DeleteCluster),
    (Deed::ReplaceNode, Deed::DeleteCluster),
    (Deed::ReplaceNode, Deed::ReplaceNode),
    (Deed::CreateNode, Deed::RemoveHost),
    (Deed::CreateCluster, Deed::RemoveHost),
    (Deed::CommitMove, Deed::ReplaceNode),
    (Deed::CommitMove, Deed::PromoteDead),
    (Deed::CommitMove, Deed::CommitMove),
    (Deed::CommitMove, Deed::CancelMove),
    (Deed::CommitMove, Deed::RetargetMove),
    (Deed::CommitMove, Deed::DeleteCluster),
    (Deed::PromoteDead, Deed::ReplaceNode),
    (Deed::BumpHosts, Deed::CommitMove),
    (Deed::AddHost, Deed::AddHost),
    (Deed::Grow, Deed::DeleteNode),
];

#[test]
fn every_pair_in_both_orders() {
    block_on(async {
        let world = World::new().await;
        for (one, other) in PAIRS {
            race(&world, one, other, async || embedded_store()).await;
            race(&world, other, one, async || embedded_store()).await;
        }
    });
}

/// Each waits before its first transaction; the long form lets it wait before every one.
async fn pairs_on_etcd(pairs: &[(Deed, Deed)]) {
    let etcd = capstan_testkit::Etcd::start().await.unwrap();
    let world = World::new().await;
    for (one, other) in pairs.iter().flat_map(|(one, other)| [(*one, *other), (*other, *one)]) {
        if soak(false, true) {
            race(&world, one, other, async || etcd_store(etcd.endpoint()).await).await;
        } else {
            judged_race_at(&world, etcd_store(etcd.endpoint()).await, one, other, 1).await;
        }
    }
}

#[test]
fn pairs_on_etcd_that_make_and_delete() {
    block_on(pairs_on_etcd(&PAIRS[..9]));
}

#[test]
fn pairs_on_etcd_that_move_and_replace() {
    block_on(pairs_on_etcd(&PAIRS[9..]));
}

async fn delete_and_create_again(store: Store) {
    pool(&store, 3, 1).await;
    broker::create_cluster(&store, &c(), &ClusterSpec::of(3)).await.unwrap();
    complete(&store).await;
    // A release that was planned for the first incarnation of the name must not touch the second.
    let before = tree(&store).await;
    commit::commit(&store, decide::plan_delete(&c(), &before.clusters[&c()], 1)).await.unwrap();
    let deleting = tree(&store).await;
    let late = decide::plan_release(&deleting, &c(), &deleting.clusters[&c()], 1);
    complete(&store).await;
    broker::create_cluster(&store, &c(), &ClusterSpec::of(3)).await.unwrap();
    assert_eq!(commit::commit(&store, late).await, Ok(Committed::Conflict));
    let rest = assert_comes_to_rest(&store).await;
    assert_eq!(rest.clusters[&c()].nodes.len(), 3);
}

#[test]
fn a_late_release_spares_the_second_life_of_a_name() {
    block_on(async {
        delete_and_create_again(embedded_store()).await;
        let etcd = capstan_testkit::Etcd::start().await.unwrap();
        delete_and_create_again(etcd_store(etcd.endpoint()).await).await;
    });
}

fn coordinator(at: usize) -> CoordinatorKey {
    CoordinatorKey { address: proxy(at), report_id: reporter(at) }
}

fn reporter(at: usize) -> ReportId {
    format!("r{at}").parse().unwrap()
}

/// The steps that follow from the reports after all timeouts.
fn judged(tree: &Tree) -> Steps {
    let timing = Timing::default();
    let begun = Instant::now();
    let missed =
        |proxy: &Address| (proxy.clone(), ProxyFact { missed_since: Some(begun), ..ProxyFact::default() });
    let facts: Facts = tree.registered().map(|(proxy, _)| missed(proxy)).collect();
    dead_proxies(Sight { tree, facts: &facts, timing: &timing, at: begun + timing.host_gone, now: 1 })
}

/// Two of three coordinators report the proxy of a cluster's only node; returns the step that replaces it.
async fn verdict_of_two(store: &Store) -> (FailureKey, decide::Draft) {
    pool(store, 3, 1).await;
    let serving = Serving { cache: true, ..Serving::default() };
    broker::create_cluster(store, &c(), &ClusterSpec { serving, ..ClusterSpec::of(1) }).await.unwrap();
    complete(store).await;
    let suspect = tree(store).await.clusters[&c()].proxies().into_iter().next().unwrap().clone();
    let report = |at: usize| FailureKey { address: suspect.clone(), report_id: reporter(at) };
    let mut txn = Txn::new();
    for at in 1..=3 {
        txn = txn.then(coordinator(at).put(&reporter(at)));
    }
    store.commit(txn.then(report(1).put(&1))).await.unwrap();
    let alone = judged(&tree(store).await);
    assert!(alone.commits.is_empty(), "one of three decides nothing");
    store.commit(Txn::new().then(report(2).put(&1))).await.unwrap();
    let steps = judged(&tree(store).await);
    (report(2), steps.commits.into_iter().next().unwrap())
}

async fn a_gone_report(store: Store) {
    let (report, draft) = verdict_of_two(&store).await;
    store.commit(Txn::new().then(report.delete())).await.unwrap();
    assert_eq!(commit::commit(&store, draft).await, Ok(Committed::Conflict));
}

/// At the boundary of the quorum one lease expires: with it the coordinator and its report are gone.
async fn a_lease_that_ends(store: Store) {
    let (report, _) = verdict_of_two(&store).await;
    let lease = store.lease_grant(std::time::Duration::from_secs(60), LeaseId::NONE).await.unwrap().id;
    let leased =
        Txn::new().then(report.put(&1).lease(lease)).then(coordinator(2).put(&reporter(2)).lease(lease));
    store.commit(leased).await.unwrap();
    let steps = judged(&tree(&store).await);
    let draft = steps.commits.into_iter().next().unwrap();
    store.lease_revoke(lease).await.unwrap();
    assert_eq!(commit::commit(&store, draft).await, Ok(Committed::Conflict));
    let two_left = judged(&tree(&store).await);
    assert!(two_left.commits.is_empty(), "one of two decides nothing");
}

async fn an_uncounted_coordinator(store: Store) {
    let (_, draft) = verdict_of_two(&store).await;
    store.commit(Txn::new().then(coordinator(4).put(&reporter(4)))).await.unwrap();
    assert_eq!(commit::commit(&store, draft).await, Ok(Committed::Conflict));
}

async fn a_replacement_that_happens_once(store: Store) {
    let (_, draft) = verdict_of_two(&store).await;
    assert!(matches!(commit::commit(&store, draft.clone()).await, Ok(Committed::At(_))));
    assert_eq!(commit::commit(&store, draft).await, Ok(Committed::Conflict));
    assert_comes_to_rest(&store).await;
}

#[test]
fn a_report_that_is_gone_stops_the_replacement() {
    block_on(async { a_gone_report(embedded_store()).await });
}

#[test]
fn a_lease_that_ends_takes_its_report_along() {
    block_on(async { a_lease_that_ends(embedded_store()).await });
}

#[test]
fn a_coordinator_that_was_not_counted_stops_the_replacement() {
    block_on(async { an_uncounted_coordinator(embedded_store()).await });
}

#[test]
fn two_of_three_replace_and_only_once() {
    block_on(async { a_replacement_that_happens_once(embedded_store()).await });
}

#[test]
fn verdicts_on_etcd() {
    block_on(async {
        let etcd = capstan_testkit::Etcd::start().await.unwrap();
        a_gone_report(etcd_store(etcd.endpoint()).await).await;
        a_lease_that_ends(etcd_store(etcd.endpoint()).await).await;
        an_uncounted_coordinator(etcd_store(etcd.endpoint()).await).await;
        a_replacement_that_happens_once(etcd_store(etcd.endpoint()).await).await;
    });
}
