//! Which findings follow from the tree alone? Pure.

use capstan_control::findings::{Finding, Severity};
use capstan_control::report::{LiveReport, STALE_AFTER};
use capstan_meta::record::Key;

use super::*;
use crate::ClusterName;
use crate::check::{self, check};
use crate::decide::uncovered;
use crate::facts::{ClusterTree, Tree};
use crate::keys::ConfigKey;
use crate::spec::Persistence;
use crate::status::NodeRecord;

/// Inconsistencies that are listed one by one.
const LISTED: usize = 20;

/// The findings of the tree. `reports` are those about this service, including outdated ones.
#[must_use]
pub fn findings<'r>(tree: &Tree, reports: impl Iterator<Item = &'r LiveReport>, now_ms: u64) -> Vec<Finding> {
    let mut found = Vec::new();
    let in_use = tree.active().next().is_some();
    if tree.coordinators.is_empty() && (in_use || tree.registered().next().is_some()) {
        found.push(no_coordinator(in_use).on(tree.daemons.values().cloned()));
    }
    if in_use {
        found.extend(unprobed(reports, now_ms).map(|found| found.on(tree.daemons.values().cloned())));
    }
    for (name, cluster) in tree.active() {
        found.extend(of_cluster(tree, name, cluster));
    }
    found.extend(check::findings(tree));
    found.extend(tree.clusters.iter().filter(|(_, cluster)| cluster.deleting.is_some()).map(deleting));
    let unsound = check(tree, now_ms / 1000).findings;
    found.extend(unsound.into_iter().take(LISTED).map(|finding| {
        let action = format!("capstan redis fix ({})", finding.remedy);
        Finding::new(UNSOUND, Severity::Degraded, finding.object, finding.problem, action)
    }));
    found
}

fn no_coordinator(in_use: bool) -> Finding {
    let severity = if in_use { Severity::Critical } else { Severity::Degraded };
    Finding::new(
        NO_COORDINATOR,
        severity,
        "redis coordinators",
        "no Redis coordinator is running: proxies stop serving, and requested changes are not carried out",
        "start `capstan controller` with redis.secret set (a controller without it coordinates no Redis)",
    )
}

/// Requires a recent probe: an outdated one does not count.
fn unprobed<'r>(reports: impl Iterator<Item = &'r LiveReport>, now_ms: u64) -> Option<Finding> {
    let newest = reports.max_by_key(|report| report.at_ms);
    let cause = match newest {
        Some(report) if report.is_fresh(now_ms) => return None,
        Some(report) => format!(
            "the last probe of the proxies is {} s old (limit {} s)",
            report.age(now_ms).as_secs(),
            STALE_AFTER.as_secs()
        ),
        None => "no process probes the proxies".to_owned(),
    };
    let action = "start `capstan controller` with redis.secret set; if one is running, check its log";
    let finding = Finding::new(UNPROBED, Severity::Critical, "redis probes", cause, action);
    Some(finding.since_if_known(newest.map(|report| report.at_ms / 1000)))
}

fn object(name: &ClusterName) -> String {
    format!("redis cluster {name}")
}

fn deleting((name, _): (&ClusterName, &ClusterTree)) -> Finding {
    Finding::new(DELETING, Severity::Notice, object(name), "it is being deleted", "wait")
}

fn of_cluster(tree: &Tree, name: &ClusterName, cluster: &ClusterTree) -> Vec<Finding> {
    let (has, wanted) = (cluster.primaries().count(), cluster.wanted_primaries());
    let mut found = Vec::new();
    found.extend(config_unreadable(tree, name, cluster));
    found.extend(slots_unowned(name, cluster));
    if has < wanted {
        let cause = format!("it has {has} of {wanted} primaries");
        let action = "add hosts, or wait until nodes are free: capstan redis hosts list";
        found.push(Finding::new(NODES_MISSING, Severity::Degraded, object(name), cause, action));
    }
    found.extend(replicas_missing(tree, name, cluster));
    found.extend(memory_only(name, cluster));
    if cluster.rebalance.is_some() || !cluster.moves.is_empty() {
        let cause = format!("slots are moving: {} moves", cluster.moves.len());
        found.push(Finding::new(
            MOVING,
            Severity::Notice,
            object(name),
            cause,
            "wait: capstan redis moves --watch",
        ));
    }
    found
}

fn config_unreadable(tree: &Tree, name: &ClusterName, cluster: &ClusterTree) -> Option<Finding> {
    let reason = check::config_unreadable(tree, name, cluster)?;
    let cause = format!("its configuration cannot be read, so no client is admitted: {reason}");
    let key = ConfigKey { cluster: name.clone() }.path();
    let action = format!("correct the value of {key}; connected clients are refused until then");
    Some(Finding::new(CONFIG_UNREADABLE, Severity::Critical, object(name), cause, action))
}

fn slots_unowned(name: &ClusterName, cluster: &ClusterTree) -> Option<Finding> {
    let owned = cluster.nodes.values().flat_map(|seen| seen.record.owned());
    let missing: u32 = uncovered(owned).into_iter().map(|range| range.len()).sum();
    (missing > 0).then(|| {
        let cause = format!("{missing} of 16384 slots have no owner: commands on their keys fail");
        let action = "wait for free nodes, or add hosts; `capstan redis show` lists the slots";
        Finding::new(SLOTS_UNOWNED, Severity::Critical, object(name), cause, action)
    })
}

/// A replica on an unreachable host counts as missing.
fn replicas_missing(tree: &Tree, name: &ClusterName, cluster: &ClusterTree) -> Option<Finding> {
    let wanted = cluster.wanted_replicas();
    let reached = |node: &NodeRecord| !tree.failures.iter().any(|(key, _)| key.address == node.proxy_address);
    let lacking = cluster
        .primaries()
        .filter(|primary| {
            let there = cluster.replicas_of(&primary.record.address).filter(|seen| reached(&seen.record));
            there.count() < wanted
        })
        .count();
    (lacking > 0).then(|| {
        let cause = format!("{lacking} primaries have fewer than {wanted} replicas");
        let action = "wait for the copy, start the hosts that are down, or add hosts";
        Finding::new(REPLICAS_MISSING, Severity::Degraded, object(name), cause, action)
    })
}

fn memory_only(name: &ClusterName, cluster: &ClusterTree) -> Option<Finding> {
    let persistence = cluster.config.as_ref().map(|config| config.record.serving.persistence)?;
    (persistence == Persistence::None && cluster.wanted_replicas() == 0).then(|| {
        let cause = "no replicas and no persistence: the data of a node ends with its process";
        let action = "for data that matters, create it with --replicas 1 or --persistence aof";
        Finding::new(MEMORY_ONLY, Severity::Notice, object(name), cause, action)
    })
}
