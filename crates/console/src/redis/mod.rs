//! The JSON API of Redis: the pool, the clusters, their moves, what is wrong and how it is put right.
//!
//! Whoever changes something with POST or PUT says so in JSON (`Content-Type: application/json`), with `{}` at least: a
//! page of another site cannot make a browser send that without asking first.

pub(crate) mod page;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, State as Extract};
use axum::http::StatusCode;
use capstan_control::findings::Finding;
use capstan_redis::api::{self, ClusterLine, ClusterPage, Connection, HostLine, MoveLine};
use capstan_redis::check::Fixed;
use capstan_redis::decide::{Change, ScalePlan};
use capstan_redis::error::BrokerError;
use capstan_redis::health;
use capstan_redis::slots::SLOTS;
use capstan_redis::spec::{ClusterSpec, Commands, Mode, Persistence, Serving, User};
use capstan_redis::status::MoveId;
use capstan_redis::{Address, ClusterName, SlotRange};
use serde::{Deserialize, Serialize};

use crate::list::List;
use crate::{ApiError, State};

type Answer<T> = Result<Json<T>, ApiError>;
type Body<T> = Result<Json<T>, JsonRejection>;

/// What a change did.
#[derive(Debug, Serialize)]
pub(crate) struct Done {
    change: Change,
}

/// The nodes of a host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offer {
    nodes: Vec<Address>,
}

/// A cluster that is to be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewCluster {
    name: ClusterName,
    nodes: u32,
    #[serde(default)]
    replicas: u32,
    #[serde(default)]
    max_memory: u64,
    #[serde(default)]
    mode: Mode,
    #[serde(default)]
    split: bool,
    /// Clients that name no database use this one.
    #[serde(default)]
    default: bool,
    #[serde(default)]
    persistence: Persistence,
    /// Data may be dropped to stay available.
    #[serde(default)]
    cache: bool,
    #[serde(default)]
    users: Vec<NewUser>,
}

/// Somebody who may connect. The password is hashed here: it is in no record and no log.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewUser {
    name: String,
    password: String,
    #[serde(default)]
    commands: Commands,
}

impl std::fmt::Debug for NewUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NewUser({:?}, ..)", self.name)
    }
}

/// How large a cluster is to be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Size {
    nodes: u32,
    /// Only say what would be done.
    #[serde(default)]
    dry_run: bool,
}

/// What scaling will do, and whether it was asked for.
#[derive(Debug, Serialize)]
pub(crate) struct Scaled {
    change: Option<Change>,
    plan: ScalePlan,
}

/// Slots that are to move.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMove {
    /// `0-99`, or one slot.
    slots: String,
    to: Address,
}

/// Moves that were begun.
#[derive(Debug, Serialize)]
pub(crate) struct Begun {
    moves: Vec<MoveId>,
}

/// A primary, and the replica that takes its place; without one, the first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Succession {
    primary: Address,
    replica: Option<Address>,
}

/// Who leads now.
#[derive(Debug, Serialize)]
pub(crate) struct Successor {
    primary: Address,
}

/// Nothing but the will.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// Whether proxies are asked about their nodes.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct View {
    #[serde(default)]
    live: bool,
}

fn cluster(name: &str) -> Result<ClusterName, ApiError> {
    name.parse().map_err(|error| invalid(format!("{error}")))
}

fn address(text: &str) -> Result<Address, ApiError> {
    text.parse().map_err(|error| invalid(format!("{error}")))
}

fn range(text: &str) -> Result<SlotRange, ApiError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ends = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
    let ends = ends.filter(|(_, last)| *last < u32::from(SLOTS));
    let range = ends.and_then(|(first, last)| SlotRange::new(first, last).ok());
    range.ok_or_else(|| {
        invalid(format!("{text:?} is not a range of slots; write A-B, such as 0-1000, up to 16383"))
    })
}

fn invalid(text: String) -> ApiError {
    BrokerError::Invalid(text).into()
}

pub(crate) async fn hosts(Extract(state): Extract<State>) -> Answer<List<HostLine>> {
    Ok(List::of("hosts", api::hosts_list(&state.store).await?))
}

pub(crate) async fn add_host(
    Extract(state): Extract<State>,
    Path(proxy): Path<String>,
    offer: Body<Offer>,
) -> Answer<Done> {
    let change = api::hosts_add(&state.store, &address(&proxy)?, &offer?.nodes).await?;
    Ok(Json(Done { change }))
}

