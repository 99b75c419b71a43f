//! Every route with every kind of credential, and what a browser of another site cannot do.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use capstan_access::api::{self, NewIdentity, NewKey};
use capstan_access::keys::IdentityName;
use capstan_access::spec::IdentityKind;
use capstan_access::{Anonymous, Guard, Secret};
use capstan_console::{RouteNeed, State, router, routes};
use capstan_control::hosts::HostRecord;
use capstan_control::keys::HostKey;
use capstan_meta::record::Key as _;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tower::ServiceExt as _;

const PASSWORD: &str = "a-password-of-ann";

async fn guarded() -> State {
    let (mut state, _) = super::state();
    state.access = Guard::open(state.store.clone(), Anonymous::Refused).await.unwrap();
    state
}

async fn identity(state: &State, name: &str, roles: &[&str], grants: &[String]) {
    let new = NewIdentity {
        name: IdentityName::new(name).unwrap(),
        kind: IdentityKind::User,
        password: (name == "ann").then(|| Secret::new(PASSWORD)),
        roles: roles.iter().map(|role| role.parse().unwrap()).collect(),
        grants: grants.iter().map(|grant| grant.parse().unwrap()).collect(),
    };
    api::identity_create(&state.store, &new, "test").await.unwrap();
}

async fn key(state: &State, name: &str, ttl: Option<Duration>) -> String {
    let new = NewKey { identity: IdentityName::new(name).unwrap(), note: String::new(), scope: None, ttl };
    api::key_create(&state.store, &new, "test").await.unwrap().text.reveal().to_owned()
}

async fn send(
    state: &State,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<Value>,
) -> (StatusCode, HeaderMap, Value) {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost:7700");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = match body {
        None => Body::empty(),
        Some(body) => {
            request = request.header("content-type", "application/json");
            Body::from(body.to_string())
        }
    };
    let answer = router(state.clone()).oneshot(request.body(body).unwrap()).await.unwrap();
    let (status, headers) = (answer.status(), answer.headers().clone());
    let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, headers, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

async fn with_token(state: &State, route: &RouteNeed, token: Option<&str>) -> StatusCode {
    let authorization = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<(&str, &str)> =
        authorization.iter().map(|text| ("authorization", text.as_str())).collect();
    send(state, &route.method, &filled(route.path), &headers, None).await.0
}

/// A path or an object with something in place of its parameters.
fn filled(template: &str) -> String {
    template
        .split('/')
        .map(|part| {
            let (before, part) = part.split_once(':').map_or(("", part), |(service, part)| (service, part));
            let value = if part.starts_with('{') { "1" } else { part };
            if before.is_empty() { value.to_owned() } else { format!("{before}:{value}") }
        })
        .collect::<Vec<_>>()
        .join("/")
}

#[tokio::test]
async fn every_route_refuses_every_wrong_credential() {
    let state = guarded().await;
    identity(&state, "stranger", &[], &["nothing:*".to_owned()]).await;
    identity(&state, "gone", &["admin"], &[]).await;
    let stranger = key(&state, "stranger", None).await;
    let expired = key(&state, "gone", Some(Duration::ZERO)).await;
    let revoked = key(&state, "gone", None).await;
    let id = revoked.split('_').nth(1).unwrap();
    let wrong = format!("csk_{}_{}", stranger.split('_').nth(1).unwrap(), "0".repeat(64));
    api::key_revoke(&state.store, &id.parse().unwrap(), "test").await.unwrap();
    state.access.shows(state.store.status().await.unwrap().revision).await;
    let routes = routes();
    assert!(routes.len() > 50, "{}", routes.len());
    let checks = routes.iter().enumerate().map(|(number, route)| {
        let (state, stranger, expired, revoked, wrong) = (&state, &stranger, &expired, &revoked, &wrong);
        async move {
            let what = format!("{} {}", route.method, route.path);
            let refused =
                |status: StatusCode| status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN;
            if route.public {
                assert!(
                    !refused(with_token(state, route, None).await) || route.path == "/api/v1/session",
                    "{what}"
                );
                return;
            }
            for token in [None, Some(wrong.as_str()), Some(expired), Some(revoked), Some("nonsense")] {
                assert_eq!(
                    with_token(state, route, token).await,
                    StatusCode::UNAUTHORIZED,
                    "{what} {token:?}"
                );
            }
            if route.host {
                // No credential stands in for the certificate of a host.
                let status = with_token(state, route, Some(stranger)).await;
                assert_eq!(status, StatusCode::UNAUTHORIZED, "{what}");
                return;
            }
            let Some((verb, object)) = route.grant else {
                assert!(!refused(with_token(state, route, Some(stranger)).await), "{what}");
                return;
            };
            assert_eq!(with_token(state, route, Some(stranger)).await, StatusCode::FORBIDDEN, "{what}");
            let name = format!("right-{number}");
            identity(state, &name, &[], &[format!("{}:{verb}", filled(object))]).await;
            let right = key(state, &name, None).await;
            let status = with_token(state, route, Some(&right)).await;
            assert!(!refused(status), "{what}: {status}");
        }
    });
    join_all(checks).await;
}

