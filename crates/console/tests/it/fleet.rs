//! The fleet over HTTP: FleetLock, the JSON API, the page.

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use capstan_console::{State, router};
use capstan_fleet::api::{Init, Member};
use capstan_fleet::{Fleet, Lrn, Tree};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{ask, state};

async fn post(state: &State, path: &str, header: (&str, &str), body: &Value) -> (StatusCode, Value) {
    let request = Request::builder().method("POST").uri(path).header(header.0, header.1);
    let request = request.body(Body::from(body.to_string())).unwrap();
    let answer = router(state.clone()).oneshot(request).await.unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

async fn lock(state: &State, verb: &str, id: &str) -> (StatusCode, Value) {
    let body = json!({ "client_params": { "id": id, "group": "default" } });
    post(state, &format!("/v1/{verb}"), ("fleet-lock-protocol", "true"), &body).await
}

async fn order(state: &State, verb: &str, body: &Value) -> (StatusCode, Value) {
    post(state, &format!("/api/v1/fleet/{verb}"), ("content-type", "application/json"), body).await
}

async fn with_hosts(state: &State) -> Fleet {
    let fleet = Fleet::new(state.store.clone(), Tree::default());
    let members = (1..=3).map(|lrn| Member { lrn: Lrn(lrn), ..Member::default() }).collect();
    fleet.init(&Init { members, config: Vec::new() }).await.unwrap();
    fleet
}

#[tokio::test]
async fn machines_take_turns_through_fleetlock() {
    let (state, _store) = state();
    with_hosts(&state).await;
    assert_eq!(lock(&state, "pre-reboot", "a").await, (StatusCode::OK, Value::Null));
    assert_eq!(lock(&state, "pre-reboot", "a").await.0, StatusCode::OK, "asking twice is asking once");
    let (status, no) = lock(&state, "pre-reboot", "b").await;
    assert_eq!((status, &no["kind"]), (StatusCode::CONFLICT, &"all_slots_taken".into()), "{no}");
    assert!(no["value"].as_str().unwrap().contains("lock:a"), "{no}");
    assert_eq!(
        lock(&state, "steady-state", "b").await.0,
        StatusCode::OK,
        "who holds nothing gives nothing back"
    );
    assert_eq!(lock(&state, "pre-reboot", "b").await.0, StatusCode::CONFLICT);
    assert_eq!(lock(&state, "steady-state", "a").await.0, StatusCode::OK);
    assert_eq!(lock(&state, "pre-reboot", "b").await.0, StatusCode::OK);
}

#[tokio::test]
async fn what_is_not_fleetlock_is_refused_by_kind() {
    let (state, _store) = state();
    let asked = json!({ "client_params": { "id": "a", "group": "default" } });
    let (status, no) = post(&state, "/v1/pre-reboot", ("x", "y"), &asked).await;
    assert_eq!((status, &no["kind"]), (StatusCode::BAD_REQUEST, &"bad_header".into()));
    let protocol = ("fleet-lock-protocol", "true");
    for body in [json!({}), json!({ "client_params": { "id": 1 } }), json!("text")] {
        let (status, no) = post(&state, "/v1/pre-reboot", protocol, &body).await;
        assert_eq!((status, &no["kind"]), (StatusCode::BAD_REQUEST, &"bad_body".into()), "{body}");
    }
    for (id, group) in [("", "default"), ("a", ""), ("a", "a/b"), (&*"x".repeat(256), "default")] {
        let body = json!({ "client_params": { "id": id, "group": group } });
        let (status, no) = post(&state, "/v1/steady-state", protocol, &body).await;
        assert_eq!((status, &no["kind"]), (StatusCode::BAD_REQUEST, &"bad_request".into()), "{body}");
    }
    let long = json!({ "client_params": { "id": "x".repeat(10_000), "group": "default" } });
    assert_eq!(post(&state, "/v1/pre-reboot", protocol, &long).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(ask(&state, "GET", "/v1/pre-reboot").await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn the_api_says_what_is_and_what_cannot_be() {
    let (state, _store) = state();
    with_hosts(&state).await;
    let (status, body) = ask(&state, "GET", "/api/v1/fleet/status").await;
    let shown: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &shown["state"]), (StatusCode::OK, &"clear".into()));
    assert_eq!(shown["hosts"].as_array().unwrap().len(), 3);
    assert_eq!(
        ask(&state, "GET", "/api/v1/fleet/history").await,
        (StatusCode::OK, r#"{"requests":[]}"#.to_owned())
    );
    assert_eq!(ask(&state, "GET", "/api/v1/fleet/hosts/2/why").await.0, StatusCode::OK);
    assert_eq!(ask(&state, "GET", "/api/v1/fleet/hosts/9/why").await.0, StatusCode::NOT_FOUND);
    assert_eq!(ask(&state, "GET", "/api/v1/fleet/hosts/x/why").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(ask(&state, "GET", "/api/v1/fleet/plan?release=9.9").await.0, StatusCode::NOT_FOUND);
    for verb in ["pause", "resume", "stop"] {
        let (status, answer) = order(&state, verb, &json!({})).await;
        assert_eq!(status, StatusCode::CONFLICT, "{verb}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains("no update is under way"), "{answer}");
    }
    assert_eq!(order(&state, "recover", &json!({})).await.0, StatusCode::NOT_FOUND);
    assert_eq!(order(&state, "apply", &json!({})).await.0, StatusCode::BAD_REQUEST);
    assert_eq!(order(&state, "apply", &json!({ "release": "9.9" })).await.0, StatusCode::NOT_FOUND);
    assert_eq!(order(&state, "stop", &json!({ "reson": "x" })).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    let plain = post(&state, "/api/v1/fleet/stop", ("content-type", "text/plain"), &json!({})).await;
    assert_eq!(plain.0, StatusCode::UNSUPPORTED_MEDIA_TYPE, "a form of another site gets nowhere");
}

#[tokio::test]
async fn the_page_shows_hosts_and_keeps_text_text() {
    let (state, _store) = state();
    assert!(ask(&state, "GET", "/fleet").await.1.contains("The fleet has no hosts"));
    with_hosts(&state).await;
    let (status, page) = ask(&state, "GET", "/fleet").await;
    assert_eq!(status, StatusCode::OK);
    for word in ["nothing is under way", "no updater runs", "<td>3<td>"] {
        assert!(page.contains(word), "{word} is not in {page}");
    }
}

#[tokio::test]
async fn a_foreign_host_header_is_refused() {
    let (state, _store) = state();
    let asked = async |host: &str| {
        let request = Request::builder().uri("/api/v1/fleet/status").header("host", host).body(Body::empty());
        router(state.clone()).oneshot(request.unwrap()).await.unwrap().status()
    };
    assert_eq!(asked("evil.example:7700").await, StatusCode::MISDIRECTED_REQUEST);
    for ours in ["127.0.0.1:7700", "localhost:7700", "[::1]:7700", "<one>"] {
        assert_eq!(asked(ours).await, StatusCode::OK, "{ours}");
    }
}

#[tokio::test]
async fn every_verb_of_the_command_line_is_there() {
    let (state, _store) = state();
    with_hosts(&state).await;
    let nothing = json!({});
    for verb in ["promote", "rollback", "stop", "pause"] {
        assert_eq!(
            order(&state, verb, &nothing).await.0,
            StatusCode::CONFLICT,
            "{verb}: nothing is under way"
        );
    }
    assert_eq!(order(&state, "hosts/1/retry", &nothing).await.0, StatusCode::NOT_FOUND);
    assert_eq!(order(&state, "hosts/1/skip", &json!({ "reason": "old" })).await.0, StatusCode::NOT_FOUND);
    let put = async |path: &str, body: Value| {
        let request = Request::builder().method("PUT").uri(format!("/api/v1/fleet/{path}"));
        let request = request.header("content-type", "application/json").body(Body::from(body.to_string()));
        router(state.clone()).oneshot(request.unwrap()).await.unwrap().status()
    };
    assert_eq!(put("config/proxy", json!({ "value": "http://ann:s3cret@squid:3128" })).await, StatusCode::OK);
    let (_, shown) = ask(&state, "GET", "/api/v1/fleet/config").await;
    assert!(shown.contains("squid:3128") && !shown.contains("s3cret"), "{shown}");
    assert_eq!(put("policies/racks", json!({ "waves": [2] })).await, StatusCode::OK);
    assert_eq!(put("policies/racks", json!({ "waves": [0] })).await, StatusCode::BAD_REQUEST);
    let (_, rules) = ask(&state, "GET", "/api/v1/fleet/policies/racks").await;
    assert!(rules.contains("\"waves\":[2]"), "{rules}");
    assert_eq!(put("hosts/7", json!({ "labels": { "zone": "a" } })).await, StatusCode::OK);
    assert!(ask(&state, "GET", "/api/v1/fleet/hosts").await.1.contains("\"lrn\":7"));
}
