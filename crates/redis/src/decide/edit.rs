//! How is a cluster changed? Edit a copy of it, then write the differences: one transaction that guards every
//! record it replaces, keeps records and their copies equal, bumps the epochs of the cluster and of all hosts
//! that it touches, and adds the task that notifies the other hosts.

use std::collections::BTreeMap;
use std::time::Duration;

use capstan_control::epoch::Epoch;
use capstan_control::events::Event;
use capstan_meta::record::Key;

use super::draft::{Draft, seconds};
use crate::address::Address;
use crate::error::BrokerError;
use crate::facts::{ClusterTree, Tree};
use crate::keys::*;
use crate::shard::ShardRecord;
use crate::status::{MoveId, MoveRecord, NodeRecord, Place};

/// Who the record of events names: every coordinator may be the one that commits a change.
const ACTOR: &str = "redis";

/// A cluster with pending changes.
#[derive(Clone, Debug)]
pub struct Edit<'t> {
    tree: &'t Tree,
    name: &'t ClusterName,
    /// The cluster as read.
    pub before: &'t ClusterTree,
    /// Its nodes after the change.
    pub nodes: BTreeMap<Address, NodeRecord>,
    /// Its shards by primary after the change. Those of nodes that are no longer primaries are removed.
    pub shards: BTreeMap<Address, ShardRecord>,
    /// Its moves after the change.
    pub moves: BTreeMap<MoveId, MoveRecord>,
    /// The desired number of primaries.
    pub node_number: Option<u32>,
    last_move: Epoch,
    why_released: BTreeMap<Address, String>,
    creating: bool,
    /// What the record of events says about it, and why it is done.
    event: Option<(String, String)>,
}

