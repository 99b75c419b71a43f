//! The HTTP side of a Capstan process: health, metrics, the JSON API and the start page.
//!
//! A router is made from a [`State`] and served by the binary, which decides where. This crate knows hosts, drains, the fleet and
//! Redis; it may not know how the process was configured or which roles it runs, except for what the state tells it.
//!
//! Read first: [`State`] (what is served), [`Health`] (when the process is ready), [`Metrics`] (what is counted).

mod access;
mod authority;
mod error;
pub mod findings;
mod fleet;
mod health;
mod hosts;
mod list;
mod listen;
pub mod metrics;
mod openapi;
mod page;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State as Extract};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router, middleware};
use capstan_access::Guard;
use capstan_access::enroll::Signer;
use capstan_control::tasks::Supervisor;
use capstan_fleet::Tree;
use capstan_meta::{MetaError, Store, StoreStatus};
use capstan_redis::coordinator::Wire;
use serde_json::json;

use access::{Gate, Routes, admin, certs, host, manage, operate, public, session, signed_in, view};

pub use access::RouteNeed;
pub use error::ApiError;
pub use findings::{Findings, ServiceFindings};
pub use health::Health;
pub use hosts::remove_host;
pub use listen::{Peer, TlsListener};
pub use metrics::Metrics;

/// How long a page waits for the metadata store before it says that the store does not answer.
const STORE_DEADLINE: Duration = Duration::from_secs(2);

/// Where the schema registry is served, in the shape that Confluent's clients expect.
pub const SCHEMA_REGISTRY: &str = "/schema-registry";

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
    /// What is wrong with the cluster.
    pub findings: Findings,
    /// What is counted.
    pub metrics: Metrics,
    /// What runs in this process.
    pub tasks: Supervisor,
    /// Who may do what.
    pub access: Guard,
    /// The key of the authority, where this process has it: it signs certificates of hosts.
    pub signer: Option<Arc<Signer>>,
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
    /// The services that this process runs, by the first word of their findings' codes: `/readyz` refuses clients while
    /// something critical is known about one of them.
    pub serves: Vec<String>,
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
    let routes = all_routes();
    let gate =
        Gate { guard: state.access.clone(), store: state.store.clone(), needs: Arc::new(routes.table()) };
    routes
        .router
        .nest_service(SCHEMA_REGISTRY, capstan_schemas::confluent::router(state.store.clone()))
        .fallback(not_found)
        .route_layer(middleware::from_fn_with_state(gate, access::check))
        .route_layer(counted)
        .layer(middleware::from_fn_with_state(authority::Names::of(&state.about), authority::check))
        .with_state(state)
}

/// Every route and what it needs: a request to a route that is not among them is not served.
#[must_use]
pub fn routes() -> Vec<RouteNeed> {
    all_routes().list()
}

fn all_routes() -> Routes {
    Routes::default()
        .get("/", get(page::start), view("status"))
        .get("/livez", get(health::livez), public())
        .get("/readyz", get(health::readyz), public())
        .get("/healthz", get(health::healthz), view("status"))
        .get("/metrics", get(metrics::scrape), view("metrics"))
        .get("/version", get(version), public())
        .get("/api/v1/tasks", get(tasks), view("status"))
        .get("/api/v1/findings", get(health::findings), view("status"))
        .delete("/api/v1/incidents/{code}", delete(hosts::acknowledge), operate("incident:{code}"))
        .get("/api/v1/events", get(hosts::events), view("events"))
        .get("/api/v1/hosts", get(hosts::list), view("host"))
        .get("/api/v1/hosts/{id}", get(hosts::show), view("host:{id}"))
        .delete("/api/v1/hosts/{id}", delete(hosts::remove), operate("host:{id}"))
        .put("/api/v1/hosts/{id}/drain", put(hosts::drain), operate("host:{id}"))
        .delete("/api/v1/hosts/{id}/drain", delete(hosts::undrain), operate("host:{id}"))
        .get("/api/v1/openapi.json", get(openapi::serve), signed_in())
        .merge(access_routes())
        .merge(fleet_routes())
        .merge(redis_routes())
}

fn access_routes() -> Routes {
    Routes::default()
        .get("/login", get(session::page), public())
        .post("/api/v1/session", post(session::sign_in), public())
        .get("/api/v1/session", get(session::show), signed_in())
        .delete("/api/v1/session", delete(session::sign_out), signed_in())
        .get("/api/v1/access", get(manage::list), admin("access"))
        .get("/api/v1/access/why", get(manage::why), admin("access"))
        .post("/api/v1/access/identities", post(manage::create), admin("access"))
        .delete("/api/v1/access/identities/{name}", delete(manage::remove), admin("access:identity/{name}"))
        .post("/api/v1/access/identities/{name}/keys", post(manage::issue), admin("access:identity/{name}"))
        .post("/api/v1/access/keys/{id}/rotate", post(manage::rotate), admin("access:key/{id}"))
        .delete("/api/v1/access/keys/{id}", delete(manage::revoke), admin("access:key/{id}"))
        .post("/api/v1/certs/tokens", post(certs::create_token), admin("certs"))
        .delete("/api/v1/certs/hosts/{id}", delete(certs::revoke), admin("certs:host/{id}"))
        .post("/api/v1/certs/join", post(certs::join), public())
        .post("/api/v1/certs/renew", post(certs::renew), host())
}

