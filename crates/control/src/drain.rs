//! How is a host emptied? The drain contract between whoever wants a host empty and the services that run on it.
//!
//! 1. Somebody [`ask`]s: [`DrainRecord`] with intent `drain` and the services that must answer.
//! 2. Each service moves its work away and answers under a key of its own: pending with a reason, then drained.
//! 3. Somebody [`undrain`]s: the same record with intent `return` and the next epoch.
//! 4. Each service takes up work again and answers: pending with a reason, then healthy.
//! 5. When all are healthy (or the host is gone, so that it comes back without a drain), the kernel's controller
//!    removes the record and its answers in one transaction: no drain stays behind.
//!
//! An answer counts only for the epoch that it names, and it can only be written while the drain is exactly as the
//! service saw it. So an answer that was under way for an hour never speaks for a later drain.

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

/// What is wanted of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Intent {
    /// That its services move their work elsewhere.
    Drain,
    /// That its services take up work again.
    Return,
}

/// The wish to empty a host or to bring it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// What is wanted.
    pub intent: Intent,
    /// Grows with every change of the wish; answers name the epoch that they answer.
    pub epoch: Epoch,
    /// Who wants it.
    pub asked_by: String,
    /// Why.
    pub reason: String,
    /// When, in seconds since 1970.
    pub asked_at: u64,
    /// The services that the host ran when it was asked; all of them must answer.
    pub services: Vec<ServiceName>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a service says about a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Answer {
    /// Not yet, and why.
    Pending {
        /// What it is waiting for, in words for an operator.
        reason: String,
    },
    /// Nothing of this service is left on the host.
    Drained,
    /// The service works on the host as if nothing had been.
    Healthy,
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
}

json_records!(DrainRecord, DrainAnswer);

/// The transaction with which a service answers the drain that it saw; it fails if the wish has changed since.
#[must_use]
pub fn answer(
    host: &HostId,
    service: &ServiceName,
    seen: &Stored<DrainRecord>,
    answer: Answer,
    answered_at: u64,
) -> Txn {
    let drain = DrainKey { host: host.clone() };
    let key = AnswerKey { host: host.clone(), service: service.clone() };
    let record = DrainAnswer { epoch: seen.record.epoch, answer, answered_at };
    Txn::new().when(drain.unchanged(seen)).then(key.put(&record))
}
