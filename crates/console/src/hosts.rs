//! The JSON API of hosts and drains, and the counts of them.

use axum::Json;
use axum::extract::{Path, Query, State as Extract};
use axum::http::StatusCode;
use capstan_control::ControlError;
use capstan_control::api::{self, DrainReply, HostLine, HostList};
use capstan_control::drain::DrainPhase;
use capstan_control::keys::{EventId, HostId, IncidentCode};
use capstan_control::{events, incidents};
use capstan_meta::Store;
use capstan_redis::broker;
use capstan_redis::facts::{PROXY_ADDRESS, Tree as RedisTree};
use serde::{Deserialize, Serialize};

use crate::access::{Asks, NamedQuery};
use crate::{ApiError, State};

/// Who asks for a drain, and why. Both are written into the record.
#[derive(Debug, Deserialize)]
pub(crate) struct Wish {
    #[serde(default = "anonymous")]
    asked_by: String,
    #[serde(default)]
    reason: String,
}

impl Asks for Wish {
    fn asker(&mut self) -> &mut String {
        &mut self.asked_by
    }
}

impl Asks for Acknowledgement {
    fn asker(&mut self) -> &mut String {
        &mut self.asked_by
    }
}

fn anonymous() -> String {
    "http".to_owned()
}

pub(crate) async fn list(Extract(state): Extract<State>) -> Result<Json<HostList>, ApiError> {
    Ok(Json(api::hosts_list(&state.store).await?))
}

pub(crate) async fn show(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
) -> Result<Json<HostLine>, ApiError> {
    Ok(Json(api::host_show(&state.store, &named(&id)?).await?))
}

pub(crate) async fn drain(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    NamedQuery(wish): NamedQuery<Wish>,
) -> Result<Json<DrainReply>, ApiError> {
    let reply = api::drain(&state.store, &named(&id)?, &wish.asked_by, &wish.reason, &[]).await?;
    events::record(&state.store, &wish.asked_by, "asked to drain", format!("host {id}"), &wish.reason).await;
    Ok(Json(reply))
}

pub(crate) async fn undrain(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    NamedQuery(wish): NamedQuery<Wish>,
) -> Result<Json<DrainReply>, ApiError> {
    let reply = api::undrain(&state.store, &named(&id)?, &wish.asked_by, &wish.reason).await?;
    events::record(&state.store, &wish.asked_by, "asked to undrain", format!("host {id}"), &wish.reason)
        .await;
    Ok(Json(reply))
}

pub(crate) async fn remove(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    NamedQuery(wish): NamedQuery<Wish>,
) -> Result<StatusCode, ApiError> {
    remove_host(&state.store, &named(&id)?, &wish.asked_by).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What services keep on a host, in words.
async fn held_by(store: &Store, line: &HostLine) -> Result<Vec<String>, ControlError> {
    let Some(proxy) = line.addresses.get(PROXY_ADDRESS).and_then(|address| address.parse().ok()) else {
        return Ok(Vec::new());
    };
    let tree = RedisTree::read(store).await?;
    let owners = tree.host(&proxy).into_iter().flat_map(|host| &host.owners);
    let used = owners.filter_map(|(node, owner)| Some((node, owner.record.0.as_ref()?)));
    Ok(used.map(|(node, cluster)| format!("redis node {node} of cluster {cluster}")).collect())
}

/// Forgets a host that is down and holds nothing, in the kernel and in the pool of Redis.
pub async fn remove_host(store: &Store, host: &HostId, actor: &str) -> Result<(), ControlError> {
    let line = api::host_show(store, host).await?;
    if line.up {
        return Err(ControlError::StillUp(host.clone()));
    }
    let what = held_by(store, &line).await?;
    if !what.is_empty() {
        return Err(ControlError::HoldsData { host: host.clone(), what });
    }
    if let Some(proxy) = line.addresses.get(PROXY_ADDRESS).and_then(|address| address.parse().ok())
        && let Err(error) = broker::remove_host(store, &proxy).await
    {
        // It had no nodes, or another process was faster: the pool does not count on it either way.
        tracing::debug!(%error, %proxy, "proxy was not removed from the pool");
    }
    api::host_remove(store, host, actor).await
}

/// Which incidents are meant, and by whom.
#[derive(Debug, Deserialize)]
pub(crate) struct Acknowledgement {
    #[serde(default = "anonymous")]
    asked_by: String,
    object: Option<String>,
}

/// What was acknowledged.
#[derive(Debug, Serialize)]
pub(crate) struct Acknowledged {
    acknowledged: Vec<String>,
}

pub(crate) async fn acknowledge(
    Extract(state): Extract<State>,
    Path(code): Path<String>,
    NamedQuery(wish): NamedQuery<Acknowledgement>,
) -> Result<Json<Acknowledged>, ApiError> {
    let code = code.parse::<IncidentCode>().map_err(ControlError::from)?;
    let done = incidents::acknowledge(&state.store, &code, wish.object.as_deref(), &wish.asked_by).await?;
    Ok(Json(Acknowledged { acknowledged: done }))
}

/// After which event.
#[derive(Debug, Deserialize)]
pub(crate) struct After {
    after: Option<String>,
}

/// Events, oldest first.
#[derive(Debug, Serialize)]
pub(crate) struct EventList {
    events: Vec<events::EventLine>,
}

pub(crate) async fn events(
    Extract(state): Extract<State>,
    Query(asked): Query<After>,
) -> Result<Json<EventList>, ApiError> {
    let after = asked.after.map(|after| after.parse::<EventId>()).transpose().map_err(ControlError::from)?;
    Ok(Json(EventList { events: events::list(&state.store, after.as_ref()).await? }))
}

fn named(id: &str) -> Result<HostId, ApiError> {
    Ok(id.parse::<HostId>().map_err(ControlError::from)?)
}

/// The word for where a host stands.
pub(crate) fn standing(line: &HostLine) -> &'static str {
    match (line.up, line.drain.as_ref().map(|drain| drain.phase)) {
        (_, Some(DrainPhase::Draining)) => "draining",
        (_, Some(DrainPhase::Drained)) => "drained",
        (_, Some(DrainPhase::Returning | DrainPhase::Returned)) => "returning",
        (true, None) => "up",
        (false, None) => "down",
    }
}

/// How many hosts stand where; every standing is there, so that a graph does not keep an old figure.
pub(crate) async fn counts(state: &State) -> Vec<(String, i64)> {
    let mut counts =
        ["up", "draining", "drained", "returning", "down"].map(|standing| (standing.to_owned(), 0));
    let list = tokio::time::timeout(crate::STORE_DEADLINE, api::hosts_list(&state.store)).await;
    for line in list.ok().and_then(Result::ok).into_iter().flat_map(|list| list.hosts) {
        let standing = standing(&line);
        for (name, count) in &mut counts {
            *count += i64::from(name == standing);
        }
    }
    counts.to_vec()
}
