//! What was done to the fleet, when and by whose wish?

use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::encoding::Moment;
use crate::lrn::Lrn;

/// `history/<GENERATION>`: what became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryRecord {
    /// Target version.
    pub version: String,
    /// The version before it, as far as the fleet knows.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from: String,
    /// Why it was started.
    pub cause: String,
    /// The origin of the request.
    pub by: String,
    /// When it was started.
    pub started_at: Moment,
    /// How it ended; nothing while it is under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Moment>,
    /// Why it was stopped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Hosts that the update went on without.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Lrn>,
    /// When it was cleared away after a stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovered_at: Option<Moment>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Every host that it was not allowed to go on without has the release.
    Succeeded,
    /// A host failed.
    Failed,
    /// Workers took too long.
    TimedOut,
    /// An operator stopped it.
    Stopped,
}

json_records!(HistoryRecord);
