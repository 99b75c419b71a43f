//! What does a host do about the placements that name it? Pure: effects are values.

use std::collections::BTreeMap;

use capstan_control::Epoch;
use capstan_control::keys::HostId;
use capstan_meta::record::Listing;

use crate::keys::{BeaconName, PlacementKey};

/// The beacons that a host must keep. `None` while a placement cannot be parsed: it may name this host, so nothing is
/// extinguished until it is repaired.
#[must_use]
pub fn wanted(host: &HostId, placements: &Listing<PlacementKey>) -> Option<BTreeMap<BeaconName, Epoch>> {
    let ours = placements.iter().filter(|(_, seen)| seen.record.hosts.contains(host));
    placements
        .bad
        .is_empty()
        .then(|| ours.map(|(key, seen)| (key.beacon.clone(), seen.record.epoch)).collect())
}

/// The beacons that are lit on this host, each with the epoch of its placement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agent {
    lit: BTreeMap<BeaconName, Epoch>,
}

/// An action, performed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Make the beacon durable, then report it.
    Light(BeaconName, Epoch),
    /// Withdraw the report, then remove the beacon.
    Extinguish(BeaconName),
}

impl Agent {
    /// An agent that found these beacons on disk.
    #[must_use]
    pub fn found(lit: BTreeMap<BeaconName, Epoch>) -> Agent {
        Agent { lit }
    }

    /// The beacons that are lit.
    #[must_use]
    pub fn lit(&self) -> &BTreeMap<BeaconName, Epoch> {
        &self.lit
    }

    /// The effects of the beacons that this host must keep. A stale placement has none.
    pub fn step(&mut self, wanted: &BTreeMap<BeaconName, Epoch>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for (beacon, epoch) in wanted {
            if self.lit.get(beacon).is_none_or(|lit| lit < epoch) {
                self.lit.insert(beacon.clone(), *epoch);
                effects.push(Effect::Light(beacon.clone(), *epoch));
            }
        }
        let gone: Vec<BeaconName> =
            self.lit.keys().filter(|beacon| !wanted.contains_key(*beacon)).cloned().collect();
        for beacon in gone {
            self.lit.remove(&beacon);
            effects.push(Effect::Extinguish(beacon));
        }
        effects
    }
}