pub(crate) async fn remove_host(Extract(state): Extract<State>, Path(proxy): Path<String>) -> Answer<Done> {
    Ok(Json(Done { change: api::hosts_remove(&state.store, &address(&proxy)?).await? }))
}

pub(crate) async fn clusters(Extract(state): Extract<State>) -> Answer<List<ClusterLine>> {
    Ok(List::of("clusters", api::list(&state.store).await?))
}

pub(crate) async fn create(
    Extract(state): Extract<State>,
    new: Body<NewCluster>,
) -> Result<(StatusCode, Json<ClusterPage>), ApiError> {
    let Json(new) = new?;
    let user = |user: NewUser| User::new(&user.name, &user.password, user.commands);
    let users = new.users.into_iter().map(user).collect::<Result<_, _>>();
    let users = users.map_err(|invalid| BrokerError::Invalid(invalid.to_string()))?;
    let serving = Serving {
        mode: new.mode,
        split: new.split,
        default: new.default,
        users,
        persistence: new.persistence,
        cache: new.cache,
        ..Serving::default()
    };
    let spec = ClusterSpec { nodes: new.nodes, replicas: new.replicas, max_memory: new.max_memory, serving };
    let page = api::create(&state.store, &new.name, &spec).await?;
    Ok((StatusCode::CREATED, Json(page)))
}

pub(crate) async fn show(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    Query(view): Query<View>,
) -> Answer<ClusterPage> {
    Ok(Json(state.cluster_page(&cluster(&name)?, view.live).await?))
}

pub(crate) async fn delete(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    api::delete(&state.store, &cluster(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn scale(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    size: Body<Size>,
) -> Answer<Scaled> {
    let (name, Json(size)) = (cluster(&name)?, size?);
    let plan = api::scale_plan(&state.store, &name, size.nodes).await?;
    let change = match size.dry_run {
        true => None,
        false => Some(api::scale(&state.store, &name, size.nodes).await?),
    };
    Ok(Json(Scaled { change, plan }))
}

pub(crate) async fn rebalance(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    wished: Body<Nothing>,
) -> Answer<Done> {
    let Json(Nothing {}) = wished?;
    Ok(Json(Done { change: api::rebalance(&state.store, &cluster(&name)?).await? }))
}

pub(crate) async fn connect(Extract(state): Extract<State>, Path(name): Path<String>) -> Answer<Connection> {
    Ok(Json(api::connect(&state.store, &cluster(&name)?).await?))
}

pub(crate) async fn moves(Extract(state): Extract<State>) -> Answer<List<MoveLine>> {
    Ok(List::of("moves", api::moves(&state.store).await?))
}

pub(crate) async fn begin_move(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    new: Body<NewMove>,
) -> Result<(StatusCode, Json<Begun>), ApiError> {
    let (name, Json(new)) = (cluster(&name)?, new?);
    let moves = api::move_slots(&state.store, &name, range(&new.slots)?, &new.to).await?;
    Ok((StatusCode::ACCEPTED, Json(Begun { moves })))
}

pub(crate) async fn cancel(
    Extract(state): Extract<State>,
    Path((name, id)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let id: MoveId = id.parse().map_err(|_| invalid(format!("{id:?} is not the number of a move")))?;
    api::cancel(&state.store, &cluster(&name)?, id).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn failover(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    wished: Body<Succession>,
) -> Answer<Successor> {
    let (name, Json(wish)) = (cluster(&name)?, wished?);
    let primary = api::failover(&state.store, &name, &wish.primary, wish.replica.as_ref()).await?;
    Ok(Json(Successor { primary }))
}

/// What is wrong with Redis, and what waits to be completed.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    findings: Vec<Finding>,
    pending: Vec<String>,
}

pub(crate) async fn check(Extract(state): Extract<State>) -> Answer<Check> {
    let pending = api::check(&state.store).await?.pending;
    let health = state.findings.health().await;
    Ok(Json(Check { findings: health.of_service(health::SERVICE).cloned().collect(), pending }))
}

pub(crate) async fn fix(Extract(state): Extract<State>, wished: Body<Nothing>) -> Answer<Fixed> {
    let Json(Nothing {}) = wished?;
    Ok(Json(api::fix(&state.store).await?))
}

impl State {
    /// A cluster, with what its proxies say of its nodes where they can be asked.
    async fn cluster_page(&self, name: &ClusterName, live: bool) -> Result<ClusterPage, BrokerError> {
        match self.proxies.as_deref().filter(|_| live) {
            Some(proxies) => api::show_live(&self.store, name, proxies).await,
            None => api::show(&self.store, name).await,
        }
    }
}
