//! What the operations are tested on: the embedded store, and a real etcd; and the completion of recorded
//! work.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use capstan_control::epoch::Epoch;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::{MetaError, Put, Range, Store, Txn, clock};
use capstan_redis::broker;
use capstan_redis::check;
use capstan_redis::commit::{self, Committed};
use capstan_redis::decide;
use capstan_redis::error::BrokerError;
use capstan_redis::facts::{Seen, Tree};
use capstan_redis::status::Place;
use capstan_redis::{Address, ClusterName};

/// Transactions that complete everything that a test can leave behind.
const MOST_STEPS: usize = 500;

pub fn address(text: &str) -> Address {
    text.parse().unwrap()
}

pub fn cluster(text: &str) -> ClusterName {
    text.parse().unwrap()
}

/// The proxy of host `at`.
pub fn proxy(at: usize) -> Address {
    address(&format!("10.0.0.{at}:5299"))
}

/// Node `n` of host `at`.
pub fn node(at: usize, n: usize) -> Address {
    address(&format!("10.0.0.{at}:700{n}"))
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub fn embedded_store() -> Store {
    Store::new(Embedded::in_memory(embedded::Options::default()))
}

/// A key space of its own in a shared etcd.
pub async fn etcd_store(endpoint: &str) -> Store {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("/test/{}", COUNT.fetch_add(1, Ordering::Relaxed));
    Store::new(Etcd::connect(EtcdOptions::new([endpoint]).prefix(prefix)).await.unwrap())
}

/// Registers this many hosts with this many nodes each.
pub async fn pool(store: &Store, hosts: usize, nodes: usize) {
    for at in 1..=hosts {
        let nodes: Vec<Address> = (1..=nodes).map(|n| node(at, n)).collect();
        broker::add_host(store, &proxy(at), &nodes).await.unwrap();
    }
}

pub async fn tree(store: &Store) -> Tree {
    Tree::read(store).await.unwrap()
}

/// Completes everything that is recorded, as coordinators do; sources release moves at once, and hosts empty
/// released nodes.
pub async fn complete(store: &Store) {
    for _ in 0..MOST_STEPS {
        let now = tree(store).await;
        let Some(draft) = next(&now) else { return };
        // Others may complete it at the same time.
        let _: Committed = commit::commit(store, draft).await.unwrap();
    }
    panic!("still not at rest: {:?}", check::check(&tree(store).await, 0));
}

fn next(tree: &Tree) -> Option<decide::Draft> {
    let now = clock::since_epoch().as_secs();
    let recorded = decide::recorded(tree, now).commits.into_iter().next();
    recorded.or_else(|| release(tree, now)).or_else(|| emptied(tree))
}

fn release(tree: &Tree, now: u64) -> Option<decide::Draft> {
    let moves = tree
        .active()
        .flat_map(|(name, cluster)| cluster.moves.iter().map(move |(id, seen)| (name, id, seen)));
    moves
        .filter_map(|(name, id, seen)| decide::plan_commit(tree, name, *id, seen.record.epoch, now).ok())
        .next()
}

fn emptied(tree: &Tree) -> Option<decide::Draft> {
    let quarantined = tree.registered().flat_map(|(proxy, host)| {
        let epoch = host.epoch.as_ref().unwrap().record;
        host.quarantine.keys().map(move |node| (Place { proxy: proxy.clone(), node: node.clone() }, epoch))
    });
    quarantined.filter_map(|(place, epoch)| decide::plan_end_quarantine(tree, &place, epoch)).next()
}

/// Completes recorded work as a process that may be interrupted.
pub async fn complete_some(store: &Store) -> Result<(), BrokerError> {
    for _ in 0..MOST_STEPS {
        let Some(draft) = next(&Tree::read(store).await?) else { return Ok(()) };
        match commit::commit(store, draft).await {
            // An unknown outcome is settled by the next read.
            Ok(_) | Err(BrokerError::Store(MetaError::Unknown(_))) => {}
            Err(error) => return Err(error),
        }
    }
    panic!("it does not end");
}

/// Everything in a store, to start another one from it.
pub async fn everything(store: &Store) -> Vec<(Bytes, Bytes)> {
    let all = store.range(Range::prefix("/")).await.unwrap();
    all.kvs.into_iter().map(|kv| (kv.key.clone(), kv.value.clone())).collect()
}

/// Writes all of it at once.
pub async fn begin_from(store: &Store, everything: &[(Bytes, Bytes)]) {
    let put = |txn: Txn, (key, value): &(Bytes, Bytes)| txn.then(Put::new(key.clone(), value.clone()));
    assert!(store.commit(everything.iter().fold(Txn::new(), put)).await.unwrap().succeeded);
}

/// The invariants of the checklist that a single tree cannot show or that `check` does not include: no epoch
/// has gone back, also of deleted names and removed hosts; and every registered node is free, used or in
/// quarantine, exactly once.
#[track_caller]
pub fn assert_promises(before: &Tree, after: &Tree) {
    let (old, new) = (epochs(before), epochs(after));
    for (what, epoch) in &old {
        assert!(new.get(what) >= Some(epoch), "{what} went back from {epoch} to {:?}", new.get(what));
    }
    for (proxy, host) in after.registered() {
        let free = after.free_nodes().filter(|place| place.proxy == *proxy).count();
        let used = host.owners.values().filter(|owner| owner.record.0.is_some()).count();
        let registered = host.owners.len();
        assert_eq!(free + used + host.quarantine.len(), registered, "the nodes of {proxy}");
    }
    let mut owned = BTreeMap::new();
    for (name, cluster) in &after.clusters {
        for node in cluster.nodes.keys() {
            assert_eq!(owned.insert(node, name), None, "{node} is in two clusters");
        }
    }
    for (name, cluster) in after.active().filter(|(_, cluster)| cluster.creating.is_none()) {
        let slots: u32 = cluster.nodes.values().map(|node| node.record.slot_count()).sum();
        assert_eq!(slots, 16_384, "the slots of {name}");
    }
}

fn epochs(tree: &Tree) -> BTreeMap<String, Epoch> {
    let hosts = tree.hosts.iter().map(|(proxy, host)| (proxy.to_string(), [&host.epoch, &host.last_epoch]));
    let clusters = tree.clusters.iter().map(|(name, of)| (name.to_string(), [&of.epoch, &of.last_epoch]));
    let highest = |both: [&Option<Seen<Epoch>>; 2]| both.into_iter().flatten().map(|seen| seen.record).max();
    hosts.chain(clusters).filter_map(|(what, both)| Some((what, highest(both)?))).collect()
}

/// Asserts that there are no findings.
#[track_caller]
pub fn assert_sound(tree: &Tree) {
    let report = check::check(tree, 0);
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// Asserts that there are no findings, and that nothing is pending.
#[track_caller]
pub fn assert_at_rest(tree: &Tree) {
    let report = check::check(tree, 0);
    assert!(report.is_at_rest(), "{report:#?}");
}

/// Completes everything, then asserts that there are no findings.
pub async fn assert_comes_to_rest(store: &Store) -> Tree {
    complete(store).await;
    let found = tree(store).await;
    assert_at_rest(&found);
    found
}
