//! What the command line and the console call: plain functions, serialisable results.
//!
//! Everything comes from the store. For live facts of proxies (memory, keys, offsets), the caller passes in a
//! way to query them; without one, those fields are empty.

mod users;
mod wishes;

use std::collections::BTreeMap;

use capstan_control::epoch::Epoch;
use capstan_meta::record::Stored;
use capstan_meta::{Store, clock};
use serde::Serialize;

pub use users::{UserPage, user, user_delete, user_set, users};
pub use wishes::{NodeWish, node_wishes};

use crate::address::Address;
use crate::board::NodeFact;
use crate::broker;
use crate::check::{self, Fixed, Report};
use crate::coordinator::{Proxies, Reply};
use crate::decide::{self, Change, OldPrimary, ScalePlan, Wish};
use crate::error::BrokerError;
use crate::facts::{self, ClusterTree, Tree};
use crate::keys::ClusterName;
use crate::nmctl::Message;
use crate::shard::{ShardRecord, Waiting};
use crate::slots::SlotRange;
use crate::spec::{ClusterSpec, Mode, Serving};
use crate::status::{MoveId, MoveProgress, MoveState, NodeRecord, Place, Role};

/// One host, as `capstan redis hosts list` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostLine {
    /// Where its proxy listens.
    pub proxy: Address,
    /// The epoch of the messages to its proxy.
    pub epoch: Epoch,
    /// Its nodes.
    pub nodes: Vec<HostNode>,
    /// Whether it is being drained.
    pub draining: bool,
    /// The coordinators that cannot reach it.
    pub reported_by: Vec<String>,
}

/// A node of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostNode {
    /// Where it listens.
    pub node: Address,
    /// The cluster that uses it.
    pub cluster: Option<ClusterName>,
    /// Why it cannot be used although no cluster uses it.
    pub quarantine: Option<String>,
}

/// All hosts of the pool.
pub async fn hosts_list(store: &Store) -> Result<Vec<HostLine>, BrokerError> {
    let tree = Tree::read(store).await?;
    let line = |(proxy, host): (&Address, &facts::HostTree)| HostLine {
        proxy: proxy.clone(),
        epoch: host.epoch.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record),
        nodes: host
            .owners
            .iter()
            .map(|(node, owner)| HostNode {
                node: node.clone(),
                cluster: owner.record.0.clone(),
                quarantine: host.quarantine.get(node).map(|seen| seen.record.why.clone()),
            })
            .collect(),
        draining: tree.draining.contains(proxy),
        reported_by: tree
            .failures
            .iter()
            .filter(|(key, _)| key.address == *proxy)
            .map(|(key, _)| key.report_id.to_string())
            .collect(),
    };
    Ok(tree.registered().map(line).collect())
}

/// Registers a host.
pub async fn hosts_add(store: &Store, proxy: &Address, nodes: &[Address]) -> Result<Change, BrokerError> {
    broker::add_host(store, proxy, nodes).await
}

/// Takes a host out of the pool.
pub async fn hosts_remove(store: &Store, proxy: &Address) -> Result<Change, BrokerError> {
    broker::remove_host(store, proxy).await
}

/// Creates a cluster.
pub async fn create(
    store: &Store,
    name: &ClusterName,
    spec: &ClusterSpec,
) -> Result<ClusterPage, BrokerError> {
    broker::create_cluster(store, name, spec).await?;
    show(store, name).await
}

/// Deletes a cluster, and its data with it.
pub async fn delete(store: &Store, name: &ClusterName) -> Result<(), BrokerError> {
    broker::delete_cluster(store, name).await
}

/// The state of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It is in its desired state.
    Active,
    /// It lacks nodes.
    Creating,
    /// Slots move.
    Moving,
    /// Its nodes are being released.
    Deleting,
}

