//! May a machine reboot by itself? It asks for a slot, and the rules of a rollout hold for it too: pauses, windows, failure
//! domains and drains. Its worker need not be ours, so a missing lease says nothing here.

use super::alarm::Alarm;
use super::rollout::{Rollout, Standing};
use super::{Obstacle, grant};
use crate::drain::{Emptiness, emptiness};
use crate::facts::Facts;
use crate::keys::GroupName;
use crate::lrn::Lrn;
use crate::plan::group_of;
use crate::spec::Policy;

/// Why a machine of a group may not go down now, apart from the slots.
#[must_use]
pub fn held(facts: &Facts, group: &GroupName, policy: &Policy, machine: &str) -> Option<String> {
    if let Some(bad) = facts.unreadable.first() {
        return Some(bad.to_string());
    }
    let running = facts.request.as_ref().filter(|seen| !seen.record.stop && !facts.has_ended());
    let orders = facts.orders.as_ref().filter(|_| running.is_some()).map(|seen| &seen.record);
    if let Some(order) = orders.and_then(|orders| orders.paused.as_ref()) {
        return Some(Obstacle::Paused { by: order.by.clone(), reason: order.reason.clone() }.to_string());
    }
    if !policy.is_open(facts.now) {
        return Some(Obstacle::Window(group.clone()).to_string());
    }
    full_domain(facts, group, policy, machine).map(|obstacle| obstacle.to_string())
}

/// The number of a machine that is a host of the fleet: by its name in the kernel, or by its number.
fn number(facts: &Facts, machine: &str) -> Option<Lrn> {
    let named = facts
        .infos
        .iter()
        .find(|(_, seen)| seen.record.host.as_ref().is_some_and(|host| host.as_str() == machine));
    named.map(|(lrn, _)| *lrn).or_else(|| machine.parse().ok())
}

fn full_domain(facts: &Facts, group: &GroupName, policy: &Policy, machine: &str) -> Option<Obstacle> {
    let alarm = Alarm::new(facts.now);
    let request = facts.request.as_ref().filter(|seen| !seen.record.stop);
    let rollout = request.and_then(|seen| Rollout::of(facts, &seen.record, &alarm).ok());
    let own = number(facts, machine);
    let domain = own.map(|lrn| grant::domain_of(facts, lrn, policy)).unwrap_or_default();
    let none = std::collections::BTreeMap::new();
    let hosts: Vec<Lrn> = facts
        .registry
        .iter()
        .copied()
        .filter(|lrn| {
            let labels = facts.infos.get(lrn).map_or(&none, |seen| &seen.record.labels);
            group_of(&facts.policies, labels) == *group && grant::domain_of(facts, *lrn, policy) == domain
        })
        .collect();
    let out: Vec<Lrn> = hosts
        .iter()
        .copied()
        .filter(|lrn| Some(*lrn) != own && is_out(facts, rollout.as_ref(), *lrn))
        .collect();
    (!out.is_empty() && out.len() >= policy.unavailable(hosts.len()))
        .then_some(Obstacle::DomainFull { domain, out })
}

fn is_out(facts: &Facts, rollout: Option<&Rollout<'_>>, lrn: Lrn) -> bool {
    let drained = match emptiness(facts, lrn) {
        Emptiness::Nothing | Emptiness::Unasked => false,
        Emptiness::Draining(_) | Emptiness::Empty | Emptiness::Returning(_) => true,
    };
    let harmed = rollout.is_some_and(|rollout| {
        rollout.is_in_slot(lrn)
            || matches!(rollout.standings.get(&lrn), Some(Standing::Gone | Standing::Failed(_)))
    });
    drained || harmed
}
