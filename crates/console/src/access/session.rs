//! Sessions of browsers: sign in with a password or an access key, see who is signed in, sign out.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, State as Extract};
use axum::http::{Extensions, HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use capstan_access::secret::Token;
use capstan_access::{Credential, Secret};
use capstan_control::events;
use serde::{Deserialize, Serialize};

use super::authenticate::{cookie, refusal};
use super::caller::Caller;
use crate::{ApiError, Peer, State};

/// The name of the cookie.
pub(super) const COOKIE: &str = "capstan_session";
/// How long a session lasts.
const LASTS: Duration = Duration::from_secs(12 * 3600);

/// A password or an access key. Never shown.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SignIn {
    user: Option<String>,
    password: Option<String>,
    key: Option<String>,
}

/// Who is signed in.
#[derive(Debug, Serialize)]
pub(crate) struct Session {
    identity: String,
    /// What a page sends in the header `x-capstan-csrf` with every change.
    csrf: Option<String>,
}

pub(crate) async fn sign_in(
    Extract(state): Extract<State>,
    extensions: Extensions,
    body: Result<Json<SignIn>, JsonRejection>,
) -> Result<Response, ApiError> {
    let peer = extensions.get::<ConnectInfo<Peer>>().map(|peer| &peer.0);
    // A cookie that was set over TLS is never sent without it.
    let secure = if peer.is_some_and(|peer| peer.encrypted) { "; Secure" } else { "" };
    let peer = peer.map(|peer| peer.address.ip());
    // What is wrong with the body could repeat the password: only what is expected is said.
    let expected = "send {\"user\", \"password\"} or {\"key\"} as JSON";
    let Json(body) = body.map_err(|wrong| ApiError::with(wrong.status(), expected.to_owned()))?;
    let credential = match body {
        SignIn { key: Some(key), user: None, password: None } => Credential::Token(Secret::new(key)),
        SignIn { key: None, user: Some(user), password: Some(password) } => {
            Credential::Password { user, password: Secret::new(password), peer }
        }
        SignIn { .. } => {
            return Err(ApiError::with(StatusCode::BAD_REQUEST, expected.to_owned()));
        }
    };
    let identity = match state.access.authenticate(&credential).await {
        Ok(identity) => identity,
        Err(refused) => return Ok(refusal(refused)),
    };
    let token = state.access.open_session(&identity, LASTS).await?;
    events::record(&state.store, &identity.name, "signed in to", "the console", "").await;
    let text = token.text();
    let set = format!(
        "{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}",
        text.reveal(),
        LASTS.as_secs()
    );
    let session = Session { identity: identity.name, csrf: Some(token.csrf()) };
    Ok(([(header::SET_COOKIE, set)], Json(session)).into_response())
}

pub(crate) async fn show(
    axum::Extension(Caller(identity)): axum::Extension<Caller>,
    headers: HeaderMap,
) -> Json<Session> {
    let csrf = cookie(&headers).and_then(Token::parse).map(|token| token.csrf());
    Json(Session { identity: identity.name, csrf })
}

pub(crate) async fn sign_out(
    Extract(state): Extract<State>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if let Some(token) = cookie(&headers).and_then(Token::parse) {
        state.access.close_session(&token).await?;
    }
    let forget = format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0");
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, forget)]).into_response())
}

/// The page on which a browser signs in.
pub(crate) async fn page() -> Html<&'static str> {
    Html(PAGE)
}

const PAGE: &str = r#"<!doctype html><html lang="en"><meta charset="utf-8"><title>Capstan: sign in</title>
<style>body{font:16px system-ui;max-width:24rem;margin:4rem auto}label{display:block;margin:.6rem 0}input{width:100%}</style>
<h1>Sign in</h1>
<form id="f"><label>User <input name="user" autocomplete="username"></label>
<label>Password or access key <input name="secret" type="password" autocomplete="current-password"></label>
<button>Sign in</button> <span id="m" role="alert"></span></form>
<script>
document.getElementById("f").addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = new FormData(event.target), secret = form.get("secret");
  const body = secret.startsWith("csk_") ? { key: secret } : { user: form.get("user"), password: secret };
  const answer = await fetch("/api/v1/session", { method: "POST", body: JSON.stringify(body),
    headers: { "content-type": "application/json" } });
  if (answer.ok) { location.href = "/"; } else {
    document.getElementById("m").textContent = (await answer.json()).error; }
});
</script></html>
"#;
