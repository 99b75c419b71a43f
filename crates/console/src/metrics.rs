//! What is counted, and how Prometheus reads it.

pub mod catalogue;
mod classic;
mod fleet;
mod logs;
mod process;
mod redis;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{MatchedPath, Request, State as Extract};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use capstan_control::tasks::KindCounts;
use capstan_docs::metrics::DocsMetrics;
use capstan_fleet::Fleet;
use capstan_steward::facts::{Facts, Records};
use capstan_topics::metrics::TopicsMetrics;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::State;
use crate::health;
use fleet::FleetMetrics;
use logs::LogMetrics;
use process::ProcessMetrics;
pub use redis::RedisMetrics;

/// Everything that a process counts. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    http_requests: Family<RequestLabels, Counter>,
    ready: Family<PartLabels, Gauge>,
    meta: MetaGauges,
    hosts: Family<HostLabels, Gauge>,
    findings: Family<FindingLabels, Gauge>,
    green: Gauge,
    tasks: TaskMetrics,
    process: ProcessMetrics,
    fleet: FleetMetrics,
    logs: LogMetrics,
    /// What the prober of this process sees.
    pub redis: RedisMetrics,
    /// What the brokers of this process count.
    pub topics: TopicsMetrics,
    /// What the document stores of this process count.
    pub docs: DocsMetrics,
}

/// Tasks by kind, read when Prometheus asks.
#[derive(Clone, Debug, Default)]
struct TaskMetrics {
    running: Family<KindLabels, Gauge>,
    started: Family<KindLabels, Counter>,
    failed: Family<KindLabels, Counter>,
}

/// The metadata store, read when Prometheus asks.
#[derive(Clone, Debug, Default)]
struct MetaGauges {
    up: Gauge,
    revision: Gauge,
    compacted: Gauge,
    size: Gauge,
    size_in_use: Gauge,
    leases: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    method: String,
    route: String,
    status: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PartLabels {
    part: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HostLabels {
    state: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FindingLabels {
    code: String,
    severity: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    kind: String,
}

impl Metrics {
    /// Counts from zero, for this version of the build.
    #[must_use]
    pub fn new(version: &str) -> Metrics {
        Metrics::with(version, |_| {})
    }

    /// As [`Metrics::new`], with the number of open watches of an embedded store.
    #[must_use]
    pub fn with_watchers(version: &str, watchers: impl Fn() -> usize + Send + Sync + 'static) -> Metrics {
        Metrics::with(version, |registry| {
            let watchers = Watchers(Box::new(watchers));
            registry.register("meta_watchers", "Open watches of the embedded store", watchers);
        })
    }

    fn with(version: &str, more: impl FnOnce(&mut Registry)) -> Metrics {
        let mut registry = Registry::with_prefix("capstan");
        let http_requests = Family::<RequestLabels, Counter>::default();
        let ready = Family::<PartLabels, Gauge>::default();
        let hosts = Family::<HostLabels, Gauge>::default();
        let meta = MetaGauges::default();
        let build = Info::new([("version".to_owned(), version.to_owned())]);
        registry.register("build", "The build that runs", build);
        registry.register("http_requests", "Requests answered over HTTP", http_requests.clone());
        registry.register("ready", "Whether a part of the process is ready (1) or not (0)", ready.clone());
        registry.register("hosts", "Hosts by state: up, draining, drained, returning, down", hosts.clone());
        let (findings, green) = (Family::<FindingLabels, Gauge>::default(), Gauge::default());
        let help = "Findings of the whole cluster by code and severity; see docs/findings.md";
        registry.register("findings", help, findings.clone());
        registry.register(
            "green",
            "Whether nothing is degraded or critical (1) or something is (0)",
            green.clone(),
        );
        let tasks = TaskMetrics::default();
        meta.register(&mut registry);
        tasks.register(&mut registry);
        let (process, redis) = (ProcessMetrics::default(), RedisMetrics::default());
        let (topics, docs) = (TopicsMetrics::default(), DocsMetrics::default());
        process.register(&mut registry);
        redis.register(&mut registry);
        topics.register(&mut registry);
        docs.register(&mut registry);
        let (fleet, logs) = (FleetMetrics::default(), LogMetrics::default());
        fleet.register(&mut registry);
        logs.register(&mut registry);
        more(&mut registry);
        Metrics {
            registry: Arc::new(registry),
            http_requests,
            ready,
            meta,
            hosts,
            findings,
            green,
            tasks,
            process,
            fleet,
            logs,
            redis,
            topics,
            docs,
        }
    }
}

impl MetaGauges {
    fn register(&self, registry: &mut Registry) {
        let sub = registry.sub_registry_with_prefix("meta");
        sub.register("up", "Whether the metadata store answers (1) or not (0)", self.up.clone());
        sub.register("revision", "Newest revision of the metadata store", self.revision.clone());
        sub.register(
            "compacted_revision",
            "Revision up to which history was dropped",
            self.compacted.clone(),
        );
        sub.register_with_unit("size", "Size of the metadata store on disk", Unit::Bytes, self.size.clone());
        let help = "Part of the size that is in use";
        sub.register_with_unit("size_in_use", help, Unit::Bytes, self.size_in_use.clone());
        sub.register("leases", "Leases of the metadata store", self.leases.clone());
    }
}

impl TaskMetrics {
    fn register(&self, registry: &mut Registry) {
        let sub = registry.sub_registry_with_prefix("tasks");
        sub.register("running", "Long-lived tasks that run, by kind", self.running.clone());
        sub.register("started", "Long-lived tasks started, restarts included", self.started.clone());
        sub.register("failed", "Long-lived tasks that failed", self.failed.clone());
    }

    fn set(&self, counts: KindCounts) {
        let labels = KindLabels { kind: counts.kind.to_owned() };
        self.running.get_or_create(&labels).set(bounded(counts.running));
        self.started.get_or_create(&labels).inner().store(counts.started, Ordering::Relaxed);
        self.failed.get_or_create(&labels).inner().store(counts.failed, Ordering::Relaxed);
    }
}

/// A gauge that is read when it is asked for.
struct Watchers(Box<dyn Fn() -> usize + Send + Sync>);

impl std::fmt::Debug for Watchers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watchers")
    }
}

impl EncodeMetric for Watchers {
    fn encode(&self, encoder: MetricEncoder<'_>) -> std::fmt::Result {
        ConstGauge::new(i64::try_from((self.0)()).unwrap_or(i64::MAX)).encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// Counts a request by what it asked for and how it was answered.
pub(crate) async fn count(Extract(metrics): Extract<Metrics>, request: Request, next: Next) -> Response {
    let method = request.method().to_string();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let response = next.run(request).await;
    let labels = RequestLabels { method, route, status: response.status().as_u16() };
    metrics.http_requests.get_or_create(&labels).inc();
    response
}

/// All of it: OpenMetrics for clients that ask for it, else the classic text form.
pub(crate) async fn scrape(Extract(state): Extract<State>, headers: HeaderMap) -> Response {
    refresh(&state).await;
    let mut text = String::new();
    if let Err(error) = encode(&mut text, &state.metrics.registry) {
        return crate::ApiError::unreadable(format!("cannot write the metrics: {error}")).into_response();
    }
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepted.contains("application/openmetrics-text") {
        const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        return ([(CONTENT_TYPE, OPEN)], text).into_response();
    }
    const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, CLASSIC)], classic::classic(&text)).into_response()
}

