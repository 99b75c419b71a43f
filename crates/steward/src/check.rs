//! Findings about logs: what is wrong, since when, what to do.

use capstan_control::findings::{Code, Finding, Severity};

use crate::facts::{Facts, HolderFact, LogFact};
use crate::spec::Policy;

/// A holder of logs is down.
pub const HOLDER_DOWN: Code = Code::new("log-holder-down");
/// The disk of a holder is nearly full.
pub const HOLDER_FULL: Code = Code::new("log-holder-full");
/// No holder that is up can lead the log.
pub const WITHOUT_PRIMARY: Code = Code::new("log-without-primary");
/// The log takes no appends: too few copies are in sync.
pub const CANNOT_COMMIT: Code = Code::new("log-cannot-commit");
/// The log has fewer complete copies than requested.
pub const UNDER_REPLICATED: Code = Code::new("log-under-replicated");
/// A record cannot be parsed.
pub const BAD_RECORD: Code = Code::new("log-bad-record");

/// Findings of one kind that are listed individually; the others are counted in one more.
const LISTED: usize = 20;

/// The findings about logs and their holders.
#[must_use]
pub fn findings(facts: &Facts, policy: &Policy) -> Vec<Finding> {
    let mut found: Vec<Finding> = facts.bad.iter().take(LISTED).map(|bad| bad_record(bad)).collect();
    found.extend(facts.holders.iter().filter_map(|holder| of_holder(facts, holder, policy)));
    for kind in [without_primary, cannot_commit, under_replicated] {
        let mut of_kind = facts.logs.iter().filter_map(|log| kind(facts, log));
        let listed: Vec<Finding> = of_kind.by_ref().take(LISTED).collect();
        let more = of_kind.count();
        found.extend(summary(listed.first(), more));
        found.extend(listed);
    }
    found
}

fn summary(first: Option<&Finding>, more: usize) -> Option<Finding> {
    let first = first.filter(|_| more > 0)?;
    Some(Finding::new(
        first.code.clone(),
        first.severity,
        format!("{more} more logs"),
        "they have the same problem",
        "run `capstan log list` for all of them",
    ))
}

fn bad_record(bad: &str) -> Finding {
    let action = "correct the record, or delete it if it is not ours";
    Finding::new(BAD_RECORD, Severity::Critical, "log metadata", bad, action)
}

fn of_holder(facts: &Facts, holder: &HolderFact, policy: &Policy) -> Option<Finding> {
    let record = &holder.record.as_ref()?.record;
    let object = format!("log holder {} on host {}", holder.id, record.host);
    let Some(status) = &holder.status else {
        if holder.copies == 0 {
            return None;
        }
        let copies = holder.copies;
        let (severity, cause) = match (holder.draining, holder.is_lost(policy, facts.now)) {
            (true, _) => (Severity::Notice, format!("it is drained and down; it has {copies} copies")),
            (false, true) => {
                (Severity::Degraded, format!("it is down and its {copies} copies are being made elsewhere"))
            }
            (false, false) => (Severity::Degraded, format!("it is down; it has {copies} copies")),
        };
        let action = format!("start its host, or retire it with `capstan log retire {}`", holder.id);
        let finding = Finding::new(HOLDER_DOWN, severity, object, cause, action).on([record.host.clone()]);
        return Some(match record.down_since {
            Some(since) => finding.since(since),
            None => finding,
        });
    };
    let free = status.record.free_bytes;
    (free < policy.reserve_bytes).then(|| {
        let cause = format!("its disk has {free} bytes left, so it gets no more copies");
        let action = "free space on its disk, or add a host";
        Finding::new(HOLDER_FULL, Severity::Degraded, object, cause, action).on([record.host.clone()])
    })
}

fn object(log: &LogFact) -> String {
    match &log.wanted {
        Some(wanted) => format!("{} log {}", wanted.record.service, log.name),
        None => format!("log {}", log.name),
    }
}

fn names(facts: &Facts, seats: &[u32]) -> String {
    let names: Vec<&str> = seats.iter().map(|seat| facts.holder(*seat).id.as_str()).collect();
    names.join(", ")
}

fn without_primary(facts: &Facts, log: &LogFact) -> Option<Finding> {
    if log.in_sync.iter().any(|seat| facts.holder(*seat).is_up()) {
        return None;
    }
    let complete = names(facts, &log.in_sync);
    let since = facts.holder(log.primary).down_since();
    let finding = Finding::new(
        WITHOUT_PRIMARY,
        Severity::Critical,
        object(log),
        format!("every holder with a complete copy is down: {complete}"),
        format!("start one of {complete}; no other copy may lead, because it may lack acknowledged entries"),
    );
    Some(match since {
        Some(since) => finding.since(since),
        None => finding,
    })
}

fn cannot_commit(facts: &Facts, log: &LogFact) -> Option<Finding> {
    let up = log.in_sync.iter().filter(|seat| facts.holder(**seat).is_up()).count();
    if up == 0 || up >= log.min_copies() {
        return None;
    }
    let missing: Vec<u32> = log.holders.iter().copied().filter(|seat| !facts.holder(*seat).is_up()).collect();
    let wait = names(facts, &missing);
    Some(Finding::new(
        CANNOT_COMMIT,
        Severity::Critical,
        object(log),
        format!("{up} complete copies are up and {} are required: appends wait", log.min_copies()),
        match missing.is_empty() {
            true => "wait until the other copies have caught up".to_owned(),
            false => format!("start {wait}"),
        },
    ))
}

fn under_replicated(facts: &Facts, log: &LogFact) -> Option<Finding> {
    let up = log.in_sync.iter().filter(|seat| facts.holder(**seat).is_up()).count();
    if up == 0 || up < log.min_copies() || up >= log.copies() {
        return None;
    }
    let action = match log.learner {
        Some(learner) => format!("wait: {} is copying it", facts.holder(learner).id),
        None => "wait for its holders to return, or add a host".to_owned(),
    };
    let severity = if on_purpose(facts, log) { Severity::Notice } else { Severity::Degraded };
    let cause = format!("{up} of {} complete copies are up", log.copies());
    Some(Finding::new(UNDER_REPLICATED, severity, object(log), cause, action))
}

/// Whether only drained holders are missing.
fn on_purpose(facts: &Facts, log: &LogFact) -> bool {
    let missing =
        log.holders.iter().filter(|seat| !facts.holder(**seat).is_up() || !log.in_sync.contains(seat));
    log.holders.len() >= log.copies() && missing.into_iter().all(|seat| facts.holder(*seat).draining)
}
