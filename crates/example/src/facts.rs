//! What is known at one revision, assembled from a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_control::drain::Intent;
use capstan_control::hosts;
use capstan_control::keys::{Drains, HostId, Hosts};
use capstan_meta::record::Stored;
use capstan_meta::view::{Ranges, Snapshot};

use crate::keys::{BeaconName, LitBeacons, Placements, Specs};
use crate::spec::Spec;
use crate::status::Placement;

/// Everything that a decision depends on.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The specs.
    pub specs: BTreeMap<BeaconName, Spec>,
    /// The present placements.
    pub placements: BTreeMap<BeaconName, Arc<Stored<Placement>>>,
    /// The reports of lit beacons.
    pub lit: BTreeSet<(BeaconName, HostId)>,
    /// The hosts that are up.
    pub up: BTreeSet<HostId>,
    /// The hosts that are being drained.
    pub leaving: BTreeSet<HostId>,
    /// Keys whose value cannot be parsed. While there is one, nothing is decided.
    pub unreadable: Vec<String>,
}

impl Facts {
    /// The ranges that a view must cover.
    #[must_use]
    pub fn ranges() -> Ranges {
        Ranges::new()
            .with(&Specs {})
            .with(&Placements {})
            .with(&LitBeacons {})
            .with(&Hosts {})
            .with(&Drains {})
    }

    /// Reads a snapshot that covers [`Facts::ranges`].
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Facts {
        let (specs, placements) = (snapshot.list(&Specs {}), snapshot.list(&Placements {}));
        let drains = snapshot.list(&Drains {});
        let unreadable = specs.bad.iter().chain(&placements.bad).chain(&drains.bad);
        let draining = drains.iter().filter(|(_, drain)| drain.record.intent == Intent::Drain);
        Facts {
            unreadable: unreadable.map(|bad| bad.key.clone()).collect(),
            specs: specs.iter().map(|(key, spec)| (key.beacon.clone(), spec.record.clone())).collect(),
            leaving: draining.map(|(key, _)| key.host.clone()).collect(),
            placements: placements.entries.into_iter().map(|(key, stored)| (key.beacon, stored)).collect(),
            lit: snapshot
                .list(&LitBeacons {})
                .iter()
                .map(|(key, _)| (key.beacon.clone(), key.host.clone()))
                .collect(),
            up: hosts::up(snapshot).iter().map(|(key, _)| key.host.clone()).collect(),
        }
    }

    /// Whether a host may be given beacons.
    #[must_use]
    pub fn is_usable(&self, host: &HostId) -> bool {
        self.up.contains(host) && !self.leaving.contains(host)
    }

    /// Whether a beacon is lit on a host that is up.
    #[must_use]
    pub fn is_lit(&self, beacon: &BeaconName, host: &HostId) -> bool {
        self.up.contains(host) && self.lit.contains(&(beacon.clone(), host.clone()))
    }
}
