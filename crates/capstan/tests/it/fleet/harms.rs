//! Four releases that do harm, one after the other, on a fleet in waves: each ends at the canary, says so everywhere, and is
//! rolled back. Twenty hosts in the long form, each a process of its own.

use capstan_testkit::seed;
use serde_json::{Value, json};

use super::kills::Cluster;

/// A release that leaves its version on its host.
fn step(action: &str, timeout: u32, health: &str) -> String {
    format!(
        "[[steps]]\nname = \"change\"\nkind = \"rolling\"\ntimeout_seconds = {timeout}\nactions = [{{ command = {{ argv = \
         [\"sh\", \"-c\", \"echo $CAPSTAN_RELEASE > $CAPSTAN_ROOT/version; {action}\"], after_crash = \"rerun\" }} }}]\n{health}\n"
    )
}

struct Harm {
    name: &'static str,
    version: &'static str,
    steps: String,
    /// What the history says.
    says: &'static str,
    /// Whether the daemon of the canary has to be started again.
    kills: bool,
}

fn harms() -> [Harm; 4] {
    let unhealthy = "health = { probe = { command = { argv = [\"false\"] } }, min_healthy_seconds = 1, deadline_seconds = 2 }";
    [
        Harm {
            name: "kills its host",
            version: "2.0.0",
            steps: step("(sleep 1; kill -9 $PPID) & exit 0", 60, ""),
            says: "went away",
            kills: true,
        },
        Harm {
            name: "fails its health",
            version: "3.0.0",
            steps: step("true", 60, unhealthy),
            says: "not healthy",
            kills: false,
        },
        Harm {
            name: "hangs",
            version: "4.0.0",
            steps: step("sleep 600", 3, ""),
            says: "took too long",
            kills: false,
        },
        // The device answers every write as a full disk does.
        Harm {
            name: "fills the disk",
            version: "5.0.0",
            steps: step("dd if=/dev/zero of=/dev/full bs=1M count=1", 60, ""),
            says: "No space left on device",
            kills: false,
        },
    ]
}

fn version(cluster: &Cluster, host: u32) -> String {
    let file = cluster.root(host as usize).join("version");
    std::fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_harm_ends_at_the_canary_and_is_rolled_back() {
    let hosts = seed::soak(5, 20);
    let mut cluster = Cluster::start(hosts).await;
    cluster.policy(&json!({
        "waves": [1, "30%"], "parallelism": 3, "max_unavailable": 3, "min_healthy": "2s", "bake": "1s",
        "health_deadline": "6s",
    }));
    cluster.release("1.0.1", &step("true", 60, ""));
    cluster.run(&["apply", "1.0.1"]).ok();
    let good = |status: &Value| status["state"] == "completed" && status["request"]["version"] == "1.0.1";
    cluster.until("the good release is complete", good).await;
    for harm in harms() {
        cluster.release(harm.version, &harm.steps);
        cluster.run(&["apply", harm.version]).ok();
        cluster
            .until(&format!("one that {} is stopped", harm.name), |status| status["state"] == "stopped")
            .await;
        let touched: Vec<u32> = (1..=hosts).filter(|host| version(&cluster, *host) == harm.version).collect();
        assert_eq!(touched.len(), 1, "one that {} goes beyond the canary: {touched:?}", harm.name);
        assert_eq!(cluster.run(&["status"]).code, 1, "one that {}", harm.name);
        let history = cluster.run(&["history", "-o", "json"]).json()["requests"].take();
        let reason = history[0]["reason"].as_str().unwrap_or_default();
        assert!(
            history[0]["outcome"] == "failed" && reason.contains(harm.says),
            "{}: {history:#}",
            harm.name
        );
        if harm.kills {
            cluster.hosts[touched[0] as usize - 1].restart().await;
        }
        cluster.run(&["rollback"]).ok();
        cluster.until(&format!("one that {} is rolled back", harm.name), good).await;
        for host in 1..=hosts {
            assert_eq!(version(&cluster, host), "1.0.1", "host {host} behind one that {}", harm.name);
        }
        eprintln!("one that {}: ended at host {touched:?} of {hosts}, and is rolled back", harm.name);
    }
}
