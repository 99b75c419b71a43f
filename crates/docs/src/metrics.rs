//! Every metric of the service. The catalogue of the console describes them; a test compares the two.
//!
//! Counters are of the process. Gauges are of each node in it and are as old as its last look at itself, a few seconds;
//! counting documents takes longer the more there are.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// What nodes count. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct DocsMetrics {
    requests: Family<KindLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    latency: Family<KindLabels, Histogram, fn() -> Histogram>,
    documents: Family<NodeLabels, Gauge>,
    stored: Family<NodeLabels, Gauge>,
    tokens: Family<RoleLabels, Gauge>,
    building: Family<NodeLabels, Gauge>,
    lag: Family<NodeLabels, Gauge>,
    moving: Family<NodeLabels, Gauge>,
    moves: Counter,
    moved_bytes: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    kind: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct NodeLabels {
    node: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RoleLabels {
    node: String,
    role: &'static str,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Find,
    Get,
    Count,
    Insert,
    Update,
    Replace,
    Delete,
    Bulk,
    Changes,
    Attachment,
    /// Databases, collections, indexes.
    Catalogue,
    /// Access keys, users, backups.
    Administration,
    /// A command of another node.
    Peer,
    /// Health, version, and what is no route.
    Other,
}

impl RequestKind {
    const ALL: [RequestKind; 14] = [
        RequestKind::Find,
        RequestKind::Get,
        RequestKind::Count,
        RequestKind::Insert,
        RequestKind::Update,
        RequestKind::Replace,
        RequestKind::Delete,
        RequestKind::Bulk,
        RequestKind::Changes,
        RequestKind::Attachment,
        RequestKind::Catalogue,
        RequestKind::Administration,
        RequestKind::Peer,
        RequestKind::Other,
    ];

    fn word(self) -> &'static str {
        match self {
            RequestKind::Find => "find",
            RequestKind::Get => "get",
            RequestKind::Count => "count",
            RequestKind::Insert => "insert",
            RequestKind::Update => "update",
            RequestKind::Replace => "replace",
            RequestKind::Delete => "delete",
            RequestKind::Bulk => "bulk",
            RequestKind::Changes => "changes",
            RequestKind::Attachment => "attachment",
            RequestKind::Catalogue => "catalogue",
            RequestKind::Administration => "administration",
            RequestKind::Peer => "peer",
            RequestKind::Other => "other",
        }
    }
}

/// Why a request failed, by its HTTP status; nothing if it did not.
fn reason_of(status: u16) -> Option<&'static str> {
    match status {
        ..=399 => None,
        401 => Some("unauthorized"),
        403 => Some("forbidden"),
        404 => Some("not_found"),
        409 => Some("duplicate"),
        410 => Some("gone"),
        413 => Some("too_large"),
        503 => Some("unavailable"),
        500.. => Some("broken"),
        _ => Some("refused"),
    }
}

/// What a node has at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) held: usize,
    pub(crate) led: usize,
    pub(crate) building: usize,
    pub(crate) moving: usize,
    /// Entries that the copy which is furthest behind lacks.
    pub(crate) lag: u64,
}

impl Default for DocsMetrics {
    fn default() -> DocsMetrics {
        DocsMetrics {
            requests: Family::default(),
            errors: Family::default(),
            // From 0.1 ms to 26 s; requests are given up after 15 s.
            latency: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0001, 4.0, 10))),
            documents: Family::default(),
            stored: Family::default(),
            tokens: Family::default(),
            building: Family::default(),
            lag: Family::default(),
            moving: Family::default(),
            moves: Counter::default(),
            moved_bytes: Counter::default(),
        }
    }
}

impl DocsMetrics {
    /// Makes them part of what a process shows.
    pub fn register(&self, registry: &mut Registry) {
        let sub = registry.sub_registry_with_prefix("docs");
        sub.register("requests", "Requests for documents, by kind", self.requests.clone());
        let help = "Requests for documents that failed, by kind and reason: refused, unauthorized, forbidden, \
                    not_found, duplicate, gone, too_large, unavailable, broken";
        sub.register("errors", help, self.errors.clone());
        let help = "Time of a request for documents, by kind";
        sub.register_with_unit("request", help, Unit::Seconds, self.latency.clone());
        sub.register("documents", "Documents in the copies of a node", self.documents.clone());
        let help = "Bytes of documents, files and index entries in the copies of a node";
        sub.register_with_unit("stored", help, Unit::Bytes, self.stored.clone());
        sub.register("tokens", "Tokens of a node by role: held, led", self.tokens.clone());
        let help = "Tokens led by a node that build an index";
        sub.register("index_builds", help, self.building.clone());
        let help = "Log entries that the copy which is furthest behind lacks, of tokens led by a node";
        sub.register("copy_lag_entries", help, self.lag.clone());
        sub.register("moves_under_way", "Tokens that are moving to a node", self.moving.clone());
        sub.register("moves", "Tokens that have moved to nodes of this process", self.moves.clone());
        let help = "Bytes that came with tokens that move to nodes of this process";
        sub.register("moved_bytes", help, self.moved_bytes.clone());
    }

    /// Counts from zero: a kind that was never asked for is shown all the same.
    pub(crate) fn begin(&self) {
        for kind in RequestKind::ALL {
            let labels = KindLabels { kind: kind.word() };
            drop(self.requests.get_or_create(&labels));
            drop(self.latency.get_or_create(&labels));
        }
    }

    pub(crate) fn answered(&self, kind: RequestKind, status: u16, took: Duration) {
        let kind = kind.word();
        self.requests.get_or_create(&KindLabels { kind }).inc();
        self.latency.get_or_create(&KindLabels { kind }).observe(took.as_secs_f64());
        if let Some(reason) = reason_of(status) {
            self.errors.get_or_create(&ErrorLabels { kind, reason }).inc();
        }
    }

    /// Requests so far, by kind.
    pub(crate) fn requests(&self) -> Vec<(&'static str, u64)> {
        let count = |kind: &'static str| self.requests.get_or_create(&KindLabels { kind }).get();
        RequestKind::ALL.map(RequestKind::word).map(|kind| (kind, count(kind))).to_vec()
    }

    /// Documents and bytes in the copies of a node, as it counted them last.
    pub(crate) fn weight(&self, node: &str) -> (i64, i64) {
        let labels = NodeLabels { node: node.to_owned() };
        (self.documents.get_or_create(&labels).get(), self.stored.get_or_create(&labels).get())
    }

    pub(crate) fn moved(&self) {
        self.moves.inc();
    }

    pub(crate) fn moved_bytes(&self, bytes: usize) {
        self.moved_bytes.inc_by(bytes as u64);
    }

    pub(crate) fn weighed(&self, node: &str, documents: u64, bytes: u64) {
        let labels = NodeLabels { node: node.to_owned() };
        self.documents.get_or_create(&labels).set(bounded(documents));
        self.stored.get_or_create(&labels).set(bounded(bytes));
    }

    pub(crate) fn set(&self, node: &str, census: Census) {
        for (role, tokens) in [("held", census.held), ("led", census.led)] {
            let labels = RoleLabels { node: node.to_owned(), role };
            self.tokens.get_or_create(&labels).set(bounded(tokens as u64));
        }
        let labels = NodeLabels { node: node.to_owned() };
        self.building.get_or_create(&labels).set(bounded(census.building as u64));
        self.moving.get_or_create(&labels).set(bounded(census.moving as u64));
        self.lag.get_or_create(&labels).set(bounded(census.lag));
    }
}

fn bounded(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
