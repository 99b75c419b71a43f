//! Every metric that a process may show, every alert and every panel: what `docs/metrics.md`, `deploy/alerts.yml` and the
//! dashboards are printed from. A test compares this with what a process really shows.

/// What kind of metric it is, in the words of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows; read it with `rate` or `increase`. Its name ends in `_total`.
    Counter,
    /// A value of the moment.
    Gauge,
    /// Counts by size; read it with `histogram_quantile`.
    Histogram,
    /// Facts as labels; its name ends in `_info`.
    Info,
}

impl MetricKind {
    /// The word on the wire.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Info => "info",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct MetricDoc {
    /// Its name, without the endings that counters and histograms get.
    pub name: &'static str,
    /// What kind it is.
    pub kind: MetricKind,
    /// Its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

const fn metric(
    name: &'static str,
    kind: MetricKind,
    labels: &'static [&'static str],
    help: &'static str,
) -> MetricDoc {
    MetricDoc { name, kind, labels, help }
}

use MetricKind::{Counter, Gauge, Histogram, Info};

/// Every metric, by name.
pub const METRICS: &[MetricDoc] = &[
    metric("capstan_build", Info, &["version"], "The build that runs"),
    metric(
        "capstan_docs_copy_lag_entries",
        Gauge,
        &["node"],
        "Log entries that the copy which is furthest behind lacks, of tokens led by a node",
    ),
    metric("capstan_docs_documents", Gauge, &["node"], "Documents in the copies of a node"),
    metric(
        "capstan_docs_errors",
        Counter,
        &["kind", "reason"],
        "Requests for documents that failed, by kind and reason: refused, unauthorized, forbidden, not_found, duplicate, gone, too_large, unavailable, broken",
    ),
    metric("capstan_docs_index_builds", Gauge, &["node"], "Tokens led by a node that build an index"),
    metric(
        "capstan_docs_moved_bytes",
        Counter,
        &[],
        "Bytes that came with tokens that move to nodes of this process",
    ),
    metric("capstan_docs_moves", Counter, &[], "Tokens that have moved to nodes of this process"),
    metric("capstan_docs_moves_under_way", Gauge, &["node"], "Tokens that are moving to a node"),
    metric("capstan_docs_request_seconds", Histogram, &["kind"], "Time of a request for documents, by kind"),
    metric("capstan_docs_requests", Counter, &["kind"], "Requests for documents, by kind"),
    metric(
        "capstan_docs_stored_bytes",
        Gauge,
        &["node"],
        "Bytes of documents, files and index entries in the copies of a node",
    ),
    metric("capstan_docs_tokens", Gauge, &["node", "role"], "Tokens of a node by role: held, led"),
    metric(
        "capstan_findings",
        Gauge,
        &["code", "severity"],
        "Findings of the whole cluster by code and severity; see docs/findings.md",
    ),
    metric(
        "capstan_fleet_hosts",
        Gauge,
        &["state"],
        "Hosts of the fleet by what the newest update means for them: idle, waiting, finished, failed, skipped, absent, gone",
    ),
    metric("capstan_fleet_request", Gauge, &[], "Number of the newest update"),
    metric(
        "capstan_fleet_rollout",
        Gauge,
        &["state"],
        "Whether the newest update is in this state (1): none, running, stopped, complete",
    ),
    metric(
        "capstan_fleet_rollout_age_seconds",
        Gauge,
        &[],
        "For how long the update that is running has run",
    ),
    metric("capstan_green", Gauge, &[], "Whether nothing is degraded or critical (1) or something is (0)"),
    metric("capstan_hosts", Gauge, &["state"], "Hosts by state: up, draining, drained, returning, down"),
    metric("capstan_http_requests", Counter, &["method", "route", "status"], "Requests answered over HTTP"),
    metric("capstan_log_copies_under_way", Gauge, &[], "Copies that are being made"),
    metric("capstan_log_free_bytes", Gauge, &[], "Free space of the holder that has least"),
    metric("capstan_log_holders", Gauge, &["state"], "Holders of logs by state: up, down"),
    metric(
        "capstan_log_logs",
        Gauge,
        &["state"],
        "Logs by state: complete, under_replicated, cannot_commit, without_primary",
    ),
    metric("capstan_meta_compacted_revision", Gauge, &[], "Revision up to which history was dropped"),
    metric("capstan_meta_leases", Gauge, &[], "Leases of the metadata store"),
    metric("capstan_meta_revision", Gauge, &[], "Newest revision of the metadata store"),
    metric("capstan_meta_size_bytes", Gauge, &[], "Size of the metadata store on disk"),
    metric("capstan_meta_size_in_use_bytes", Gauge, &[], "Part of the size that is in use"),
    metric("capstan_meta_up", Gauge, &[], "Whether the metadata store answers (1) or not (0)"),
    metric("capstan_meta_watchers", Gauge, &[], "Open watches of the embedded store"),
    metric("capstan_process_cpu_seconds", Counter, &[], "Processor time used"),
    metric("capstan_process_open_fds", Gauge, &[], "Open file descriptors"),
    metric("capstan_process_resident_memory_bytes", Gauge, &[], "Memory in use"),
    metric("capstan_process_threads", Gauge, &[], "Threads"),
    metric("capstan_ready", Gauge, &["part"], "Whether a part of the process is ready (1) or not (0)"),
    metric("capstan_redis_keys", Gauge, &["cluster"], "Keys in the primaries of a cluster"),
    metric(
        "capstan_redis_nodes",
        Gauge,
        &["health"],
        "Nodes of all clusters by health: ready, loading, down, lost and others",
    ),
    metric(
        "capstan_redis_probe_seconds",
        Histogram,
        &[],
        "Time of a probe: connection, login and one write to each primary of the proxy",
    ),
    metric("capstan_redis_probes", Counter, &[], "Probes of proxies: a write through the path of a client"),
    metric("capstan_redis_probes_failed", Counter, &[], "Probes that found a proxy not serving"),
    metric("capstan_redis_proxies", Gauge, &[], "Proxies that this process probes"),
    metric("capstan_redis_used_memory_bytes", Gauge, &["cluster"], "Memory of the primaries of a cluster"),
    metric("capstan_tasks_failed", Counter, &["kind"], "Long-lived tasks that failed"),
    metric("capstan_tasks_running", Gauge, &["kind"], "Long-lived tasks that run, by kind"),
    metric("capstan_tasks_started", Counter, &["kind"], "Long-lived tasks started, restarts included"),
    metric("capstan_topics_acknowledged", Counter, &[], "Messages that consumers acknowledged"),
    metric("capstan_topics_backlog", Gauge, &["broker"], "Messages that subscriptions have not acknowledged"),
    metric("capstan_topics_consumers", Gauge, &["broker"], "Consumers that are registered with a broker"),
    metric(
        "capstan_topics_in_flight",
        Gauge,
        &["broker"],
        "Messages that were delivered and are not acknowledged",
    ),
    metric("capstan_topics_message_bytes", Counter, &[], "Bytes of the messages taken from producers"),
    metric("capstan_topics_messages", Counter, &[], "Messages taken from producers"),
    metric(
        "capstan_topics_missed",
        Gauge,
        &["broker"],
        "Messages of NonReliable topics that consumers missed",
    ),
    metric("capstan_topics_nacked", Counter, &[], "Messages that consumers refused"),
    metric("capstan_topics_producers", Gauge, &["broker"], "Producers that are registered with a broker"),
    metric(
        "capstan_topics_publish_seconds",
        Histogram,
        &[],
        "Time until a message that was sent alone is committed",
    ),
    metric(
        "capstan_topics_refused",
        Counter,
        &["reason"],
        "Publications that were refused, by reason: schema, invalid, limit, elsewhere, other",
    ),
    metric("capstan_topics_served", Gauge, &["broker"], "Topics that a broker has loaded"),
    metric("capstan_topics_subscriptions", Gauge, &["broker"], "Subscriptions that a broker has loaded"),
];

