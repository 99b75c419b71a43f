//! What the command line and the console ask of this service: plain calls, plain serialisable answers.
//!
//! Everything comes from the store. Where live facts of proxies are wanted (memory, keys, offsets), the caller hands in
//! a way to ask them; without one, those fields are empty.

use std::collections::BTreeMap;

use capstan_control::epoch::Epoch;
use capstan_meta::record::Stored;
use capstan_meta::{Store, clock};
use serde::Serialize;

use crate::address::Address;
use crate::broker::{self, BrokerError, Change, ClusterTree, OldPrimary, ScalePlan, Tree, Wish};
use crate::check::{self, Fixed, Report};
use crate::coordinator::{NodeFact, Proxies, Reply};
use crate::keys::ClusterName;
use crate::nmctl::Message;
use crate::slots::SlotRange;
use crate::spec::{ClusterSpec, Mode, Serving};
use crate::status::{MoveId, MoveProgress, MoveState, Place, Role};

/// One host, as `capstan redis hosts list` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostLine {
    /// Where its proxy listens.
    pub proxy: Address,
    /// The epoch of what its proxy must know.
    pub epoch: Epoch,
    /// Its nodes.
    pub nodes: Vec<HostNode>,
    /// Whether it is to be emptied.
    pub draining: bool,
    /// The coordinators that cannot reach it.
    pub reported_by: Vec<String>,
}

/// A node of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostNode {
    /// Where it listens.
    pub node: Address,
    /// Who uses it.
    pub cluster: Option<ClusterName>,
    /// Why it cannot be taken although nobody uses it.
    pub quarantine: Option<String>,
}

/// All hosts of the pool.
pub async fn hosts_list(store: &Store) -> Result<Vec<HostLine>, BrokerError> {
    let tree = Tree::read(store).await?;
    let line = |(proxy, host): (&Address, &broker::HostTree)| HostLine {
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

/// What a cluster is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Nothing: it is as it should be.
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
    /// What it is doing.
    pub phase: Phase,
    /// Its epoch.
    pub epoch: Epoch,
    /// Primaries that it has.
    pub primaries: usize,
    /// Primaries that it is to have.
    pub wanted: usize,
    /// Replicas of each.
    pub replicas: usize,
    /// Slots that have an owner.
    pub slots: u32,
    /// Moves that are recorded or under way.
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
    /// What it is.
    pub role: Role,
    /// Its primary, if it is a replica.
    pub replica_of: Option<Address>,
    /// Its slots, each range with its tag.
    pub slots: Vec<String>,
    /// How many it answers for.
    pub slot_count: u32,
    /// What its proxy says about it; nothing if nobody asked.
    pub live: Option<LiveNode>,
}

/// What a proxy says about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LiveNode {
    /// `ready`, `starting`, `down` or `lost`.
    pub health: String,
    /// Keys in it.
    pub keys: u64,
    /// Bytes that its data takes.
    pub used_memory: u64,
    /// How much of the stream of writes it has.
    pub offset: u64,
}

impl From<NodeFact> for LiveNode {
    fn from(fact: NodeFact) -> LiveNode {
        LiveNode { health: fact.health, keys: fact.keys, used_memory: fact.used_memory, offset: fact.offset }
    }
}

/// One range of the slot map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SlotLine {
    /// First slot.
    pub first: u16,
    /// Last slot.
    pub last: u16,
    /// Who answers for it; nobody, if it has no owner.
    pub node: Option<Address>,
    /// Where it is going, if it moves.
    pub moving_to: Option<Address>,
}

/// One cluster in full, as `capstan redis show` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClusterPage {
    /// In one line.
    #[serde(flatten)]
    pub line: ClusterLine,
    /// Which life of the name it is.
    pub incarnation: u64,
    /// Bytes of data that a node may hold; zero leaves it to the machine.
    pub max_memory: u64,
    /// How it is served, without passwords.
    pub mode: Mode,
    /// Its nodes: primaries in the order of their slots, then replicas.
    pub nodes: Vec<NodeLine>,
    /// All slots in order.
    pub slot_map: Vec<SlotLine>,
    /// Its moves.
    pub moves: Vec<MoveLine>,
    /// What is recorded and not completed, in words.
    pub pending: Vec<String>,
}

/// One cluster in full.
pub async fn show(store: &Store, name: &ClusterName) -> Result<ClusterPage, BrokerError> {
    let tree = Tree::read(store).await?;
    page(&tree, name)
}

/// One cluster in full, with what its proxies say about its nodes. A proxy that does not answer leaves its part out.
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
        if let Ok(Reply::Said(text)) = proxies.tell(&proxy, &Message::Info).await {
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
        slot_map: slot_map(cluster),
        moves: moves_of(name, cluster),
        pending: check::pending(name, cluster),
        nodes,
    })
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
    lines.extend(broker::uncovered(owned).into_iter().map(nobody));
    lines.sort_by_key(|line| line.first);
    lines
}

