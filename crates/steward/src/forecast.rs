//! What would the steward do from here on? The same decisions, applied to records in memory: every copy that is begun
//! becomes complete at once, and every handover succeeds. Pure; nothing is written.

use std::sync::Arc;

use capstan_log::{HolderId, LogConfig, LogName};
use capstan_meta::record::Stored;

use crate::decide::{Action, decide};
use crate::facts::{Facts, Records};
use crate::spec::{HolderRecord, Policy};

/// Rounds of decisions after which a forecast ends, settled or not.
const ROUNDS: usize = 10_000;

/// Where the decisions of the steward lead.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// What is done, in order, as the steward's log would say it.
    pub steps: Vec<String>,
    /// The logs afterwards, by name.
    pub logs: Vec<(LogName, LogConfig)>,
    /// Whether nothing is left to do.
    pub settled: bool,
}

/// The decisions from these records on, if no holder starts, stops or fails meanwhile.
#[must_use]
pub fn forecast(mut records: Records, policy: &Policy, now: u64) -> Forecast {
    let mut steps = Vec::new();
    for _ in 0..ROUNDS {
        let decision = decide(&Facts::new(records.clone(), now), policy);
        steps.extend(decision.actions.iter().filter(|action| moves(action)).map(ToString::to_string));
        let mut changed = false;
        for action in decision.actions {
            changed |= perform(&mut records, action);
        }
        changed |= complete_copies(&mut records);
        if !changed {
            return Forecast { steps, logs: logs_of(&records), settled: true };
        }
    }
    Forecast { steps, logs: logs_of(&records), settled: false }
}

fn logs_of(records: &Records) -> Vec<(LogName, LogConfig)> {
    records.logs.iter().map(|(name, seen)| (name.clone(), seen.record.clone())).collect()
}

/// Whether an action changes where copies and leads are.
fn moves(action: &Action) -> bool {
    match action {
        Action::Reconfigure { .. } | Action::AskHandover { .. } => true,
        Action::ClearHandover { .. }
        | Action::MarkDown { .. }
        | Action::MarkUp { .. }
        | Action::Forget { .. } => false,
    }
}

/// Performs one action; returns whether the records differ.
fn perform(records: &mut Records, action: Action) -> bool {
    match action {
        Action::Reconfigure { log, next, .. } => put(records, &log, *next),
        Action::AskHandover { log, seen, handover } => match seen.record.elect(&handover.to) {
            Ok(next) => put(records, &log, next),
            Err(_) => false,
        },
        Action::ClearHandover { log, .. } => {
            let before = records.handovers.len();
            records.handovers.retain(|(name, _)| *name != log);
            records.handovers.len() != before
        }
        Action::MarkDown { holder, seen, since } => {
            let next = HolderRecord { down_since: Some(since), ..seen.record.clone() };
            replace(&mut records.holders, &holder, next)
        }
        Action::MarkUp { holder, seen } => {
            let next = HolderRecord { down_since: None, ..seen.record.clone() };
            replace(&mut records.holders, &holder, next)
        }
        Action::Forget { holder, .. } => {
            let before = records.holders.len();
            records.holders.retain(|(id, _)| *id != holder);
            records.holders.len() != before
        }
    }
}

fn put(records: &mut Records, log: &LogName, next: LogConfig) -> bool {
    replace(&mut records.logs, log, next)
}

/// Changes one record; returns whether it differs.
fn replace<N: PartialEq, R: PartialEq + Clone>(all: &mut [(N, Arc<Stored<R>>)], name: &N, record: R) -> bool {
    let Some((_, seen)) = all.iter_mut().find(|(known, _)| known == name) else { return false };
    if seen.record == record {
        return false;
    }
    *seen = Arc::new(Stored { record, ..Stored::clone(seen) });
    true
}

