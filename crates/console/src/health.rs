//! Is the process alive, is it ready, and is the cluster well? Not ready always comes with reasons.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use capstan_control::findings::{self, Finding, Severity};
use serde_json::json;
use tokio::sync::watch;

use crate::State;

/// Which parts of the process are ready; each part tells for itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health {
    parts: Arc<watch::Sender<BTreeMap<String, Option<String>>>>,
}

impl Default for Health {
    fn default() -> Health {
        Health { parts: Arc::new(watch::Sender::new(BTreeMap::new())) }
    }
}

impl Health {
    /// This part does what it should.
    pub fn ready(&self, part: &str) {
        self.set(part, None);
    }

    /// This part does not, and why.
    pub fn waiting(&self, part: &str, reason: impl Into<String>) {
        self.set(part, Some(reason.into()));
    }

    fn set(&self, part: &str, reason: Option<String>) {
        self.parts.send_if_modified(|parts| {
            let before = parts.insert(part.to_owned(), reason.clone());
            before != Some(reason)
        });
    }

    /// Waits until there are parts and all of them are ready.
    pub async fn all_ready(&self) {
        let mut parts = self.parts.subscribe();
        // The sender is here, so it cannot be gone.
        let _ = parts.wait_for(|parts| !parts.is_empty() && parts.values().all(Option::is_none)).await;
    }

    /// All parts, with the reason of those that are not ready.
    #[must_use]
    pub fn parts(&self) -> BTreeMap<String, Option<String>> {
        self.parts.borrow().clone()
    }
}

/// The parts, and the metadata store asked just now.
pub(crate) async fn checks(state: &State) -> BTreeMap<String, Option<String>> {
    let mut parts = state.health.parts();
    parts.insert("meta".to_owned(), state.store_status().await.err().map(|error| error.to_string()));
    parts
}

/// The process answers.
pub(crate) async fn livez() -> &'static str {
    "ok\n"
}

/// Whether a process with these services should be sent clients while this is true.
fn concerns(finding: &Finding, serves: &[String]) -> bool {
    finding.severity == Severity::Critical && serves.iter().any(|service| service == finding.code.service())
}

/// 200 if every part of this process is ready and nothing critical is known about the services that it runs, else 503
/// with the reasons. The findings of the whole cluster are in the body either way.
pub(crate) async fn readyz(Extract(state): Extract<State>) -> Response {
    let (parts, health) = tokio::join!(checks(&state), state.findings.health());
    let mut reasons: Vec<String> =
        parts.iter().filter_map(|(part, reason)| Some(format!("{part}: {}", reason.as_ref()?))).collect();
    let critical = health.findings.iter().filter(|finding| concerns(finding, &state.about.serves));
    reasons
        .extend(critical.map(|finding| format!("{}: {}: {}", finding.code, finding.object, finding.cause)));
    let ready = reasons.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({
        "ready": ready,
        "reasons": reasons,
        "parts": parts,
        "green": health.is_green(),
        "findings": health.to_json()["findings"],
    });
    (status, Json(body)).into_response()
}

/// 200 if the whole cluster is green, else 503; the findings either way.
pub(crate) async fn healthz(Extract(state): Extract<State>) -> Response {
    let health = state.findings.health().await;
    let status = if health.is_green() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health.to_json())).into_response()
}

/// The findings, always with 200.
pub(crate) async fn findings(Extract(state): Extract<State>) -> Response {
    Json(state.findings.health().await.to_json()).into_response()
}

/// How a severity looks on a page.
pub(crate) fn class(severity: findings::Severity) -> &'static str {
    match severity {
        Severity::Notice => "",
        Severity::Degraded | Severity::Critical => "bad",
    }
}
