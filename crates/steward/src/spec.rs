//! The specs: logs with a number of copies, holders that may keep them, and the limits of the steward.

use capstan_control::keys::{HostId, ServiceName};
use capstan_log::{HolderId, LogEpoch};
use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

/// A service's spec of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedLog {
    /// The service that owns it. Only holders of this service keep copies.
    pub service: ServiceName,
    /// The requested number of copies.
    pub copies: usize,
    /// The number of copies below which nothing is committed.
    pub min_copies: usize,
    /// The holder that should lead if possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<HolderId>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The maximum of copies; a larger number is a typing error.
pub const MAX_COPIES: usize = 16;

impl WantedLog {
    /// A log of this service with this many copies, a majority of which must have every committed entry.
    #[must_use]
    pub fn new(service: ServiceName, copies: usize) -> WantedLog {
        WantedLog { service, copies, min_copies: copies / 2 + 1, preferred: None, extra: Extra::default() }
    }

    /// The same log, committed on at least this many copies.
    #[must_use]
    pub fn committed_on(self, min_copies: usize) -> WantedLog {
        WantedLog { min_copies, ..self }
    }

    /// The same log, led by this holder if possible.
    #[must_use]
    pub fn led_by(self, preferred: HolderId) -> WantedLog {
        WantedLog { preferred: Some(preferred), ..self }
    }

    /// Whether the spec can be satisfied at all.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        (1..=MAX_COPIES).contains(&self.copies) && (1..=self.copies).contains(&self.min_copies)
    }
}

/// The record of a holder, up or down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderRecord {
    /// The host that it runs on, which is the unit of drains.
    pub host: HostId,
    /// The service whose logs it keeps.
    pub service: ServiceName,
    /// Its failure domain; a holder without one is in the domain of its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Whether its copies are being moved elsewhere, permanently.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retiring: bool,
    /// Whether it has not been added yet: it appeared by itself, and gets no copies until an operator adds it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waiting: bool,
    /// Since when it is down, in seconds since 1970, as observed by the steward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down_since: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

impl HolderRecord {
    /// A holder that keeps logs of this service on this host.
    #[must_use]
    pub fn new(host: HostId, service: ServiceName) -> HolderRecord {
        HolderRecord {
            host,
            service,
            domain: None,
            retiring: false,
            waiting: false,
            down_since: None,
            extra: Extra::default(),
        }
    }

    /// Its failure domain.
    #[must_use]
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or(self.host.as_str())
    }
}

/// A request to the primary of a log to hand over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// The epoch in which it was requested; void in any other.
    pub epoch: LogEpoch,
    /// The next primary.
    pub to: HolderId,
    /// When it was requested, in seconds since 1970.
    pub asked_at: u64,
}

json_records!(WantedLog, HolderRecord, Handover);

/// The limits of the steward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Seconds after which the copies of a holder that is down are made elsewhere.
    pub repair_after: u64,
    /// Seconds that a primary has to hand over; then the steward elects the other holder.
    pub handover_within: u64,
    /// Concurrent copies into one host.
    pub copies_into_host: usize,
    /// Concurrent copies from the primaries of one host.
    pub copies_out_of_host: usize,
    /// Concurrent copies in total.
    pub copies_in_all: usize,
    /// Concurrent handovers.
    pub handovers: usize,
    /// Free bytes below which a holder gets no more copies.
    pub reserve_bytes: u64,
    /// Percent of the average by which holders of one service may differ before copies or leads are moved.
    pub slack_percent: usize,
    /// Changes per decision; the rest follows in the next one, on a fresh view.
    pub changes: usize,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            repair_after: 600,
            handover_within: 10,
            copies_into_host: 4,
            copies_out_of_host: 4,
            copies_in_all: 512,
            handovers: 64,
            reserve_bytes: 1 << 30,
            slack_percent: 10,
            changes: 4096,
        }
    }
}
