//! What is inconsistent in the tree, and how is it repaired?
//!
//! Consistent means: (a) every slot of an active cluster has exactly one owner; (b) every node is in at most
//! one cluster, and the records of clusters and hosts agree about it; (c) no epoch is below one that was ever
//! pushed; (d) no operation is incomplete without a task that completes it; (e) every registered node is
//! free, in use or in quarantine, and in one of these only. The source of truth is the specification, the
//! epochs, the owners of nodes, and the cluster's own node records (the only ones with slots); everything
//! else is derived from them.

mod clusters;
mod health;
mod hosts;

pub use health::{config_unreadable, findings};

use capstan_meta::{Store, clock};
use serde::Serialize;

use crate::commit::{Next, settle};
use crate::decide::Draft;
use crate::error::BrokerError;
use crate::facts::{ClusterTree, Tree};
use crate::keys::ClusterName;

/// Repairs of one call; each is a transaction of its own, on a fresh read.
const MOST_REPAIRS: u32 = 10_000;

/// An inconsistency.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The object.
    pub object: String,
    /// The problem.
    pub problem: String,
    /// What repairs it.
    pub remedy: String,
    /// The repairing transaction, if no operator is needed.
    #[serde(skip)]
    pub repair: Option<Draft>,
}

/// The result of a check of the whole tree.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The inconsistencies.
    pub findings: Vec<Finding>,
    /// Recorded work that waits to be completed, which is not an inconsistency.
    pub pending: Vec<String>,
}

impl Report {
    /// Whether there are no findings and nothing is left to be completed.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.findings.is_empty() && self.pending.is_empty()
    }
}

/// Checks the whole tree. Pure.
#[must_use]
pub fn check(tree: &Tree, now: u64) -> Report {
    let mut report = Report::default();
    for bad in &tree.bad {
        report.findings.push(Finding {
            object: bad.key.clone(),
            problem: format!("its value cannot be read: {}", bad.reason),
            remedy: "write a valid value with etcdctl, or delete the key and check again".to_owned(),
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

/// Recorded work of a cluster that is not completed.
pub(crate) fn pending(name: &ClusterName, cluster: &ClusterTree) -> Vec<String> {
    let mut pending = Vec::new();
    if cluster.bump.is_some() {
        pending.push(format!("cluster {name}: its hosts are to be notified of a change"));
    }
    if cluster.creating.is_some() {
        let (has, wanted) = (cluster.primaries().count(), cluster.wanted_primaries());
        pending.push(format!("cluster {name}: nodes are to be created ({has} of {wanted} primaries exist)"));
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

/// The result of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fixed {
    /// The repairs, in order.
    pub done: Vec<String>,
    /// What an operator must look at.
    pub left: Vec<String>,
}

/// Repairs everything that can be repaired, one guarded transaction after another.
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