/// One cluster, as `capstan redis list` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterLine {
    /// Its name.
    pub name: ClusterName,
    /// Its state.
    pub phase: Phase,
    /// Its epoch.
    pub epoch: Epoch,
    /// The number of its primaries.
    pub primaries: usize,
    /// The desired number of primaries.
    pub wanted: usize,
    /// Replicas of each.
    pub replicas: usize,
    /// Slots that have an owner.
    pub slots: u32,
    /// Moves that are recorded or in progress.
    pub moves: usize,
}

fn line(name: &ClusterName, cluster: &ClusterTree) -> ClusterLine {
    let phase = if !cluster.exists() {
        Phase::Deleting
    } else if cluster.creating.is_some() {
        Phase::Creating
    } else if cluster.rebalance.is_some() || !cluster.moves.is_empty() {
        Phase::Moving
    } else {
        Phase::Active
    };
    ClusterLine {
        name: name.clone(),
        phase,
        epoch: cluster.epoch.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record),
        primaries: cluster.primaries().count(),
        wanted: cluster.wanted_primaries(),
        replicas: cluster.wanted_replicas(),
        slots: cluster.primaries().map(|node| node.record.slot_count()).sum(),
        moves: cluster.moves.len(),
    }
}

/// All clusters, also those that are being deleted.
pub async fn list(store: &Store) -> Result<Vec<ClusterLine>, BrokerError> {
    let tree = Tree::read(store).await?;
    let shown = tree.clusters.iter().filter(|(_, cluster)| cluster.exists() || cluster.deleting.is_some());
    Ok(shown.map(|(name, cluster)| line(name, cluster)).collect())
}

/// One node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeLine {
    /// Where it listens.
    pub node: Address,
    /// The proxy in front of it.
    pub proxy: Address,
    /// Its role.
    pub role: Role,
    /// Its primary, if it is a replica.
    pub replica_of: Option<Address>,
    /// Its slots, each range with its tag.
    pub slots: Vec<String>,
    /// The number of slots that it serves.
    pub slot_count: u32,
    /// Whether it may be promoted without loss; true for a primary.
    pub in_sync: bool,
    /// What its proxy reports about it; `None` if it was not queried.
    pub live: Option<LiveNode>,
}

/// What a proxy reports about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveNode {
    /// `ready`, `syncing`, `loading`, `busy`, `taking-over`, `frozen`, `down`, `older` or `lost`.
    pub health: String,
    /// How much of its shard's data it holds: `current`, `whole`, `older` or `gone`.
    pub data: String,
    /// Whether a replica is linked to its primary.
    pub linked: bool,
    /// Why it is not ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The number of keys.
    pub keys: u64,
    /// The memory used by its data, in bytes.
    pub used_memory: u64,
    /// Its replication offset.
    pub offset: u64,
}

impl From<NodeFact> for LiveNode {
    fn from(fact: NodeFact) -> LiveNode {
        LiveNode {
            health: fact.health.to_string(),
            data: fact.data.word().to_owned(),
            linked: fact.linked,
            why: fact.why,
            keys: fact.keys,
            used_memory: fact.used_memory,
            offset: fact.offset,
        }
    }
}

/// One range of the slot map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlotLine {
    /// First slot.
    pub first: u16,
    /// Last slot.
    pub last: u16,
    /// The node that serves it; `None` if it has no owner.
    pub node: Option<Address>,
    /// The target, if it moves.
    pub moving_to: Option<Address>,
}

/// A shard that is not served, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShardWait {
    /// Its primary.
    pub primary: Address,
    /// The state of the primary, in one word.
    pub state: String,
    /// Why automation can only wait.
    pub cause: String,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

fn waits(cluster: &ClusterTree) -> Vec<ShardWait> {
    let wait = |(primary, seen): (&Address, &facts::Seen<ShardRecord>)| {
        let Waiting { state, cause, since } = seen.record.waiting.clone()?;
        Some(ShardWait { primary: primary.clone(), state, cause, since })
    };
    cluster.shards.iter().filter_map(wait).collect()
}

