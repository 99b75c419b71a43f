//! What Prometheus reads about the fleet.

use std::collections::BTreeMap;

use capstan_fleet::decide::{Standing, is_over, standings};
use capstan_fleet::facts::Facts;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::bounded;

/// States of an update; one of them is 1.
const ROLLOUT: [&str; 4] = ["none", "running", "stopped", "complete"];
/// States of a host.
const HOSTS: [&str; 7] = ["idle", "waiting", "finished", "failed", "skipped", "absent", "gone"];

/// The fleet as one look at its keys shows it.
#[derive(Clone, Debug, Default)]
pub struct FleetMetrics {
    rollout: Family<StateLabels, Gauge>,
    hosts: Family<StateLabels, Gauge>,
    seconds: Gauge,
    generation: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

impl FleetMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let sub = registry.sub_registry_with_prefix("fleet");
        let help = "Whether the newest update is in this state (1): none, running, stopped, complete";
        sub.register("rollout", help, self.rollout.clone());
        let help = "Hosts of the fleet by what the newest update means for them: idle, waiting, finished, failed, skipped, absent, gone";
        sub.register("hosts", help, self.hosts.clone());
        let help = "For how long the update that is running has run";
        sub.register_with_unit("rollout_age", help, Unit::Seconds, self.seconds.clone());
        sub.register("request", "Number of the newest update", self.generation.clone());
    }

    pub(super) fn set(&self, facts: &Facts) {
        let state = rollout(facts);
        for name in ROLLOUT {
            self.rollout.get_or_create(&StateLabels { state: name }).set(i64::from(name == state));
        }
        let hosts = hosts(facts);
        for name in HOSTS {
            self.hosts.get_or_create(&StateLabels { state: name }).set(hosts.get(name).copied().unwrap_or(0));
        }
        let request = facts.request.as_ref().map(|seen| &seen.record);
        let begun = request.filter(|_| state == "running").map(|request| request.started_at);
        self.seconds.set(
            begun.map_or(0, |begun| bounded(facts.now.as_epoch().saturating_sub(begun.as_epoch()).as_secs())),
        );
        self.generation.set(bounded(request.map_or(0, |request| request.generation)));
    }
}

fn rollout(facts: &Facts) -> &'static str {
    match &facts.request {
        None => "none",
        Some(request) if request.record.stop => "stopped",
        Some(_) if is_over(facts) => "complete",
        Some(_) => "running",
    }
}

fn hosts(facts: &Facts) -> BTreeMap<&'static str, i64> {
    let standings = standings(facts).unwrap_or_default();
    let mut counts = BTreeMap::new();
    for lrn in &facts.registry {
        let state = match standings.get(lrn) {
            None | Some(Standing::Left) => "idle",
            Some(Standing::Silent | Standing::At(_)) => "waiting",
            Some(Standing::Finished) => "finished",
            Some(Standing::Failed(_)) => "failed",
            Some(Standing::Skipped) => "skipped",
            Some(Standing::Absent) => "absent",
            Some(Standing::Gone) => "gone",
        };
        *counts.entry(state).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_without_an_update_is_idle() {
        let mut facts = Facts::default();
        facts.registry.insert(capstan_fleet::Lrn(1));
        assert_eq!(rollout(&facts), "none");
        assert_eq!(hosts(&facts), BTreeMap::from([("idle", 1)]));
    }
}
