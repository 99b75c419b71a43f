//! The JSON API of the fleet: how far it is, and how it is steered.
//!
//! Whoever changes something says so in JSON (`Content-Type: application/json`), with `{}` at least: a page of another
//! site cannot make a browser send that without asking first.

pub(crate) mod lock;
pub(crate) mod page;
pub(crate) mod rules;

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, State as Extract};
use capstan_control::keys::HostId;
use capstan_fleet::api::{Asker, FleetStatus, HistoryLine, HostList, Member, Stopped};
use capstan_fleet::decide::why::Why;
use capstan_fleet::plan::estimate::Preview;
use capstan_fleet::{Fleet, FleetError, Lrn};
use serde::{Deserialize, Serialize};

use crate::access::{Asks, NamedJson};
use crate::list::List;
use crate::{ApiError, State};

type Answer<T> = Result<Json<T>, ApiError>;

/// What somebody wants, who it is, and why.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wish {
    /// Which release, where one is meant.
    release: Option<String>,
    by: String,
    reason: String,
}

/// Which release is asked about.
#[derive(Debug, Deserialize)]
pub(crate) struct Asked {
    release: String,
}

impl Asks for Wish {
    fn asker(&mut self) -> &mut String {
        &mut self.by
    }
}

impl Wish {
    fn asker(&self) -> Asker {
        let by = if self.by.is_empty() { "http".to_owned() } else { self.by.clone() };
        Asker { by, reason: self.reason.clone() }
    }
}

impl State {
    fn fleet(&self) -> Fleet {
        Fleet::new(self.store.clone(), self.fleet.clone())
    }
}

pub(crate) async fn status(Extract(state): Extract<State>) -> Answer<FleetStatus> {
    Ok(Json(state.fleet().status().await?))
}

pub(crate) async fn hosts(Extract(state): Extract<State>) -> Answer<HostList> {
    Ok(Json(state.fleet().hosts().await?))
}

pub(crate) async fn why(Extract(state): Extract<State>, Path(lrn): Path<String>) -> Answer<Why> {
    Ok(Json(state.fleet().why(number(&lrn)?).await?))
}

fn number(lrn: &str) -> Result<Lrn, FleetError> {
    lrn.parse().map_err(|_| FleetError::Invalid(format!("{lrn:?} is not the number of a host")))
}

pub(crate) async fn plan(Extract(state): Extract<State>, Query(asked): Query<Asked>) -> Answer<Preview> {
    Ok(Json(state.fleet().plan(&asked.release).await?))
}

pub(crate) async fn history(Extract(state): Extract<State>) -> Answer<List<HistoryLine>> {
    Ok(List::of("requests", state.fleet().history().await?))
}

/// The status after a stop, and which hosts have confirmed it.
#[derive(Debug, Serialize)]
pub(crate) struct Halted {
    stopped: Stopped,
    #[serde(flatten)]
    status: FleetStatus,
}

type Wished = Result<NamedJson<Wish>, ApiError>;

pub(crate) async fn apply(Extract(state): Extract<State>, wished: Wished) -> Answer<FleetStatus> {
    let (fleet, wish) = (state.fleet(), wished?.0);
    let Some(release) = &wish.release else {
        return Err(FleetError::Invalid("say which release: {\"release\": \"1.2.3\"}".to_owned()).into());
    };
    fleet.apply(release, &wish.asker()).await?;
    Ok(Json(fleet.status().await?))
}

pub(crate) async fn pause(Extract(state): Extract<State>, wished: Wished) -> Answer<FleetStatus> {
    let fleet = state.fleet();
    fleet.pause(&wished?.asker()).await?;
    Ok(Json(fleet.status().await?))
}

pub(crate) async fn resume(Extract(state): Extract<State>, wished: Wished) -> Answer<FleetStatus> {
    let (fleet, Wish { .. }) = (state.fleet(), wished?.0);
    fleet.resume().await?;
    Ok(Json(fleet.status().await?))
}

pub(crate) async fn stop(Extract(state): Extract<State>, wished: Wished) -> Answer<Halted> {
    let fleet = state.fleet();
    let stopped = fleet.stop(&wished?.asker()).await?;
    Ok(Json(Halted { stopped, status: fleet.status().await? }))
}

pub(crate) async fn promote(Extract(state): Extract<State>, wished: Wished) -> Answer<FleetStatus> {
    let (fleet, Wish { .. }) = (state.fleet(), wished?.0);
    fleet.promote().await?;
    Ok(Json(fleet.status().await?))
}

pub(crate) async fn rollback(Extract(state): Extract<State>, wished: Wished) -> Answer<FleetStatus> {
    let (fleet, wish) = (state.fleet(), wished?.0);
    fleet.rollback(wish.release.as_deref(), &wish.asker()).await?;
    Ok(Json(fleet.status().await?))
}

pub(crate) async fn retry(
    Extract(state): Extract<State>,
    Path(lrn): Path<String>,
    wished: Wished,
) -> Answer<FleetStatus> {
    let (fleet, Wish { .. }) = (state.fleet(), wished?.0);
    fleet.retry(number(&lrn)?).await?;
    Ok(Json(fleet.status().await?))
}

pub(crate) async fn skip(
    Extract(state): Extract<State>,
    Path(lrn): Path<String>,
    wished: Wished,
) -> Answer<FleetStatus> {
    let fleet = state.fleet();
    fleet.skip(number(&lrn)?, &wished?.asker()).await?;
    Ok(Json(fleet.status().await?))
}

/// What is known about a host that joins.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Joining {
    host: Option<HostId>,
    labels: BTreeMap<String, String>,
}

pub(crate) async fn join(
    Extract(state): Extract<State>,
    Path(lrn): Path<String>,
    joining: Result<Json<Joining>, JsonRejection>,
) -> Answer<HostList> {
    let (fleet, Joining { host, labels }) = (state.fleet(), joining?.0);
    fleet.join(&Member { lrn: number(&lrn)?, host, labels }).await?;
    Ok(Json(fleet.hosts().await?))
}

pub(crate) async fn leave(
    Extract(state): Extract<State>,
    Path(lrn): Path<String>,
    wished: Wished,
) -> Answer<HostList> {
    let fleet = state.fleet();
    fleet.leave(number(&lrn)?, &wished?.asker()).await?;
    Ok(Json(fleet.hosts().await?))
}

pub(crate) async fn recover(Extract(state): Extract<State>, wished: Wished) -> Answer<FleetStatus> {
    let (fleet, wish) = (state.fleet(), wished?.0);
    fleet.recover(wish.release.as_deref(), &wish.asker()).await?;
    Ok(Json(fleet.status().await?))
}
