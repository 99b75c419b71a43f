//! How is a host drained? The contract between the requester (operator, fleet updater) and the services on the host.
//!
//! 1. [`ask`] writes a [`DrainRecord`] with intent `drain` and the services that must answer.
//! 2. Each service moves its work away and answers under its own key: pending with a reason, then drained.
//! 3. [`undrain`] writes the same record with intent `return` and the next epoch.
//! 4. Each service takes up work again and answers: pending with a reason, then healthy.
//! 5. When all are healthy (or the host is down, so that it comes back without a drain), the kernel's controller
//!    removes the record and its answers in one transaction.
//!
//! An answer is valid only for its epoch and its run of the host's daemon, and if it is newer than the drain itself. It
//! can be written only while the drain is unchanged since the service read it. So a delayed answer never counts for a
//! later drain, and an answer from before a restart never counts after it.

mod ask;
mod keeper;
mod question;
mod status;

pub use ask::{Ask, DrainChange, ask, undrain, wish_to_drain, wish_to_return};
pub use keeper::{DrainKeeper, statuses};
pub use question::{Question, own_question, own_ranges, questions};
pub use status::{DrainPhase, DrainStatus, ServiceState, ServiceStatus, status};

use capstan_meta::Txn;
use capstan_meta::json_records;
use capstan_meta::record::{Extra, Key, Stored};
use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;
use crate::keys::{AnswerKey, DrainKey, HostId, ServiceName};

/// What a drain asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Intent {
    /// The services move their work elsewhere.
    Drain,
    /// The services take up work again.
    Return,
}

/// The request to drain a host or to return it to service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// What is requested.
    pub intent: Intent,
    /// Grows with every change of the request; answers name the epoch that they answer.
    pub epoch: Epoch,
    /// The requester.
    pub asked_by: String,
    /// The reason.
    pub reason: String,
    /// When, in seconds since 1970.
    pub asked_at: u64,
    /// The services that the host ran at the time of the request; all of them must answer.
    pub services: Vec<ServiceName>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A service's answer to a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Answer {
    /// Not yet, and why.
    Pending {
        /// What it is waiting for, for an operator.
        reason: String,
    },
    /// No work of this service is left on the host.
    Drained,
    /// The service works normally on the host.
    Healthy,
}

/// Something whose copies must not be down together, named by its service: `redis/demo/<shard>`.
///
/// Two hosts whose answers share a unit hold copies of the same data and are never taken down at the same time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FailureUnit(pub String);

impl std::fmt::Display for FailureUnit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A service's answer as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainAnswer {
    /// The epoch of the drain that it answers.
    pub epoch: Epoch,
    /// The answer.
    #[serde(flatten)]
    pub answer: Answer,
    /// When it was given, in seconds since 1970.
    pub answered_at: u64,
    /// What goes down with the host although it is drained: replicas that stay on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<FailureUnit>,
    /// The daemon run that it is about; `None` if the host was down or was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<String>,
}

impl DrainAnswer {
    /// Whether a stored answer is valid for a drain of a host that is up with this daemon run, or down.
    fn counts(given: &Stored<DrainAnswer>, drain: &Stored<DrainRecord>, boot: Option<&str>) -> bool {
        let same_run = match (&given.record.boot, boot) {
            (Some(then), Some(now)) => then == now,
            (None, _) | (_, None) => true,
        };
        // A drain that was removed by hand and requested again has the same epoch, but a later revision.
        let later = given.mod_revision > drain.create_revision;
        given.record.epoch == drain.record.epoch && later && same_run
    }
}

json_records!(DrainRecord, DrainAnswer);

/// The transaction with which a service answers the drain it saw; it fails if the request has changed since.
#[must_use]
pub fn answer(
    host: &HostId,
    service: &ServiceName,
    seen: &Stored<DrainRecord>,
    answer: Answer,
    answered_at: u64,
) -> Txn {
    answer_holding(host, service, seen, answer, Vec::new(), answered_at)
}

/// The same for a service that keeps copies on the host: `units` go down with it.
#[must_use]
pub fn answer_holding(
    host: &HostId,
    service: &ServiceName,
    seen: &Stored<DrainRecord>,
    answer: Answer,
    units: Vec<FailureUnit>,
    answered_at: u64,
) -> Txn {
    answer_for(
        host,
        service,
        seen,
        DrainAnswer { epoch: seen.record.epoch, answer, answered_at, units, boot: None },
    )
}

fn answer_for(host: &HostId, service: &ServiceName, seen: &Stored<DrainRecord>, record: DrainAnswer) -> Txn {
    let drain = DrainKey { host: host.clone() };
    let key = AnswerKey { host: host.clone(), service: service.clone() };
    Txn::new().when(drain.unchanged(seen)).then(key.put(&record))
}
