//! Redis over HTTP: the JSON API and the page.

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use capstan_console::{State, router};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{ask, state};

async fn send(state: &State, method: &str, path: &str, body: &Value) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(format!("/api/v1/redis/{path}"));
    let request =
        request.header("content-type", "application/json").body(Body::from(body.to_string())).unwrap();
    let answer = router(state.clone()).oneshot(request).await.unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
}

async fn get(state: &State, path: &str) -> Value {
    let (status, body) = ask(state, "GET", &format!("/api/v1/redis/{path}")).await;
    assert_eq!(status, StatusCode::OK, "{path}: {body}");
    serde_json::from_str(&body).unwrap()
}

/// Three hosts with two nodes each.
async fn with_hosts(state: &State) {
    for host in 1..=3 {
        let nodes = json!({ "nodes": [format!("127.0.0.1:70{host}1"), format!("127.0.0.1:70{host}2")] });
        let (status, done) = send(state, "PUT", &format!("hosts/127.0.0.1:60{host}0"), &nodes).await;
        assert_eq!((status, &done["change"]), (StatusCode::OK, &json!("made")));
        let (_, done) = send(state, "PUT", &format!("hosts/127.0.0.1:60{host}0"), &nodes).await;
        assert_eq!(done["change"], "already");
    }
}

