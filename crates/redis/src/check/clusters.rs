//! What is inconsistent in a cluster?

use std::collections::BTreeMap;

use capstan_control::epoch::Epoch;
use capstan_meta::record::Key;

use super::Finding;
use crate::address::Address;
use crate::decide::edit::Edit;
use crate::decide::{Draft, plan_cancel, plan_delete};
use crate::decide::{cut_owned, join, uncovered};
use crate::facts::{ClusterTree, Tree, is_bad};
use crate::keys::*;
use crate::slots::SlotRange;
use crate::spec::ClusterConfig;
use crate::status::{MoveId, MoveState, NodeRecord, SlotEntry, Tag};

pub(super) fn check(
    tree: &Tree,
    name: &ClusterName,
    cluster: &ClusterTree,
    now: u64,
    findings: &mut Vec<Finding>,
) {
    let mut found = Found { tree, name, cluster, now, findings };
    if !cluster.exists() {
        found.remains();
        return;
    }
    found.contradiction();
    found.specification();
    found.size();
    found.records();
    found.tags();
    found.slots();
    found.shards();
}

struct Found<'f> {
    tree: &'f Tree,
    name: &'f ClusterName,
    cluster: &'f ClusterTree,
    now: u64,
    findings: &'f mut Vec<Finding>,
}

