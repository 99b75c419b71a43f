//! Replace Node, and the promotion of a replica: how do all slots of a node pass to another one at once?

use super::create::choose;
use super::draft::Draft;
use super::edit::Edit;
use super::moves::{redirect, retag, untag};
use crate::address::Address;
use crate::error::BrokerError;
use crate::facts::Tree;
use crate::keys::ClusterName;
use crate::shard::ShardRecord;
use crate::status::{MoveId, MoveRecord, NodeRecord, Place, Role};

/// The replacement of a node: away from its host, and from the hosts of its replicas or primary.
pub fn replacement(
    tree: &Tree,
    name: &ClusterName,
    old: &Address,
    wanted: Option<&Address>,
) -> Result<Place, BrokerError> {
    let edit = Edit::of(tree, name)?;
    let not_on = family(&edit, old)?.map(|node| node.proxy_address.clone()).collect();
    choose(tree, edit.before, wanted, &not_on)
}

/// The same for a lost node on a healthy host: if no other host has a free node, its own may provide it.
pub fn replacement_at_home(tree: &Tree, name: &ClusterName, old: &Address) -> Result<Place, BrokerError> {
    let edit = Edit::of(tree, name)?;
    let others = family(&edit, old)?.filter(|node| node.address != *old);
    let not_on = others.map(|node| node.proxy_address.clone()).collect();
    choose(tree, edit.before, None, &not_on)
}

/// The primary and the replicas of this node's shard.
fn family<'e>(
    edit: &'e Edit<'_>,
    node: &'e Address,
) -> Result<impl Iterator<Item = &'e NodeRecord>, BrokerError> {
    let primary = edit.node(node)?.replica_of.as_ref().unwrap_or(node);
    let is_of =
        move |node: &&NodeRecord| node.address == *primary || node.replica_of.as_ref() == Some(primary);
    Ok(edit.nodes.values().filter(is_of))
}

/// The transaction of Replace Node.
pub fn plan_replace(
    tree: &Tree,
    name: &ClusterName,
    old: &Address,
    new: &Place,
    why: &str,
    now: u64,
) -> Result<Draft, BrokerError> {
    plan_replace_as(tree, name, old, new, (why, now), ShardRecord::forked_to)
}

/// The same, with this history of its shard.
pub(crate) fn plan_replace_as(
    tree: &Tree,
    name: &ClusterName,
    old: &Address,
    new: &Place,
    (why, now): (&str, u64),
    history: impl FnOnce(&ShardRecord, &Address) -> ShardRecord,
) -> Result<Draft, BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    let record = edit.node(old)?.clone();
    edit.release(old, why);
    if record.is_primary() {
        let shard = history(&edit.take_shard(old), &new.node);
        edit.shards.insert(new.node.clone(), shard);
    }
    edit.add(NodeRecord { address: new.node.clone(), proxy_address: new.proxy.clone(), ..record });
    follow(&mut edit, old, new);
    edit.note(format!("replaced node {old} by {} in", new.node), why);
    Ok(edit.finish(format!("replace node {old} of cluster {name} by {new}: {why}"), now))
}

/// Replaces every reference to a node: in replicas, moves, and the tags at the other end of those moves.
fn follow(edit: &mut Edit<'_>, old: &Address, new: &Place) {
    for node in edit.nodes.values_mut().filter(|node| node.replica_of.as_ref() == Some(old)) {
        node.replica_of = Some(new.node.clone());
    }
    let mut changed: Vec<MoveId> = Vec::new();
    for (id, record) in &mut edit.moves {
        for end in [&mut record.source, &mut record.target] {
            if end.node == *old {
                *end = new.clone();
                changed.push(*id);
            }
        }
    }
    for id in changed {
        retag(edit, id);
    }
}

/// What happens to the primary that a replica replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldPrimary {
    /// A planned handover: it becomes a replica of the new one, which serves when it has everything.
    Follows,
    /// It was found dead, and becomes a replica of the new one, a member of the in-sync set, when it returns.
    Returns,
    /// It leaves the cluster for quarantine, and another replica is created. Data that the new one lacks is
    /// given up.
    Leaves,
}