#[tokio::test]
async fn a_cluster_is_made_looked_at_moved_and_deleted() {
    let (state, _store) = state();
    with_hosts(&state).await;
    assert_eq!(get(&state, "hosts").await["hosts"].as_array().unwrap().len(), 3);
    let new = json!({ "name": "shop", "nodes": 3, "users": [{ "name": "app", "password": "p" }] });
    let (status, page) = send(&state, "POST", "clusters", &new).await;
    assert_eq!(status, StatusCode::CREATED, "{page}");
    assert_eq!((&page["name"], &page["slots"]), (&json!("shop"), &json!(16384)));
    assert_eq!(get(&state, "clusters").await["clusters"][0]["primaries"], 3);
    assert_eq!(get(&state, "clusters/shop/connect").await["users"], json!(["app"]));
    let page = get(&state, "clusters/shop?live=true").await;
    let nodes = page["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 3);

    let (status, plan) =
        send(&state, "POST", "clusters/shop/scale", &json!({ "nodes": 4, "dry_run": true })).await;
    assert_eq!((status, &plan["change"], &plan["plan"]["to"]), (StatusCode::OK, &Value::Null, &json!(4)));
    assert_eq!(get(&state, "clusters/shop").await["wanted"], 3, "nothing was changed");

    let (from, to) = (&nodes[0], &nodes[1]);
    let slots = from["slots"][0].as_str().unwrap().split('-').next().unwrap().to_owned();
    let (status, begun) =
        send(&state, "POST", "clusters/shop/moves", &json!({ "slots": slots, "to": to["node"] })).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{begun}");
    let id = begun["moves"][0].as_u64().unwrap();
    assert_eq!(get(&state, "moves").await["moves"][0]["id"], id);
    let (status, html) = ask(&state, "GET", "/redis").await;
    assert_eq!(status, StatusCode::OK);
    for text in
        ["Cluster shop", "class=map", "<caption>Moves</caption>", "127.0.0.1:6010", "Waiting to be completed"]
    {
        assert!(html.contains(text), "{text} is not on the page: {html}");
    }
    let (status, _) = send(&state, "DELETE", &format!("clusters/shop/moves/{id}"), &Value::Null).await;
    assert_eq!(status, StatusCode::NO_CONTENT);

    let (status, _) = send(&state, "DELETE", "clusters/shop", &Value::Null).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let check = get(&state, "check").await;
    let codes: Vec<&str> =
        check["findings"].as_array().unwrap().iter().filter_map(|found| found["code"].as_str()).collect();
    assert_eq!(codes, ["redis-no-coordinator"], "{check}");
    assert_eq!(send(&state, "POST", "fix", &json!({})).await.0, StatusCode::OK);
}

#[tokio::test]
async fn what_cannot_be_is_refused_in_words() {
    let (state, _store) = state();
    with_hosts(&state).await;
    let (made, _) = send(&state, "POST", "clusters", &json!({ "name": "a", "nodes": 2 })).await;
    assert_eq!(made, StatusCode::CREATED);
    for (method, path, body, status, text) in [
        ("POST", "clusters", json!({ "name": "a", "nodes": 1 }), StatusCode::CONFLICT, "exists already"),
        ("POST", "clusters", json!({ "name": "b", "nodes": 99 }), StatusCode::CONFLICT, "nodes are needed"),
        ("POST", "clusters", json!({ "name": "b", "nodes": 0 }), StatusCode::BAD_REQUEST, ""),
        ("POST", "clusters", json!({ "name": "a/b", "nodes": 1 }), StatusCode::UNPROCESSABLE_ENTITY, "name"),
        (
            "POST",
            "clusters",
            json!({ "name": "b" }),
            StatusCode::UNPROCESSABLE_ENTITY,
            "missing field `nodes`",
        ),
        (
            "POST",
            "clusters",
            json!({ "name": "b", "nodes": 1, "x": 1 }),
            StatusCode::UNPROCESSABLE_ENTITY,
            "unknown field",
        ),
        ("POST", "clusters", json!({ "name": "b", "nodes": -1 }), StatusCode::UNPROCESSABLE_ENTITY, "nodes"),
        ("GET", "clusters/none", Value::Null, StatusCode::NOT_FOUND, "there is no cluster none"),
        ("GET", "clusters/a%2Fb", Value::Null, StatusCode::BAD_REQUEST, ""),
        ("DELETE", "clusters/none", Value::Null, StatusCode::NOT_FOUND, "there is no cluster none"),
        ("POST", "clusters/a/scale", json!({ "nodes": 0 }), StatusCode::BAD_REQUEST, ""),
        ("POST", "clusters/none/scale", json!({ "nodes": 2 }), StatusCode::NOT_FOUND, "there is no cluster"),
        ("POST", "clusters/a/moves", json!({ "slots": "5-3", "to": "h:1" }), StatusCode::BAD_REQUEST, "5-3"),
        (
            "POST",
            "clusters/a/moves",
            json!({ "slots": "0-99999", "to": "h:1" }),
            StatusCode::BAD_REQUEST,
            "0-99999",
        ),
        (
            "POST",
            "clusters/a/moves",
            json!({ "slots": "0-9", "to": "h:1" }),
            StatusCode::NOT_FOUND,
            "has no node h:1",
        ),
        (
            "POST",
            "clusters/a/moves",
            json!({ "slots": "0-9", "to": "h" }),
            StatusCode::UNPROCESSABLE_ENTITY,
            "host:port",
        ),
        ("DELETE", "clusters/a/moves/7", Value::Null, StatusCode::NOT_FOUND, "has no move 7"),
        ("DELETE", "clusters/a/moves/x", Value::Null, StatusCode::BAD_REQUEST, "not the number of a move"),
        ("POST", "clusters/a/failover", json!({ "primary": "h:1" }), StatusCode::NOT_FOUND, "has no node"),
        ("DELETE", "hosts/127.0.0.1:6010", Value::Null, StatusCode::CONFLICT, "is in use by"),
        ("PUT", "hosts/nowhere", json!({ "nodes": [] }), StatusCode::BAD_REQUEST, "host:port"),
        (
            "PUT",
            "hosts/127.0.0.1:6010",
            json!({ "nodes": ["127.0.0.1:9"] }),
            StatusCode::CONFLICT,
            "other nodes",
        ),
        (
            "PUT",
            "hosts/127.0.0.1:6990",
            json!({ "nodes": ["127.0.0.1:7011"] }),
            StatusCode::CONFLICT,
            "registered on host",
        ),
    ] {
        let (found, said) = send(&state, method, path, &body).await;
        let error = said["error"].as_str().unwrap_or_default();
        assert!(found == status && error.contains(text), "{method} {path} {body}: {found} {said}");
    }
    // A page of another site can make a browser post a form, but not JSON.
    let form = Request::builder().method("POST").uri("/api/v1/redis/fix").body(Body::from("x=1")).unwrap();
    let answer = router(state.clone()).oneshot(form).await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let (status, page) = ask(&state, "GET", "/redis").await;
    assert!(status == StatusCode::OK && page.contains("Cluster a"), "{page}");
}
