//! Every operation on a small world of its own, for tests that interrupt one or run two concurrently.

use capstan_control::epoch::Epoch;
use capstan_meta::{Put, Store};
use capstan_redis::broker;
use capstan_redis::check;
use capstan_redis::decide::{OldPrimary, Wish};
use capstan_redis::error::BrokerError;
use capstan_redis::facts::Tree;
use capstan_redis::slots::SlotRange;
use capstan_redis::spec::ClusterSpec;
use capstan_redis::status::{MoveId, Place};
use capstan_redis::{Address, ClusterName};

use super::world::*;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    AddHost,
    RemoveHost,
    CreateCluster,
    CreateNode,
    ReplaceNode,
    DeleteNode,
    DeleteCluster,
    BeginMove,
    CommitMove,
    CancelMove,
    RetargetMove,
    Grow,
    Shrink,
    PromoteDead,
    HandOver,
    EndQuarantine,
    BumpHosts,
    Fix,
    /// Another cluster of the name that `DeleteCluster` deletes.
    CreateAgain,
    /// Deletes what `CreateCluster` creates.
    DeleteNew,
    /// Replaces the node that `DeleteNode` deletes.
    ReplaceSpare,
}

/// The objects of the operations.
pub struct Scene {
    pub source: Address,
    pub target: Address,
    pub spare: Address,
    pub replica: Address,
    pub id: MoveId,
    pub epoch: Epoch,
    pub quarantined: Place,
}

pub fn c() -> ClusterName {
    cluster("c")
}

/// Six hosts; cluster `c` of three primaries with a replica each, one of them without slots, a move in
/// progress, and a node in quarantine.
pub async fn scene(store: &Store) -> Scene {
    pool(store, 6, 3).await;
    let spec = ClusterSpec { replicas: 1, ..ClusterSpec::of(2) };
    broker::create_cluster(store, &c(), &spec).await.unwrap();
    complete(store).await;
    let spare = broker::create_node(store, &c(), None).await.unwrap().node;
    complete(store).await;
    let gone = broker::create_node(store, &c(), None).await.unwrap();
    complete(store).await;
    broker::delete_node(store, &c(), &gone.node).await.unwrap();
    let tree = tree(store).await;
    let with_slots = |tree: &Tree| -> Vec<Address> {
        let primaries = tree.clusters[&c()].primaries().filter(|node| node.record.slot_count() > 0);
        primaries.map(|node| node.record.address.clone()).collect()
    };
    let ends = with_slots(&tree);
    let first = tree.clusters[&c()].nodes[&ends[0]].record.slots[0].range.first();
    let range = SlotRange::new(first.into(), u32::from(first) + 99).unwrap();
    let wish = Wish { range, target: ends[1].clone() };
    let id = broker::begin_move(store, &c(), &wish, "test").await.unwrap()[0];
    let tree = super::world::tree(store).await;
    let cluster = &tree.clusters[&c()];
    Scene {
        replica: cluster.replicas_of(&ends[0]).next().unwrap().record.address.clone(),
        source: ends[0].clone(),
        target: ends[1].clone(),
        spare,
        id,
        epoch: cluster.moves[&id].record.epoch,
        quarantined: gone,
    }
}

