//! Requests about the cluster: its settings, its nodes, what is wrong with it.

use axum::http::{HeaderValue, Method, header};
use capstan_control::keys::HostId;
use capstan_meta::clock;
use serde_json::{Map, Value, json};

use super::input::text_of;
use super::{Call, MAX_BODY};
use crate::api::access::Access;
use crate::api::answer::{Answer, json_answer, text_answer};
use crate::api::catalogue::Catalogue;
use crate::api::documents::DEFAULT_LIMIT;
use crate::api::nodes::Nodes;
use crate::check::{Facts, findings};
use crate::error::DocsError;
use crate::keys::{Alive, Nodes as NodeKeys};

/// Where the nodes are listed.
const NODES: &str = "/db/cluster";

impl Call<'_> {
    /// The settings of the cluster and of this node, by the names that operators of the API know; no secrets.
    pub(super) fn config(&self, access: &Access) -> Result<Answer, DocsError> {
        access.administers()?;
        let inner = &self.node.inner;
        let mode = if inner.router.tokens().queue().is_some() { "RMQ" } else { "DIRECT" };
        let config = json!({
            "NODE": inner.id.as_str(), "VERSION": env!("CARGO_PKG_VERSION"), "API_PATH": "/db",
            "PORT": inner.http.port(), "MODE": mode, "TOKEN_LEN": inner.cluster.token_digits,
            "DATA_REPLICATION": inner.cluster.copies, "QUORUM": inner.cluster.min_copies,
            "API_PARSER_LIMIT": MAX_BODY, "MAX_ID_SCAN": DEFAULT_LIMIT,
            "BACKUP_DIR": inner.backups.display().to_string(),
        });
        Ok(json_answer(200, &config))
    }

    /// The nodes and their states.
    pub(super) async fn nodes(&self, access: &Access) -> Result<Answer, DocsError> {
        access.administers()?;
        let nodes = Nodes::of(&self.node.inner.router).await?;
        Ok(json_answer(200, &json!(nodes.list())))
    }

    /// Has a node take part: `podName` is its name, its address, or both as `name:port/path`.
    pub(super) async fn add_node(&self, access: &Access) -> Result<Answer, DocsError> {
        access.administers()?;
        let given = ["podName", "pod"].into_iter().find_map(|name| text_of(self.query.get(name)));
        let missing = || DocsError::refused("podName is the name of a node");
        let given = given.filter(|text| !text.is_empty()).ok_or_else(missing)?;
        let node = self.named(&given)?;
        Nodes::of(&self.node.inner.router).await?.add(&node).await?;
        if self.method == Method::POST {
            return Ok(json_answer(200, &json!({ "_ok": true })));
        }
        let mut answer = text_answer(302, &format!("Added node {node}"));
        answer.headers_mut().insert(header::LOCATION, HeaderValue::from_static(NODES));
        Ok(answer)
    }

    /// The node that a request means.
    fn named(&self, given: &str) -> Result<HostId, DocsError> {
        let snapshot = self.node.inner.router.view.snapshot();
        let address = given.split('/').next().unwrap_or_default();
        let by_address = snapshot
            .list(&Alive {})
            .iter()
            .find(|(_, found)| found.record.http.to_string() == address)
            .map(|(key, _)| key.node.clone());
        let name = address.split(':').next().unwrap_or_default();
        let known = |name: &str| {
            let all = snapshot.list(&NodeKeys {});
            all.iter().find(|(key, _)| key.node.as_str() == name).map(|(key, _)| key.node.clone())
        };
        let unknown = || DocsError::NotFound(format!("there is no node {given}"));
        known(given).or(by_address).or_else(|| known(name)).ok_or_else(unknown)
    }

    /// What is wrong, the worst first.
    pub(super) async fn log(&self, access: &Access) -> Result<Answer, DocsError> {
        access.administers()?;
        Ok(json_answer(200, &json!(self.findings().await?)))
    }

    /// Nodes and what is wrong with them.
    pub(super) async fn monitoring(&self, access: &Access) -> Result<Answer, DocsError> {
        access.administers()?;
        let nodes = Nodes::of(&self.node.inner.router).await?;
        let answer =
            json!({ "nodes": nodes.list(), "moves": nodes.moves(), "findings": self.findings().await? });
        Ok(json_answer(200, &answer))
    }

    /// Requests of this process so far, by kind.
    pub(super) fn request_metrics(&self, access: &Access) -> Result<Answer, DocsError> {
        access.administers()?;
        let inner = &self.node.inner;
        let requests: Map<String, Value> = inner
            .metrics
            .requests()
            .into_iter()
            .map(|(kind, count)| (kind.to_owned(), json!(count)))
            .collect();
        Ok(json_answer(200, &json!({ "node": inner.id.as_str(), "requests": requests })))
    }

    /// Collections of each database, and what the copies of this node amount to.
    pub(super) async fn data_metrics(&self, access: &Access) -> Result<Answer, DocsError> {
        access.administers()?;
        let (inner, catalogue) = (&self.node.inner, Catalogue(self.node));
        let (documents, bytes) = inner.metrics.weight(inner.id.as_str());
        let mut databases = Map::new();
        for database in catalogue.databases().await? {
            let collections = catalogue.collections(&database).await?.len();
            databases.insert(database.to_string(), json!({ "collections": collections }));
        }
        let answer = json!({ "node": inner.id.as_str(), "documents": documents, "bytes": bytes,
                             "databases": databases });
        Ok(json_answer(200, &answer))
    }

    async fn findings(&self) -> Result<Vec<Value>, DocsError> {
        let facts = Facts::read(&self.node.inner.router.store).await?;
        let mut found = findings(&facts, clock::since_epoch().as_secs());
        found.sort_by_key(|found| std::cmp::Reverse(found.severity));
        Ok(found.iter().map(|found| json!(found)).collect())
    }
}