/// One cluster in full, as `capstan redis show` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterPage {
    /// Its summary.
    #[serde(flatten)]
    pub line: ClusterLine,
    /// The incarnation of its name.
    pub incarnation: u64,
    /// Bytes of data that a node may hold; zero: no limit.
    pub max_memory: u64,
    /// How it is served.
    pub mode: Mode,
    /// What survives the end of a node's process.
    pub persistence: crate::spec::Persistence,
    /// Whether data may be dropped to stay available.
    pub cache: bool,
    /// Shards that are not served, and what they wait for.
    pub waiting: Vec<ShardWait>,
    /// Its nodes: primaries in the order of their slots, then replicas.
    pub nodes: Vec<NodeLine>,
    /// All slots in order.
    pub slot_map: Vec<SlotLine>,
    /// Its moves.
    pub moves: Vec<MoveLine>,
    /// What is recorded and not completed, as text.
    pub pending: Vec<String>,
}

/// One cluster in full.
pub async fn show(store: &Store, name: &ClusterName) -> Result<ClusterPage, BrokerError> {
    let tree = Tree::read(store).await?;
    page(&tree, name)
}

/// One cluster in full, with the reports of its proxies about its nodes. The part of an unreachable proxy is
/// left out.
pub async fn show_live(
    store: &Store,
    name: &ClusterName,
    proxies: &impl Proxies,
) -> Result<ClusterPage, BrokerError> {
    let mut page = show(store, name).await?;
    let mut known: BTreeMap<Address, NodeFact> = BTreeMap::new();
    let mut asked: Vec<Address> = page.nodes.iter().map(|node| node.proxy.clone()).collect();
    asked.sort();
    asked.dedup();
    for proxy in asked {
        if let Ok(Reply::Text(text)) = proxies.send(&proxy, &Message::Info).await {
            known.extend(text.lines().filter_map(NodeFact::parse));
        }
    }
    for node in &mut page.nodes {
        node.live = known.remove(&node.node).map(LiveNode::from);
    }
    Ok(page)
}

fn page(tree: &Tree, name: &ClusterName) -> Result<ClusterPage, BrokerError> {
    let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
    let mut nodes: Vec<NodeLine> = cluster
        .nodes
        .values()
        .map(|seen| {
            let node = &seen.record;
            let range = |entry: &crate::status::SlotEntry| {
                format!("{} {}", entry.range, entry.tag).trim_end().to_owned()
            };
            NodeLine {
                node: node.address.clone(),
                proxy: node.proxy_address.clone(),
                role: node.role,
                replica_of: node.replica_of.clone(),
                slots: node.slots.iter().map(range).collect(),
                slot_count: node.slot_count(),
                in_sync: shard_of(cluster, node).is_some_and(|shard| shard.may_promote(&node.address)),
                live: None,
            }
        })
        .collect();
    let first = |line: &NodeLine| cluster.nodes.get(&line.node).and_then(|seen| seen.record.owned().next());
    nodes.sort_by_key(|line| {
        (line.role == Role::Replica, first(line).is_none(), first(line), line.node.clone())
    });
    Ok(ClusterPage {
        line: line(name, cluster),
        incarnation: cluster.incarnation(),
        max_memory: cluster.max_memory.as_ref().map_or(0, |seen| seen.record),
        mode: serving(cluster).mode,
        persistence: serving(cluster).persistence,
        cache: serving(cluster).cache,
        waiting: waits(cluster),
        slot_map: slot_map(cluster),
        moves: moves_of(name, cluster),
        pending: check::pending(name, cluster),
        nodes,
    })
}

fn shard_of<'t>(cluster: &'t ClusterTree, node: &NodeRecord) -> Option<&'t ShardRecord> {
    let primary = node.replica_of.as_ref().unwrap_or(&node.address);
    cluster.shards.get(primary).map(|seen| &seen.record)
}

fn serving(cluster: &ClusterTree) -> Serving {
    cluster.config.as_ref().map(|config| config.record.serving.clone()).unwrap_or_default()
}

