//! The kernel's operations for the command line and the console: plain calls, serialisable results.

use std::collections::{BTreeMap, BTreeSet};

use capstan_meta::record::Key as _;
use capstan_meta::record::{BadValue, Listing, Stored};
use capstan_meta::{Store, Txn, clock};
use serde::Serialize;

use crate::drain::{self, Ask, DrainAnswer, DrainChange, DrainRecord, DrainStatus};
use crate::error::ControlError;
use crate::events::Event;
use crate::hosts::HostRecord;
use crate::keys::{
    AnswerKey, Answers, DrainKey, Drains, HostId, HostKey, Hosts, KnownHostKey, KnownHosts, Role, ServiceName,
};

/// One host, as `capstan hosts list` and `show` print it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostLine {
    /// The host.
    pub host: HostId,
    /// Whether its daemon is up.
    pub up: bool,
    /// Since when it is down, in seconds since 1970, if known. RFC 3339 in JSON.
    #[serde(with = "crate::time::rfc3339_option")]
    pub down_since: Option<u64>,
    /// The roles of its daemon.
    pub roles: Vec<Role>,
    /// The services on it that answer drains.
    pub services: Vec<ServiceName>,
    /// Its addresses, by protocol.
    pub addresses: BTreeMap<String, String>,
    /// The version of its daemon.
    pub version: String,
    /// Labels set by its operator.
    pub labels: BTreeMap<String, String>,
    /// When its daemon started, in seconds since 1970. RFC 3339 in JSON.
    #[serde(with = "crate::time::rfc3339_seconds")]
    pub started_at: u64,
    /// The status of its drain, if there is one.
    pub drain: Option<DrainStatus>,
}

/// All hosts, and the records that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostList {
    /// Hosts sorted by name.
    pub hosts: Vec<HostLine>,
    /// Unreadable records, as text; each hides one host or one answer.
    pub problems: Vec<String>,
}

/// The result of a drain or undrain request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DrainReply {
    /// What the request changed.
    pub change: DrainChange,
    /// The status of the drain now, if there is one.
    pub drain: Option<DrainStatus>,
}

/// The lists that every result is built from, all at one revision.
struct Everything {
    hosts: Listing<HostKey>,
    known: Listing<KnownHostKey>,
    drains: Listing<DrainKey>,
    answers: Listing<AnswerKey>,
}

/// All hosts: those that are up, those seen before, and those being drained.
pub async fn hosts_list(store: &Store) -> Result<HostList, ControlError> {
    let found = everything(store).await?;
    let mut names: BTreeSet<&HostId> = found.hosts.iter().map(|(key, _)| &key.host).collect();
    names.extend(found.known.iter().map(|(key, _)| &key.host));
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

/// Requests the drain of a host. `services` must answer even if the host is not up to list them.
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

/// Requests the return of a drained host.
pub async fn undrain(
    store: &Store,
    host: &HostId,
    asked_by: &str,
    reason: &str,
) -> Result<DrainReply, ControlError> {
    let change = drain::undrain(store, host, &wish(asked_by, reason, &[])).await?;
    Ok(DrainReply { change, drain: drain_of(store, host).await? })
}

/// Removes a host that is down. The caller checks first whether it holds data: see [`ControlError::HoldsData`].
pub async fn host_remove(store: &Store, host: &HostId, actor: &str) -> Result<(), ControlError> {
    let key = KnownHostKey { host: host.clone() };
    let up = HostKey { host: host.clone() };
    let Some(known) = store.read(&key).await? else {
        return Err(match store.read(&up).await? {
            Some(_) => ControlError::StillUp(host.clone()),
            None => ControlError::UnknownHost(host.clone()),
        });
    };
    let event = Event::new(clock::since_epoch(), actor, "removed", format!("host {host}"), "");
    let txn = Txn::new()
        .when(key.unchanged(&known))
        .when(up.absent())
        .then(key.delete())
        .then(DrainKey { host: host.clone() }.delete())
        .then(event.put());
    match store.commit(txn).await?.succeeded {
        true => Ok(()),
        false => Err(ControlError::StillUp(host.clone())),
    }
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
    let known = store.list_at(&KnownHosts {}, hosts.revision).await?;
    let drains = store.list_at(&Drains {}, hosts.revision).await?;
    let answers = store.list_at(&Answers {}, hosts.revision).await?;
    Ok(Everything { hosts, known, drains, answers })
}

async fn drain_of(store: &Store, host: &HostId) -> Result<Option<DrainStatus>, ControlError> {
    Ok(line(host, &everything(store).await?).drain)
}

fn line(host: &HostId, found: &Everything) -> HostLine {
    let registered = found.hosts.iter().find(|(key, _)| key.host == *host).map(|(_, stored)| &stored.record);
    let asked = found.drains.iter().find(|(key, _)| key.host == *host).map(|(_, stored)| stored);
    let known = found.known.iter().find(|(key, _)| key.host == *host).map(|(_, stored)| &stored.record);
    let record = registered.or(known.map(|known| &known.last)).cloned().unwrap_or_default();
    HostLine {
        host: host.clone(),
        up: registered.is_some(),
        down_since: known.and_then(|known| known.down_since).filter(|_| registered.is_none()),
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
    drain: &Stored<DrainRecord>,
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
    let bad = [&found.hosts.bad, &found.known.bad, &found.drains.bad, &found.answers.bad];
    bad.into_iter().flatten().map(BadValue::to_string).collect()
}
