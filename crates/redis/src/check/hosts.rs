//! What is inconsistent in a host and its nodes?

use capstan_control::epoch::Epoch;
use capstan_meta::record::Key;

use super::Finding;
use crate::address::Address;
use crate::decide::Draft;
use crate::facts::{HostTree, Seen, Tree};
use crate::keys::*;
use crate::status::{NodeRecord, Owner, Quarantine};

pub(super) fn check(tree: &Tree, proxy: &Address, host: &HostTree, now: u64, findings: &mut Vec<Finding>) {
    let mut found = Found { tree, proxy, host, now, findings };
    found.epoch();
    found.owners();
    found.copies();
    found.quarantine();
}

/// The record of a node in a cluster, and the cluster.
fn in_cluster<'t>(
    tree: &'t Tree,
    node: &Address,
    proxy: &Address,
) -> Vec<(&'t ClusterName, &'t Seen<NodeRecord>)> {
    let found = tree.clusters.iter().filter_map(|(name, cluster)| Some((name, cluster.nodes.get(node)?)));
    found.filter(|(_, seen)| seen.record.proxy_address == *proxy).collect()
}

/// Repairs an unreadable copy of a node: rewritten from the cluster's record, or removed if there is none.
pub(super) fn copy_of_bad(tree: &Tree, key: &str) -> Option<Draft> {
    let copy = HostNodeKey::parse(key)?;
    let mut draft = Draft::new(format!("repair the copy of node {}", copy.node));
    match in_cluster(tree, &copy.node, &copy.proxy).first() {
        Some((cluster, truth)) => {
            let truth_key = ClusterNodeKey { cluster: (*cluster).clone(), node: copy.node.clone() };
            draft.guard(truth_key.unchanged(truth)).then(copy.put(&truth.record));
        }
        None => {
            draft.then(copy.delete());
        }
    }
    draft.bump_host(tree, &copy.proxy);
    Some(draft)
}

struct Found<'f> {
    tree: &'f Tree,
    proxy: &'f Address,
    host: &'f HostTree,
    now: u64,
    findings: &'f mut Vec<Finding>,
}

