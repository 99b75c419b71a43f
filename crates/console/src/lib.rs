//! The HTTP side of a Capstan process: health, metrics, the JSON API and the start page.
//!
//! A router is made from a [`State`] and served by the binary, which decides where. This crate knows hosts, drains, the fleet and
//! Redis; it may not know how the process was configured or which roles it runs, except for what the state tells it.
//!
//! Read first: [`State`] (what is served), [`Health`] (when the process is ready), [`Metrics`] (what is counted).

mod error;
mod fleet;
mod health;
mod hosts;
mod metrics;
mod openapi;
mod page;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State as Extract};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router, middleware};
use capstan_control::tasks::Supervisor;
use capstan_fleet::Tree;
use capstan_meta::{MetaError, Store, StoreStatus};
use capstan_redis::coordinator::Wire;
use serde_json::json;

pub use error::ApiError;
pub use health::Health;
pub use metrics::Metrics;

/// How long a page waits for the metadata store before it says that the store does not answer.
const STORE_DEADLINE: Duration = Duration::from_secs(2);

/// What the router serves. Cheap to clone.
#[derive(Clone, Debug)]
pub struct State {
    /// The metadata store.
    pub store: Store,
    /// The keys of the fleet in it.
    pub fleet: Tree,
    /// A way to ask Redis proxies about their nodes, where this process has the right to.
    pub proxies: Option<Arc<Wire>>,
    /// Which parts of the process are ready.
    pub health: Health,
    /// What is counted.
    pub metrics: Metrics,
    /// What runs in this process.
    pub tasks: Supervisor,
    /// About this process.
    pub about: Arc<About>,
}

/// What a process says about itself.
#[derive(Clone, Debug)]
pub struct About {
    /// Version of the build.
    pub version: String,
    /// Id of the host that the process stands for, if it stands for one.
    pub host: Option<String>,
    /// What runs where: name and address, in the order in which they are shown.
    pub endpoints: Vec<(String, String)>,
}

impl State {
    /// The store's own status, unless it takes too long.
    async fn store_status(&self) -> Result<StoreStatus, MetaError> {
        match tokio::time::timeout(STORE_DEADLINE, self.store.status()).await {
            Ok(status) => status,
            Err(_) => Err(MetaError::Unavailable(format!("no answer within {} s", STORE_DEADLINE.as_secs()))),
        }
    }
}

/// Everything that is served over HTTP.
pub fn router(state: State) -> Router {
    let counted = middleware::from_fn_with_state(state.metrics.clone(), metrics::count);
    Router::new()
        .route("/", get(page::start))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .route("/healthz", get(health::readyz))
        .route("/metrics", get(metrics::scrape))
        .route("/version", get(version))
        .route("/api/v1/tasks", get(tasks))
        .route("/api/v1/hosts", get(hosts::list))
        .route("/api/v1/hosts/{id}", get(hosts::show))
        .route("/api/v1/hosts/{id}/drain", put(hosts::drain).delete(hosts::undrain))
        .route("/api/v1/openapi.json", get(openapi::serve))
        .merge(fleet_routes())
        .merge(redis_routes())
        .fallback(not_found)
        .route_layer(counted)
        .with_state(state)
}

fn fleet_routes() -> Router<State> {
    let locks = Router::new()
        .route("/v1/pre-reboot", post(fleet::lock::pre_reboot))
        .route("/v1/steady-state", post(fleet::lock::steady_state))
        .layer(DefaultBodyLimit::max(fleet::lock::MAX_BODY_BYTES));
    Router::new()
        .route("/fleet", get(fleet::page::show))
        .route("/api/v1/fleet/status", get(fleet::status))
        .route("/api/v1/fleet/hosts", get(fleet::hosts))
        .route("/api/v1/fleet/hosts/{lrn}/why", get(fleet::why))
        .route("/api/v1/fleet/plan", get(fleet::plan))
        .route("/api/v1/fleet/history", get(fleet::history))
        .route("/api/v1/fleet/apply", post(fleet::apply))
        .route("/api/v1/fleet/pause", post(fleet::pause))
        .route("/api/v1/fleet/resume", post(fleet::resume))
        .route("/api/v1/fleet/stop", post(fleet::stop))
        .route("/api/v1/fleet/recover", post(fleet::recover))
        .merge(locks)
}

fn redis_routes() -> Router<State> {
    Router::new()
        .route("/redis", get(redis::page::show))
        .route("/api/v1/redis/hosts", get(redis::hosts))
        .route("/api/v1/redis/hosts/{proxy}", put(redis::add_host).delete(redis::remove_host))
        .route("/api/v1/redis/clusters", get(redis::clusters).post(redis::create))
        .route("/api/v1/redis/clusters/{name}", get(redis::show).delete(redis::delete))
        .route("/api/v1/redis/clusters/{name}/scale", post(redis::scale))
        .route("/api/v1/redis/clusters/{name}/rebalance", post(redis::rebalance))
        .route("/api/v1/redis/clusters/{name}/connect", get(redis::connect))
        .route("/api/v1/redis/clusters/{name}/moves", post(redis::begin_move))
        .route("/api/v1/redis/clusters/{name}/moves/{id}", delete(redis::cancel))
        .route("/api/v1/redis/clusters/{name}/failover", post(redis::failover))
        .route("/api/v1/redis/moves", get(redis::moves))
        .route("/api/v1/redis/check", get(redis::check))
        .route("/api/v1/redis/fix", post(redis::fix))
}

async fn version(Extract(state): Extract<State>) -> Response {
    Json(json!({ "name": "capstan", "version": state.about.version })).into_response()
}

async fn tasks(Extract(state): Extract<State>) -> Response {
    Json(json!({ "tasks": state.tasks.snapshot(), "kinds": state.tasks.counts() })).into_response()
}

async fn not_found(uri: axum::http::Uri) -> ApiError {
    ApiError::not_found(format!("there is no page {}; the start page is /", uri.path()))
}
