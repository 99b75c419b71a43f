//! What the controller has decided and what hosts report.

use std::collections::BTreeSet;

use capstan_control::Epoch;
use capstan_control::keys::HostId;
use capstan_meta::json_records;
use serde::{Deserialize, Serialize};

/// The hosts that keep a beacon lit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Grows with every change. Agents ignore a placement that is older than one they have seen.
    pub epoch: Epoch,
    /// The hosts.
    pub hosts: BTreeSet<HostId>,
}

/// The report that a beacon is lit on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lit {
    /// The epoch of the placement that it was lit for.
    pub epoch: Epoch,
}

json_records!(Placement, Lit);
