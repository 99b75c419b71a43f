//! Is the process alive, and is it ready? Not ready always comes with reasons.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
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
        self.parts.send_modify(|parts| drop(parts.insert(part.to_owned(), None)));
    }

    /// This part does not, and why.
    pub fn waiting(&self, part: &str, reason: impl Into<String>) {
        let reason = Some(reason.into());
        self.parts.send_modify(|parts| drop(parts.insert(part.to_owned(), reason)));
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

/// 200 if every part is ready, else 503 with the reasons.
pub(crate) async fn readyz(Extract(state): Extract<State>) -> Response {
    let parts = checks(&state).await;
    let ready = parts.values().all(Option::is_none);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let reasons: Vec<String> =
        parts.iter().filter_map(|(part, reason)| Some(format!("{part}: {}", reason.as_ref()?))).collect();
    (status, Json(json!({ "ready": ready, "reasons": reasons, "parts": parts }))).into_response()
}