fn slot_map(cluster: &ClusterTree) -> Vec<SlotLine> {
    let mut lines: Vec<SlotLine> = Vec::new();
    for seen in cluster.nodes.values() {
        for entry in &seen.record.slots {
            let moving_to = match &entry.tag {
                crate::status::Tag::Importing(_) => continue,
                crate::status::Tag::Migrating(end) => Some(end.node.clone()),
                crate::status::Tag::Stable => None,
            };
            let (first, last) = (entry.range.first(), entry.range.last());
            lines.push(SlotLine { first, last, node: Some(seen.record.address.clone()), moving_to });
        }
    }
    let owned = cluster.nodes.values().flat_map(|seen| seen.record.owned());
    let nobody =
        |range: SlotRange| SlotLine { first: range.first(), last: range.last(), node: None, moving_to: None };
    lines.extend(decide::uncovered(owned).into_iter().map(nobody));
    lines.sort_by_key(|line| line.first);
    lines
}

/// What scaling a cluster would do; changes nothing.
pub async fn scale_plan(store: &Store, name: &ClusterName, nodes: u32) -> Result<ScalePlan, BrokerError> {
    decide::plan_scale(&Tree::read(store).await?, name, nodes)
}

/// Changes the number of a cluster's primaries; coordinators complete it.
pub async fn scale(store: &Store, name: &ClusterName, nodes: u32) -> Result<Change, BrokerError> {
    broker::scale(store, name, nodes).await
}

/// Spreads a cluster's slots evenly over its primaries.
pub async fn rebalance(store: &Store, name: &ClusterName) -> Result<Change, BrokerError> {
    broker::rebalance(store, name).await
}

/// Begins to move slots to a node.
pub async fn move_slots(
    store: &Store,
    name: &ClusterName,
    range: SlotRange,
    target: &Address,
) -> Result<Vec<MoveId>, BrokerError> {
    let wish = Wish { range, target: target.clone() };
    broker::begin_move(store, name, &wish, "requested by an operator").await
}

/// Cancels a move.
pub async fn cancel(store: &Store, name: &ClusterName, id: MoveId) -> Result<(), BrokerError> {
    broker::cancel_move(store, name, id).await
}

/// One move, as `capstan redis moves` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MoveLine {
    /// The cluster.
    pub cluster: ClusterName,
    /// The move.
    pub id: MoveId,
    /// First slot.
    pub first: u16,
    /// Last slot.
    pub last: u16,
    /// The current owner.
    pub source: Place,
    /// The target.
    pub target: Place,
    /// The state of its record.
    pub state: MoveState,
    /// Why it was requested.
    pub why: String,
    /// When it was requested, in RFC 3339.
    pub asked_at: String,
    /// The progress of the copy, as last reported by its source.
    pub progress: Option<MoveProgress>,
}

fn moves_of(name: &ClusterName, cluster: &ClusterTree) -> Vec<MoveLine> {
    let line = |(id, seen): (&MoveId, &std::sync::Arc<Stored<crate::status::MoveRecord>>)| {
        let record = seen.record.clone();
        MoveLine {
            cluster: name.clone(),
            id: *id,
            first: record.start,
            last: record.end,
            source: record.source,
            target: record.target,
            state: record.state,
            why: record.why,
            asked_at: capstan_control::time::rfc3339(record.asked_at),
            progress: cluster.progress.get(id).map(|progress| progress.record.clone()),
        }
    };
    cluster.moves.iter().map(line).collect()
}

/// All moves that are recorded or in progress.
pub async fn moves(store: &Store) -> Result<Vec<MoveLine>, BrokerError> {
    let tree = Tree::read(store).await?;
    Ok(tree.active().flat_map(|(name, cluster)| moves_of(name, cluster)).collect())
}

/// The inconsistencies of the metadata, as text, and what is waiting to be completed.
pub async fn check(store: &Store) -> Result<Report, BrokerError> {
    Ok(check::check(&Tree::read(store).await?, clock::since_epoch().as_secs()))
}

/// Repairs what can be repaired.
pub async fn fix(store: &Store) -> Result<Fixed, BrokerError> {
    check::fix(store).await
}

