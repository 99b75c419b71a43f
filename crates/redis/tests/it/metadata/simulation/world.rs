//! One world: a store, hosts, coordinators and an operator, and their faults, all from a seed.

// tidy: the clock is paused in this file

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use capstan_control::epoch::Epoch;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::faults::{Faults, Faulty, Link as StoreLink, Rates};
use capstan_meta::{OwnedTask, Store, Txn};
use capstan_redis::broker;
use capstan_redis::check;
use capstan_redis::coordinator::Coordinator;
use capstan_redis::decide::{self, OldPrimary, Wish};
use capstan_redis::facts::Tree;
use capstan_redis::nmctl::Message;
use capstan_redis::slots::SlotRange;
use capstan_redis::spec::{ClusterSpec, Serving};
use capstan_redis::timing::Timing;
use capstan_redis::{Address, ClusterName};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::net::{Link, Net};
use super::proxy::SimProxy;
use crate::metadata::tap::Tap;
use crate::metadata::world::{address, cluster, node, proxy};

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Proxies trust grants for longer than coordinators do.
    ReportsBeforeTheLeaseRanOut,
    /// Something is pushed to a proxy before it is committed.
    PushesBeforeTheCommit,
    /// Nodes are replaced without a check whether the cluster has changed.
    ReplacesWithoutTheEpochGuard,
    /// Coordinators without the store do not ask for the consent of the others.
    GrantsAloneWithoutTheStore,
}

/// How long there are faults, in simulated time.
const TROUBLE: Duration = Duration::from_secs(10);
/// How long it may take to come to rest afterwards.
const REST_WITHIN: Duration = Duration::from_secs(120);
const HOSTS: usize = 4;
const NODES: usize = 2;

pub fn timing() -> Timing {
    Timing {
        ping_every: Duration::from_millis(250),
        reply_within: Duration::from_millis(200),
        grant_ttl: Duration::from_millis(700),
        margin: Duration::from_millis(100),
        patience: 2,
        nodes_every: Duration::from_millis(500),
        full_every: Duration::from_secs(5),
        fresh_within: Duration::from_millis(1500),
        session_ttl: Duration::from_secs(4),
        node_down: Duration::from_secs(1),
        lone_node_down: Duration::from_secs(3),
        busy: Duration::from_secs(5),
        take_over: Duration::from_secs(2),
        host_gone: Duration::from_secs(5),
        outage: Duration::from_secs(6),
        quorum_at_least: 1,
    }
}

/// Counts of what happened, to check that something did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    pub messages: u64,
    pub crashes: u64,
    pub cuts: u64,
    pub outages: u64,
    pub operations: u64,
    pub replaced: u64,
    pub moved: u64,
    pub revisions: i64,
    pub trace: Vec<String>,
}

struct World {
    rng: StdRng,
    store: Store,
    net: Arc<Net>,
    coordinators: BTreeMap<u64, (Faults, CancellationToken, OwnedTask)>,
    next_id: u64,
    deeds: Deeds,
    highest: BTreeMap<String, Epoch>,
    sabotage: Option<Sabotage>,
}

pub fn simulate(seed: u64, sabotage: Option<Sabotage>) -> Deeds {
    in_its_own_time(async move { World::new(seed, sabotage).await.run().await })
}

/// Two coordinators. One loses the store, and is the only one that reaches the owner of all slots.
pub fn the_only_link_has_no_store(seed: u64, sabotage: Option<Sabotage>) {
    in_its_own_time(async move {
        let mut world = World::with(seed, sabotage, 2).await;
        let owner = world.settled_owner().await;
        world.lose_the_store(world.next_id - 1);
        world.net.state().cut.insert((world.next_id, owner.clone()));
        world.until_replaced(&owner).await;
    });
}

/// The only coordinator loses the store, and a new one starts that never reaches the owner of all slots.
pub fn a_newcomer_has_the_store(seed: u64) {
    in_its_own_time(async move {
        let mut world = World::with(seed, None, 1).await;
        let owner = world.settled_owner().await;
        world.lose_the_store(world.next_id);
        world.net.state().cut.insert((world.next_id + 1, owner.clone()));
        world.start_coordinator();
        world.until_replaced(&owner).await;
    });
}

fn in_its_own_time<T>(life: impl Future<Output = T>) -> T {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(life)
}

impl World {
    async fn new(seed: u64, sabotage: Option<Sabotage>) -> World {
        let coordinators = StdRng::seed_from_u64(seed ^ 2).random_range(1..=3);
        World::with(seed, sabotage, coordinators).await
    }

