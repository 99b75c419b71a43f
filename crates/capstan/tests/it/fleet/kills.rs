//! Hosts and updaters as processes of their own, killed at random instants. At the end every host has exactly the
//! release, and no journal shows a step twice or out of order.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use capstan_fleet::artifact::oci::Layout;
use capstan_fleet::journal::{self, Event};
use capstan_fleet::release::Manifest;
use capstan_testkit::{TempDir, eventually, seed};
use rand::RngExt;
use serde_json::{Value, json};

use super::{brief, packages, sample};
use crate::binary::{Daemon, Run, capstan};

/// Twenty hosts on two cores, killed again and again.
const ROLLOUT_WITHIN: Duration = Duration::from_secs(300);
/// Pauses between two kills.
const KILL_EVERY_MS: std::ops::Range<u64> = 0..400;

/// A store, two updaters and hosts, each a process of its own.
pub(super) struct Cluster {
    pub(super) dir: TempDir,
    meta: Daemon,
    pub(super) updaters: Vec<Daemon>,
    pub(super) hosts: Vec<Daemon>,
}

impl Cluster {
    pub(super) async fn start(hosts: u32) -> Cluster {
        let dir = TempDir::new("kills").unwrap();
        let meta = Daemon::start("kills-meta", &["meta", "serve", "--listen", "127.0.0.1:0"]).await;
        let mut cluster = Cluster { dir, meta, updaters: Vec::new(), hosts: Vec::new() };
        cluster.run(&["release", "sample", "s", "--release", "1.0.0"]).ok();
        for number in 1..=2 {
            let id = format!("host.id=updater-{number}");
            cluster.updaters.push(cluster.daemon(&["controller", "--set", &id]).await);
        }
        for number in 1..=hosts {
            let host = cluster.host(number, &number.to_string()).await;
            cluster.hosts.push(host);
        }
        cluster.found(hosts);
        cluster
    }

    /// A host with this number that keeps everything in directories of this name.
    async fn host(&self, number: u32, dir: &str) -> Daemon {
        let args = self.host_args(number, dir);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Daemon::start("kills", &args).await
    }

    /// The command line of such a host.
    pub(super) fn host_args(&self, number: u32, dir: &str) -> Vec<String> {
        let path = |name: &str| self.dir.join(format!("{name}/{dir}")).display().to_string();
        std::fs::create_dir_all(path("root")).unwrap();
        let sets = [
            format!("host.id=h{dir}"),
            "host.roles=fleet".to_owned(),
            "host.lease_ttl=3s".to_owned(),
            format!("fleet.lrn={number}"),
            format!("fleet.dir={}", path("work")),
            format!("fleet.root={}", path("root")),
            format!("fleet.trust={}", self.dir.join("s/trust.json").display()),
        ];
        let sets = sets.into_iter().flat_map(|set| ["--set".to_owned(), set]);
        ["host".to_owned()].into_iter().chain(sets).chain(self.common()).collect()
    }

    fn common(&self) -> Vec<String> {
        let meta = self.meta.endpoint("meta");
        let settings = ["http.listen=127.0.0.1:0", "fleet.leader_ttl=2s", "access.anonymous=viewer"];
        let settings = settings.into_iter().flat_map(|setting| ["--set", setting]);
        ["--meta", &meta].into_iter().chain(settings).map(str::to_owned).collect()
    }

    pub(super) fn policy(&self, policy: &Value) {
        std::fs::write(self.dir.join("policy.json"), policy.to_string()).unwrap();
        self.run(&["policy", "set", "default", "policy.json"]).ok();
    }

    /// Publishes a release with these steps where the hosts look.
    pub(super) fn release(&self, version: &str, steps: &str) {
        std::fs::write(self.dir.join("release.toml"), format!("version = \"{version}\"\n{steps}")).unwrap();
        let built = format!("built-{version}");
        self.run(&["release", "build", "release.toml", "--out", &built]).ok();
        self.run(&["release", "sign", &built, "--key", "s/release.key"]).ok();
        self.run(&["release", "publish", &built, "s/repository"]).ok();
    }

    /// Waits until the status is as it should be.
    pub(super) async fn until(&self, what: &str, right: impl Fn(&Value) -> bool) -> Value {
        eventually(what, ROLLOUT_WITHIN, async || {
            let status = self.status();
            if right(&status) { Ok(status) } else { Err(brief(&status)) }
        })
        .await
    }

    async fn daemon(&self, args: &[&str]) -> Daemon {
        let common = self.common();
        let args: Vec<&str> = args.iter().copied().chain(common.iter().map(String::as_str)).collect();
        Daemon::start("kills", &args).await
    }

