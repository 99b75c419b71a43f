//! FleetLock: machines that reboot by themselves take the same slots as those that the fleet updates.
//!
//! `POST /v1/pre-reboot` takes a slot, `POST /v1/steady-state` gives it back; both may be repeated. A request carries
//! the header `fleet-lock-protocol: true` and says in its body who asks; what is not a yes is `{kind, value}`.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State as Extract;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use capstan_fleet::FleetError;
use capstan_fleet::api::{Lock, LockAnswer};
use capstan_meta::Remedy;
use serde::Deserialize;
use serde_json::json;

use crate::State;

/// The longest body: two names of 255 bytes, escaped, and what surrounds them.
pub(crate) const MAX_BODY_BYTES: usize = 8 * 1024;

#[derive(Deserialize)]
struct Body {
    client_params: Lock,
}

/// A no, as the protocol says it.
pub(crate) struct No {
    status: StatusCode,
    kind: &'static str,
    value: String,
}

impl No {
    fn new(status: StatusCode, kind: &'static str, value: impl Into<String>) -> No {
        No { status, kind, value: value.into() }
    }
}

impl From<FleetError> for No {
    fn from(error: FleetError) -> No {
        let (status, kind) = match error.remedy() {
            Remedy::Reject => (StatusCode::BAD_REQUEST, "bad_request"),
            Remedy::Retry | Remedy::Refresh | Remedy::Fenced => {
                (StatusCode::SERVICE_UNAVAILABLE, "try_again")
            }
            Remedy::Report => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        No::new(status, kind, error.to_string())
    }
}

impl IntoResponse for No {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "kind": self.kind, "value": self.value }))).into_response()
    }
}

fn asked(headers: &HeaderMap, body: &[u8]) -> Result<Lock, No> {
    if headers.get("fleet-lock-protocol").is_none_or(|value| value.as_bytes() != b"true") {
        let text = "the header `fleet-lock-protocol: true` is missing";
        return Err(No::new(StatusCode::BAD_REQUEST, "bad_header", text));
    }
    let body: Body = serde_json::from_slice(body).map_err(|error| {
        let text = format!("the body is not {{\"client_params\": {{\"id\", \"group\"}}}}: {error}");
        No::new(StatusCode::BAD_REQUEST, "bad_body", text)
    })?;
    Ok(body.client_params)
}

/// A machine wants to reboot.
pub(crate) async fn pre_reboot(
    Extract(state): Extract<State>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, No> {
    let lock = asked(&headers, &body)?;
    match state.fleet().pre_reboot(&lock).await? {
        LockAnswer::Granted => Ok(StatusCode::OK.into_response()),
        LockAnswer::Held { why } => Err(No::new(StatusCode::CONFLICT, "held", why)),
        LockAnswer::AllSlotsTaken { holders } => {
            let text = format!("all slots of group {} are taken, by {}", lock.group, holders.join(", "));
            Err(No::new(StatusCode::CONFLICT, "all_slots_taken", text))
        }
    }
}

/// A machine is back.
pub(crate) async fn steady_state(
    Extract(state): Extract<State>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, No> {
    let lock = asked(&headers, &body)?;
    state.fleet().steady_state(&lock).await?;
    Ok(StatusCode::OK.into_response())
}
