//! What is the status of a drain, and what is it waiting for? Pure: from records to text for an operator.

use capstan_meta::record::Stored;
use serde::Serialize;

use super::{Answer, DrainAnswer, DrainRecord, FailureUnit, Intent};
use crate::epoch::Epoch;
use crate::hosts::HostRecord;
use crate::keys::{HostId, ServiceName};

/// The phase of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainPhase {
    /// Some service still has work on the host.
    Draining,
    /// The host is empty.
    Drained,
    /// Some service has not taken up work again.
    Returning,
    /// All services work again; the record is about to be removed.
    Returned,
}

/// The state of one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceState {
    /// It has not answered this request.
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
    /// Its state.
    pub state: ServiceState,
    /// What is missing from it, if anything.
    pub waiting_for: Option<String>,
    /// Its failure units; empty unless it has answered this request.
    pub units: Vec<FailureUnit>,
}

/// The status of a drain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainStatus {
    /// The host.
    pub host: HostId,
    /// Its phase.
    pub phase: DrainPhase,
    /// The epoch of the request.
    pub epoch: Epoch,
    /// The requester.
    pub asked_by: String,
    /// The reason.
    pub reason: String,
    /// The time of the request, in seconds since 1970.
    pub asked_at: u64,
    /// Whether the host is up.
    pub host_up: bool,
    /// Every service that must answer.
    pub services: Vec<ServiceStatus>,
}

impl DrainStatus {
    /// What goes down with the host although it is drained: hosts that share one of these stay up meanwhile.
    pub fn units(&self) -> impl Iterator<Item = &FailureUnit> {
        self.services.iter().flat_map(|service| &service.units)
    }

    /// One line per service that has not done what is requested.
    #[must_use]
    pub fn waiting(&self) -> Vec<String> {
        let lines = self.services.iter().filter_map(|status| {
            status.waiting_for.as_ref().map(|reason| format!("{}: {reason}", status.service))
        });
        lines.collect()
    }
}

/// The status of a host's drain. `host` is its registration, `answers` are those of its services.
///
/// A service that was started on the host after the request must answer too. A host that is down cannot become healthy;
/// it comes back without a drain, so its return is over at once.
#[must_use]
pub fn status(
    id: &HostId,
    stored: &Stored<DrainRecord>,
    host: Option<&HostRecord>,
    answers: &[(ServiceName, &Stored<DrainAnswer>)],
) -> DrainStatus {
    let drain = &stored.record;
    let boot = host.map(|host| host.boot.as_str());
    let mut expected: Vec<&ServiceName> = drain.services.iter().collect();
    expected.extend(host.into_iter().flat_map(|host| &host.services));
    expected.sort();
    expected.dedup();
    let services: Vec<ServiceStatus> = expected
        .into_iter()
        .map(|service| {
            let given = answers.iter().find(|(name, _)| name == service).map(|(_, given)| given);
            let given = given.filter(|given| DrainAnswer::counts(given, stored, boot));
            service_status(service, drain, host.is_some(), given.map(|given| &given.record))
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
    let (state, waiting_for) = match (drain.intent, given.map(|answer| &answer.answer)) {
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
    let units = given.map(|answer| answer.units.clone()).unwrap_or_default();
    ServiceStatus { service: service.clone(), state, waiting_for, units }
}
