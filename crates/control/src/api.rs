//! What the command line and the console ask of the kernel: plain calls, plain serialisable answers.

use std::collections::{BTreeMap, BTreeSet};

use capstan_meta::record::{BadValue, Listing, Stored};
use capstan_meta::{Store, clock};
use serde::Serialize;

use crate::drain::{self, Ask, DrainAnswer, DrainChange, DrainRecord, DrainStatus};
use crate::error::ControlError;
use crate::hosts::HostRecord;
use crate::keys::{AnswerKey, Answers, DrainKey, Drains, HostId, HostKey, Hosts, Role, ServiceName};

/// One host, as `capstan hosts list` and `show` print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostLine {
    /// The host.
    pub host: HostId,
    /// Whether its daemon is up. A host that is down is listed only while it is being drained.
    pub up: bool,
    /// What its daemon is.
    pub roles: Vec<Role>,
    /// The services on it that answer drains.
    pub services: Vec<ServiceName>,
    /// Where it listens, by protocol.
    pub addresses: BTreeMap<String, String>,
    /// The version of its daemon.
    pub version: String,
    /// What its operator says about it.
    pub labels: BTreeMap<String, String>,
    /// When its daemon started, in seconds since 1970.
    pub started_at: u64,
    /// Where its drain stands, if there is one.
    pub drain: Option<DrainStatus>,
}

/// All hosts, and what could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostList {
    /// Hosts in the order of their names.
    pub hosts: Vec<HostLine>,
    /// Records that are not readable, as text; each hides one host or one answer.
    pub problems: Vec<String>,
}

/// What became of a wish to drain or undrain a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainReply {
    /// What asking did.
    pub change: DrainChange,
    /// Where the drain stands now; nothing if there is none (any more).
    pub drain: Option<DrainStatus>,
}

/// The three lists that every answer is made of, all at one revision.
struct Everything {
    hosts: Listing<HostKey>,
    drains: Listing<DrainKey>,
    answers: Listing<AnswerKey>,
}

/// All hosts that are up, and those that are down but being drained.
pub async fn hosts_list(store: &Store) -> Result<HostList, ControlError> {
    let found = everything(store).await?;
    let mut names: BTreeSet<&HostId> = found.hosts.iter().map(|(key, _)| &key.host).collect();
    names.extend(found.drains.iter().map(|(key, _)| &key.host));
    let hosts = names.into_iter().map(|host| line(host, &found)).collect();
    Ok(HostList { hosts, problems: problems(&found) })
}

/// One host.
pub async fn host_show(store: &Store, host: &HostId) -> Result<HostLine, ControlError> {
    let list = hosts_list(store).await?;
    let found = list.hosts.into_iter().find(|line| line.host == *host);
    found.ok_or_else(|| ControlError::UnknownHost(host.clone()))
}

/// Asks for a host to be emptied. `services` are those that must answer even if the host is not up to name them.
pub async fn drain(
    store: &Store,
    host: &HostId,
    asked_by: &str,
    reason: &str,
    services: &[ServiceName],
) -> Result<DrainReply, ControlError> {
    let change = drain::ask(store, host, &wish(asked_by, reason, services)).await?;
    Ok(DrainReply { change, drain: drain_of(store, host).await? })
}

/// Asks for a host to take up work again.
pub async fn undrain(
    store: &Store,
    host: &HostId,
    asked_by: &str,
    reason: &str,
) -> Result<DrainReply, ControlError> {
    let change = drain::undrain(store, host, &wish(asked_by, reason, &[])).await?;
    Ok(DrainReply { change, drain: drain_of(store, host).await? })
}

fn wish(asked_by: &str, reason: &str, services: &[ServiceName]) -> Ask {
    Ask {
        asked_by: asked_by.to_owned(),
        reason: reason.to_owned(),
        asked_at: clock::since_epoch().as_secs(),
        services: services.to_vec(),
    }
}

async fn everything(store: &Store) -> Result<Everything, ControlError> {
    let hosts = store.list(&Hosts {}).await?;
    let drains = store.list_at(&Drains {}, hosts.revision).await?;
    let answers = store.list_at(&Answers {}, hosts.revision).await?;
    Ok(Everything { hosts, drains, answers })
}

async fn drain_of(store: &Store, host: &HostId) -> Result<Option<DrainStatus>, ControlError> {
    Ok(line(host, &everything(store).await?).drain)
}

fn line(host: &HostId, found: &Everything) -> HostLine {
    let registered = found.hosts.iter().find(|(key, _)| key.host == *host).map(|(_, stored)| &stored.record);
    let asked = found.drains.iter().find(|(key, _)| key.host == *host).map(|(_, stored)| &stored.record);
    let record = registered.cloned().unwrap_or_default();
    HostLine {
        host: host.clone(),
        up: registered.is_some(),
        drain: asked.map(|drain| status_of(host, drain, registered, &found.answers)),
        roles: record.roles,
        services: record.services,
        addresses: record.addresses,
        version: record.version,
        labels: record.labels,
        started_at: record.started_at,
    }
}

fn status_of(
    host: &HostId,
    drain: &DrainRecord,
    registered: Option<&HostRecord>,
    answers: &Listing<AnswerKey>,
) -> DrainStatus {
    let given: Vec<(ServiceName, &Stored<DrainAnswer>)> = answers
        .iter()
        .filter(|(key, _)| key.host == *host)
        .map(|(key, stored)| (key.service.clone(), stored))
        .collect();
    drain::status(host, drain, registered, &given)
}

fn problems(found: &Everything) -> Vec<String> {
    let bad = [&found.hosts.bad, &found.drains.bad, &found.answers.bad];
    bad.into_iter().flatten().map(BadValue::to_string).collect()
}