/// What the services show of themselves; what cannot be read stays as it was, and is a finding.
async fn refresh_services(state: &State) {
    let fleet = Fleet::new(state.store.clone(), state.fleet.clone());
    let read = async { tokio::join!(fleet.facts(), Records::read(&state.store)) };
    if let Ok((fleet_facts, records)) = tokio::time::timeout(crate::STORE_DEADLINE, read).await {
        if let Ok(fleet_facts) = fleet_facts {
            state.metrics.fleet.set(&fleet_facts);
        }
        if let Ok(records) = records {
            let now = capstan_meta::clock::since_epoch().as_secs();
            state.metrics.logs.set(&Facts::new(records, now));
        }
    }
}

async fn refresh(state: &State) {
    let metrics = &state.metrics;
    for (part, reason) in health::checks(state).await {
        metrics.ready.get_or_create(&PartLabels { part }).set(i64::from(reason.is_none()));
    }
    let status = state.store_status().await;
    metrics.meta.up.set(i64::from(status.is_ok()));
    if let Ok(status) = status {
        metrics.meta.revision.set(status.revision.0);
        metrics.meta.compacted.set(status.compacted.0);
        metrics.meta.size.set(bounded(status.db_size));
        metrics.meta.size_in_use.set(bounded(status.db_size_in_use));
        let leases = tokio::time::timeout(crate::STORE_DEADLINE, state.store.leases()).await;
        if let Ok(Ok(leases)) = leases {
            metrics.meta.leases.set(bounded(leases.len() as u64));
        }
    }
    metrics.process.refresh();
    refresh_services(state).await;
    let health = state.findings.health().await;
    metrics.green.set(i64::from(health.is_green()));
    // Those that are gone must not stay at their last value.
    metrics.findings.clear();
    for finding in &health.findings {
        let labels = FindingLabels { code: finding.code.to_string(), severity: finding.severity.to_string() };
        metrics.findings.get_or_create(&labels).inc();
    }
    state.tasks.counts().into_iter().for_each(|counts| metrics.tasks.set(counts));
    for (state_name, count) in crate::hosts::counts(state).await {
        metrics.hosts.get_or_create(&HostLabels { state: state_name }).set(count);
    }
}

pub(crate) fn bounded(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