fn fleet_routes() -> Routes {
    let locks = Routes::default()
        .post("/v1/pre-reboot", post(fleet::lock::pre_reboot), operate("fleet:lock"))
        .post("/v1/steady-state", post(fleet::lock::steady_state), operate("fleet:lock"))
        .map(|router| router.layer(DefaultBodyLimit::max(fleet::lock::MAX_BODY_BYTES)));
    Routes::default()
        .get("/fleet", get(fleet::page::show), view("fleet"))
        .get("/api/v1/fleet/status", get(fleet::status), view("fleet"))
        .get("/api/v1/fleet/hosts", get(fleet::hosts), view("fleet"))
        .get("/api/v1/fleet/hosts/{lrn}/why", get(fleet::why), view("fleet"))
        .get("/api/v1/fleet/plan", get(fleet::plan), view("fleet"))
        .get("/api/v1/fleet/history", get(fleet::history), view("fleet"))
        .post("/api/v1/fleet/apply", post(fleet::apply), operate("fleet:rollout"))
        .post("/api/v1/fleet/pause", post(fleet::pause), operate("fleet:rollout"))
        .post("/api/v1/fleet/resume", post(fleet::resume), operate("fleet:rollout"))
        .post("/api/v1/fleet/stop", post(fleet::stop), operate("fleet:rollout"))
        .post("/api/v1/fleet/recover", post(fleet::recover), operate("fleet:rollout"))
        .post("/api/v1/fleet/promote", post(fleet::promote), operate("fleet:rollout"))
        .post("/api/v1/fleet/rollback", post(fleet::rollback), operate("fleet:rollout"))
        .put("/api/v1/fleet/hosts/{lrn}", put(fleet::join), operate("fleet:host/{lrn}"))
        .delete("/api/v1/fleet/hosts/{lrn}", delete(fleet::leave), operate("fleet:host/{lrn}"))
        .post("/api/v1/fleet/hosts/{lrn}/retry", post(fleet::retry), operate("fleet:host/{lrn}"))
        .post("/api/v1/fleet/hosts/{lrn}/skip", post(fleet::skip), operate("fleet:host/{lrn}"))
        .get("/api/v1/fleet/policies", get(fleet::rules::policies), view("fleet"))
        .get("/api/v1/fleet/policies/{group}", get(fleet::rules::policy), view("fleet:policy/{group}"))
        .put("/api/v1/fleet/policies/{group}", put(fleet::rules::set_policy), operate("fleet:policy/{group}"))
        .delete(
            "/api/v1/fleet/policies/{group}",
            delete(fleet::rules::remove_policy),
            operate("fleet:policy/{group}"),
        )
        .get("/api/v1/fleet/config", get(fleet::rules::config), view("fleet"))
        .get("/api/v1/fleet/config/{key}", get(fleet::rules::setting), view("fleet:config/{key}"))
        .put("/api/v1/fleet/config/{key}", put(fleet::rules::set), operate("fleet:config/{key}"))
        .delete("/api/v1/fleet/config/{key}", delete(fleet::rules::unset), operate("fleet:config/{key}"))
        .merge(locks)
}

fn redis_routes() -> Routes {
    Routes::default()
        .get("/redis", get(redis::page::show), view("redis"))
        .get("/api/v1/redis/hosts", get(redis::hosts), view("redis:host"))
        .put("/api/v1/redis/hosts/{proxy}", put(redis::add_host), operate("redis:host/{proxy}"))
        .delete("/api/v1/redis/hosts/{proxy}", delete(redis::remove_host), operate("redis:host/{proxy}"))
        .get("/api/v1/redis/clusters", get(redis::clusters), view("redis:cluster"))
        .post("/api/v1/redis/clusters", post(redis::create), operate("redis:cluster"))
        .get("/api/v1/redis/clusters/{name}", get(redis::show), view("redis:cluster/{name}"))
        .delete("/api/v1/redis/clusters/{name}", delete(redis::delete), operate("redis:cluster/{name}"))
        .post("/api/v1/redis/clusters/{name}/scale", post(redis::scale), operate("redis:cluster/{name}"))
        .post(
            "/api/v1/redis/clusters/{name}/rebalance",
            post(redis::rebalance),
            operate("redis:cluster/{name}"),
        )
        .get("/api/v1/redis/clusters/{name}/connect", get(redis::connect), view("redis:cluster/{name}"))
        .post("/api/v1/redis/clusters/{name}/moves", post(redis::begin_move), operate("redis:cluster/{name}"))
        .delete(
            "/api/v1/redis/clusters/{name}/moves/{id}",
            delete(redis::cancel),
            operate("redis:cluster/{name}"),
        )
        .post(
            "/api/v1/redis/clusters/{name}/failover",
            post(redis::failover),
            operate("redis:cluster/{name}"),
        )
        .get("/api/v1/redis/moves", get(redis::moves), view("redis:cluster"))
        .get("/api/v1/redis/check", get(redis::check), view("redis"))
        .post("/api/v1/redis/fix", post(redis::fix), operate("redis"))
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
