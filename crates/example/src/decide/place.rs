//! Which hosts keep which beacon lit? Add before remove: a drained host gives its beacon up when enough others have it
//! lit, and a host that is down is replaced only when another host takes its place.

use std::collections::{BTreeMap, BTreeSet};

use capstan_control::keys::HostId;

use crate::facts::Facts;
use crate::keys::BeaconName;
use crate::spec::Spec;
use crate::status::Placement;

/// A new decision about one beacon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The beacon.
    pub beacon: BeaconName,
    /// Its hosts; `None` removes the placement.
    pub hosts: Option<BTreeSet<HostId>>,
}

/// The changes that the facts require. Empty when everything is in place.
#[must_use]
pub fn place(facts: &Facts) -> Vec<Change> {
    // A spec that cannot be parsed looks like one that was removed: decide nothing until it is repaired.
    if !facts.unreadable.is_empty() {
        return Vec::new();
    }
    let mut load = load(facts);
    let mut changes = Vec::new();
    for (beacon, spec) in &facts.specs {
        let now = facts.placements.get(beacon).map(|seen| seen.record.clone()).unwrap_or_default();
        let hosts = hosts_of(facts, beacon, spec, &now, &mut load);
        if hosts != now.hosts {
            changes.push(Change { beacon: beacon.clone(), hosts: Some(hosts) });
        }
    }
    let removed = facts.placements.keys().filter(|beacon| !facts.specs.contains_key(*beacon));
    changes.extend(removed.map(|beacon| Change { beacon: beacon.clone(), hosts: None }));
    changes
}

/// The number of beacons of each usable host.
fn load(facts: &Facts) -> BTreeMap<HostId, usize> {
    let usable = facts.up.iter().filter(|host| facts.is_usable(host));
    let mut load: BTreeMap<HostId, usize> = usable.map(|host| (host.clone(), 0)).collect();
    for host in facts.placements.values().flat_map(|seen| &seen.record.hosts) {
        load.entry(host.clone()).and_modify(|beacons| *beacons += 1);
    }
    load
}

fn hosts_of(
    facts: &Facts,
    beacon: &BeaconName,
    spec: &Spec,
    now: &Placement,
    load: &mut BTreeMap<HostId, usize>,
) -> BTreeSet<HostId> {
    let (mut staying, others): (BTreeSet<HostId>, BTreeSet<HostId>) =
        now.hosts.iter().cloned().partition(|host| facts.is_usable(host));
    while staying.len() < spec.copies {
        let Some(host) = least_loaded(load, &staying) else { break };
        load.entry(host.clone()).and_modify(|beacons| *beacons += 1);
        staying.insert(host);
    }
    let lit = staying.iter().filter(|host| facts.is_lit(beacon, host)).count();
    if lit >= spec.copies {
        return surplus_removed(facts, beacon, spec, staying);
    }
    // Not enough copies are lit yet: every host that has the beacon keeps it.
    let lacking = spec.copies.saturating_sub(staying.len());
    let (lit_elsewhere, dark): (Vec<HostId>, Vec<HostId>) =
        others.into_iter().partition(|host| facts.is_lit(beacon, host));
    staying.extend(lit_elsewhere);
    staying.extend(dark.into_iter().take(lacking));
    staying
}

fn least_loaded(load: &BTreeMap<HostId, usize>, taken: &BTreeSet<HostId>) -> Option<HostId> {
    let free = load.iter().filter(|(host, _)| !taken.contains(*host));
    free.min_by_key(|(_, beacons)| **beacons).map(|(host, _)| host.clone())
}

/// Drops hosts beyond the number of copies, unlit ones first.
fn surplus_removed(
    facts: &Facts,
    beacon: &BeaconName,
    spec: &Spec,
    hosts: BTreeSet<HostId>,
) -> BTreeSet<HostId> {
    let mut hosts: Vec<HostId> = hosts.into_iter().collect();
    hosts.sort_by_key(|host| !facts.is_lit(beacon, host));
    hosts.into_iter().take(spec.copies).collect()
}