impl Found<'_> {
    fn push(&mut self, problem: impl Into<String>, remedy: &str, repair: Option<Draft>) {
        let object = format!("host {}", self.proxy);
        self.findings.push(Finding { object, problem: problem.into(), remedy: remedy.to_owned(), repair });
    }

    fn owner_key(&self, node: &Address) -> OwnerKey {
        OwnerKey { proxy: self.proxy.clone(), node: node.clone() }
    }

    fn epoch(&mut self) {
        let key = HostEpochKey { proxy: self.proxy.clone() };
        let known = self.host.epoch.as_ref().map(|seen| seen.record);
        let last = self.host.last_epoch.as_ref().map_or(Epoch::NEVER_TOLD, |seen| seen.record);
        let uses =
            !self.host.owners.is_empty() || !self.host.copies.is_empty() || !self.host.quarantine.is_empty();
        let wrong = match known {
            None => uses.then(|| "it has nodes but no epoch".to_owned()),
            Some(known) => {
                (!known.is_told() || known < last).then(|| format!("its epoch {known} is not above {last}"))
            }
        };
        if let Some(problem) = wrong {
            // The epoch of its proxy is not known here: begin above every epoch that was ever issued.
            let highest =
                self.tree.hosts.values().filter_map(|host| host.epoch.as_ref()).map(|seen| seen.record).max();
            let mut repair = Draft::new(format!("repair host {}: give it an epoch", self.proxy));
            let above = highest.unwrap_or_default().max(last).next();
            repair.guard(key.as_seen(self.host.epoch.as_deref())).then(key.put(&above));
            self.push(problem, "begin above every epoch that was issued", Some(repair));
        }
    }

    /// The owner of a node is the cluster that lists it.
    fn owners(&mut self) {
        for (node, owner) in &self.host.owners {
            let listed = in_cluster(self.tree, node, self.proxy);
            match (&owner.record.0, listed.as_slice()) {
                (None, []) => {}
                (Some(cluster), [(name, _)]) if cluster == *name => {}
                (Some(cluster), []) => {
                    let problem = format!("node {node} belongs to cluster {cluster}, which does not list it");
                    let repair = self.with_released(node, owner, cluster);
                    self.push(problem, "release it to quarantine", Some(repair));
                }
                (None, [(name, truth), ..]) => {
                    let problem = format!("node {node} has no owner, but cluster {name} lists it");
                    let repair = self.own(node, owner, name, truth);
                    self.push(problem, "the cluster's list is authoritative: write the owner", Some(repair));
                }
                (Some(cluster), [(name, truth), ..]) => {
                    let problem =
                        format!("node {node} belongs to cluster {cluster}, but cluster {name} lists it too");
                    let wrong = listed.iter().find(|(name, _)| *name != cluster);
                    let repair = match wrong {
                        Some((name, truth)) if listed.len() > 1 => self.delist(node, owner, name, truth),
                        Some(_) | None => self.own(node, owner, name, truth),
                    };
                    self.push(problem, "a node has one owner: the other cluster loses it", Some(repair));
                }
            }
        }
        for (name, cluster) in &self.tree.clusters {
            for (node, truth) in
                cluster.nodes.iter().filter(|(_, seen)| seen.record.proxy_address == *self.proxy)
            {
                if !self.host.owners.contains_key(node) {
                    let key = self.owner_key(node);
                    let mut repair = Draft::new(format!("repair node {node}: register it"));
                    let truth_key = ClusterNodeKey { cluster: name.clone(), node: node.clone() };
                    repair
                        .guard(key.absent())
                        .guard(truth_key.unchanged(truth))
                        .then(key.put(&Owner(Some(name.clone()))))
                        .bump_host(self.tree, self.proxy);
                    let problem = format!("cluster {name} lists node {node}, which is not registered");
                    self.push(problem, "register it", Some(repair));
                }
            }
        }
    }

    fn with_released(&self, node: &Address, owner: &Seen<Owner>, cluster: &ClusterName) -> Draft {
        let key = self.owner_key(node);
        let quarantine = QuarantineKey { proxy: self.proxy.clone(), node: node.clone() };
        let epoch = self.host.epoch.as_ref().map_or_else(Epoch::default, |seen| seen.record).next();
        let record = Quarantine {
            cluster: cluster.clone(),
            incarnation: 0,
            epoch,
            why: "its cluster does not list it".to_owned(),
            since: self.now,
        };
        let mut repair = Draft::new(format!("repair node {node}: release it"));
        repair
            .guard(key.unchanged(owner))
            .guard(ClusterNodeKey { cluster: cluster.clone(), node: node.clone() }.absent())
            .then(key.put(&Owner(None)))
            .then(quarantine.put(&record))
            .then(HostNodeKey { proxy: self.proxy.clone(), node: node.clone() }.delete())
            .bump_host(self.tree, self.proxy);
        repair
    }

    fn own(
        &self,
        node: &Address,
        owner: &Seen<Owner>,
        name: &ClusterName,
        truth: &Seen<NodeRecord>,
    ) -> Draft {
        let key = self.owner_key(node);
        let mut repair = Draft::new(format!("repair node {node}: cluster {name} owns it"));
        repair
            .guard(key.unchanged(owner))
            .guard(ClusterNodeKey { cluster: name.clone(), node: node.clone() }.unchanged(truth))
            .then(key.put(&Owner(Some(name.clone()))))
            .then(QuarantineKey { proxy: self.proxy.clone(), node: node.clone() }.delete())
            .bump_host(self.tree, self.proxy);
        repair
    }

    fn delist(
        &self,
        node: &Address,
        owner: &Seen<Owner>,
        name: &ClusterName,
        truth: &Seen<NodeRecord>,
    ) -> Draft {
        let key = ClusterNodeKey { cluster: name.clone(), node: node.clone() };
        let mut repair = Draft::new(format!("repair node {node}: cluster {name} does not own it"));
        repair
            .guard(self.owner_key(node).unchanged(owner))
            .guard(key.unchanged(truth))
            .then(key.delete())
            .then(BumpTaskKey { cluster: name.clone() }.put(&(self.now as i64)))
            .bump_host(self.tree, self.proxy);
        repair
    }

    /// A copy equals the cluster's record.
    fn copies(&mut self) {
        for (name, cluster) in &self.tree.clusters {
            for (node, truth) in
                cluster.nodes.iter().filter(|(_, seen)| seen.record.proxy_address == *self.proxy)
            {
                let copy = self.host.copies.get(node);
                if copy.is_some_and(|copy| copy.record == truth.record) {
                    continue;
                }
                let key = HostNodeKey { proxy: self.proxy.clone(), node: node.clone() };
                let mut repair = Draft::new(format!("repair the copy of node {node}"));
                repair
                    .guard(ClusterNodeKey { cluster: name.clone(), node: node.clone() }.unchanged(truth))
                    .then(key.put(&truth.record))
                    .bump_host(self.tree, self.proxy);
                if !crate::facts::is_bad(self.tree, &key) {
                    let problem =
                        format!("its copy of node {node} differs from the record of cluster {name}");
                    self.push(problem, "copy it again", Some(repair));
                }
            }
        }
        for (node, copy) in &self.host.copies {
            if in_cluster(self.tree, node, self.proxy).is_empty() {
                let key = HostNodeKey { proxy: self.proxy.clone(), node: node.clone() };
                let mut repair = Draft::new(format!("repair host {}: remove the copy of {node}", self.proxy));
                repair.guard(key.unchanged(copy)).then(key.delete());
                if self.host.epoch.is_some() {
                    repair.bump_host(self.tree, self.proxy);
                }
                self.push(
                    format!("it has a copy of node {node}, which no cluster lists"),
                    "remove it",
                    Some(repair),
                );
            }
        }
    }

    fn quarantine(&mut self) {
        for (node, seen) in &self.host.quarantine {
            let owner = self.host.owners.get(node);
            if owner.is_some_and(|owner| owner.record.0.is_none()) {
                continue;
            }
            let key = QuarantineKey { proxy: self.proxy.clone(), node: node.clone() };
            let mut repair = Draft::new(format!("repair node {node}: end its quarantine"));
            repair
                .guard(key.unchanged(seen))
                .guard(self.owner_key(node).as_seen(owner.map(|owner| &**owner)))
                .then(key.delete());
            self.push(
                format!("node {node} is in quarantine, but not free"),
                "end the quarantine",
                Some(repair),
            );
        }
    }
}
