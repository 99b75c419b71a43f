//! A whole installation for one test: a store, three coordinators, and two hosts, one of which has all data
//! at first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use capstan_meta::Store;
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_redis::ClusterName;
use capstan_redis::broker;
use capstan_redis::check;
use capstan_redis::decide::Wish;
use capstan_redis::error::BrokerError;
use capstan_redis::facts::Tree;
use capstan_redis::slots::{Slot, SlotRange};
use capstan_redis::spec::ClusterSpec;
use capstan_redis::status::NodeRecord;
use capstan_testkit::eventually;
use capstan_testkit::redis::Wire;

use super::processes::{CoordinatorProcess, HostProcess, StoreProcess};
use super::shadow::{contents, keys};

/// Timeout for what takes as long as copying all keys.
pub(super) const LONG: Duration = Duration::from_secs(240);
/// The slots that move.
const MOVING: (u16, u16) = (0, 8191);
const COORDINATORS: usize = 3;
/// Nodes of the target host: one that gets the slots, and a spare one.
const TARGET_NODES: usize = 2;

/// How often a move is requested before that is an error.
const MOST_BEGINNINGS: usize = 5;

/// The store of the installation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ground {
    Embedded,
    Etcd,
}

/// What keeps the store alive.
enum Kept {
    Embedded { _store: StoreProcess },
    Etcd { _etcd: capstan_testkit::Etcd },
}

pub(super) struct Stage {
    pub source: HostProcess,
    pub target: HostProcess,
    pub coordinators: Vec<CoordinatorProcess>,
    store: Store,
    _kept: Kept,
}

/// The progress of a move, as its source reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub stage: String,
    pub scanned: u64,
}

fn name() -> ClusterName {
    "db".parse().unwrap()
}

impl Stage {
    /// All slots are the source's, and all proxies have confirmed it.
    pub(super) async fn set(ground: Ground) -> Stage {
        let (endpoint, kept) = match ground {
            Ground::Embedded => {
                let store = StoreProcess::start().await;
                (store.endpoint.clone(), Kept::Embedded { _store: store })
            }
            Ground::Etcd => {
                let etcd = capstan_testkit::Etcd::start().await.unwrap();
                (etcd.endpoint().to_owned(), Kept::Etcd { _etcd: etcd })
            }
        };
        let store = Store::new(Etcd::connect(EtcdOptions::new([endpoint.as_str()])).await.unwrap());
        let source = HostProcess::start(&endpoint, 1).await;
        eventually("the cluster is recorded", LONG, async || {
            match broker::create_cluster(&store, &name(), &ClusterSpec::of(1)).await {
                Ok(()) | Err(BrokerError::ClusterExists(_)) => Ok(()),
                Err(error) => Err(error),
            }
        })
        .await;
        let target = HostProcess::start(&endpoint, TARGET_NODES).await;
        let mut coordinators = Vec::new();
        for number in 0..COORDINATORS {
            coordinators.push(CoordinatorProcess::start(&endpoint, number).await);
        }
        let stage = Stage { source, target, coordinators, store, _kept: kept };
        stage.at_rest().await;
        stage
    }

    pub(super) fn addresses(&self) -> [SocketAddr; 2] {
        [self.source.address(), self.target.address()]
    }

    async fn tree(&self) -> Result<Tree, String> {
        Tree::read(&self.store).await.map_err(|error| error.to_string())
    }

    /// Begins to move the lower half of the slots to a new node at the target.
    pub(super) async fn begin(&self) {
        eventually("the move is recorded", LONG, async || self.ask_for_the_move().await).await;
    }