    async fn with(seed: u64, sabotage: Option<Sabotage>, coordinators: usize) -> World {
        let embedded =
            Embedded::in_memory(embedded::Options { seed: Some(seed), ..embedded::Options::default() });
        let store = Store::new(embedded);
        let net = Net::new(store.clone(), timing().reply_within, seed ^ 1, sabotage);
        for at in 1..=HOSTS {
            let nodes: Vec<Address> = (1..=NODES).map(|n| node(at, n)).collect();
            broker::add_host(&store, &proxy(at), &nodes).await.unwrap();
            net.state().proxies.insert(proxy(at), SimProxy::new(nodes));
        }
        let mut world = World {
            rng: StdRng::seed_from_u64(seed),
            store,
            net,
            coordinators: BTreeMap::new(),
            next_id: seed & 0xffff_0000,
            deeds: Deeds::default(),
            highest: BTreeMap::new(),
            sabotage,
        };
        for _ in 0..coordinators {
            world.start_coordinator();
        }
        world
    }

    /// A cluster of one primary and one replica is served, and every coordinator counts every other.
    async fn settled_owner(&mut self) -> Address {
        let serving = Serving { cache: true, ..Serving::default() };
        let spec = ClusterSpec { replicas: 1, serving, ..ClusterSpec::of(1) };
        broker::create_cluster(&self.store, &name(1), &spec).await.unwrap();
        sleep(timing().warm_up() * 3).await;
        self.rest().await;
        self.owner().await
    }

    async fn owner(&self) -> Address {
        let tree = Tree::read(&self.store).await.unwrap();
        let primary = tree.cluster(&name(1)).unwrap().primaries().next();
        primary.unwrap().record.proxy_address.clone()
    }

    fn lose_the_store(&self, coordinator: u64) {
        self.coordinators[&coordinator].0.set_link(StoreLink::Silent);
    }

    /// The owner is replaced, and never serves beside its successor.
    async fn until_replaced(&mut self, owner: &Address) {
        let end = Instant::now() + timing().surely_silent() + REST_WITHIN;
        while self.owner().await == *owner {
            assert!(Instant::now() < end, "{owner} is not replaced");
            sleep(Duration::from_millis(50)).await;
            self.observe().await;
        }
        let watched = Instant::now() + timing().surely_silent();
        while Instant::now() < watched {
            sleep(Duration::from_millis(50)).await;
            self.observe().await;
        }
        self.peace().await;
        self.rest().await;
    }

    fn start_coordinator(&mut self) {
        self.next_id += 1;
        let id = self.next_id;
        let faults = Faults::seeded(id);
        faults.set_rates(Rates {
            unavailable: 0.005,
            lost_request: 0.005,
            lost_answer: 0.01,
            cut_watch: 0.01,
            repeat_message: 0.01,
            compact_before_watch: 0.05,
            delay: Duration::from_millis(6),
        });
        let store = Store::shared(Arc::new(Faulty::new(Tap::open(&self.store), faults.clone())));
        let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
        let token = stop.clone();
        let link = Link { net: self.net.clone(), from: id };
        let task = OwnedTask::spawn(async move {
            let here = address(&format!("10.9.9.9:{}", 1 + id % 60_000));
            let controller = format!("controller-{id}").parse().unwrap();
            match Coordinator::start(store, link, (controller, &here), timing(), id).await {
                Ok(coordinator) => coordinator.run(token).await,
                Err(error) => panic!("coordinator {id}: {error}"),
            }
        });
        drop(stopped);
        self.coordinators.insert(id, (faults, stop, task));
    }

    async fn run(mut self) -> Deeds {
        let end = Instant::now() + TROUBLE;
        self.create(1).await;
        while Instant::now() < end {
            let pause = self.rng.random_range(10..400);
            sleep(Duration::from_millis(pause)).await;
            self.observe().await;
            self.something_happens().await;
        }
        self.peace().await;
        self.rest().await;
        self.deeds.messages = self.net.state().messages;
        self.deeds.trace = std::mem::take(&mut self.net.state().trace);
        self.deeds.revisions = self.store.status().await.unwrap().revision.0;
        self.deeds
    }

