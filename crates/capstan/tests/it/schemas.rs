//! The schema registry as users meet it: the command line, HTTP for serialisers, and topics that check their messages.

use std::io::Write as _;
use std::process::Stdio;

use capstan_testkit::eventually;
use serde_json::{Value, json};

use crate::binary::{DEADLINE, Daemon, Run, command, finish, http};

const FIRST: &str = r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}"#;
const SECOND: &str = r#"{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},{"name":"note","type":"string","default":""}]}"#;
const BROKEN: &str = r#"{"type":"record","name":"Order","fields":[{"name":"must","type":"string"}]}"#;
const TOPIC: &str = "/default/hello";

fn produce(up: &Daemon, line: &str) -> Run {
    let mut command = command(up.dir.path());
    command.args(["topics", "produce", TOPIC, "--meta", &up.endpoint("meta")]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    finish(child.wait_with_output().unwrap())
}

#[tokio::test]
async fn schemas_are_registered_checked_bound_and_served_over_http() {
    let args = ["up", "--port-base", "0", "--set", "host.id=one", "--set", "up.hosts=1"];
    let up = Daemon::start("schemas", &args).await;
    let file = |name: &str, text: &str| {
        let path = up.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (first, second, broken) =
        (file("first.avsc", FIRST), file("second.avsc", SECOND), file("broken.avsc", BROKEN));
    let made = up.capstan(&["schemas", "register", "orders", &first, "-o", "json"]).json();
    assert_eq!((&made["id"], &made["version"], &made["new"]), (&json!(1), &json!(1), &json!(true)));
    up.capstan(&["schemas", "register", "orders", &second]).ok();
    let listed = up.capstan(&["schemas", "list", "-o", "json"]).json()["subjects"].take();
    assert_eq!((&listed[0]["subject"], &listed[0]["version"]), (&json!("orders"), &json!(2)));
    assert_eq!(up.capstan(&["schemas", "show", "orders", "--version", "1"]).ok(), format!("{FIRST}\n"));
    let checked = up.capstan(&["schemas", "check", "orders", &broken]);
    assert!(checked.code == 1 && checked.stdout.contains("must"), "{checked:?}");
    let refused = up.capstan(&["schemas", "register", "orders", &broken]);
    assert!(refused.code == 1 && refused.stderr.contains("must"), "{refused:?}");
    up.capstan(&["schemas", "check", "orders", &broken, "--mode", "none"]).ok();
    assert_eq!(up.capstan(&["schemas", "compat", "orders"]).ok(), "backward\n");
    up.capstan(&["schemas", "compat", "orders", "full"]).ok();
    assert_eq!(up.capstan(&["schemas", "compat", "orders"]).ok(), "full\n");
    let registry = up.endpoint("schema_registry");
    let (status, body) = http("GET", &format!("{registry}/subjects/orders/versions/latest"));
    let found: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &found["version"], &found["schema"]), (200, &json!(2), &json!(SECOND)));
    assert_eq!(http("GET", &format!("{registry}/subjects/missing/versions")).0, 404);
    produce(&up, "anything\n").ok();
    let bind = ["schemas", "bind", "orders", TOPIC, "--validation", "enforce", "--payloads"];
    up.capstan(&bind).ok();
    let refused = eventually("the broker enforces it", DEADLINE, async || match produce(&up, "anything\n") {
        run if run.code == 0 => Err(run.stdout),
        run => Ok(run),
    })
    .await;
    assert!(refused.stderr.contains("schema"), "{refused:?}");
    let used = up.capstan(&["schemas", "delete", "orders"]);
    assert!(used.code == 1 && used.stderr.contains(TOPIC), "{used:?}");
    up.capstan(&["schemas", "delete", "orders", "--version", "1"]).ok();
}