/// What scaling a cluster will do: nothing is changed.
pub async fn scale_plan(store: &Store, name: &ClusterName, nodes: u32) -> Result<ScalePlan, BrokerError> {
    broker::plan_scale(&Tree::read(store).await?, name, nodes)
}

/// Changes the number of a cluster's primaries; coordinators do the rest.
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
    broker::begin_move(store, name, &wish, "an operator asked for it").await
}

/// Takes a move back.
pub async fn cancel(store: &Store, name: &ClusterName, id: MoveId) -> Result<(), BrokerError> {
    broker::cancel_move(store, name, id).await
}

/// One move, as `capstan redis moves` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MoveLine {
    /// Of which cluster.
    pub cluster: ClusterName,
    /// Which one.
    pub id: MoveId,
    /// First slot.
    pub first: u16,
    /// Last slot.
    pub last: u16,
    /// Who has them.
    pub source: Place,
    /// Who gets them.
    pub target: Place,
    /// How far its record is.
    pub state: MoveState,
    /// Why it is done.
    pub why: String,
    /// When it was asked for, in seconds since 1970.
    pub asked_at: u64,
    /// How far the copy is, as its source last said.
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
            asked_at: record.asked_at,
            progress: cluster.progress.get(id).map(|progress| progress.record.clone()),
        }
    };
    cluster.moves.iter().map(line).collect()
}

/// All moves that are recorded or under way.
pub async fn moves(store: &Store) -> Result<Vec<MoveLine>, BrokerError> {
    let tree = Tree::read(store).await?;
    Ok(tree.active().flat_map(|(name, cluster)| moves_of(name, cluster)).collect())
}

/// What is wrong with the metadata, in words, and what is waiting to be completed.
pub async fn check(store: &Store) -> Result<Report, BrokerError> {
    Ok(check::check(&Tree::read(store).await?, clock::since_epoch().as_secs()))
}

/// Puts right what can be.
pub async fn fix(store: &Store) -> Result<Fixed, BrokerError> {
    check::fix(store).await
}

/// Makes a replica the primary; without one named, the first replica of that primary.
pub async fn failover(
    store: &Store,
    name: &ClusterName,
    primary: &Address,
    replica: Option<&Address>,
) -> Result<Address, BrokerError> {
    let tree = Tree::read(store).await?;
    let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
    if !cluster.nodes.contains_key(primary) {
        return Err(BrokerError::NoNode { cluster: name.clone(), node: primary.clone() });
    }
    let mut replicas = cluster.replicas_of(primary).map(|seen| seen.record.address.clone());
    let chosen = replicas.find(|found| replica.is_none_or(|wanted| wanted == found));
    let Some(chosen) = chosen else {
        let why = "it has no such replica; `capstan redis show` lists them".to_owned();
        return Err(BrokerError::WrongRole { cluster: name.clone(), node: primary.clone(), why });
    };
    broker::promote(store, name, &chosen, OldPrimary::Follows).await?;
    Ok(chosen)
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
    /// Names that may connect; none: everybody.
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
    // redis-cli says who it is only if it has a password, however empty.
    let user = match serving.users.first() {
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

/// What one host's agent must know of one of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeWish {
    /// The node.
    pub node: Address,
    /// Whose it is, and in which life of that name; nobody's: it is to be emptied.
    pub owner: Option<(ClusterName, u64)>,
    /// Bytes of data that it may hold; zero leaves it to the machine.
    pub max_memory: u64,
    /// What survives its process.
    pub persistence: crate::spec::Persistence,
}

/// What the nodes of a host are to be. Pure, for the daemon that follows the tree with a view of its own.
#[must_use]
pub fn node_wishes(tree: &Tree, proxy: &Address) -> Vec<NodeWish> {
    let Some(host) = tree.host(proxy) else { return Vec::new() };
    let wish = |node: &Address| {
        let owned = host
            .copies
            .get(node)
            .map(|seen| &seen.record)
            .filter(|_| host.owners.get(node).is_some_and(|owner| owner.record.0.is_some()));
        let cluster = owned.and_then(|record| tree.cluster(&record.cluster_name));
        NodeWish {
            node: node.clone(),
            owner: owned.map(|record| (record.cluster_name.clone(), record.incarnation)),
            max_memory: cluster.and_then(|c| c.max_memory.as_ref()).map_or(0, |seen| seen.record),
            persistence: cluster.map(|cluster| serving(cluster).persistence).unwrap_or_default(),
        }
    };
    host.owners.keys().map(wish).collect()
}
