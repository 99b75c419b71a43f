//! What do operators ask for? The target, the orders about a rollout under way, and the rules of a group of hosts.

pub mod amount;
pub mod policy;

use std::collections::BTreeMap;

use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::encoding::Moment;
use crate::lrn::Lrn;
use crate::release::{Manifest, Probe, StepKind};
use crate::status::{is_false, is_zero_step};

pub use amount::Amount;
pub use policy::{Policy, PolicyError, Window};

/// `target`: the release that the fleet is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Target {
    /// Its version.
    pub version: String,
    /// Its origin: an operator, or the updater that found it at the source.
    pub by: String,
    /// Since when.
    pub at: Moment,
    /// Whether it may be older than what the fleet has.
    #[serde(skip_serializing_if = "is_false")]
    pub rollback: bool,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// `releases/<VERSION>`: what the updater has to know of a release. Hosts do not believe it: they check the signed
/// manifest themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReleaseRecord {
    /// Its version.
    pub version: String,
    /// Its steps, in order.
    pub steps: Vec<StepRecord>,
    /// When the updater found it.
    pub found_at: Moment,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One step of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its name.
    pub name: String,
    /// Whom it waits for.
    pub kind: StepKind,
    /// How long it may take on one host.
    #[serde(default)]
    pub timeout_seconds: u32,
    /// How long its probe has to be green.
    #[serde(default, skip_serializing_if = "is_zero_step")]
    pub min_healthy_seconds: u32,
    /// Whether the services on the host have to say that they are healthy.
    #[serde(default, skip_serializing_if = "is_false")]
    pub services: bool,
}

impl ReleaseRecord {
    /// What the updater has to know of this manifest.
    #[must_use]
    pub fn of(manifest: &Manifest, found_at: Moment) -> ReleaseRecord {
        let steps = manifest.steps.iter().map(|step| StepRecord {
            name: step.name.to_string(),
            kind: step.kind,
            timeout_seconds: step.timeout_seconds,
            min_healthy_seconds: step.health.as_ref().map_or(0, |gate| gate.min_healthy_seconds),
            services: step.health.as_ref().is_some_and(|gate| gate.probe == Probe::Services),
        });
        ReleaseRecord {
            version: manifest.version.to_string(),
            steps: steps.collect(),
            found_at,
            extra: Extra::default(),
        }
    }
}

/// `orders/<GENERATION>`: what operators want of a rollout under way. A wish, not a message: an order that was given
/// twice, or seen late, means the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Orders {
    /// No host begins anything new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Order>,
    /// When a pause ended last: what waited meanwhile is not late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_at: Option<Moment>,
    /// Every host stops at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Order>,
    /// Up to this wave (counted from one) hosts wait neither for the bake of the wave before nor for a promotion.
    #[serde(skip_serializing_if = "is_zero_step")]
    pub promoted: u32,
    /// Hosts that the rollout goes on without.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub skip: BTreeMap<Lrn, Order>,
    /// Hosts that try again after a failure, and the how manieth attempt it is.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub retry: BTreeMap<Lrn, u32>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The origin, time and reason of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Order {
    /// The operator.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: Moment,
}

json_records!(Target, ReleaseRecord, Orders);
