//! The fleet believes the services: a host whose Redis nodes are ill after its update has failed, and harm ends at the canary.

use capstan_testkit::eventually;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LONG};

/// A release after which the Redis nodes of its host are killed again and again. What a step starts in a session of its own
/// goes on behind the step.
const ILL: &str = r#"
version = "2.0.0"

[[steps]]
name = "break"
kind = "rolling"
timeout_seconds = 60
actions = [{ command = { argv = ["sh", "-c", "touch $CAPSTAN_ROOT/began; setsid sh -c 'while [ ! -e $CAPSTAN_ROOT/healed ]; do pkill -9 -P $(cat $CAPSTAN_ROOT/pid) redis-server; sleep 0.2; done' > /dev/null 2>&1 &"], after_crash = "rerun" } }]
"#;

/// A probe of the services in the step itself, which they pass.
const WELL: &str = r#"
version = "3.0.0"

[[steps]]
name = "look"
kind = "barrier"
timeout_seconds = 60
actions = [{ command = { argv = ["true"], after_crash = "rerun" } }]
health = { probe = "services", min_healthy_seconds = 1, deadline_seconds = 40 }
"#;

fn publish(cluster: &Cluster, text: &str, version: &str) {
    std::fs::write(cluster.dir.join("release.toml"), text).unwrap();
    let built = format!("built-{version}");
    cluster.run(&["fleet", "release", "build", "release.toml", "--out", &built]).ok();
    cluster.run(&["fleet", "release", "sign", &built, "--key", "s/release.key"]).ok();
    cluster.run(&["fleet", "release", "publish", &built, "s/repository"]).ok();
}

async fn until(cluster: &Cluster, state: &str) -> Value {
    eventually(&format!("the rollout is {state}"), LONG, async || {
        let run = cluster.run(&["fleet", "status", "-o", "json"]);
        let status: Value = serde_json::from_str(&run.stdout).map_err(|error| error.to_string())?;
        if status["state"] == state { Ok(status) } else { Err(run.stdout) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_after_which_redis_is_ill_ends_at_the_canary() {
    let cluster = Cluster::start("services", 3).await;
    cluster.create_redis().await;
    let policy = json!({ "waves": [1], "min_healthy": "2s", "health_deadline": "20s", "services": true });
    std::fs::write(cluster.dir.join("policy.json"), policy.to_string()).unwrap();
    cluster.run(&["fleet", "policy", "set", "default", "policy.json"]).ok();
    publish(&cluster, ILL, "2.0.0");
    cluster.run(&["fleet", "apply", "2.0.0"]).ok();
    let status = until(&cluster, "stopped").await;
    let began: Vec<_> = cluster.hosts.iter().filter(|host| host.root.join("began").exists()).collect();
    assert_eq!(began.len(), 1, "harm goes beyond the canary: {status}");
    let history = cluster.run(&["fleet", "history", "-o", "json"]).json()["requests"].take();
    let reason = history[0]["reason"].as_str().unwrap_or_default().to_owned();
    assert_eq!(history[0]["outcome"], "failed", "{history}");
    assert!(reason.contains("not healthy"), "{history}");
    eprintln!("{reason}");
    assert_eq!(cluster.run(&["fleet", "status"]).code, 1);

    // Repaired, the same question is answered yes, in a step that all hosts run together.
    began[0].heal();
    publish(&cluster, WELL, "3.0.0");
    cluster.run(&["fleet", "recover", "3.0.0"]).ok();
    until(&cluster, "completed").await;
}