/// Promotes a replica; by default the first that is in sync. One that is not is refused: data would be lost.
pub async fn failover(
    store: &Store,
    name: &ClusterName,
    primary: &Address,
    replica: Option<&Address>,
) -> Result<Address, BrokerError> {
    let chosen = successor(&Tree::read(store).await?, name, primary, replica)?;
    broker::promote(store, name, &chosen, OldPrimary::Follows).await?;
    Ok(chosen)
}

fn successor(
    tree: &Tree,
    name: &ClusterName,
    primary: &Address,
    replica: Option<&Address>,
) -> Result<Address, BrokerError> {
    let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
    if !cluster.nodes.contains_key(primary) {
        return Err(BrokerError::NoNode { cluster: name.clone(), node: primary.clone() });
    }
    let wrong = |node: &Address, why: &str| BrokerError::WrongRole {
        cluster: name.clone(),
        node: node.clone(),
        why: why.to_owned(),
    };
    let replicas = cluster.replicas_of(primary).map(|seen| seen.record.address.clone());
    let fit: Vec<Address> = replicas.filter(|found| replica.is_none_or(|wanted| wanted == found)).collect();
    let Some(first) = fit.first() else {
        return Err(wrong(primary, "it has no such replica; `capstan redis show` lists them"));
    };
    let shard = cluster.shards.get(primary).map(|seen| &seen.record);
    let member = fit.iter().find(|node| shard.is_some_and(|shard| shard.may_promote(node)));
    member.cloned().ok_or_else(|| {
        let why = "it is not in sync with its primary, and data would be lost; wait until `capstan redis show` reports \
                   that it is";
        wrong(first, why)
    })
}

/// Accepts that a shard continues without data that no reachable node has. Refused while the shard is served.
pub async fn accept_loss(
    store: &Store,
    name: &ClusterName,
    primary: &Address,
    with: Option<&Address>,
) -> Result<Option<Address>, BrokerError> {
    broker::accept_loss(store, name, primary, with).await
}

/// Makes a node that left the cluster the primary of a shard again, with the data that its host set aside.
pub async fn recover(
    store: &Store,
    name: &ClusterName,
    primary: &Address,
    from: &Address,
) -> Result<Place, BrokerError> {
    broker::recover(store, name, primary, from).await
}

/// What a client needs to connect, as `capstan redis connect` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Connection {
    /// The database: the user name where a proxy serves several.
    pub database: ClusterName,
    /// How it is served.
    pub mode: Mode,
    /// Proxies to begin with, those with slots first.
    pub seeds: Vec<Address>,
    /// Users that may connect; empty: no authentication is required.
    pub users: Vec<String>,
    /// A command that connects.
    pub example: String,
}

/// What a client needs to connect.
pub async fn connect(store: &Store, name: &ClusterName) -> Result<Connection, BrokerError> {
    let tree = Tree::read(store).await?;
    let page = page(&tree, name)?;
    let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
    let serving = serving(cluster);
    let mut seeds: Vec<Address> = Vec::new();
    for node in &page.nodes {
        if !seeds.contains(&node.proxy) {
            seeds.push(node.proxy.clone());
        }
    }
    let flag = match serving.mode {
        Mode::Cluster => " -c",
        Mode::Single => "",
    };
    // redis-cli sends a user name only with a password, which may be empty.
    let named = serving.users.iter().find(|user| user.name != decide::DEFAULT_USER).or(serving.users.first());
    let user = match named.filter(|_| !decide::admits_anyone(&serving.users)) {
        Some(user) => format!(" --user {name}/{} --askpass", user.name),
        None if serving.default => String::new(),
        None => format!(" --user {name} --pass '' --no-auth-warning"),
    };
    let example = seeds.first().map_or_else(String::new, |seed| {
        format!("redis-cli{flag} -h {} -p {}{user}", seed.host(), seed.port())
    });
    let users = serving.users.into_iter().map(|user| user.name).collect();
    Ok(Connection { database: name.clone(), mode: serving.mode, seeds, users, example })
}
