//! `capstan fleet` end to end: the real binary, real dpkg, hosts with roots of their own.

mod harm;
mod harms;
mod kills;
mod monkey;
mod newcomer;
mod services;
mod steering;

use std::path::{Path, PathBuf};
use std::process::Command;

use capstan_testkit::eventually;
use serde_json::{Value, json};

use crate::binary::{DEADLINE, Daemon, Run, capstan, finish};

/// Rules without waiting times, for fleets that only exist for a test.
fn quick(parallelism: u32) -> Value {
    json!({ "waves": [1], "parallelism": parallelism, "max_unavailable": parallelism, "min_healthy": "0s" })
}

/// A release whose hosts meet, and then wait one after the other until they are let go.
const GATED: &str = r#"
[[steps]]
name = "meet"
kind = "barrier"
timeout_seconds = 60

[[steps]]
name = "gate"
kind = "rolling"
timeout_seconds = 120
actions = [{ command = { argv = ["sh", "-c", "echo $$ > $CAPSTAN_ROOT/pid; while [ ! -e $CAPSTAN_ROOT/go ]; do sleep 0.05; done"], after_crash = "rerun" } }]
"#;

/// `capstan up` with local hosts and rules without waiting times.
struct LocalFleet {
    up: Daemon,
}

impl LocalFleet {
    async fn start(label: &str, hosts: u32) -> LocalFleet {
        let hosts = format!("up.hosts={hosts}");
        let args = ["up", "--port-base", "0", "--set", "host.id=one", "--set", &hosts];
        let fleet = LocalFleet { up: Daemon::start(label, &args).await };
        fleet.policy(&quick(1));
        fleet
    }

    /// An operator's command, found by the data directory as a newcomer would.
    fn run(&self, args: &[&str]) -> Run {
        let args: Vec<&str> = ["fleet"].iter().chain(args).copied().collect();
        capstan(self.up.dir.path(), &args)
    }

    fn data(&self) -> PathBuf {
        self.up.dir.join("data")
    }

    fn root(&self, host: u32) -> PathBuf {
        self.data().join(format!("hosts/{host}/root"))
    }

    fn policy(&self, policy: &Value) {
        let file = self.up.dir.join("policy.json");
        std::fs::write(&file, policy.to_string()).unwrap();
        self.run(&["policy", "set", "default", file.to_str().unwrap()]).ok();
    }

    /// Publishes a release with these steps where the local hosts look.
    fn release(&self, version: &str, steps: &str) {
        let dir = self.up.dir.path();
        std::fs::write(dir.join("release.toml"), format!("version = \"{version}\"\n{steps}")).unwrap();
        let built = format!("built-{version}");
        self.run(&["release", "build", "release.toml", "--out", &built]).ok();
        self.run(&["release", "sign", &built, "--key", "data/sample/release.key"]).ok();
        self.run(&["release", "publish", &built, "data/sample/repository"]).ok();
    }

    fn status(&self) -> Value {
        let run = self.run(&["status", "-o", "json"]);
        assert!(matches!(run.code, 0 | 1 | 3), "{run:#?}");
        serde_json::from_str(&run.stdout).unwrap()
    }

    /// Waits until the status is as it should be.
    async fn until(&self, what: &str, right: impl Fn(&Value) -> bool) -> Value {
        eventually(what, DEADLINE, async || {
            let status = self.status();
            if right(&status) { Ok(status) } else { Err(brief(&status)) }
        })
        .await
    }

    async fn until_host(&self, host: u32, state: &str) -> Value {
        self.until(&format!("host {host} is {state}"), |status| state_of(status, host) == state).await
    }

    async fn until_complete(&self, release: &str) -> Value {
        let right =
            |status: &Value| status["state"] == "completed" && status["request"]["version"] == release;
        self.until(&format!("release {release} is complete"), right).await
    }

    /// Lets a gated step end.
    fn let_go(&self, host: u32) {
        std::fs::write(self.root(host).join("go"), "").unwrap();
    }
}

fn state_of(status: &Value, host: u32) -> String {
    let hosts = status["hosts"].as_array().unwrap();
    let line = hosts.iter().find(|line| line["lrn"] == host);
    line.map_or_else(String::new, |line| line["state"].as_str().unwrap().to_owned())
}

fn brief(status: &Value) -> String {
    let hosts: Vec<String> =
        status["hosts"].as_array().unwrap().iter().map(|h| h["state"].to_string()).collect();
    format!("{} {}: {hosts:?}", status["state"], status["why"])
}

/// What dpkg itself says is installed below a root: `name version status`.
fn packages(root: &Path) -> Vec<String> {
    let admin = format!("--admindir={}", root.join("var/lib/dpkg").display());
    let format = "--showformat=${Package} ${Version} ${db:Status-Abbrev}\n";
    let run = finish(Command::new("dpkg-query").args([&admin, "--show", format]).output().unwrap());
    run.ok().lines().map(|line| line.trim_end().to_owned()).collect()
}

/// The packages of the sample release.
fn sample(version: &str) -> Vec<String> {
    ["capstan-sample", "capstan-sample-tools"].map(|name| format!("{name} {version} ii")).to_vec()
}
