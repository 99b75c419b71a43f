//! The JSON API of hosts and drains, and the counts of them.

use axum::Json;
use axum::extract::{Path, Query, State as Extract};
use capstan_control::ControlError;
use capstan_control::api::{self, DrainReply, HostLine, HostList};
use capstan_control::drain::DrainPhase;
use capstan_control::keys::HostId;
use serde::Deserialize;

use crate::{ApiError, State};

/// Who asks for a drain, and why. Both are written into the record.
#[derive(Debug, Deserialize)]
pub(crate) struct Wish {
    #[serde(default = "anonymous")]
    asked_by: String,
    #[serde(default)]
    reason: String,
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
    Query(wish): Query<Wish>,
) -> Result<Json<DrainReply>, ApiError> {
    let reply = api::drain(&state.store, &named(&id)?, &wish.asked_by, &wish.reason, &[]).await?;
    Ok(Json(reply))
}

pub(crate) async fn undrain(
    Extract(state): Extract<State>,
    Path(id): Path<String>,
    Query(wish): Query<Wish>,
) -> Result<Json<DrainReply>, ApiError> {
    let reply = api::undrain(&state.store, &named(&id)?, &wish.asked_by, &wish.reason).await?;
    Ok(Json(reply))
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
