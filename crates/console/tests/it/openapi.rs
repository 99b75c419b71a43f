//! The description of the API: does it describe what is served, and all of it?

use std::collections::BTreeSet;

use axum::http::StatusCode;
use serde_json::Value;

use super::{ask, state};

/// The paths of the API.
fn served() -> BTreeSet<String> {
    let paths = capstan_console::routes().into_iter().map(|route| route.path.to_owned());
    paths.filter(|path| path.starts_with("/api/")).collect()
}

#[tokio::test]
async fn every_route_of_the_api_is_described_and_served() {
    let (state, _store) = state();
    let (status, body) = ask(&state, "GET", "/api/v1/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    let document: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    let described: BTreeSet<String> = paths.keys().cloned().collect();
    assert_eq!(described, served());
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            let filled = path.replace("{proxy}", "127.0.0.1:1").replace("{name}", "x").replace("{id}", "1");
            let filled = filled.replace("{code}", "x-y");
            let filled =
                filled.replace("{lrn}", "1").replace("{group}", "default").replace("{key}", "source");
            let (status, said) = ask(&state, &method.to_uppercase(), &filled).await;
            let served = status != StatusCode::METHOD_NOT_ALLOWED && !said.contains("there is no page");
            assert!(served, "{method} {path}: {status} {said}");
            let is_for_hosts = path == "/api/v1/certs/renew" && status == StatusCode::UNAUTHORIZED;
            if operation.get("requestBody").is_some() && !is_for_hosts {
                assert_eq!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{method} {path}: {said}");
            }
        }
    }
}

#[tokio::test]
async fn every_schema_that_is_named_is_there() {
    let (state, _store) = state();
    let (_, body) = ask(&state, "GET", "/api/v1/openapi.json").await;
    let document: Value = serde_json::from_str(&body).unwrap();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let named = body.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next());
    let named: BTreeSet<&str> = named.collect();
    for name in &named {
        assert!(schemas.contains_key(*name), "{name} is named and not there");
    }
    for name in schemas.keys() {
        assert!(named.contains(name.as_str()), "{name} is there and named nowhere");
    }
}
