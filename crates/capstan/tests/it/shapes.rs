//! One shape for what programs read: an object, a collection under its plural name, times in RFC 3339. See docs/json.md.

use serde_json::Value;

use crate::binary::{Daemon, http};

/// Every command that lists or shows something, and the name of its collection, if it is one.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["status"], "findings"),
    (&["version"], ""),
    (&["config", "show"], "settings"),
    (&["events"], "events"),
    (&["hosts", "list"], "hosts"),
    (&["hosts", "show", "local-1"], ""),
    (&["meta", "status"], ""),
    (&["meta", "get", "/capstan", "--prefix"], "keys"),
    (&["meta", "tree"], "keys"),
    (&["access", "list"], "identities"),
    (&["redis", "list"], "clusters"),
    (&["redis", "show", "demo"], "nodes"),
    (&["redis", "hosts", "list"], "hosts"),
    (&["redis", "moves"], "moves"),
    (&["redis", "check"], "findings"),
    (&["redis", "user", "list", "demo"], "users"),
    (&["topics", "list"], "topics"),
    (&["topics", "show", "/default/hello"], ""),
    (&["brokers", "list"], "brokers"),
    (&["namespaces", "list"], "namespaces"),
    (&["subscriptions", "list", "/default/hello"], "subscriptions"),
    (&["schemas", "list"], "subjects"),
    (&["docs", "nodes"], "nodes"),
    (&["docs", "moves"], "moves"),
    (&["docs", "moves", "--dry-run"], "adds"),
    (&["docs", "databases"], "databases"),
    (&["docs", "collections", "demo"], "collections"),
    (&["docs", "keys", "list"], "keys"),
    (&["log", "list"], "logs"),
    (&["log", "holders"], "holders"),
    (&["fleet", "status"], "hosts"),
    (&["fleet", "hosts"], "hosts"),
    (&["fleet", "history"], "requests"),
    (&["fleet", "policy", "get", "--all"], "policies"),
    (&["fleet", "config", "get"], "settings"),
];

/// Every path of the API that lists or shows something.
const PATHS: &[(&str, &str)] = &[
    ("/api/v1/tasks", "tasks"),
    ("/api/v1/findings", "findings"),
    ("/api/v1/events", "events"),
    ("/api/v1/hosts", "hosts"),
    ("/api/v1/fleet/status", "hosts"),
    ("/api/v1/fleet/hosts", "hosts"),
    ("/api/v1/fleet/history", "requests"),
    ("/api/v1/fleet/policies", "policies"),
    ("/api/v1/fleet/config", "settings"),
    ("/api/v1/redis/hosts", "hosts"),
    ("/api/v1/redis/clusters", "clusters"),
    ("/api/v1/redis/moves", "moves"),
];

fn is_rfc3339(text: &str) -> bool {
    text.parse::<jiff::Timestamp>().is_ok()
}

/// Names whose values are times.
fn is_time(name: &str) -> bool {
    name == "at" || name == "since" || name.ends_with("_at") || name.ends_with("_since")
}

fn wrong_times(path: &str, value: &Value, wrong: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                let right = value.is_null() || value.as_str().is_some_and(is_rfc3339);
                if is_time(name) && !right && !value.is_object() {
                    wrong.push(format!("{path} = {value}"));
                }
                wrong_times(&path, value, wrong);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| wrong_times(path, item, wrong)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check(what: &str, value: &Value, collection: &str, wrong: &mut Vec<String>) {
    if !value.is_object() {
        wrong.push(format!("{what} is no object"));
    } else if !(collection.is_empty() || value[collection].is_array() || value[collection].is_object()) {
        wrong.push(format!("{what} has no {collection}"));
    }
    wrong_times(what, value, wrong);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_read_one_shape_from_every_command_and_path() {
    let up = Daemon::start("shapes", &["up", "--port-base", "0"]).await;
    let mut wrong = Vec::new();
    for (args, collection) in COMMANDS {
        let run = up.capstan(&[*args, &["-o", "json"]].concat());
        match serde_json::from_str::<Value>(&run.stdout) {
            Ok(value) => check(&args.join(" "), &value, collection, &mut wrong),
            Err(error) => wrong.push(format!("{}: {error}: {run:?}", args.join(" "))),
        }
    }
    for (path, collection) in PATHS {
        let (status, body) = http("GET", &format!("{}{path}", up.endpoint("http")));
        match serde_json::from_str::<Value>(&body) {
            Ok(value) if status == 200 => check(path, &value, collection, &mut wrong),
            _ => wrong.push(format!("{path}: {status} {body}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
