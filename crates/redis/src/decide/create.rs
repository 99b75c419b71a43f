//! Create Cluster and Create Node.

use std::collections::BTreeSet;

use capstan_control::epoch::Epoch;
use capstan_meta::record::Key;

use super::draft::{Draft, NODES_PER_TXN, seconds};
use super::edit::Edit;
use super::entries::{join, uncovered};
use super::place::{Missing, Pool, missing};
use crate::address::Address;
use crate::error::BrokerError;
use crate::facts::{ClusterTree, Tree};
use crate::keys::*;
use crate::spec::{Acks, ClusterConfig, ClusterSpec, MAX_CLUSTER_NAME, MAX_NODES, MAX_REPLICAS};
use crate::status::{NodeRecord, Place, SlotEntry};

pub(crate) fn is_ours(cluster: &ClusterTree, request: &str) -> bool {
    cluster.config.as_ref().is_some_and(|config| config.record.request == request)
}

pub(crate) fn check_request(name: &ClusterName, spec: &ClusterSpec) -> Result<(), BrokerError> {
    let sound = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    let text = if name.as_str().len() > MAX_CLUSTER_NAME || !name.as_str().chars().all(sound) {
        format!("{name:?} cannot name a cluster: use at most {MAX_CLUSTER_NAME} letters, digits and . _ - @")
    } else if spec.nodes == 0 || spec.nodes > MAX_NODES {
        format!("cluster {name}: between 1 and {MAX_NODES} nodes, not {}", spec.nodes)
    } else if spec.replicas > MAX_REPLICAS {
        format!("cluster {name}: at most {MAX_REPLICAS} replicas, not {}", spec.replicas)
    } else if spec.serving.acks == Acks::Replica && spec.replicas == 0 {
        format!("cluster {name}: `acks: replica` needs at least one replica")
    } else {
        return Ok(());
    };
    Err(BrokerError::Invalid(text))
}

/// The first transaction: the name is neither in use nor being deleted, and there are enough nodes at the
/// moment.
pub(crate) fn plan_create(
    tree: &Tree,
    name: &ClusterName,
    spec: &ClusterSpec,
    request: &str,
    now: u64,
) -> Result<Draft, BrokerError> {
    let before = tree.clusters.get(name).cloned().unwrap_or_default();
    if before.deleting.is_some() || before.removing.is_some() || !before.nodes.is_empty() {
        return Err(BrokerError::StillDeleting(name.clone()));
    }
    let serves_strangers =
        |cluster: &ClusterTree| cluster.config.as_ref().is_some_and(|c| c.record.serving.default);
    if spec.serving.default
        && let Some((other, _)) = tree.clusters.iter().find(|(_, cluster)| serves_strangers(cluster))
    {
        let text = format!("cluster {name}: {other} is already the default; only one cluster can be");
        return Err(BrokerError::Invalid(text));
    }
    let epoch = before.last_epoch.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record).next();
    let planned = planned(&before, spec, epoch);
    let lacking = missing(tree, name, &planned);
    if lacking.unplaced > 0 {
        return Err(too_few(&lacking));
    }
    let config =
        ClusterConfig { incarnation: epoch.0, request: request.to_owned(), serving: spec.serving.clone() };
    let cluster = || name.clone();
    let last = LastClusterEpochKey { cluster: cluster() };
    let (epoch_key, deleting) = (ClusterEpochKey { cluster: cluster() }, DeletingKey { cluster: cluster() });
    let mut draft = Draft::new(format!("create cluster {name}"));
    draft
        .guard(deleting.absent())
        .guard(RemoveNodesTaskKey { cluster: cluster() }.absent())
        .guard(epoch_key.absent())
        .guard(last.as_seen(before.last_epoch.as_deref()))
        .nothing_new(&NodesOf { cluster: cluster() }, tree)
        .then(epoch_key.put(&epoch))
        .then(NodeNumberKey { cluster: cluster() }.put(&spec.nodes))
        .then(MaxMemoryKey { cluster: cluster() }.put(&spec.max_memory))
        .then(ReplicasKey { cluster: cluster() }.put(&spec.replicas))
        .then(ConfigKey { cluster: cluster() }.put(&config))
        .then(last.delete())
        .then(CreateNodesTaskKey { cluster: cluster() }.put(&seconds(now)));
    Ok(draft)
}

/// The cluster after its first transaction, to check beforehand whether there are nodes for it.
fn planned(before: &ClusterTree, spec: &ClusterSpec, epoch: Epoch) -> ClusterTree {
    let stored = |record| capstan_meta::record::Stored {
        record,
        create_revision: Default::default(),
        mod_revision: Default::default(),
        lease: capstan_meta::LeaseId::NONE,
    };
    let config =
        ClusterConfig { incarnation: epoch.0, request: String::new(), serving: spec.serving.clone() };
    ClusterTree {
        node_number: Some(stored(spec.nodes).into()),
        replicas: Some(stored(spec.replicas).into()),
        config: Some(
            capstan_meta::record::Stored {
                record: config,
                create_revision: Default::default(),
                mod_revision: Default::default(),
                lease: capstan_meta::LeaseId::NONE,
            }
            .into(),
        ),
        ..before.clone()
    }
}