/// One alert rule.
#[derive(Clone, Copy, Debug)]
pub struct Alert {
    /// Its name.
    pub name: &'static str,
    /// When it fires.
    pub expr: &'static str,
    /// For how long that must be true.
    pub for_: &'static str,
    /// `critical` or `warning`.
    pub severity: &'static str,
    /// What happened, for the person who is woken.
    pub summary: &'static str,
}

const fn alert(
    name: &'static str,
    expr: &'static str,
    for_: &'static str,
    severity: &'static str,
    summary: &'static str,
) -> Alert {
    Alert { name, expr, for_, severity, summary }
}

/// Every alert.
pub const ALERTS: &[Alert] = &[
    alert(
        "CapstanCritical",
        "max by (code) (capstan_findings{severity=\"critical\"}) > 0",
        "15s",
        "critical",
        "Capstan: {{ $labels.code }}. Clients are not served, or data was lost. See docs/findings.md and `capstan status`.",
    ),
    alert(
        "CapstanDegraded",
        "max by (code) (capstan_findings{severity=\"degraded\"}) > 0",
        "10m",
        "warning",
        "Capstan: {{ $labels.code }} for ten minutes. See docs/findings.md and `capstan status`.",
    ),
    alert(
        "CapstanBlind",
        "absent(capstan_green)",
        "1m",
        "critical",
        "No Capstan process answers Prometheus: nothing is known.",
    ),
    alert(
        "CapstanProcessDown",
        "up{job=\"capstan\"} == 0",
        "1m",
        "warning",
        "The Capstan process {{ $labels.instance }} does not answer.",
    ),
    alert(
        "CapstanMetaDown",
        "min(capstan_meta_up) == 0",
        "30s",
        "critical",
        "A Capstan process cannot reach the metadata store.",
    ),
    alert(
        "CapstanNotReady",
        "min by (instance, part) (capstan_ready) == 0",
        "2m",
        "warning",
        "Part {{ $labels.part }} of {{ $labels.instance }} is not ready.",
    ),
    alert(
        "CapstanTasksFailing",
        "increase(capstan_tasks_failed_total[10m]) > 5",
        "0s",
        "warning",
        "Tasks of kind {{ $labels.kind }} keep failing on {{ $labels.instance }}.",
    ),
    alert(
        "CapstanProbesFailing",
        "increase(capstan_redis_probes_failed_total[5m]) > 10",
        "0s",
        "warning",
        "Probes of Redis proxies keep failing.",
    ),
    alert(
        "CapstanUpdateStopped",
        "max(capstan_fleet_rollout{state=\"stopped\"}) == 1",
        "1m",
        "warning",
        "A fleet update is stopped and waits for an operator: `capstan fleet status`.",
    ),
    alert(
        "CapstanDescriptors",
        "capstan_process_open_fds > 50000",
        "5m",
        "warning",
        "{{ $labels.instance }} has {{ $value }} open descriptors.",
    ),
];

