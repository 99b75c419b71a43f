//! Two operations at once: one waits before each of its transactions in turn while the other runs to its end. Whatever
//! they answer, what is left is completed and sound.

use std::collections::BTreeMap;

use capstan_meta::record::Key;
use capstan_meta::{Store, Txn};
use capstan_redis::broker::{self, Committed};
use capstan_redis::coordinator::{Timing, dead_proxies};
use capstan_redis::keys::{CoordinatorKey, FailureKey, ReportId};
use capstan_redis::spec::ClusterSpec;

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

async fn race(waits: Deed, runs: Deed, mut fresh: impl AsyncFnMut() -> Store) {
    for at in 1..=MOST_COMMITS {
        let store = fresh().await;
        let scene = scene(&store).await;
        let reached = race_at(&store, &scene, waits, runs, at).await;
        assert_sound(&tree(&store).await);
        assert_comes_to_rest(&store).await;
        if !reached {
            return;
        }
    }
    panic!("{waits:?} does not end");
}

/// The pairs of the checklist, and a few more that touch the same records.
const PAIRS: [(Deed, Deed); 16] = [
    (Deed::CreateCluster, Deed::CreateCluster),
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
        for (one, other) in PAIRS {
            race(one, other, async || embedded_store()).await;
            race(other, one, async || embedded_store()).await;
        }
    });
}

#[test]
fn pairs_on_etcd() {
    block_on(async {
        let etcd = capstan_testkit::Etcd::start().await.unwrap();
        for (one, other) in PAIRS {
            let store = etcd_store(etcd.endpoint()).await;
            let scene = scene(&store).await;
            race_at(&store, &scene, one, other, 1).await;
            assert_sound(&tree(&store).await);
            assert_comes_to_rest(&store).await;
        }
    });
}

async fn delete_and_create_again(store: Store) {
    pool(&store, 3, 1).await;
    broker::create_cluster(&store, &c(), &ClusterSpec::of(3)).await.unwrap();
    complete(&store).await;
    // A release that was planned for the first life of the name must not touch the second.
    let before = tree(&store).await;
    broker::commit(&store, broker::plan_delete(&c(), &before.clusters[&c()], 1)).await.unwrap();
    let deleting = tree(&store).await;
    let late = broker::plan_release(&deleting, &c(), &deleting.clusters[&c()], 1);
    complete(&store).await;
    broker::create_cluster(&store, &c(), &ClusterSpec::of(3)).await.unwrap();
    assert_eq!(broker::commit(&store, late).await, Ok(Committed::Conflict));
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

/// Two of three coordinators report the proxy of a cluster's only node; the step that replaces it.
async fn verdict_of_two(store: &Store) -> (FailureKey, broker::Draft) {
    pool(store, 3, 1).await;
    broker::create_cluster(store, &c(), &ClusterSpec::of(1)).await.unwrap();
    complete(store).await;
    let suspect = tree(store).await.clusters[&c()].proxies().into_iter().next().unwrap().clone();
    let report = |at: usize| FailureKey { address: suspect.clone(), report_id: reporter(at) };
    let mut txn = Txn::new();
    for at in 1..=3 {
        txn = txn.then(coordinator(at).put(&reporter(at)));
    }
    store.commit(txn.then(report(1).put(&1))).await.unwrap();
    let alone = dead_proxies(&tree(store).await, &BTreeMap::new(), &Timing::default(), 1);
    assert!(alone.commits.is_empty(), "one of three decides nothing");
    store.commit(Txn::new().then(report(2).put(&1))).await.unwrap();
    let steps = dead_proxies(&tree(store).await, &BTreeMap::new(), &Timing::default(), 1);
    (report(2), steps.commits.into_iter().next().unwrap())
}

#[test]
fn a_report_that_is_gone_stops_the_replacement() {
    block_on(async {
        let store = embedded_store();
        let (report, draft) = verdict_of_two(&store).await;
        store.commit(Txn::new().then(report.delete())).await.unwrap();
        assert_eq!(broker::commit(&store, draft).await, Ok(Committed::Conflict));
    });
}

#[test]
fn a_coordinator_that_was_not_counted_stops_the_replacement() {
    block_on(async {
        let store = embedded_store();
        let (_, draft) = verdict_of_two(&store).await;
        store.commit(Txn::new().then(coordinator(4).put(&reporter(4)))).await.unwrap();
        assert_eq!(broker::commit(&store, draft).await, Ok(Committed::Conflict));
    });
}

#[test]
fn two_of_three_replace_and_only_once() {
    block_on(async {
        let store = embedded_store();
        let (_, draft) = verdict_of_two(&store).await;
        assert!(matches!(broker::commit(&store, draft.clone()).await, Ok(Committed::At(_))));
        assert_eq!(broker::commit(&store, draft).await, Ok(Committed::Conflict));
        assert_comes_to_rest(&store).await;
    });
}
