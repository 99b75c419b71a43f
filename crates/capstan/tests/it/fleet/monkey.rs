//! An operator who gives every order in random order while workers and updaters are killed: whatever state that leads to, a
//! documented command leaves it, and the status says what is. Ten minutes in the long form.

use std::time::{Duration, Instant};

use capstan_testkit::{eventually, seed};
use rand::RngExt;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};

use super::brief;
use super::kills::Cluster;

const HOSTS: u32 = 3;
const VERSIONS: [&str; 3] = ["1.1.0", "1.2.0", "1.3.0"];
/// Everything that an operator may say, in words that stand for a host or a release.
const VERBS: [&[&str]; 14] = [
    &["apply", "RELEASE"],
    &["pause", "--reason", "monkey"],
    &["resume"],
    &["stop", "--reason", "monkey"],
    &["recover"],
    &["recover", "RELEASE"],
    &["promote"],
    &["retry", "HOST"],
    &["skip", "HOST", "--reason", "monkey"],
    &["rollback"],
    &["leave", "HOST"],
    &["join", "HOST", "--host", "hHOST"],
    &["status"],
    &["why", "HOST"],
];
/// Done, refused with a reason, not done yet. Anything else is a mistake of ours.
const ANSWERS: [i32; 3] = [0, 1, 3];
/// How long a fleet may take to come to rest once nothing goes wrong any more, on a busy machine.
const REST_WITHIN: Duration = Duration::from_secs(180);

/// A step that leaves its version on its host, after a moment in which it can be interrupted.
const STEP: &str = r#"
[[steps]]
name = "change"
kind = "rolling"
timeout_seconds = 60
actions = [{ command = { argv = ["sh", "-c", "sleep 0.2; echo $CAPSTAN_RELEASE > $CAPSTAN_ROOT/version"], after_crash = "rerun" } }]

[[steps]]
name = "meet"
kind = "barrier"
timeout_seconds = 60
"#;

#[test]
fn every_state_that_orders_and_kills_lead_to_is_left_by_a_command() {
    seed::seeds(1, |seed| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(play(seed, Duration::from_secs(seed::soak(15, 600))));
    });
}

async fn play(seed: u64, time: Duration) {
    let mut rng = seed::rng(seed);
    let mut cluster = Cluster::start(HOSTS).await;
    cluster.policy(
        &json!({ "waves": [1], "min_healthy": "0s", "absent_budget": "100%", "barrier_budget": "100%" }),
    );
    for version in VERSIONS {
        cluster.release(version, STEP);
    }
    let (begun, mut orders, mut kills) = (Instant::now(), 0, 0);
    while begun.elapsed() < time {
        if rng.random_bool(0.25) {
            cluster.kill_one(&mut rng).await;
            kills += 1;
            continue;
        }
        let (host, version) = (rng.random_range(1..=HOSTS).to_string(), *VERSIONS.choose(&mut rng).unwrap());
        let verb = VERBS.choose(&mut rng).unwrap();
        let words: Vec<String> =
            verb.iter().map(|word| word.replace("HOST", &host).replace("RELEASE", version)).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let run = cluster.run(&words);
        assert!(ANSWERS.contains(&run.code), "seed {seed}: {words:?}: {run:#?}");
        assert!(
            run.code != 1 || !run.stderr.is_empty() || words[0] == "status",
            "seed {seed}: {words:?}: {run:#?}"
        );
        orders += 1;
    }
    come_to_rest(&cluster, seed).await;
    eprintln!(
        "seed {seed}: {orders} orders and {kills} kills in {time:?}, at rest after {:?}",
        begun.elapsed()
    );
}

/// What the documentation says about each state, until the newest release is on every host.
async fn come_to_rest(cluster: &Cluster, seed: u64) {
    for host in 1..=HOSTS {
        cluster.run(&["join", &host.to_string(), "--host", &format!("h{host}")]);
    }
    let last = VERSIONS[VERSIONS.len() - 1];
    eventually("the fleet comes to rest", REST_WITHIN, async || {
        let status = cluster.status();
        if status["state"] == "completed" && status["request"]["version"] == last && is_true(cluster, &status)
        {
            return Ok(());
        }
        if status["state"] == "stopped" {
            cluster.run(&["recover", last]);
        } else if status["state"] == "completed" {
            cluster.run(&["apply", last]);
        } else {
            cluster.run(&["resume"]);
            cluster.run(&["promote"]);
            for host in 1..=HOSTS {
                cluster.run(&["retry", &host.to_string()]);
            }
        }
        Err(format!("seed {seed}: {}", brief(&status)))
    })
    .await;
}

/// Whether the hosts have what the status says.
fn is_true(cluster: &Cluster, status: &Value) -> bool {
    let hosts = status["hosts"].as_array().unwrap();
    hosts.len() == HOSTS as usize
        && (1..=HOSTS as usize).all(|host| {
            let file = cluster.root(host).join("version");
            let has = std::fs::read_to_string(file).unwrap_or_default();
            has.trim() == status["request"]["version"].as_str().unwrap_or_default()
        })
}
