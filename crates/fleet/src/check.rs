//! Findings about the fleet: what is wrong, and the command that does something about it.

use capstan_control::findings::{Code, Finding, Severity};
use capstan_meta::record::Key;

use crate::decide::{Standing, is_over, standings, stuck};
use crate::facts::Facts;
use crate::keys::{
    CurrentKey, DesiredKey, HistoryKey, HostInfoKey, HostLeaseKey, HostStatusKey, OrdersKey, PlanKey,
    PolicyKey, ReleaseKey, ReleasedKey, SlotsKey, TargetKey,
};
use crate::status::HostStatus;

/// A key cannot be parsed, so the rollout is held.
pub const UNREADABLE: Code = Code::new("fleet-key-unreadable");
/// A request is stopped and waits for an operator.
pub const STOPPED: Code = Code::new("fleet-stopped");
/// A host failed its update.
pub const HOST_FAILED: Code = Code::new("fleet-host-failed");
/// A host had begun its update, or was through, and is gone.
pub const HOST_GONE: Code = Code::new("fleet-host-gone");
/// An update goes neither on nor back: it waits for hosts that are down, or nothing has happened for long.
pub const STUCK: Code = Code::new("fleet-rollout-stuck");
/// An update is in progress.
pub const ROLLOUT: Code = Code::new("fleet-rollout");
/// No updater is running.
pub const NO_UPDATER: Code = Code::new("fleet-no-updater");
/// The workers of hosts are not running.
pub const WORKER_DOWN: Code = Code::new("fleet-worker-down");
/// A host has worked for a later request than the store knows.
pub const AHEAD: Code = Code::new("fleet-host-ahead");

/// What is wrong, with this many updaters running.
#[must_use]
pub fn findings(facts: &Facts, updaters: usize) -> Vec<Finding> {
    let mut findings: Vec<Finding> = facts
        .unreadable
        .iter()
        .map(|bad| {
            let cause = format!("the value cannot be parsed ({}), and the rollout is held", bad.reason);
            Finding::new(UNREADABLE, Severity::Critical, bad.key.clone(), cause, bad.repair.clone())
        })
        .collect();
    if !facts.registry.is_empty() {
        findings.extend(no_updater(updaters));
        findings.extend(workers_down(facts));
    }
    let Some(request) = facts.request.as_ref().map(|seen| &seen.record) else { return findings };
    findings.extend(ahead(facts, request.generation));
    let object = format!("fleet update to {}", request.version);
    if request.stop {
        let cause = format!("it is stopped: {}", request.stop_reason);
        let action = "look at `capstan fleet status`, then `capstan fleet recover` or `rollback`";
        findings.push(Finding::new(STOPPED, Severity::Degraded, object, cause, action));
    } else if !is_over(facts) {
        let (has, all) = (finished(facts), request.members().len());
        let cause = format!("{has} of {all} hosts have it");
        let action = "watch it: capstan fleet status --watch";
        findings.push(Finding::new(ROLLOUT, Severity::Notice, object.clone(), cause, action));
        findings.extend(stuck(facts).map(|(cause, since)| {
            let action = "`capstan fleet status` and `capstan fleet why HOST` say what it waits for; `capstan fleet stop` ends it";
            Finding::new(STUCK, Severity::Degraded, object, cause, action).since(since)
        }));
    }
    findings.extend(of_hosts(facts));
    findings
}

fn no_updater(updaters: usize) -> Option<Finding> {
    let cause = "no fleet updater is running: no update begins or goes on";
    let action = "start `capstan controller`";
    (updaters == 0).then(|| Finding::new(NO_UPDATER, Severity::Degraded, "fleet updaters", cause, action))
}

fn workers_down(facts: &Facts) -> Option<Finding> {
    let down: Vec<String> = facts
        .registry
        .iter()
        .filter(|lrn| !facts.leases.contains_key(lrn))
        .map(ToString::to_string)
        .collect();
    (!down.is_empty()).then(|| {
        let cause = format!("the workers of these hosts are not running: {}", down.join(", "));
        let action =
            "start `capstan host` there with the role fleet, or let them leave: capstan fleet leave LRN";
        Finding::new(WORKER_DOWN, Severity::Degraded, "fleet workers", cause, action)
    })
}

fn finished(facts: &Facts) -> usize {
    let request = facts.request.as_ref().map(|seen| &seen.record);
    let through = |status: &HostStatus| {
        request.is_some_and(|request| status.is_about(request)) && status.finished && !status.error
    };
    facts.statuses.values().filter(|seen| through(&seen.record)).count()
}

fn of_hosts(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (lrn, standing) in standings(facts).unwrap_or_default() {
        let (code, cause) = match standing {
            Standing::Failed(why) => (HOST_FAILED, format!("its update failed: {why}")),
            Standing::Gone => (HOST_GONE, "it ran the release and its worker is gone".to_owned()),
            Standing::Left
            | Standing::Skipped
            | Standing::Absent
            | Standing::Silent
            | Standing::At(_)
            | Standing::Finished => continue,
        };
        let action = format!("`capstan fleet why {lrn}`; then `retry {lrn}`, `skip {lrn}` or `leave {lrn}`");
        findings.push(Finding::new(code, Severity::Degraded, format!("fleet host {lrn}"), cause, action));
    }
    findings
}

/// Hosts that have worked for a later request: the store has lost its data since.
fn ahead(facts: &Facts, generation: u64) -> Vec<Finding> {
    let later = facts.leases.iter().filter(|(_, seen)| seen.record.generation > generation);
    let findings = later.map(|(lrn, seen)| {
        let cause = format!(
            "it has worked for request {}, and the store is at request {generation}: the store has lost data",
            seen.record.generation
        );
        let action =
            "`capstan fleet stop`, then `capstan fleet recover`, which goes on behind the highest number";
        Finding::new(AHEAD, Severity::Degraded, format!("fleet host {lrn}"), cause, action)
    });
    findings.collect()
}

/// How a value that cannot be parsed is repaired.
#[must_use]
pub fn repair(path: &str) -> String {
    let is = |found: bool, text: &str| found.then(|| text.to_owned());
    let policy = PolicyKey::parse(path)
        .map(|key| format!("`capstan fleet policy set {} FILE` writes it anew", key.group));
    let removed = DesiredKey::parse(path).is_some()
        || HostStatusKey::parse(path).is_some()
        || SlotsKey::parse(path).is_some()
        || PlanKey::parse(path).is_some()
        || HistoryKey::parse(path).is_some()
        || ReleasedKey::parse(path).is_some();
    let wanted = ReleaseKey::parse(path).is_some() || TargetKey::parse(path).is_some();
    let known = policy
        .or_else(|| {
            let text = "`capstan fleet stop` writes it anew, `capstan fleet recover` begins again";
            is(CurrentKey::parse(path).is_some(), text)
        })
        .or_else(|| {
            let text = "`capstan fleet pause` writes it anew (orders given before are lost), then `resume`";
            is(OrdersKey::parse(path).is_some(), text)
        })
        .or_else(|| is(removed, "`capstan fleet stop`, then `capstan fleet recover`, which removes it"))
        .or_else(|| is(wanted, "`capstan fleet apply RELEASE` writes it anew"))
        .or_else(|| is(HostInfoKey::parse(path).is_some(), "`capstan fleet join HOST` writes it anew"))
        .or_else(|| is(HostLeaseKey::parse(path).is_some(), "restart the worker of that host"));
    known.unwrap_or_else(|| {
        format!("read it (capstan meta get {path}), then write a valid value or delete it")
    })
}
