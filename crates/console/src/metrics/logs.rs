//! What Prometheus reads about replicated logs.

use std::collections::BTreeMap;

use capstan_steward::facts::{Facts, LogFact};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::bounded;

/// States of a log.
const LOGS: [&str; 4] = ["complete", "under_replicated", "cannot_commit", "without_primary"];

/// The logs as one look at their records shows them.
#[derive(Clone, Debug, Default)]
pub struct LogMetrics {
    logs: Family<StateLabels, Gauge>,
    holders: Family<StateLabels, Gauge>,
    copying: Gauge,
    free: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

impl LogMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let sub = registry.sub_registry_with_prefix("log");
        let help = "Logs by state: complete, under_replicated, cannot_commit, without_primary";
        sub.register("logs", help, self.logs.clone());
        sub.register("holders", "Holders of logs by state: up, down", self.holders.clone());
        sub.register("copies_under_way", "Copies that are being made", self.copying.clone());
        let help = "Free space of the holder that has least";
        sub.register_with_unit("free", help, Unit::Bytes, self.free.clone());
    }

    pub(super) fn set(&self, facts: &Facts) {
        let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
        for log in &facts.logs {
            *counts.entry(state(facts, log)).or_default() += 1;
        }
        for name in LOGS {
            self.logs.get_or_create(&StateLabels { state: name }).set(counts.get(name).copied().unwrap_or(0));
        }
        let up = facts.holders.iter().filter(|holder| holder.is_up()).count();
        let holders = [("up", up), ("down", facts.holders.len() - up)];
        for (state, count) in holders {
            self.holders.get_or_create(&StateLabels { state }).set(bounded(count as u64));
        }
        let copying = facts.logs.iter().filter(|log| log.learner.is_some()).count();
        self.copying.set(bounded(copying as u64));
        let free = facts.holders.iter().filter_map(|holder| Some(holder.status.as_ref()?.record.free_bytes));
        self.free.set(bounded(free.min().unwrap_or(0)));
    }
}

/// The same questions as the findings ask.
fn state(facts: &Facts, log: &LogFact) -> &'static str {
    let up = log.in_sync.iter().filter(|seat| facts.holder(**seat).is_up()).count();
    match up {
        0 => "without_primary",
        _ if up < log.min_copies() => "cannot_commit",
        _ if up < log.copies() => "under_replicated",
        _ => "complete",
    }
}