#[tokio::test]
async fn a_method_that_no_route_declares_is_not_served() {
    let state = guarded().await;
    identity(&state, "root", &["admin"], &[]).await;
    let bearer = format!("Bearer {}", key(&state, "root", None).await);
    for (method, path) in [("PATCH", "/api/v1/hosts"), ("POST", "/metrics"), ("DELETE", "/")] {
        let (status, _, _) = send(&state, method, path, &[("authorization", &bearer)], None).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
    }
}

#[tokio::test]
async fn the_actor_of_a_change_is_the_authenticated_identity() {
    let state = guarded().await;
    identity(&state, "ann", &["operator"], &[]).await;
    let bearer = format!("Bearer {}", key(&state, "ann", None).await);
    let host = HostKey { host: "one".parse().unwrap() };
    let record = HostRecord { services: vec!["redis".parse().unwrap()], ..HostRecord::default() };
    state.store.put(host.put(&record)).await.unwrap();
    let path = "/api/v1/hosts/one/drain?asked_by=mallory&reason=disk";
    let (status, _, reply) = send(&state, "PUT", path, &[("authorization", &bearer)], None).await;
    assert_eq!((status, &reply["drain"]["asked_by"]), (StatusCode::OK, &json!("ann")), "{reply}");
    let (status, _, _) =
        send(&state, "POST", "/api/v1/access/identities", &[("authorization", &bearer)], None).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (_, _, events) = send(&state, "GET", "/api/v1/events", &[("authorization", &bearer)], None).await;
    let texts: Vec<String> = events["events"].as_array().unwrap().iter().map(ToString::to_string).collect();
    let told = |words: &[&str]| texts.iter().any(|text| words.iter().all(|word| text.contains(word)));
    assert!(told(&["ann", "called PUT", "200", "host:one"]), "{texts:#?}");
    assert!(told(&["ann", "was denied POST", "access"]), "{texts:#?}");
    assert!(!told(&["mallory"]), "{texts:#?}");
}

#[tokio::test]
async fn a_browser_session_needs_its_cookie_and_for_changes_its_csrf_token() {
    let state = guarded().await;
    identity(&state, "ann", &["operator"], &[]).await;
    let body = json!({ "user": "ann", "password": PASSWORD });
    let (status, headers, session) = send(&state, "POST", "/api/v1/session", &[], Some(body)).await;
    assert_eq!((status, &session["identity"]), (StatusCode::OK, &json!("ann")), "{session}");
    let set = headers["set-cookie"].to_str().unwrap().to_owned();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
    let cookie = set.split(';').next().unwrap();
    let csrf = session["csrf"].as_str().unwrap();
    let (status, _, shown) = send(&state, "GET", "/api/v1/session", &[("cookie", cookie)], None).await;
    assert_eq!((status, &shown["csrf"]), (StatusCode::OK, &json!(csrf)));
    for headers in [
        vec![("cookie", cookie)],
        vec![("cookie", cookie), ("x-capstan-csrf", "0")],
        vec![("cookie", cookie), ("x-capstan-csrf", csrf), ("origin", "http://evil.example")],
        vec![("cookie", cookie), ("x-capstan-csrf", csrf), ("sec-fetch-site", "cross-site")],
    ] {
        let (status, _, no) = send(&state, "DELETE", "/api/v1/session", &headers, None).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{headers:?} {no}");
    }
    let own = [("cookie", cookie), ("x-capstan-csrf", csrf), ("origin", "http://localhost:7700")];
    assert_eq!(send(&state, "DELETE", "/api/v1/session", &own, None).await.0, StatusCode::NO_CONTENT);
    assert_eq!(send(&state, "GET", "/api/v1/session", &own, None).await.0, StatusCode::UNAUTHORIZED);
    let page = [("accept", "text/html")];
    assert_eq!(send(&state, "GET", "/", &page, None).await.0, StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn guessing_passwords_is_slowed_down_and_basic_takes_a_key() {
    let state = guarded().await;
    identity(&state, "ann", &["viewer"], &[]).await;
    let wrong = json!({ "user": "ann", "password": "not-this-one" });
    // Each pause is twice as long as the one before: the first ones may be over when a busy machine tries again.
    let mut refused = 0;
    loop {
        match send(&state, "POST", "/api/v1/session", &[], Some(wrong.clone())).await.0 {
            StatusCode::UNAUTHORIZED => refused += 1,
            status => break assert_eq!(status, StatusCode::TOO_MANY_REQUESTS),
        }
    }
    assert!((6..12).contains(&refused), "{refused}");
    use base64::Engine as _;
    let key = key(&state, "ann", None).await;
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("ann:{key}"));
    let basic = format!("Basic {basic}");
    assert_eq!(send(&state, "GET", "/metrics", &[("authorization", &basic)], None).await.0, StatusCode::OK);
}