/// The transaction that promotes a replica in place of its primary.
pub fn plan_promote(
    tree: &Tree,
    name: &ClusterName,
    replica: &Address,
    old: OldPrimary,
    now: u64,
) -> Result<Draft, BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    let record = edit.node(replica)?.clone();
    let Some(primary) = record.replica_of.clone() else {
        let why = "it is not a replica".to_owned();
        return Err(BrokerError::WrongRole { cluster: name.clone(), node: replica.clone(), why });
    };
    let slots = std::mem::take(&mut edit.node_mut(&primary)?.slots);
    let place = Place { proxy: record.proxy_address.clone(), node: replica.clone() };
    edit.add(NodeRecord { slots, role: Role::Primary, replica_of: None, ..record });
    let shard = edit.take_shard(&primary);
    let shard = match old {
        OldPrimary::Follows => shard.handed_over(&primary, replica),
        OldPrimary::Returns => shard.succeeded_by(replica),
        OldPrimary::Leaves => shard.forked_to(replica),
    };
    edit.shards.insert(replica.clone(), shard);
    match old {
        OldPrimary::Follows | OldPrimary::Returns => {
            let before = edit.node_mut(&primary)?;
            before.role = Role::Replica;
            before.replica_of = Some(replica.clone());
        }
        OldPrimary::Leaves => {
            edit.release(&primary, "its loss was accepted, and a replica took its place");
            edit.want_nodes();
        }
    }
    follow(&mut edit, &primary, &place);
    let why = match old {
        OldPrimary::Follows => "a planned handover",
        OldPrimary::Returns => "the previous primary was found dead",
        OldPrimary::Leaves => "an operator accepted the loss of the previous primary",
    };
    edit.note(format!("promoted {replica} in place of {primary} in"), why);
    Ok(edit.finish(format!("promote {replica} of cluster {name} in place of {primary}"), now))
}

/// The transaction that lets a planned successor serve although the previous primary is not reachable any
/// more: it is a member of the in-sync set.
pub fn plan_force(
    tree: &Tree,
    name: &ClusterName,
    primary: &Address,
    now: u64,
) -> Result<Draft, BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    edit.node(primary)?;
    let shard = edit.take_shard(primary).succeeded_by(primary);
    edit.shards.insert(primary.clone(), shard);
    edit.note(format!("let {primary} serve in"), "the previous primary died during the handover");
    Ok(edit.finish(format!("promote {primary} of cluster {name} without the previous primary"), now))
}

/// The transaction that drops a dead replica; another one is created as soon as a node is free.
pub fn plan_drop_replica(
    tree: &Tree,
    name: &ClusterName,
    replica: &Address,
    why: &str,
    now: u64,
) -> Result<Draft, BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    if edit.node(replica)?.is_primary() {
        let why = "it is not a replica".to_owned();
        return Err(BrokerError::WrongRole { cluster: name.clone(), node: replica.clone(), why });
    }
    edit.release(replica, why);
    edit.want_nodes();
    edit.note(format!("dropped replica {replica} of"), why);
    Ok(edit.finish(format!("drop replica {replica} of cluster {name}: {why}"), now))
}

/// The transaction that drops a primary whose data is lost, if no other node can replace it: its slots have
/// no owner until a node is free, which may be the same one after it was emptied. Moves to it get another
/// primary as their target; without one, and if it was the source, the move ends.
pub fn plan_give_up(
    tree: &Tree,
    name: &ClusterName,
    node: &Address,
    why: &str,
    now: u64,
) -> Result<Draft, BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    edit.node(node)?;
    let concerned = |(id, record): (&MoveId, &MoveRecord)| {
        let end = [&record.source, &record.target].into_iter().any(|end| end.node == *node);
        end.then_some(*id)
    };
    let moves: Vec<MoveId> = edit.moves.iter().filter_map(concerned).collect();
    moves.iter().for_each(|id| untag(&mut edit, *id));
    edit.release(node, why);
    for id in moves {
        let target = next_target(tree, &edit, id, node);
        redirect(&mut edit, id, target);
    }
    edit.want_nodes();
    edit.note(format!("dropped primary {node} of"), why);
    Ok(edit.finish(format!("drop node {node} of cluster {name}: {why}"), now))
}

/// The new target of a move to a lost node: the primary with the fewest slots, on a reachable host that is
/// not drained.
fn next_target(tree: &Tree, edit: &Edit<'_>, id: MoveId, gone: &Address) -> Option<Place> {
    let record = edit.moves.get(&id).filter(|record| record.target.node == *gone)?;
    let ill = |proxy: &Address| {
        tree.draining.contains(proxy) || tree.failures.iter().any(|(key, _)| key.address == *proxy)
    };
    let able = |node: &&NodeRecord| {
        node.is_primary() && node.address != record.source.node && !ill(&node.proxy_address)
    };
    let next = edit.nodes.values().filter(able).min_by_key(|node| (node.slot_count(), &node.address))?;
    Some(Place { proxy: next.proxy_address.clone(), node: next.address.clone() })
}
