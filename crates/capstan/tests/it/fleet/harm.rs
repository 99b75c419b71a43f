//! The first duty of an updater, with hosts and updaters as processes: no more harm after the first sign of harm.

use std::path::Path;

use capstan_testkit::{eventually, seed};
use serde_json::{Value, json};

use super::kills::Cluster;
use super::state_of;
use crate::binary::{DEADLINE, command};
use crate::health::seen_over_http;

/// A release that does nothing.
const GOOD: &str = r#"
[[steps]]
name = "fine"
kind = "rolling"
timeout_seconds = 60
actions = [{ command = { argv = ["true"], after_crash = "rerun" } }]
"#;

/// A release that kills the worker of its host a moment after its step is done.
const KILLER: &str = r#"
[[steps]]
name = "fine"
kind = "rolling"
timeout_seconds = 60
actions = [{ command = { argv = ["sh", "-c", "echo $$ >> $CAPSTAN_ROOT/began; (sleep 1; kill -9 $PPID) & exit 0"], after_crash = "rerun" } }]
"#;

/// A release whose only step runs until it is ended.
const ENDLESS: &str = r#"
[[steps]]
name = "endless"
kind = "barrier"
timeout_seconds = 600
actions = [{ command = { argv = ["sh", "-c", "echo $$ > $CAPSTAN_ROOT/pid; while true; do sleep 0.1; done"], after_crash = "rerun" } }]
"#;

fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

async fn pid(root: &Path) -> u32 {
    eventually("the step runs", DEADLINE, async || {
        let text = std::fs::read_to_string(root.join("pid")).map_err(|error| error.to_string())?;
        text.trim().parse::<u32>().map_err(|error| error.to_string())
    })
    .await
}

/// F1: every host dies a second after its step. Harm ends at the canary; status, exit code and history say failed;
/// rollback brings back what is left.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_kills_its_hosts_ends_at_the_canary() {
    let hosts = seed::soak(4, 20);
    let mut cluster = Cluster::start(hosts).await;
    let policy = json!({ "waves": [1, "30%"], "min_healthy": "2s", "bake": "1s", "health_deadline": "6s" });
    cluster.policy(&policy);
    cluster.release("1.0.1", GOOD);
    cluster.run(&["apply", "1.0.1"]).ok();
    cluster.until("the good release is complete", |status| status["state"] == "completed").await;
    cluster.release("2.0.0", KILLER);
    cluster.run(&["apply", "2.0.0"]).ok();
    cluster.until("it is stopped", |status| status["state"] == "stopped").await;
    let began = (1..=hosts as usize).filter(|number| cluster.root(*number).join("began").exists()).count();
    assert_eq!(began, 1, "harm goes beyond the canary");
    assert_eq!(cluster.run(&["status"]).code, 1);
    let history = cluster.run(&["history", "-o", "json"]).json();
    assert_eq!(history["requests"][0]["outcome"], "failed", "{history}");
    cluster.hosts[0].restart().await;
    cluster.run(&["rollback"]).ok();
    let right = |status: &Value| status["state"] == "completed" && status["request"]["version"] == "1.0.1";
    cluster.until("the fleet is back", right).await;
    let again = cluster.run(&["rollback"]);
    assert!(again.code == 1 && again.stderr.contains("keeps no older release"), "{again:#?}");
}

/// F2 and F3: both updaters are dead and so is the worker of a host whose command runs on. The stop says what is true:
/// who has confirmed, who is down; and the worker ends the command before anything else when it starts.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_without_a_leader_says_who_has_stopped_and_orphans_end() {
    let mut cluster = Cluster::start(2).await;
    cluster.release("2.0.0", ENDLESS);
    cluster.run(&["apply", "2.0.0"]).ok();
    let (orphan, other) = (pid(&cluster.root(1)).await, pid(&cluster.root(2)).await);
    for updater in &mut cluster.updaters {
        updater.process.kill9().unwrap();
    }
    cluster.hosts[0].process.kill9().unwrap();
    assert!(runs(orphan), "a command outlives its worker");
    let stop = cluster.run(&["stop", "--reason", "smoke"]);
    assert_eq!(stop.code, 3, "not everyone has confirmed: {stop:#?}");
    assert!(stop.stdout.contains("hosts [2] have confirmed"), "{stop:#?}");
    assert!(stop.stdout.contains("the workers of hosts [1] are down"), "{stop:#?}");
    assert!(!runs(other), "host 2 has confirmed, so nothing runs there");
    cluster.hosts[0].restart().await;
    eventually("the orphan has ended", DEADLINE, async || {
        if runs(orphan) { Err(format!("process {orphan} runs")) } else { Ok(()) }
    })
    .await;
    let stop = cluster.run(&["stop"]);
    assert_eq!(stop.code, 0, "{stop:#?}");
    assert_eq!(state_of(&cluster.status(), 1), "stopped at step 1");
}

/// F9: two daemons with one number: the second one does nothing, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_machine_under_the_same_number_is_refused() {
    let cluster = Cluster::start(1).await;
    cluster.until("the first one is up", |status| status["hosts"][0]["up"] == true).await;
    let log = cluster.dir.join("clone.log");
    let mut second = command(cluster.dir.path())
        .args(cluster.host_args(1, "clone"))
        .stderr(std::fs::File::create(&log).unwrap())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    eventually("the second one says so", DEADLINE, async || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        if said.contains("another machine works as host 1") { Ok(()) } else { Err(said) }
    })
    .await;
    second.kill().unwrap();
    second.wait().unwrap();
}

/// A rollout that waits for a host whose worker is gone is a finding, and none when the host is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_that_waits_for_a_dead_host_is_a_finding() {
    let mut cluster = Cluster::start(2).await;
    cluster.policy(&json!({ "waves": [1], "min_healthy": "0s" }));
    cluster.release("2.0.0", ENDLESS);
    cluster.run(&["apply", "2.0.0"]).ok();
    pid(&cluster.root(1)).await;
    let codes = |cluster: &Cluster| -> Vec<String> {
        let findings = cluster.findings();
        findings.iter().map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
    };
    assert!(codes(&cluster).contains(&"fleet-rollout".to_owned()));
    cluster.hosts[0].process.kill9().unwrap();
    eventually("the rollout is stuck", DEADLINE, async || {
        let found = codes(&cluster);
        let all = ["fleet-rollout-stuck", "fleet-worker-down"]
            .iter()
            .all(|code| found.contains(&(*code).to_owned()));
        if all { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    seen_over_http("fleet-rollout-stuck", &cluster.updaters[0]).await;
    cluster.hosts[0].restart().await;
    eventually("it goes on", DEADLINE, async || {
        let found = codes(&cluster);
        if found.iter().any(|code| code == "fleet-rollout-stuck") {
            Err(format!("{found:?}"))
        } else {
            Ok(())
        }
    })
    .await;
    cluster.run(&["stop"]);
    eventually("it is stopped", DEADLINE, async || {
        let found = codes(&cluster);
        if found.iter().any(|code| code == "fleet-stopped") { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}