/// One panel of the dashboard.
#[derive(Clone, Copy, Debug)]
pub struct Panel {
    /// Its title.
    pub title: &'static str,
    /// Its query.
    pub query: &'static str,
    /// What a line is called.
    pub legend: &'static str,
    /// The unit of the axis, as Grafana names it.
    pub unit: &'static str,
}

const fn panel(title: &'static str, query: &'static str, legend: &'static str, unit: &'static str) -> Panel {
    Panel { title, query, legend, unit }
}

/// Every panel, in reading order.
pub const PANELS: &[Panel] = &[
    panel("Green", "min(capstan_green)", "green", "bool_yes_no"),
    panel(
        "Findings",
        "max by (code, severity) (capstan_findings) or vector(0)",
        "{{severity}} {{code}}",
        "short",
    ),
    panel("Hosts", "max by (state) (capstan_hosts)", "{{state}}", "short"),
    panel("Redis keys", "max by (cluster) (capstan_redis_keys)", "{{cluster}}", "short"),
    panel("Redis memory", "max by (cluster) (capstan_redis_used_memory_bytes)", "{{cluster}}", "bytes"),
    panel("Redis nodes", "max by (health) (capstan_redis_nodes)", "{{health}}", "short"),
    panel(
        "Redis probe, 99th percentile",
        "histogram_quantile(0.99, sum by (le) (rate(capstan_redis_probe_seconds_bucket[1m])))",
        "p99",
        "s",
    ),
    panel("Redis probes that failed", "sum(rate(capstan_redis_probes_failed_total[1m]))", "failed", "ops"),
    panel("Messages taken", "sum(rate(capstan_topics_messages_total[1m]))", "messages", "ops"),
    panel("Messages acknowledged", "sum(rate(capstan_topics_acknowledged_total[1m]))", "messages", "ops"),
    panel("Messages that wait", "sum(capstan_topics_backlog)", "backlog", "short"),
    panel(
        "Publish, 99th percentile",
        "histogram_quantile(0.99, sum by (le) (rate(capstan_topics_publish_seconds_bucket[1m])))",
        "p99",
        "s",
    ),
    panel(
        "Publications refused",
        "sum by (reason) (rate(capstan_topics_refused_total[1m])) or vector(0)",
        "{{reason}}",
        "ops",
    ),
    panel(
        "Requests for documents",
        "sum by (kind) (rate(capstan_docs_requests_total[1m]))",
        "{{kind}}",
        "ops",
    ),
    panel(
        "Requests for documents that failed",
        "sum by (reason) (rate(capstan_docs_errors_total[1m])) or vector(0)",
        "{{reason}}",
        "ops",
    ),
    panel(
        "Requests for documents, 99th percentile",
        "histogram_quantile(0.99, sum by (le) (rate(capstan_docs_request_seconds_bucket[1m])))",
        "p99",
        "s",
    ),
    panel("Documents", "sum by (node) (capstan_docs_documents)", "{{node}}", "short"),
    panel("Tokens led", "sum by (node) (capstan_docs_tokens{role=\"led\"})", "{{node}}", "short"),
    panel("Lag of copies", "max by (node) (capstan_docs_copy_lag_entries)", "{{node}}", "short"),
    panel("Fleet hosts", "max by (state) (capstan_fleet_hosts)", "{{state}}", "short"),
    panel("Fleet update", "max by (state) (capstan_fleet_rollout)", "{{state}}", "bool_yes_no"),
    panel("Logs", "max by (state) (capstan_log_logs)", "{{state}}", "short"),
    panel("HTTP requests", "sum by (status) (rate(capstan_http_requests_total[1m]))", "{{status}}", "reqps"),
    panel("Metadata revisions", "rate(capstan_meta_revision[1m])", "{{instance}}", "ops"),
    panel("Metadata size", "capstan_meta_size_bytes", "{{instance}}", "bytes"),
    panel("Leases", "max(capstan_meta_leases)", "leases", "short"),
    panel("Tasks", "sum by (kind) (capstan_tasks_running)", "{{kind}}", "short"),
    panel("Processor", "rate(capstan_process_cpu_seconds_total[1m])", "{{instance}}", "percentunit"),
    panel("Memory", "capstan_process_resident_memory_bytes", "{{instance}}", "bytes"),
    panel("Descriptors", "capstan_process_open_fds", "{{instance}}", "short"),
];