    /// Already done is fine: on a loaded machine the store's reply may be late.
    async fn ask_for_the_move(&self) -> Result<(), String> {
        let words = |error: BrokerError| error.to_string();
        let tree = self.tree().await?;
        let cluster = &tree.clusters[&name()];
        let arrived =
            |place: &str| cluster.nodes.values().any(|node| node.record.proxy_address.as_str() == place);
        if !arrived(&self.target.address().to_string()) {
            // Free nodes are at the target only.
            broker::create_node(&self.store, &name(), None).await.map_err(words)?;
        }
        let tree = self.tree().await?;
        let cluster = &tree.clusters[&name()];
        let target = cluster.nodes.values().find(|node| node.record.slots.is_empty());
        match target {
            Some(target) if cluster.moves.is_empty() => {
                let range = SlotRange::new(u32::from(MOVING.0), u32::from(MOVING.1)).unwrap();
                let wish = Wish { range, target: target.record.address.clone() };
                broker::begin_move(&self.store, &name(), &wish, "a test").await.map(drop).map_err(words)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Waits until the move is committed and all proxies have confirmed it. One whose target was lost may
    /// have been cancelled; it is requested again then, as an operator would.
    pub(super) async fn moved(&self) {
        for _ in 0..MOST_BEGINNINGS {
            self.at_rest().await;
            if self.target_node().await.is_some_and(|node| !node.slots.is_empty()) {
                return;
            }
            eprintln!("the move was taken back");
            self.begin().await;
        }
        panic!("the move was taken back again and again");
    }

    /// The cluster's node at the target.
    async fn target_node(&self) -> Option<NodeRecord> {
        let (tree, target) = (self.tree().await.unwrap(), self.target.address().to_string());
        let nodes = tree.clusters[&name()].nodes.values();
        nodes.map(|node| node.record.clone()).find(|node| node.proxy_address.as_str() == target)
    }

    /// kill -9 of the redis-server that the slots move to; its agent starts another.
    pub(super) async fn kill_target_node(&self) {
        let node = self.target_node().await.unwrap();
        self.target.kill_node(&node.address.as_str().parse().unwrap());
    }

    /// Waits until nothing is pending, and both proxies serve what the metadata assigns.
    async fn at_rest(&self) {
        eventually("the cluster is at rest", LONG, async || {
            let tree = self.tree().await?;
            let report = check::check(&tree, 0);
            if !report.is_at_rest() {
                return Err(format!("{report:?}; {:?}; {}", self.progress(), self.source.log()));
            }
            tokio::task::block_in_place(|| self.is_served(&tree))
        })
        .await;
    }

    /// Every slot is served by the proxy of its owner.
    fn is_served(&self, tree: &Tree) -> Result<(), String> {
        for node in tree.clusters[&name()].primaries() {
            let proxy: SocketAddr = node.record.proxy_address.as_str().parse().unwrap();
            for entry in &node.record.slots {
                let words = format!("GET {}", key_in(entry.range.first()));
                let reply = Wire::connect(proxy).and_then(|mut wire| wire.say(&words));
                match reply {
                    Ok(reply) if !reply.starts_with('-') => {}
                    Ok(error) => return Err(format!("{proxy}: {error}")),
                    Err(error) => return Err(format!("{proxy}: {error}")),
                }
            }
        }
        Ok(())
    }

    /// What the nodes hold together when the source has removed its leftovers; each has what belongs to it.
    pub(super) async fn holdings(&self) -> BTreeMap<String, String> {
        let moved = |key: &str| Slot::of(key.as_bytes()).number() <= MOVING.1;
        let mut source = self.source.node_connections().await;
        eventually("leftovers are removed", LONG, async || {
            match keys(&mut source[0]).await.iter().filter(|key| moved(key)).count() {
                0 => Ok(()),
                left => Err(format!("{left} keys")),
            }
        })
        .await;
        let mut found = contents(&mut source[0]).await;
        for mut node in self.target.node_connections().await {
            let there = contents(&mut node).await;
            assert!(there.keys().all(|key| moved(key)), "the target has only what moved");
            found.extend(there);
        }
        found
    }

    /// The progress of the move; `None` if the source has none, or is unreachable.
    pub(super) fn progress(&self) -> Option<Seen> {
        let said = tokio::task::block_in_place(|| self.source.say("NMCTL MOVES")).ok()?;
        let line = said.lines().find(|line| line.contains("scanned="))?;
        let stage = ["starting", "copying", "catching-up", "holding", "released", "failed"]
            .into_iter()
            .find(|stage| line.contains(&format!(" {stage} ")))?;
        let (_, scanned) = line.split_once("scanned=")?;
        let scanned = scanned.split('/').next()?.parse().ok()?;
        Some(Seen { stage: stage.to_owned(), scanned })
    }
}

/// A key in this slot.
fn key_in(slot: u16) -> String {
    let mut keys = (0..).map(|number| format!("nobody:{number}"));
    keys.find(|key| Slot::of(key.as_bytes()).number() == slot).unwrap()
}
