//! The headline: every host of a running cluster is updated, one drained host at a time, while clients write; no write
//! is lost and no client sees an error.

use std::net::SocketAddr;

use capstan_testkit::eventually;
use capstan_testkit::redis::write_all;
use serde_json::Value;

use crate::binary::{Daemon, Run};
use crate::cluster::{Cluster, LONG};
use crate::load::Load;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_host_is_updated_under_load_and_nothing_is_lost() {
    let up = Daemon::start("headline", &["up", "--port-base", "0", "--set", "host.id=one"]).await;
    let proxies = eventually("the demo cluster is there", LONG, async || proxies(&up)).await;
    eventually("the demo cluster serves", LONG, async || write_all(proxies[0], "first")).await;
    let load = Load::start(&proxies).await;

    let sample = up.dir.join("data/sample").display().to_string();
    up.capstan(&["fleet", "release", "sample", &sample]).ok();
    up.capstan(&["fleet", "apply"]).ok();
    let complete = async || is_complete("1.0.0", &up.capstan(&["fleet", "status"]));
    eventually("the release is on every host", LONG, complete).await;

    load.finish().await;
    for host in 1..=3 {
        let admin = up.dir.join(format!("data/hosts/{host}/root/var/lib/dpkg"));
        let query = std::process::Command::new("dpkg-query").arg("--admindir").arg(admin).arg("-W").output();
        assert!(
            String::from_utf8_lossy(&query.unwrap().stdout).contains("capstan-sample\t1.0.0"),
            "host {host}"
        );
    }
}

/// A release that installs a package and then restarts the daemon of the host, which kills the worker that runs this
/// step: the restarted worker continues from its journal.
const UPGRADE: &str = r#"
version = "2.0.0"
packages = ["capstan-sample.deb"]

[[steps]]
name = "upgrade"
kind = "rolling"
timeout_seconds = 120
actions = [
  { packages = ["capstan-sample"] },
  { command = { argv = ["sh", "-c", "cmp $CAPSTAN_ROOT/running $CAPSTAN_ROOT/usr/share/capstan-sample/version || { kill $(cat $CAPSTAN_ROOT/pid); exec sleep 100; }"], after_crash = "rerun" } },
]
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_daemon_is_replaced_under_load_and_nothing_is_lost() {
    let cluster = Cluster::start("upgrade", 3).await;
    let load = Load::start(&cluster.create_redis().await).await;

    release(&cluster);
    std::fs::write(cluster.dir.join("policy.json"), r#"{ "min_healthy": "1s" }"#).unwrap();
    cluster.run(&["fleet", "policy", "set", "default", "policy.json"]).ok();
    cluster.run(&["fleet", "apply", "2.0.0"]).ok();
    let complete = async || is_complete("2.0.0", &cluster.run(&["fleet", "status"]));
    eventually("the release is on every host", LONG, complete).await;

    load.finish().await;
    let history = cluster.run(&["fleet", "history", "-o", "json"]).json();
    assert_eq!(history["requests"][0]["without"], Value::Null, "nobody was taken for dead: {history:#}");
    for host in &cluster.hosts {
        assert_eq!(host.running(), "1.0.0", "a daemon that was not started again");
    }
}

/// The proxies of the demo cluster.
fn proxies(up: &Daemon) -> Result<Vec<SocketAddr>, String> {
    let run = up.capstan(&["redis", "connect", "demo", "-o", "json"]);
    if run.code != 0 {
        return Err(run.stderr);
    }
    let found = run.json();
    Ok(found["seeds"]
        .as_array()
        .unwrap()
        .iter()
        .map(|seed| seed.as_str().unwrap().parse().unwrap())
        .collect())
}

/// Publishes [`UPGRADE`] with a package of the sample.
fn release(cluster: &Cluster) {
    let sample = std::fs::read_dir(cluster.dir.join("s/repository/releases/1.0.0")).unwrap();
    let mut files = sample.map(|entry| entry.unwrap().path());
    let is_package =
        |name: &str| name.starts_with("capstan-sample-") && !name.starts_with("capstan-sample-tools");
    let package = files.find(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_package));
    std::fs::copy(package.unwrap(), cluster.dir.join("capstan-sample.deb")).unwrap();
    std::fs::write(cluster.dir.join("release.toml"), UPGRADE).unwrap();
    cluster.run(&["fleet", "release", "build", "release.toml", "--out", "built"]).ok();
    cluster.run(&["fleet", "release", "sign", "built", "--key", "s/release.key"]).ok();
    cluster.run(&["fleet", "release", "publish", "built", "s/repository"]).ok();
}

fn is_complete(release: &str, status: &Run) -> Result<(), String> {
    let complete = status.stdout.starts_with(&format!("release {release}: complete"));
    if complete { Ok(()) } else { Err(format!("{}{}", status.stdout, status.stderr)) }
}