    /// Makes the fleet, with rules that have waves and drains and no waiting times.
    fn found(&self, hosts: u32) {
        let source = format!("source={}", self.dir.join("s/repository").display());
        let members: Vec<String> = (1..=hosts).map(|number| format!("{number}=h{number}")).collect();
        let mut args = vec!["init", "--with", &source, "--with", "auto-update=false"];
        args.extend(members.iter().map(String::as_str));
        self.run(&args).ok();
        let policy = json!({
            "waves": [1, "20%"], "parallelism": 5, "max_unavailable": 5, "min_healthy": "0s", "absent_budget": "100%",
            "barrier_budget": "100%", "failure_budget": "100%",
        });
        self.policy(&policy);
    }

    pub(super) fn run(&self, args: &[&str]) -> Run {
        let meta = self.meta.endpoint("meta");
        let args: Vec<&str> = ["fleet"].iter().chain(args).copied().chain(["--meta", &meta]).collect();
        capstan(self.dir.path(), &args)
    }

    pub(super) fn status(&self) -> Value {
        serde_json::from_str(&self.run(&["status", "-o", "json"]).stdout).unwrap()
    }

    /// What `capstan status` finds.
    pub(super) fn findings(&self) -> Vec<Value> {
        let run = capstan(self.dir.path(), &["status", "-o", "json", "--meta", &self.meta.endpoint("meta")]);
        let status: Value = serde_json::from_str(&run.stdout).unwrap();
        status["findings"].as_array().unwrap().clone()
    }

    fn is_complete(&self) -> bool {
        self.status()["state"] == "completed"
    }

    /// Kills one process and starts it again; every third time it is an updater.
    pub(super) async fn kill_one(&mut self, rng: &mut impl RngExt) {
        let among = if rng.random_bool(0.3) { &mut self.updaters } else { &mut self.hosts };
        let victim = rng.random_range(0..among.len());
        among[victim].process.kill9().unwrap();
        among[victim].restart().await;
    }

    pub(super) fn root(&self, number: usize) -> PathBuf {
        self.dir.join(format!("root/{number}"))
    }
}

#[test]
fn killed_workers_and_updaters_leave_every_host_with_exactly_the_release() {
    let runs = seed::soak(1, 10);
    seed::seeds(runs, |seed| {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(roll_out_under_fire(seed, seed::soak(8, 20)));
    });
}

async fn roll_out_under_fire(seed: u64, hosts: u32) {
    let mut rng = seed::rng(seed);
    let mut cluster = Cluster::start(hosts).await;
    cluster.run(&["apply"]).ok();
    let (begun, mut kills) = (Instant::now(), 0);
    // After so long nobody is killed any more: a slow machine has to come to an end too.
    let fire = Duration::from_secs(seed::soak(60, 240));
    while !cluster.is_complete() && begun.elapsed() < fire {
        let pause = Duration::from_millis(rng.random_range(KILL_EVERY_MS));
        tokio::time::sleep(pause).await; // tidy: allow, because the instant of the kill is the random input
        cluster.kill_one(&mut rng).await;
        kills += 1;
    }
    let manifest = cluster.dir.join("s/repository/releases/1.0.0/manifest.json");
    let manifest = Manifest::parse(&std::fs::read(manifest).unwrap()).unwrap();
    for number in 1..=hosts as usize {
        let root = cluster.root(number);
        eventually("the host has the release", ROLLOUT_WITHIN, async || {
            let found = if root.join("var/lib/dpkg/status").exists() { packages(&root) } else { Vec::new() };
            if found == sample("1.0.0") {
                Ok(())
            } else {
                Err(format!("{found:?} {}", brief(&cluster.status())))
            }
        })
        .await;
        let work = cluster.dir.join(format!("work/{number}"));
        for image in &manifest.images {
            Layout::new(work.join("images")).verify(&image.name, &image.tag, &image.digest).unwrap();
        }
    }
    eventually("the rollout is complete", ROLLOUT_WITHIN, async || {
        let status = cluster.status();
        if status["state"] == "completed" { Ok(()) } else { Err(brief(&status)) }
    })
    .await;
    for number in 1..=hosts {
        assert_each_once_in_order(&cluster.dir.join(format!("work/{number}/journal")), seed);
    }
    eprintln!("seed {seed}: {hosts} hosts, {kills} kills, {:?}", begun.elapsed());
}

/// Every act was done once, in the order of the release, and nothing after the end.
fn assert_each_once_in_order(journal: &Path, seed: u64) {
    let entries = journal::read(journal).unwrap();
    let mut last = None;
    let mut finished = 0;
    for entry in &entries {
        match &entry.event {
            Event::Done(act) => {
                assert_eq!(finished, 0, "seed {seed}: {act:?} after the end in {}", journal.display());
                let key = Some((entry.course.generation, *act));
                assert!(key > last, "seed {seed}: {key:?} after {last:?} in {}", journal.display());
                last = key;
            }
            Event::Finished => finished += 1,
            Event::Intent(_) | Event::Failed { .. } => {}
        }
    }
    assert_eq!(finished, 1, "seed {seed}: {} ends {finished} times", journal.display());
}