impl Scene {
    /// Performs it through this store.
    pub async fn perform(&self, deed: Deed, store: &Store) -> Result<(), BrokerError> {
        let d = cluster("d");
        match deed {
            Deed::AddHost => broker::add_host(store, &proxy(9), &[node(9, 1), node(9, 2)]).await.map(drop),
            Deed::RemoveHost => {
                let tree = Tree::read(store).await?;
                let unused =
                    tree.registered().find(|(proxy, _)| !tree.clusters[&c()].proxies().contains(proxy));
                let gone = unused.map_or_else(|| proxy(9), |(proxy, _)| proxy.clone());
                broker::remove_host(store, &gone).await.map(drop)
            }
            Deed::CreateCluster => broker::create_cluster(store, &d, &ClusterSpec::of(3)).await,
            Deed::CreateAgain => broker::create_cluster(store, &c(), &ClusterSpec::of(2)).await,
            Deed::DeleteNew => broker::delete_cluster(store, &d).await,
            Deed::ReplaceSpare => {
                broker::replace_node(store, &c(), &self.spare, None, "test").await.map(drop)
            }
            Deed::CreateNode => broker::create_node(store, &c(), None).await.map(drop),
            Deed::ReplaceNode => {
                broker::replace_node(store, &c(), &self.source, None, "test").await.map(drop)
            }
            Deed::DeleteNode => broker::delete_node(store, &c(), &self.spare).await,
            Deed::DeleteCluster => broker::delete_cluster(store, &c()).await,
            Deed::BeginMove => {
                let tree = Tree::read(store).await?;
                let slots =
                    tree.cluster(&c()).and_then(|cluster| cluster.nodes.get(&self.target)).and_then(|node| {
                        node.record
                            .slots
                            .iter()
                            .find(|entry| entry.range.len() > 100)
                            .map(|entry| entry.range)
                    });
                let first = u32::from(slots.map_or(0, SlotRange::first));
                let range = SlotRange::new(first, first + 9).unwrap();
                let wish = Wish { range, target: self.spare.clone() };
                broker::begin_move(store, &c(), &wish, "test").await.map(drop)
            }
            Deed::CommitMove => broker::commit_move(store, &c(), self.id, self.epoch).await,
            Deed::CancelMove => broker::cancel_move(store, &c(), self.id).await,
            Deed::RetargetMove => broker::retarget_move(store, &c(), self.id, &self.spare).await,
            Deed::Grow => {
                self.idle(store).await?;
                broker::scale(store, &c(), 4).await.map(drop)
            }
            Deed::Shrink => {
                self.idle(store).await?;
                broker::scale(store, &c(), 2).await.map(drop)
            }
            Deed::PromoteDead => broker::promote(store, &c(), &self.replica, OldPrimary::Leaves).await,
            Deed::HandOver => broker::promote(store, &c(), &self.replica, OldPrimary::Follows).await,
            Deed::EndQuarantine => {
                let tree = Tree::read(store).await?;
                let epoch = tree.host(&self.quarantined.proxy).and_then(|host| host.epoch.clone());
                let epoch = epoch.map_or(Epoch::NEVER_TOLD, |seen| seen.record);
                broker::end_quarantine(store, &self.quarantined, epoch).await.map(drop)
            }
            Deed::BumpHosts => broker::bump_hosts(store, &c()).await,
            Deed::Fix => check::fix(store).await.map(drop),
        }
    }

    /// A cluster is scaled only when nothing moves.
    async fn idle(&self, store: &Store) -> Result<(), BrokerError> {
        match broker::cancel_move(store, &c(), self.id).await {
            Ok(()) | Err(BrokerError::NoMove { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Damages several records by hand, all of which can be repaired.
pub async fn break_things(store: &Store) {
    let tree = tree(store).await;
    let nodes: Vec<_> = tree.clusters[&c()].nodes.values().map(|node| node.record.clone()).collect();
    let put = |key: String, value: &str| store.put(Put::new(key, value.to_owned()));
    put(format!("/hosts/{}/nodes/{}", nodes[0].proxy_address, nodes[0].address), "{}").await.unwrap();
    put(format!("/hosts/all_nodes/{}/{}", nodes[1].proxy_address, nodes[1].address), "").await.unwrap();
    put(format!("/hosts/all_nodes/{}/{}", proxy(6), node(6, 3)), "ghost").await.unwrap();
    store.delete(capstan_meta::Delete::one("/clusters/spec/node_number/c")).await.unwrap();
    put("/clusters/spec/node_max_memory/stray".to_owned(), "5").await.unwrap();
}