impl<'t> Edit<'t> {
    /// An existing cluster, unchanged.
    pub fn of(tree: &'t Tree, name: &'t ClusterName) -> Result<Edit<'t>, BrokerError> {
        let before = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
        let nodes = before.nodes.iter().map(|(node, seen)| (node.clone(), seen.record.clone()));
        let shards = before.shards.iter().map(|(node, seen)| (node.clone(), seen.record.clone()));
        let moves = before.moves.iter().map(|(id, seen)| (*id, seen.record.clone()));
        Ok(Edit {
            tree,
            name,
            before,
            nodes: nodes.collect(),
            shards: shards.collect(),
            moves: moves.collect(),
            node_number: None,
            last_move: tree.task_epoch.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record),
            why_released: BTreeMap::new(),
            creating: false,
            event: None,
        })
    }

    /// The cluster's epoch after the change.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.before.epoch.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record).next()
    }

    /// One of its nodes.
    pub fn node(&self, node: &Address) -> Result<&NodeRecord, BrokerError> {
        self.nodes.get(node).ok_or_else(|| self.no_node(node))
    }

    /// One of its nodes, mutable.
    pub fn node_mut(&mut self, node: &Address) -> Result<&mut NodeRecord, BrokerError> {
        let missing = self.no_node(node);
        self.nodes.get_mut(node).ok_or(missing)
    }

    fn no_node(&self, node: &Address) -> BrokerError {
        BrokerError::NoNode { cluster: self.name.clone(), node: node.clone() }
    }

    /// Adds a node to the cluster.
    pub fn add(&mut self, record: NodeRecord) {
        self.nodes.insert(record.address.clone(), record);
    }

    /// Removes a node from the cluster.
    pub fn release(&mut self, node: &Address, why: &str) -> Option<NodeRecord> {
        self.why_released.insert(node.clone(), why.to_owned());
        self.nodes.remove(node)
    }

    /// Records the task to create missing nodes.
    pub fn want_nodes(&mut self) {
        self.creating = true;
    }

    /// Records the change as an event: what was done, in the past tense and so that the cluster follows, and why.
    pub fn note(&mut self, action: impl Into<String>, reason: impl Into<String>) {
        self.event = Some((action.into(), reason.into()));
    }

    /// The id of a new move.
    pub fn next_move(&mut self) -> MoveId {
        self.last_move = self.last_move.next();
        MoveId(self.last_move.0)
    }

    /// The differences, as a transaction.
    #[must_use]
    pub fn finish(self, what: impl Into<String>, now: u64) -> Draft {
        let mut draft = Draft::new(what);
        draft.bump_cluster(self.name, self.before, now);
        self.write_nodes(&mut draft, now);
        self.write_shards(&mut draft);
        self.write_moves(&mut draft);
        if let Some(number) = self.node_number {
            let key = NodeNumberKey { cluster: self.name.clone() };
            draft.guard(key.as_seen(self.before.node_number.as_deref())).then(key.put(&number));
        }
        if self.creating {
            draft.then(CreateNodesTaskKey { cluster: self.name.clone() }.put(&seconds(now)));
        }
        if let Some((action, reason)) = &self.event {
            let object = format!("redis cluster {}", self.name);
            let event = Event::new(Duration::from_secs(now), ACTOR, action, object, reason);
            // No two changes of a cluster have the same epoch.
            let name: String = self.name.as_str().chars().map(letter_or_hyphen).collect();
            draft.then(event.put_as(&format!("redis-{name}-{}", self.epoch())));
        }
        draft
    }

    fn write_nodes(&self, draft: &mut Draft, now: u64) {
        for (node, seen) in &self.before.nodes {
            if !self.nodes.contains_key(node) {
                let why = self.why_released.get(node).map_or("it left the cluster", String::as_str);
                draft.release(self.tree, self.before, &seen.record, why, now);
            }
        }
        for (node, record) in &self.nodes {
            match self.before.nodes.get(node) {
                Some(seen) if seen.record == *record => {}
                Some(_) => {
                    draft.put_node(self.before, record).bump_host(self.tree, &record.proxy_address);
                }
                None => {
                    let place = Place { proxy: record.proxy_address.clone(), node: node.clone() };
                    draft.claim(self.tree, &place, self.name).put_node(self.before, record);
                }
            }
        }
    }

    /// Every record that changes is compared: a promotion depends on the current in-sync set.
    fn write_shards(&self, draft: &mut Draft) {
        let key = |primary: &Address| ShardKey { cluster: self.name.clone(), primary: primary.clone() };
        let leads = |node: &Address| self.nodes.get(node).is_some_and(NodeRecord::is_primary);
        for (primary, seen) in &self.before.shards {
            match self.shards.get(primary).filter(|_| leads(primary)) {
                Some(record) if *record == seen.record => {}
                Some(record) => {
                    draft.guard(key(primary).unchanged(seen)).then(key(primary).put(record));
                }
                None => {
                    draft.guard(key(primary).unchanged(seen)).then(key(primary).delete());
                }
            }
        }
        let new = self.shards.iter().filter(|(primary, _)| !self.before.shards.contains_key(*primary));
        for (primary, record) in new.filter(|(primary, _)| leads(primary)) {
            draft.guard(key(primary).absent()).then(key(primary).put(record));
        }
    }

    /// Takes the record of a shard that gets another primary.
    pub fn take_shard(&mut self, primary: &Address) -> ShardRecord {
        let epoch = self.before.epoch.as_ref().map(|seen| seen.record).unwrap_or_default();
        self.shards.remove(primary).unwrap_or_else(|| ShardRecord::new(primary, epoch))
    }

    fn write_moves(&self, draft: &mut Draft) {
        let key = |id: &MoveId| MoveKey { cluster: self.name.clone(), id: *id };
        for (id, seen) in self.before.moves.iter().filter(|(id, _)| !self.moves.contains_key(id)) {
            let progress = ProgressKey { cluster: self.name.clone(), id: *id };
            draft.guard(key(id).unchanged(seen)).then(key(id).delete()).then(progress.delete());
        }
        for (id, record) in &self.moves {
            let seen = self.before.moves.get(id);
            if seen.is_none_or(|seen| seen.record != *record) {
                draft.guard(key(id).as_seen(seen.map(|seen| &**seen))).then(key(id).put(record));
            }
        }
        if self.tree.task_epoch.as_ref().is_none_or(|seen| seen.record != self.last_move)
            && self.last_move.is_told()
        {
            let numbers = TaskEpochKey {};
            draft.guard(numbers.as_seen(self.tree.task_epoch.as_deref())).then(numbers.put(&self.last_move));
        }
    }
}

fn letter_or_hyphen(c: char) -> char {
    if c.is_ascii_alphanumeric() { c } else { '-' }
}
