//! The router as a client sees it, on an in-memory store.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod access;
mod fleet;
mod openapi;
mod redis;
mod tls;

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use capstan_access::{Anonymous, Guard, Policy};
use capstan_console::{About, Findings, Health, Metrics, State, router};
use capstan_control::tasks::Supervisor;
use capstan_fleet::Tree;
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::{Put, Store};
use serde_json::Value;
use tower::ServiceExt as _;

fn state() -> (State, Embedded) {
    let store = Embedded::in_memory(Options::default());
    let about = About {
        version: "1.2.3".to_owned(),
        host: Some("<one>".to_owned()),
        serves: vec!["redis".to_owned()],
        endpoints: Vec::new(),
    };
    let state = State {
        store: Store::new(store.clone()),
        fleet: Tree::default(),
        proxies: None,
        health: Health::default(),
        findings: Findings::new(Store::new(store.clone()), Tree::default()),
        metrics: Metrics::new("1.2.3"),
        tasks: Supervisor::default(),
        access: Guard::fixed(Policy::default(), Anonymous::Admin),
        signer: None,
        about: Arc::new(about),
    };
    (state, store)
}

async fn ask(state: &State, method: &str, path: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let answer = router(state.clone()).oneshot(request).await.unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn not_ready_comes_with_the_reasons() {
    let (state, _store) = state();
    state.health.waiting("host", "not registered yet");
    let (status, body) = ask(&state, "GET", "/readyz").await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &answer["ready"]), (StatusCode::SERVICE_UNAVAILABLE, &Value::Bool(false)));
    assert_eq!(answer["reasons"][0], "host: not registered yet");
    assert_eq!(ask(&state, "GET", "/livez").await.0, StatusCode::OK);
    state.health.ready("host");
    assert_eq!(ask(&state, "GET", "/readyz").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_store_that_has_stopped_is_a_reason_and_not_a_crash() {
    let (state, store) = state();
    store.close().await.unwrap();
    let (status, body) = ask(&state, "GET", "/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(body.contains("meta: "), "{body}");
    assert_eq!(ask(&state, "GET", "/api/v1/hosts").await.0, StatusCode::SERVICE_UNAVAILABLE);
    let (status, metrics) = ask(&state, "GET", "/metrics").await;
    assert!(status == StatusCode::OK && metrics.contains("capstan_meta_up 0"), "{metrics}");
    assert!(ask(&state, "GET", "/").await.1.contains("does not answer"));
}

#[tokio::test]
async fn errors_of_the_api_say_what_is_wrong() {
    let (state, _store) = state();
    let (status, body) = ask(&state, "PUT", "/api/v1/hosts/two/drain?asked_by=me").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body.contains("host two is not registered"), "{body}");
    assert_eq!(ask(&state, "GET", "/api/v1/hosts/a%2Fb").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(ask(&state, "GET", "/nothing").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn names_are_text_on_the_page() {
    let (state, _store) = state();
    let (_, page) = ask(&state, "GET", "/").await;
    assert!(page.contains("&lt;one&gt;") && !page.contains("<one>"), "{page}");
}

#[tokio::test]
async fn topics_are_part_of_the_findings() {
    let (state, _store) = state();
    assert!(!ask(&state, "GET", "/api/v1/findings").await.1.contains("topics-"));
    let key = "/capstan/topics/topic/default/broken";
    state.store.put(Put::new(key, "{")).await.unwrap();
    let fresh = State { findings: Findings::new(state.store.clone(), Tree::default()), ..state };
    let (_, body) = ask(&fresh, "GET", "/api/v1/findings").await;
    assert!(body.contains("topics-key-unreadable") && body.contains(key), "{body}");
}

#[tokio::test]
async fn the_schema_registry_is_served_below_its_prefix() {
    let (state, _store) = state();
    assert_eq!(ask(&state, "GET", "/schema-registry/subjects").await, (StatusCode::OK, "[]".to_owned()));
    let (status, body) = ask(&state, "GET", "/schema-registry/subjects/none/versions").await;
    assert!(status == StatusCode::NOT_FOUND && body.contains("40401"), "{body}");
}
