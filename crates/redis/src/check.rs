//! What is wrong with the tree, in words, and how is it put right? Fix Inconsistent Data of the first document.
//!
//! Sound means: (a) every slot of an active cluster has exactly one owner; (b) every node is in at most one cluster,
//! and clusters and hosts say the same about it; (c) no epoch is below one that was ever told; (d) nothing is left
//! half-way without a task that completes it; (e) every registered node is free, in use or in quarantine, and in one of
//! these only. Truth is the specification, the epochs, who owns which node, and the cluster's own node records (slots
//! stand nowhere else); everything else is made from them.

mod clusters;
mod hosts;

use capstan_meta::{Store, clock};
use serde::Serialize;

use crate::broker::{BrokerError, ClusterTree, Draft, Next, Tree, settle};
use crate::keys::ClusterName;

/// Repairs of one call; each is a transaction of its own, on a fresh read.
const MOST_REPAIRS: u32 = 10_000;

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Which object.
    pub object: String,
    /// What is wrong with it.
    pub problem: String,
    /// What puts it right.
    pub remedy: String,
    /// The transaction that does, if it can be done without a human.
    #[serde(skip)]
    pub repair: Option<Draft>,
}

/// What a look at the whole tree found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What is recorded and waits to be completed, which is nothing wrong.
    pub pending: Vec<String>,
}

impl Report {
    /// Whether everything is as it should be, and nothing is left to be completed.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.findings.is_empty() && self.pending.is_empty()
    }
}

/// Looks at the whole tree. Pure.
#[must_use]
pub fn check(tree: &Tree, now: u64) -> Report {
    let mut report = Report::default();
    for bad in &tree.bad {
        report.findings.push(Finding {
            object: bad.key.clone(),
            problem: format!("its value cannot be read: {}", bad.reason),
            remedy: "write a sound value with etcdctl, or delete the key and check again".to_owned(),
            repair: hosts::copy_of_bad(tree, &bad.key),
        });
    }
    for (name, cluster) in &tree.clusters {
        clusters::check(tree, name, cluster, now, &mut report.findings);
        report.pending.extend(pending(name, cluster));
    }
    for (proxy, host) in &tree.hosts {
        hosts::check(tree, proxy, host, now, &mut report.findings);
    }
    report
}

/// What is recorded for a cluster and not completed.
pub(crate) fn pending(name: &ClusterName, cluster: &ClusterTree) -> Vec<String> {
    let mut pending = Vec::new();
    if cluster.bump.is_some() {
        pending.push(format!("cluster {name}: its hosts are to be told of a change"));
    }
    if cluster.creating.is_some() {
        let (has, wanted) = (cluster.primaries().count(), cluster.wanted_primaries());
        pending
            .push(format!("cluster {name}: nodes are to be created ({has} of {wanted} primaries are there)"));
    }
    if cluster.rebalance.is_some() {
        pending.push(format!("cluster {name}: slots are to be spread evenly"));
    }
    if cluster.removing.is_some() {
        pending.push(format!("cluster {name}: {} nodes are to be released", cluster.nodes.len()));
    }
    for (id, seen) in &cluster.moves {
        let record = &seen.record;
        pending.push(format!(
            "cluster {name}: move {id} of slots {}-{} to {}",
            record.start, record.end, record.target
        ));
    }
    pending
}

/// What was put right, and what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fixed {
    /// What was done, in order.
    pub done: Vec<String>,
    /// What a human must look at.
    pub left: Vec<String>,
}

/// Puts everything right that can be, one guarded transaction after the other.
pub async fn fix(store: &Store) -> Result<Fixed, BrokerError> {
    let mut done: Vec<String> = Vec::new();
    settle(store, "the metadata", |tree, sofar| {
        done.truncate(sofar.committed as usize);
        let findings = check(tree, clock::since_epoch().as_secs()).findings;
        let next = findings.iter().find(|finding| finding.repair.is_some());
        match next {
            Some(Finding { object, problem, remedy, repair: Some(repair) })
                if sofar.committed < MOST_REPAIRS =>
            {
                done.push(format!("{object}: {problem}; {remedy}"));
                Ok(Next::Commit(repair.clone()))
            }
            Some(_) | None => {
                let left =
                    findings.iter().map(|f| format!("{}: {}; {}", f.object, f.problem, f.remedy)).collect();
                Ok(Next::Done(Fixed { done: done.clone(), left }))
            }
        }
    })
    .await
}