pub(crate) fn too_few(lacking: &Missing) -> BrokerError {
    let wanted = lacking.additions.len() + lacking.unplaced;
    let why = "free, emptied, on reachable hosts that are not drained; a replica needs a host of its own"
        .to_owned();
    BrokerError::TooFewNodes { wanted, free: lacking.additions.len(), why }
}

/// The next step for a cluster that lacks nodes.
#[derive(Debug)]
pub enum Creation {
    /// It has all of them, and no task.
    Complete,
    /// The next transaction.
    Next(Draft),
    /// There are no free nodes for it.
    Lacks(Missing),
}

/// The next transaction of Create Cluster: assigns a batch of nodes; the last one removes the task.
#[must_use]
pub fn plan_nodes(tree: &Tree, name: &ClusterName, cluster: &ClusterTree, now: u64) -> Creation {
    let Some(task) = &cluster.creating else { return Creation::Complete };
    let lacking = missing(tree, name, cluster);
    let task_key = CreateNodesTaskKey { cluster: name.clone() };
    if lacking.additions.is_empty() && lacking.unplaced > 0 {
        return Creation::Lacks(lacking);
    }
    let ends = lacking.additions.len() <= NODES_PER_TXN && lacking.unplaced == 0;
    let Ok(mut edit) = Edit::of(tree, name) else { return Creation::Complete };
    let batch = lacking.additions.into_iter().take(NODES_PER_TXN);
    let mut count = 0;
    for record in batch {
        edit.add(record);
        count += 1;
    }
    let given = if ends { adopt_orphans(&mut edit) } else { 0 };
    let mut draft = match count + given {
        0 => {
            let mut draft = Draft::new(format!("complete cluster {name}"));
            draft.guard(ClusterEpochKey { cluster: name.clone() }.as_seen(cluster.epoch.as_deref()));
            draft
        }
        _ => edit.finish(format!("assign {count} nodes to cluster {name}"), now),
    };
    if ends {
        draft.guard(task_key.unchanged(task)).then(task_key.delete());
    }
    Creation::Next(draft)
}

/// Assigns slots of a dropped primary that no new one gets, because none is wanted, to the primary with the
/// fewest. Returns the number of ranges.
fn adopt_orphans(edit: &mut Edit<'_>) -> usize {
    let orphans = uncovered(edit.nodes.values().flat_map(NodeRecord::owned));
    for range in &orphans {
        let primaries = edit.nodes.values_mut().filter(|node| node.is_primary());
        if let Some(fewest) = primaries.min_by_key(|node| node.slot_count()) {
            join(&mut fewest.slots, SlotEntry::stable(*range));
        }
    }
    orphans.len()
}

/// A free node of the broker's choice, or the named one if it is free.
pub(crate) fn choose(
    tree: &Tree,
    cluster: &ClusterTree,
    wanted: Option<&Address>,
    not_on: &BTreeSet<Address>,
) -> Result<Place, BrokerError> {
    let Some(wanted) = wanted else {
        let taken = Pool::of(tree, Some(cluster)).take(not_on);
        return taken.ok_or_else(|| too_few(&Missing { additions: Vec::new(), unplaced: 1 }));
    };
    if let Some(place) = tree.free_nodes().find(|place| place.node == *wanted) {
        return Ok(place);
    }
    let why = tree
        .hosts
        .values()
        .find_map(|host| {
            let owner = host.owners.get(wanted)?;
            let owner = owner.record.0.as_ref().map(|cluster| format!("it belongs to cluster {cluster}"));
            Some(owner.unwrap_or_else(|| "it is in quarantine until its host has emptied it".to_owned()))
        })
        .unwrap_or_else(|| "it is not registered on any host".to_owned());
    Err(BrokerError::NodeNotFree { node: wanted.clone(), why })
}

pub(crate) fn plan_create_node(
    tree: &Tree,
    name: &ClusterName,
    place: &Place,
    now: u64,
) -> Result<Draft, BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    let incarnation = edit.before.incarnation();
    let Place { proxy, node } = place.clone();
    edit.node_number = Some(edit.before.wanted_primaries() as u32 + 1);
    if edit.before.wanted_replicas() > 0 {
        edit.want_nodes();
    }
    edit.add(NodeRecord::primary(node, proxy, name.clone(), incarnation, Vec::new()));
    edit.note(format!("added node {} to", place.node), "");
    Ok(edit.finish(format!("add node {place} to cluster {name}"), now))
}
