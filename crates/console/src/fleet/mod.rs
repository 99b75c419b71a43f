//! The JSON API of the fleet: how far it is, and how it is steered.
//!
//! Whoever changes something says so in JSON (`Content-Type: application/json`), with `{}` at least: a page of another
//! site cannot make a browser send that without asking first.

pub(crate) mod lock;
pub(crate) mod page;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, State as Extract};
use capstan_fleet::api::{Asker, FleetStatus, HistoryLine, HostList};
use capstan_fleet::decide::why::Why;
use capstan_fleet::plan::estimate::Preview;
use capstan_fleet::{Fleet, FleetError, Lrn};
use serde::Deserialize;

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
    let number: Lrn =
        lrn.parse().map_err(|_| FleetError::Invalid(format!("{lrn:?} is not the number of a host")))?;
    Ok(Json(state.fleet().why(number).await?))
}

pub(crate) async fn plan(Extract(state): Extract<State>, Query(asked): Query<Asked>) -> Answer<Preview> {
    Ok(Json(state.fleet().plan(&asked.release).await?))
}

pub(crate) async fn history(Extract(state): Extract<State>) -> Answer<Vec<HistoryLine>> {
    Ok(Json(state.fleet().history().await?))
}

type Wished = Result<Json<Wish>, JsonRejection>;

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

pub(crate) async fn stop(Extract(state): Extract<State>, wished: Wished) -> Answer<FleetStatus> {
    let fleet = state.fleet();
    fleet.stop(&wished?.asker()).await?;
    Ok(Json(fleet.status().await?))
}

pub(crate) async fn recover(Extract(state): Extract<State>, wished: Wished) -> Answer<FleetStatus> {
    let (fleet, wish) = (state.fleet(), wished?.0);
    fleet.recover(wish.release.as_deref(), &wish.asker()).await?;
    Ok(Json(fleet.status().await?))
}