    async fn something_happens(&mut self) {
        let hurt = proxy(self.rng.random_range(1..=HOSTS));
        match self.rng.random_range(0..24) {
            0 | 1 => {
                self.deeds.crashes += 1;
                self.net.state().proxies.get_mut(&hurt).unwrap().crash();
            }
            2..=5 => {
                let mut state = self.net.state();
                let proxy = state.proxies.get_mut(&hurt).unwrap();
                if !proxy.up {
                    proxy.restart();
                }
            }
            6 | 7 => {
                self.deeds.cuts += 1;
                let ids: Vec<u64> = self.coordinators.keys().copied().filter(|id| id % 3 != 0).collect();
                self.net.state().cut.extend(ids.into_iter().map(|id| (id, hurt.clone())));
            }
            8 | 9 => {
                let ids: Vec<u64> = self.coordinators.keys().copied().collect();
                self.deeds.cuts += 1;
                self.net.state().cut.extend(ids.into_iter().map(|id| (id, hurt.clone())));
            }
            10..=12 => self.net.state().cut.clear(),
            13 => {
                let which = self.rng.random_range(0..self.coordinators.len());
                let link = if self.rng.random_bool(0.5) { StoreLink::Silent } else { StoreLink::Refused };
                self.coordinators.values().nth(which).unwrap().0.set_link(link);
            }
            14 => self.coordinators.values().for_each(|(faults, ..)| faults.set_link(StoreLink::Up)),
            22 | 23 => {
                let link = if self.rng.random_bool(0.5) { StoreLink::Silent } else { StoreLink::Refused };
                self.deeds.outages += 1;
                self.coordinators.values().for_each(|(faults, ..)| faults.set_link(link));
            }
            15 => {
                let which =
                    *self.coordinators.keys().nth(self.rng.random_range(0..self.coordinators.len())).unwrap();
                let (_, stop, task) = self.coordinators.remove(&which).unwrap();
                if self.rng.random_bool(0.5) {
                    stop.cancel();
                    // It stops on its own.
                    self.coordinators.insert(which, (Faults::seeded(which), stop, task));
                }
                self.start_coordinator();
            }
            16 => {
                let n = self.rng.random_range(1..=NODES);
                let at = hurt.as_str().split(['.', ':']).nth(3).unwrap().parse().unwrap();
                let lost = self.rng.random_bool(0.5);
                let mut state = self.net.state();
                let hit = state.proxies.get_mut(&hurt).unwrap().nodes.get_mut(&node(at, n)).unwrap();
                (hit.lost, hit.down) = (lost, !lost);
            }
            _ => self.operate().await,
        }
    }

    async fn create(&mut self, at: u32) {
        // Clusters with data are tested by the simulation of data; here every slot is to be served again.
        let serving = Serving { cache: true, ..Serving::default() };
        let spec = ClusterSpec {
            replicas: self.rng.random_range(0..=1),
            serving,
            ..ClusterSpec::of(self.rng.random_range(1..=2))
        };
        self.deeds.operations += 1;
        let _ = broker::create_cluster(&self.store, &name(at), &spec).await;
    }

    /// A random operation of an operator; it may be refused.
    async fn operate(&mut self) {
        let at = self.rng.random_range(1..=2);
        let tree = Tree::read(&self.store).await.unwrap();
        let nodes: Vec<Address> = tree
            .cluster(&name(at))
            .map(|cluster| cluster.nodes.keys().cloned().collect())
            .unwrap_or_default();
        self.deeds.operations += 1;
        if nodes.is_empty() {
            self.create(at).await;
            return;
        }
        let chosen = nodes[self.rng.random_range(0..nodes.len())].clone();
        match (self.sabotage, self.rng.random_range(0..9)) {
            (Some(Sabotage::PushesBeforeTheCommit), 0..=2) => self.push_uncommitted(&tree).await,
            (Some(Sabotage::ReplacesWithoutTheEpochGuard), 0..=5) => {
                self.replace_unguarded(&tree, at, &chosen).await
            }
            (_, 0) => drop(broker::delete_cluster(&self.store, &name(at)).await),
            (_, 1 | 2) => drop(broker::scale(&self.store, &name(at), self.rng.random_range(1..=3)).await),
            (_, 3..=6) => {
                let first = self.rng.random_range(0..16_000);
                let range = SlotRange::new(first, first + self.rng.random_range(0..384)).unwrap();
                let wish = Wish { range, target: chosen };
                drop(broker::begin_move(&self.store, &name(at), &wish, "test").await);
            }
            (_, 7) => drop(broker::promote(&self.store, &name(at), &chosen, OldPrimary::Follows).await),
            (_, _) => {
                let moves = tree.cluster(&name(at)).and_then(|cluster| cluster.moves.iter().next());
                if let Some((id, seen)) = moves {
                    drop(broker::cancel_move(&self.store, &name(at), *id).await);
                    // Every other one is requested again.
                    if let (0, Some(range)) = (id.0 % 2, seen.record.range()) {
                        let wish = Wish { range, target: seen.record.target.node.clone() };
                        drop(broker::begin_move(&self.store, &name(at), &wish, "test").await);
                    }
                }
            }
        }
    }