/// Completes every copy whose holder is up, and every handover that was asked for.
fn complete_copies(records: &mut Records) -> bool {
    let up = |holder: &HolderId| records.alive.iter().any(|(id, _)| id == holder);
    let mut nexts = Vec::new();
    for (name, seen) in &records.logs {
        let mut next = seen.record.clone();
        let led = up(&next.primary);
        let late: Vec<_> = next.members().filter(|member| !next.is_in_sync(member)).cloned().collect();
        for member in late.iter().filter(|member| led && up(member)) {
            next = next.grow(member).unwrap_or(next);
        }
        let asked = records.handovers.iter().find(|(log, _)| log == name);
        if let Some((_, asked)) = asked
            && asked.record.epoch == next.epoch
            && up(&asked.record.to)
        {
            next = next.elect(&asked.record.to).unwrap_or(next);
        }
        if next != seen.record {
            nexts.push((name.clone(), next));
        }
    }
    let changed = !nexts.is_empty();
    for (name, next) in nexts {
        put(records, &name, next);
    }
    changed
}

#[cfg(test)]
mod tests {
    use capstan_meta::{LeaseId, Revision};

    use super::*;
    use crate::spec::WantedLog;
    use crate::status::HolderStatus;

    fn seen<R>(record: R) -> Arc<Stored<R>> {
        let at = Revision(1);
        Arc::new(Stored { record, create_revision: at, mod_revision: at, lease: LeaseId::NONE })
    }

    fn add(records: &mut Records, name: &str) {
        let record = HolderRecord::new(name.parse().unwrap(), "docs".parse().unwrap());
        records.holders.push((name.parse().unwrap(), seen(record)));
        let status = HolderStatus::new("127.0.0.1:1".parse().unwrap(), 100 << 30, 200 << 30);
        records.alive.push((name.parse().unwrap(), seen(status)));
    }

    /// 16 logs with three copies each on three holders.
    fn three() -> Records {
        let mut records = Records::default();
        let names = ["a", "b", "c"];
        names.iter().for_each(|name| add(&mut records, name));
        for at in 0..16 {
            let name: LogName = format!("docs-{at:x}").parse().unwrap();
            let holders: Vec<HolderId> = (0..3).map(|by| names[(at + by) % 3].parse().unwrap()).collect();
            records.logs.push((name.clone(), seen(LogConfig::new(holders, 2).unwrap())));
            let wanted = WantedLog::new("docs".parse().unwrap(), 3).committed_on(2);
            records.wanted.push((name, seen(wanted)));
        }
        records
    }

    fn copies(forecast: &Forecast, holder: &str) -> usize {
        let holds = |log: &LogConfig| log.holders.iter().any(|id| id.as_str() == holder);
        forecast.logs.iter().filter(|(_, log)| holds(log)).count()
    }

    #[test]
    fn a_balanced_cluster_has_nothing_to_do() {
        let found = forecast(three(), &Policy::default(), 100);
        assert_eq!((found.steps.len(), found.settled), (0, true), "{:?}", found.steps);
    }

    #[test]
    fn a_fourth_holder_gets_its_share_and_nothing_is_left_on_the_way() {
        let mut records = three();
        add(&mut records, "d");
        let found = forecast(records, &Policy::default(), 100);
        assert!(found.settled);
        assert_eq!(["a", "b", "c", "d"].map(|holder| copies(&found, holder)), [12, 12, 12, 12]);
        for (_, log) in &found.logs {
            assert!(log.learner.is_none() && log.leaving.is_none() && log.in_sync.len() == 3, "{log:?}");
        }
    }

    #[test]
    fn a_retiring_holder_ends_empty_and_one_that_is_down_moves_nothing_yet() {
        let mut records = three();
        add(&mut records, "d");
        let a: HolderId = "a".parse().unwrap();
        let record = records.holders[0].1.record.clone();
        replace(&mut records.holders, &a, HolderRecord { retiring: true, ..record });
        let found = forecast(records, &Policy::default(), 100);
        assert_eq!(["a", "b", "c", "d"].map(|holder| copies(&found, holder)), [0, 16, 16, 16]);
        let mut records = three();
        records.alive.retain(|(id, _)| id.as_str() != "a");
        let found = forecast(records, &Policy::default(), 100);
        assert_eq!(copies(&found, "a"), 16);
        assert!(found.logs.iter().all(|(_, log)| log.primary != a), "its leads are taken over");
    }
}