impl Found<'_> {
    fn push(&mut self, problem: impl Into<String>, remedy: &str, repair: Option<Draft>) {
        self.findings.push(Finding {
            object: format!("cluster {}", self.name),
            problem: problem.into(),
            remedy: remedy.to_owned(),
            repair,
        });
    }

    fn draft(&self, what: &str) -> Draft {
        let mut draft = Draft::new(format!("repair cluster {}: {what}", self.name));
        draft.guard(ClusterEpochKey { cluster: self.name.clone() }.as_seen(self.cluster.epoch.as_deref()));
        draft
    }

    /// A name without a cluster may have a last epoch; with any other key it is being deleted, and has both
    /// marks of that.
    fn remains(&mut self) {
        let cluster = self.cluster;
        let leftovers = !cluster.nodes.is_empty()
            || cluster.node_number.is_some()
            || cluster.max_memory.is_some()
            || cluster.replicas.is_some()
            || cluster.config.is_some()
            || cluster.creating.is_some()
            || cluster.rebalance.is_some()
            || !cluster.shards.is_empty()
            || !cluster.moves.is_empty();
        let deleting = (cluster.deleting.is_some(), cluster.removing.is_some());
        if deleting == (true, true) || (deleting == (false, false) && !leftovers) {
            return;
        }
        let mut repair = plan_delete(self.name, cluster, self.now);
        if let Some(last) = &cluster.last_epoch {
            repair.then(LastClusterEpochKey { cluster: self.name.clone() }.put(&last.record));
        }
        self.push(
            "it has no epoch, so it is deleted, but records of it remain",
            "release its nodes",
            Some(repair),
        );
    }

    fn contradiction(&mut self) {
        let (deleting, removing) =
            (DeletingKey { cluster: self.name.clone() }, RemoveNodesTaskKey { cluster: self.name.clone() });
        if self.cluster.deleting.is_none() && self.cluster.removing.is_none() {
            return;
        }
        let mut repair = self.draft("it is not being deleted");
        repair
            .guard(deleting.as_seen(self.cluster.deleting.as_deref()))
            .guard(removing.as_seen(self.cluster.removing.as_deref()))
            .then(deleting.delete())
            .then(removing.delete());
        let problem = "it has an epoch, so it exists, but it is marked as being deleted";
        self.push(problem, "remove the mark: the epoch is authoritative", Some(repair));
    }

    fn specification(&mut self) {
        let (cluster, name) = (self.cluster, || self.name.clone());
        let known = cluster.epoch.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record);
        let last = cluster.last_epoch.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record);
        if !known.is_told() || (last.is_told() && known <= last) {
            let mut repair = self.draft("raise its epoch");
            repair.then(ClusterEpochKey { cluster: name() }.put(&last.max(known).next()));
            self.push(format!("its epoch {known} is not above {last}"), "raise it", Some(repair));
        }
        let mut repair = self.draft("complete its specification");
        let mut absent = Vec::new();
        if cluster.node_number.is_none() {
            absent.push("node_number");
            repair.then(NodeNumberKey { cluster: name() }.put(&(cluster.primaries().count().max(1) as u32)));
        }
        if cluster.max_memory.is_none() {
            absent.push("node_max_memory");
            repair.then(MaxMemoryKey { cluster: name() }.put(&0));
        }
        if cluster.replicas.is_none() {
            absent.push("replicas");
            repair.then(ReplicasKey { cluster: name() }.put(&0));
        }
        // One that cannot be read stays: a default would admit every client.
        if cluster.config.is_none() && !is_bad(self.tree, &ConfigKey { cluster: name() }) {
            absent.push("config");
            let incarnation =
                cluster.nodes.values().map(|node| node.record.incarnation).max().unwrap_or(known.0);
            let config = ClusterConfig { incarnation, request: String::new(), serving: Default::default() };
            repair.then(ConfigKey { cluster: name() }.put(&config));
        }
        if !absent.is_empty() {
            let problem = format!("its specification lacks {}", absent.join(", "));
            self.push(problem, "derive it from the nodes, else use the default", Some(repair));
        }
    }

    fn size(&mut self) {
        let cluster = self.cluster;
        let (has, wanted) = (cluster.primaries().count(), cluster.wanted_primaries());
        if cluster.node_number.is_none() || cluster.creating.is_some() || cluster.rebalance.is_some() {
            return;
        }
        let short = cluster
            .primaries()
            .any(|node| cluster.replicas_of(&node.record.address).count() < cluster.wanted_replicas());
        if has < wanted || short {
            let mut repair = self.draft("create the missing nodes");
            repair.then(CreateNodesTaskKey { cluster: self.name.clone() }.put(&(self.now as i64)));
            let problem = format!(
                "it has {has} of {wanted} primaries, or too few replicas, and no task to create them"
            );
            self.push(problem, "record the task", Some(repair));
        } else if has > wanted {
            let mut repair = self.draft("set its size to the number of its nodes");
            repair.then(NodeNumberKey { cluster: self.name.clone() }.put(&(has as u32)));
            let problem = format!("it has {has} primaries instead of {wanted}, and none retires");
            self.push(problem, "set its size to the number of its nodes", Some(repair));
        }
    }

    /// Each record matches its key, and roles are consistent.
    fn records(&mut self) {
        let incarnation = self.cluster.incarnation();
        for (node, seen) in &self.cluster.nodes {
            let record = &seen.record;
            let mut sound = record.clone();
            sound.address = node.clone();
            sound.cluster_name = self.name.clone();
            if self.cluster.config.is_some() {
                sound.incarnation = incarnation;
            }
            if !record.slots.is_empty() || record.replica_of.is_none() {
                sound.role = crate::status::Role::Primary;
                sound.replica_of = None;
            }
            if sound != *record {
                let repair = self.rewrite(&sound);
                let problem = format!("the record of node {node} does not fit its key or its role");
                self.push(problem, "rewrite it", repair);
            } else if let Some(primary) = &record.replica_of {
                let sound =
                    self.cluster.nodes.get(primary).is_some_and(|primary| primary.record.is_primary());
                if !sound {
                    let repair = crate::decide::plan_drop_replica(
                        self.tree,
                        self.name,
                        node,
                        "its primary does not exist",
                        self.now,
                    );
                    let problem = format!("node {node} is a replica of {primary}, which is not a primary");
                    self.push(problem, "drop it, and create another replica", repair.ok());
                }
            }
        }
    }

    fn rewrite(&self, record: &NodeRecord) -> Option<Draft> {
        let mut edit = Edit::of(self.tree, self.name).ok()?;
        edit.nodes.insert(record.address.clone(), record.clone());
        Some(edit.finish(format!("repair cluster {}: rewrite node {}", self.name, record.address), self.now))
    }

    /// Every tag has a move, and every move in progress has both of its tags.
    fn tags(&mut self) {
        let mut seen: BTreeMap<MoveId, (u32, u32)> = BTreeMap::new();
        for node in self.cluster.nodes.values() {
            for entry in &node.record.slots {
                if let Some(end) = entry.tag.end() {
                    if !self.tag_is_sound(&node.record, entry) {
                        let repair = self.untag(&node.record, entry);
                        let problem = format!(
                            "slots {} of node {} have a tag without a move: {}",
                            entry.range, node.record.address, entry.tag
                        );
                        self.push(problem, "remove the tag; the source keeps the slots", repair);
                        continue;
                    }
                    let counts = seen.entry(end.id).or_default();
                    match entry.tag {
                        Tag::Migrating(_) => counts.0 += 1,
                        Tag::Importing(_) | Tag::Stable => counts.1 += 1,
                    }
                }
            }
        }
        for (id, record) in &self.cluster.moves {
            if record.record.state == MoveState::Copying && seen.get(id) != Some(&(1, 1)) {
                let repair = plan_cancel(self.tree, self.name, *id, self.now).ok();
                self.push(
                    format!("move {id} is in progress, but its ends are not tagged"),
                    "cancel it",
                    repair,
                );
            }
        }
    }

    fn tag_is_sound(&self, node: &NodeRecord, entry: &SlotEntry) -> bool {
        let Some(end) = entry.tag.end() else { return true };
        let Some(seen) = self.cluster.moves.get(&end.id) else { return false };
        let record = &seen.record;
        let (own, other) = match entry.tag {
            Tag::Migrating(_) => (&record.source, &record.target),
            Tag::Importing(_) | Tag::Stable => (&record.target, &record.source),
        };
        record.state == MoveState::Copying
            && record.epoch == end.epoch
            && own.node == node.address
            && other.node == end.node
            && other.proxy == end.proxy
            && record.range() == Some(entry.range)
    }

    fn untag(&self, node: &NodeRecord, entry: &SlotEntry) -> Option<Draft> {
        let mut record = node.clone();
        record.slots.retain(|other| other != entry);
        if matches!(entry.tag, Tag::Migrating(_)) {
            join(&mut record.slots, SlotEntry::stable(entry.range));
        }
        self.rewrite(&record)
    }

    /// Every slot has one owner.
    fn slots(&mut self) {
        let mut owned: Vec<(SlotRange, &Address, capstan_meta::Revision)> = Vec::new();
        for node in self.cluster.nodes.values() {
            owned.extend(node.record.owned().map(|range| (range, &node.record.address, node.mod_revision)));
        }
        owned.sort();
        for pair in owned.windows(2) {
            let [(one, first, at), (other, second, then)] = pair else { continue };
            if let Some(both) = crate::slots::overlap(*one, *other) {
                let older = if at <= then { first } else { second };
                let repair = (first != second).then(|| self.disown(older, both)).flatten();
                let problem = format!("slots {both} belong to both {first} and {second}");
                self.push(problem, "assign them to the node that was written last", repair);
                return;
            }
        }
        let missing = uncovered(owned.iter().map(|(range, ..)| *range));
        if !missing.is_empty() && self.cluster.creating.is_none() {
            let repair = self.adopt(&missing);
            let text: Vec<String> = missing.iter().map(ToString::to_string).collect();
            let remedy = "assign them to the primary with the fewest; their data is not moved";
            self.push(format!("slots {} have no owner", text.join(", ")), remedy, repair);
        }
    }

    /// Every shard record belongs to a primary.
    fn shards(&mut self) {
        for (primary, seen) in &self.cluster.shards {
            if self.cluster.nodes.get(primary).is_some_and(|node| node.record.is_primary()) {
                continue;
            }
            let key = ShardKey { cluster: self.name.clone(), primary: primary.clone() };
            let mut repair = self.draft("remove the record of a shard");
            repair.guard(key.unchanged(seen)).then(key.delete());
            self.push(
                format!("it has a shard record of node {primary}, which is not a primary"),
                "remove it",
                Some(repair),
            );
        }
    }

    fn disown(&self, node: &Address, range: SlotRange) -> Option<Draft> {
        let mut record = self.cluster.nodes.get(node)?.record.clone();
        cut_owned(&mut record.slots, range);
        self.rewrite(&record)
    }

    fn adopt(&self, missing: &[SlotRange]) -> Option<Draft> {
        let fewest = self.cluster.primaries().min_by_key(|node| node.record.slot_count())?;
        let mut record = fewest.record.clone();
        for range in missing {
            join(&mut record.slots, SlotEntry::stable(*range));
        }
        self.rewrite(&record)
    }
}