    async fn push_uncommitted(&self, tree: &Tree) {
        let told = proxy(1);
        let Some(content) = capstan_redis::decide::Content::of(tree, &told) else { return };
        let ahead = capstan_redis::decide::Content { epoch: content.epoch.next(), ..content };
        for message in ahead.messages(capstan_redis::decide::Order::OwnFirst) {
            let link = Link { net: self.net.clone(), from: 0 };
            let _ = capstan_redis::coordinator::Proxies::send(&link, &told, &message).await;
            let _: &Message = &message;
        }
    }

    async fn replace_unguarded(&mut self, tree: &Tree, at: u32, old: &Address) {
        let Ok(place) = decide::replacement(tree, &name(at), old, None) else { return };
        let Ok(draft) = decide::plan_replace(tree, &name(at), old, &place, "test", 0) else { return };
        sleep(Duration::from_millis(self.rng.random_range(0..1500))).await;
        let txn = Txn { compares: Vec::new(), ..draft.into_txn() };
        let _ = self.store.commit(txn).await;
    }

    /// Checks the current tree: no epoch goes back, and only deliberate damage is found.
    async fn observe(&mut self) {
        let violation = self.net.state().violation.clone();
        assert!(violation.is_none(), "{}", violation.unwrap_or_default());
        let tree = Tree::read(&self.store).await.unwrap();
        let hosts = tree
            .hosts
            .iter()
            .filter_map(|(proxy, host)| Some((proxy.to_string(), host.epoch.as_ref()?.record)));
        let clusters =
            tree.active().map(|(name, cluster)| (name.to_string(), cluster.epoch.as_ref().unwrap().record));
        for (what, epoch) in hosts.chain(clusters) {
            let highest = self.highest.entry(what.clone()).or_default();
            assert!(epoch >= *highest, "the epoch of {what} went back from {highest} to {epoch}");
            *highest = epoch;
        }
        let report = check::check(&tree, 0);
        assert!(report.findings.is_empty(), "the tree is not sound: {:?}", report.findings);
        self.deeds.replaced =
            self.deeds.replaced.max(tree.hosts.values().map(|host| host.quarantine.len() as u64).sum());
        self.deeds.moved = self.deeds.moved.max(tree.task_epoch.as_ref().map_or(0, |seen| seen.record.0));
    }

    /// Ends all faults.
    async fn peace(&mut self) {
        let mut state = self.net.state();
        state.cut.clear();
        state.lossy = false;
        for proxy in state.proxies.values_mut() {
            if !proxy.up {
                proxy.restart();
            }
            for node in proxy.nodes.values_mut() {
                node.down = false;
            }
        }
        drop(state);
        for (faults, ..) in self.coordinators.values() {
            faults.set_link(StoreLink::Up);
            faults.set_rates(Rates::default());
        }
        if self.coordinators.values().all(|(_, stop, _)| stop.is_cancelled()) {
            self.start_coordinator();
        }
    }

    /// Waits until nothing is pending, and every slot of every cluster is served.
    async fn rest(&mut self) {
        let end = Instant::now() + REST_WITHIN;
        loop {
            self.observe().await;
            let tree = Tree::read(&self.store).await.unwrap();
            let report = check::check(&tree, 0);
            let unserved = self.unserved(&tree);
            // A cluster may require more nodes than there are.
            let waits =
                |text: &&String| !text.contains("nodes are to be created") && !text.contains("spread");
            let pending: Vec<&String> = report.pending.iter().filter(waits).collect();
            if pending.is_empty() && unserved.is_empty() {
                return;
            }
            assert!(
                Instant::now() < end,
                "did not come to rest: {pending:?}; not served: {unserved:?}; {:?}",
                tree.failures
            );
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn unserved(&self, tree: &Tree) -> Vec<String> {
        let state = self.net.state();
        let mut missing = Vec::new();
        for (name, cluster) in tree.active() {
            let owned: u32 = cluster.nodes.values().map(|node| node.record.slot_count()).sum();
            let served = state.proxies.values().flat_map(SimProxy::serves).filter(|(db, _)| db == name);
            let served: u32 = served.map(|(_, range)| range.len()).sum();
            if served != owned {
                missing.push(format!("{name}: {served} of {owned}"));
            }
        }
        missing
    }
}

fn name(at: u32) -> ClusterName {
    cluster(&format!("c{at}"))
}
