//! Where does a drain stand, and what is it waiting for? Pure: from the records to words for an operator.

use capstan_meta::record::Stored;
use serde::Serialize;

use super::{Answer, DrainAnswer, DrainRecord, Intent};
use crate::epoch::Epoch;
use crate::hosts::HostRecord;
use crate::keys::{HostId, ServiceName};

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainPhase {
    /// Some service still has work on the host.
    Draining,
    /// The host is empty.
    Drained,
    /// Some service has not taken up work again.
    Returning,
    /// Everything works again; the record is about to be removed.
    Returned,
}

/// What one service says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceState {
    /// It has not answered this wish.
    Unanswered,
    /// Not yet.
    Pending,
    /// Nothing of it is left on the host.
    Drained,
    /// It works on the host.
    Healthy,
}

/// One service of a drained host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServiceStatus {
    /// The service.
    pub service: ServiceName,
    /// What it says.
    pub state: ServiceState,
    /// Why this is waiting for it; nothing if it is not.
    pub waiting_for: Option<String>,
}

/// Where a drain stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainStatus {
    /// The host.
    pub host: HostId,
    /// How far it is.
    pub phase: DrainPhase,
    /// The epoch of the wish.
    pub epoch: Epoch,
    /// Who wants it.
    pub asked_by: String,
    /// Why.
    pub reason: String,
    /// When it was asked, in seconds since 1970.
    pub asked_at: u64,
    /// Whether the host is up.
    pub host_up: bool,
    /// Every service that must answer.
    pub services: Vec<ServiceStatus>,
}

impl DrainStatus {
    /// Why this is waiting: a line for each service that has not done what is wanted.
    #[must_use]
    pub fn waiting(&self) -> Vec<String> {
        let lines = self.services.iter().filter_map(|status| {
            status.waiting_for.as_ref().map(|reason| format!("{}: {reason}", status.service))
        });
        lines.collect()
    }
}

/// Where the drain of a host stands. `host` is its registration, `answers` what its services said.
///
/// A service that was started on the host after the wish must answer too. A host that is gone cannot become healthy;
/// it comes back without a drain, so its return is over at once.
#[must_use]
pub fn status(
    id: &HostId,
    drain: &DrainRecord,
    host: Option<&HostRecord>,
    answers: &[(ServiceName, &Stored<DrainAnswer>)],
) -> DrainStatus {
    let mut expected: Vec<&ServiceName> = drain.services.iter().collect();
    expected.extend(host.into_iter().flat_map(|host| &host.services));
    expected.sort();
    expected.dedup();
    let services: Vec<ServiceStatus> = expected
        .into_iter()
        .map(|service| {
            let given = answers.iter().find(|(name, _)| name == service).map(|(_, stored)| &stored.record);
            service_status(service, drain, host.is_some(), given)
        })
        .collect();
    let done = services.iter().all(|service| service.waiting_for.is_none());
    DrainStatus {
        host: id.clone(),
        phase: phase(drain.intent, done),
        epoch: drain.epoch,
        asked_by: drain.asked_by.clone(),
        reason: drain.reason.clone(),
        asked_at: drain.asked_at,
        host_up: host.is_some(),
        services,
    }
}

fn phase(intent: Intent, done: bool) -> DrainPhase {
    match (intent, done) {
        (Intent::Drain, false) => DrainPhase::Draining,
        (Intent::Drain, true) => DrainPhase::Drained,
        (Intent::Return, false) => DrainPhase::Returning,
        (Intent::Return, true) => DrainPhase::Returned,
    }
}

fn service_status(
    service: &ServiceName,
    drain: &DrainRecord,
    host_up: bool,
    given: Option<&DrainAnswer>,
) -> ServiceStatus {
    let current = given.filter(|answer| answer.epoch == drain.epoch);
    let (state, waiting_for) = match (drain.intent, current.map(|answer| &answer.answer)) {
        (Intent::Drain, Some(Answer::Drained)) => (ServiceState::Drained, None),
        (Intent::Return, Some(Answer::Healthy)) => (ServiceState::Healthy, None),
        (Intent::Return, _) if !host_up => (ServiceState::Unanswered, None),
        (_, Some(Answer::Pending { reason })) => (ServiceState::Pending, Some(reason.clone())),
        (Intent::Drain, Some(Answer::Healthy)) => {
            (ServiceState::Healthy, Some("still works on the host".to_owned()))
        }
        (Intent::Return, Some(Answer::Drained)) => {
            (ServiceState::Drained, Some("has not taken up work again".to_owned()))
        }
        (Intent::Drain, None) if !host_up => {
            (ServiceState::Unanswered, Some("has not answered, and the host is down".to_owned()))
        }
        (_, None) => (ServiceState::Unanswered, Some("has not answered yet".to_owned())),
    };
    ServiceStatus { service: service.clone(), state, waiting_for }
}
