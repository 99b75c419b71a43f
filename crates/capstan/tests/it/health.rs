//! Does every place that shows health tell the truth? Faults are planted in a cluster of real processes on a real etcd, and
//! each must be seen by its code on the command line, over HTTP, in `/readyz`, in the metrics and on the start page, and be
//! gone after the repair. Green counts only together with a client's own write.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use capstan_testkit::redis::{count, spread_keys, write_all};
use capstan_testkit::{Etcd, Port, PortBlock, TempDir, eventually, seed};
use serde_json::Value;

use crate::binary::{Daemon, Run, capstan, http};

/// Redis nodes of a host.
const NODES: u16 = 2;
const SECRET: &str = "redis.secret=of-this-test";

/// The documented bound is 5 s, and 10 s for what ends with a lease; a machine that runs other tests needs longer.
fn seen_within() -> Duration {
    Duration::from_secs(seed::soak(60, 10))
}

struct Host {
    daemon: Daemon,
    proxy: SocketAddr,
    _ports: (Port, PortBlock),
}

struct Rig {
    // First, so that hosts can leave while there is a store.
    hosts: Vec<Host>,
    controllers: Vec<Daemon>,
    etcd: Etcd,
    dir: TempDir,
}

impl Rig {
    async fn start(hosts: u16, secret: bool) -> Rig {
        let etcd = Etcd::start().await.unwrap();
        let mut rig =
            Rig { hosts: Vec::new(), controllers: Vec::new(), etcd, dir: TempDir::new("health").unwrap() };
        for number in 1..=2 {
            let id = format!("host.id=controller-{number}");
            let mut settings = vec![id.as_str(), "http.listen=127.0.0.1:0"];
            settings.extend(secret.then_some(SECRET));
            rig.controllers.push(rig.daemon("controller", &settings).await);
        }
        for number in 1..=hosts {
            rig.add_host(number, &[]).await;
        }
        rig
    }

    async fn daemon(&self, command: &str, settings: &[&str]) -> Daemon {
        let mut args = vec![command, "--meta", self.etcd.endpoint(), "--set", "host.lease_ttl=3s"];
        args.extend(["--set", "access.anonymous=viewer"]);
        args.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
        Daemon::start(command, &args).await
    }

    async fn add_host(&mut self, number: u16, more: &[String]) {
        let ports = (Port::reserve().unwrap(), PortBlock::reserve(NODES).unwrap());
        let settings = [
            format!("host.id=h{number}"),
            "host.roles=redis".to_owned(),
            "http.listen=127.0.0.1:0".to_owned(),
            format!("redis.listen={}", ports.0.addr()),
            format!("redis.nodes={NODES}"),
            format!("redis.first_node_port={}", ports.1.base()),
            format!("redis.dir={}", self.dir.join(format!("h{number}")).display()),
            SECRET.to_owned(),
        ];
        let settings: Vec<&str> = settings.iter().chain(more).map(String::as_str).collect();
        let daemon = self.daemon("host", &settings).await;
        self.hosts.push(Host { daemon, proxy: ports.0.addr(), _ports: ports });
    }

    /// The setting for a redis-server that starts only while the file `hold` is not in the directory of the test.
    fn held_server(&self) -> String {
        use std::os::unix::fs::PermissionsExt as _;
        let (path, hold) = (self.dir.join("redis-server"), self.dir.join("hold"));
        let hold = hold.display();
        let script =
            format!("#!/bin/sh\nwhile [ -e '{hold}' ]; do sleep 0.1; done\nexec redis-server \"$@\"\n");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        format!("redis.server={}", path.display())
    }

    /// kill -9 of every redis-server of a host. They are not started again before [`Rig::release`].
    fn kill_nodes(&self, number: u16) {
        std::fs::write(self.dir.join("hold"), "").unwrap();
        let mut killed = 0;
        for node in std::fs::read_dir(self.dir.join(format!("h{number}/nodes"))).unwrap() {
            let Ok(record) = std::fs::read(node.unwrap().path().join("node.json")) else { continue };
            let record: Value = serde_json::from_slice(&record).unwrap();
            let Some(pid) = record["process"]["pid"].as_i64() else { continue };
            let pid = nix::unistd::Pid::from_raw(pid.try_into().unwrap());
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
            killed += 1;
        }
        assert!(killed > 0, "host h{number} has no node");
    }

    fn release(&self) {
        std::fs::remove_file(self.dir.join("hold")).unwrap();
    }

    fn run(&self, args: &[&str]) -> Run {
        let args: Vec<&str> = args.iter().copied().chain(["--meta", self.etcd.endpoint()]).collect();
        capstan(self.dir.path(), &args)
    }

    fn status(&self) -> (i32, Value) {
        let run = self.run(&["status", "-o", "json"]);
        (run.code, serde_json::from_str(&run.stdout).unwrap_or_else(|_| panic!("{run:#?}")))
    }

    /// The finding is everywhere: on the command line, and at the HTTP of this process.
    async fn seen(&self, code: &str, at: &Daemon) {
        let begun = Instant::now();
        eventually(&format!("{code} on the command line"), seen_within(), async || {
            let (exit, status) = self.status();
            if codes(&status).contains(&code.to_owned()) && exit == 1 {
                Ok(())
            } else {
                Err(status.to_string())
            }
        })
        .await;
        eprintln!("{code}: on the command line after {:?}", begun.elapsed());
        seen_over_http(code, at).await;
        eprintln!("{code}: everywhere after {:?}", begun.elapsed());
    }

    /// Green, with every process ready; and then a client's own write succeeds.
    async fn green(&self, proxy: SocketAddr, processes: &[&Daemon]) {
        let begun = Instant::now();
        eventually("green", seen_within() * 2, async || {
            let (exit, status) = self.status();
            if exit == 0 && status["green"] == true { Ok(()) } else { Err(status.to_string()) }
        })
        .await;
        write_all(proxy, "green").unwrap_or_else(|error| panic!("green, and a write fails: {error}"));
        for process in processes {
            eventually("ready", seen_within(), async || {
                let (status, body) = http("GET", &format!("{}/readyz", process.endpoint("http")));
                if status == 200 { Ok(()) } else { Err(body) }
            })
            .await;
        }
        eprintln!("green after {:?}", begun.elapsed());
    }
}

/// The finding is at every place where a process shows its health over HTTP.
pub async fn seen_over_http(code: &str, at: &Daemon) {
    let base = at.endpoint("http");
    for path in ["/api/v1/findings", "/readyz", "/healthz", "/metrics", "/"] {
        eventually(&format!("{code} at {path}"), seen_within(), async || {
            let (status, body) = http("GET", &format!("{base}{path}"));
            let said = match path {
                "/metrics" => body.contains(&format!("capstan_findings{{code=\"{code}\"")),
                "/healthz" => status == 503 && body.contains(&format!("\"{code}\"")),
                "/" => body.contains(&format!("<code>{code}</code>")),
                _ => body.contains(&format!("\"{code}\"")),
            };
            if said { Ok(()) } else { Err(format!("{status} {body}")) }
        })
        .await;
    }
}

fn codes(status: &Value) -> Vec<String> {
    let findings = status["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_planted_fault_is_seen_everywhere_and_gone_after_its_repair() {
    let mut rig = Rig::start(3, true).await;
    rig.run(&["redis", "create", "shop", "--nodes", "3", "--replicas", "1"]).ok();
    let proxy = rig.hosts[2].proxy;
    rig.green(proxy, &[&rig.hosts[0].daemon, &rig.hosts[2].daemon, &rig.controllers[0]]).await;

    // A proxy that hangs: nothing behind it is served until a replica takes over.
    rig.hosts[0].daemon.process.pause().unwrap();
    rig.seen("redis-proxy-down", &rig.controllers[0]).await;
    rig.seen("host-down", &rig.controllers[0]).await;
    rig.hosts[0].daemon.process.resume().unwrap();
    rig.green(proxy, &[&rig.hosts[0].daemon]).await;

    // A killed host stays listed, and a host that is up cannot be removed.
    rig.hosts[1].daemon.process.kill9().unwrap();
    rig.seen("host-down", &rig.controllers[0]).await;
    eventually("it is noted since when", seen_within(), async || {
        let list = rig.run(&["hosts", "list", "-o", "json"]).json();
        let line = list["hosts"].as_array().unwrap().iter().find(|line| line["host"] == "h2").unwrap();
        if line["up"] == false && line["down_since"].is_string() { Ok(()) } else { Err(line.to_string()) }
    })
    .await;
    let up = rig.run(&["hosts", "remove", "h1"]);
    assert!(up.code == 1 && up.stderr.contains("host h1 is up"), "{up:#?}");
    rig.hosts[1].daemon.restart().await;
    rig.green(proxy, &[&rig.hosts[1].daemon]).await;

    // All controllers killed: proxies may not serve, so nothing may be green.
    for controller in &mut rig.controllers {
        controller.process.kill9().unwrap();
    }
    rig.seen("redis-unprobed", &rig.hosts[2].daemon).await;
    rig.seen("redis-no-coordinator", &rig.hosts[2].daemon).await;
    rig.seen("control-no-controller", &rig.hosts[2].daemon).await;
    let (status, body) = http("GET", &format!("{}/readyz", rig.hosts[2].daemon.endpoint("http")));
    assert_eq!(status, 503, "{body}");
    for controller in &mut rig.controllers {
        controller.restart().await;
    }
    rig.green(proxy, &[&rig.hosts[2].daemon]).await;

    // Nothing is known without the metadata.
    rig.etcd.pause().unwrap();
    seen_over_http("meta-unreachable", &rig.hosts[2].daemon).await;
    rig.etcd.resume().unwrap();
    rig.green(proxy, &[&rig.hosts[2].daemon, &rig.controllers[1]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_without_the_secret_are_no_coordinators_and_say_so() {
    let rig = Rig::start(1, false).await;
    rig.seen("redis-no-coordinator", &rig.controllers[0]).await;
    let created = rig.run(&["redis", "create", "shop", "--nodes", "1"]);
    assert_eq!(created.code, 3, "{created:#?}");
    assert!(created.stderr.contains("no Redis coordinator is running"), "{created:#?}");
    let (_, status) = rig.status();
    assert_eq!((&status["green"], &status["worst"]), (&Value::Bool(false), &"critical".into()), "{status}");
    let check = rig.run(&["redis", "check"]);
    assert!(check.code == 1 && check.stdout.starts_with("critical"), "{check:#?}");
}

async fn all_kept(proxy: SocketAddr) {
    eventually("every key is there", seen_within(), async || match count(proxy, "green") {
        kept if kept == spread_keys().count() => Ok(()),
        kept => Err(kept),
    })
    .await;
}

/// Nodes with data that are killed and need a while to start: with a replica, and alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_nodes_and_missing_replicas_are_seen_and_gone_after_the_repair() {
    let mut rig = Rig::start(0, true).await;
    let server = [rig.held_server()];
    for number in 1..=2 {
        rig.add_host(number, &server).await;
    }
    let proxy = rig.hosts[0].proxy;
    rig.run(&["redis", "create", "shop", "--nodes", "1", "--replicas", "1", "--persistence", "aof"]).ok();
    rig.green(proxy, &[&rig.hosts[0].daemon, &rig.hosts[1].daemon]).await;

    // One of two copies, whichever it is: the other one serves.
    rig.kill_nodes(2);
    rig.seen("redis-node-down", &rig.controllers[0]).await;
    all_kept(proxy).await;
    rig.release();
    rig.green(proxy, &[&rig.hosts[1].daemon]).await;

    // A host with a copy: what is left has no replica.
    rig.hosts[1].daemon.process.kill9().unwrap();
    rig.seen("redis-replicas-missing", &rig.controllers[0]).await;
    all_kept(proxy).await;
    rig.hosts[1].daemon.restart().await;
    rig.green(proxy, &[&rig.hosts[1].daemon]).await;

    // Every copy: nothing is served until they are back, with everything.
    rig.kill_nodes(1);
    rig.kill_nodes(2);
    rig.seen("redis-node-down", &rig.controllers[1]).await;
    rig.seen("redis-not-serving", &rig.controllers[1]).await;
    rig.release();
    all_kept(proxy).await;
    rig.green(proxy, &[&rig.hosts[0].daemon]).await;
}

/// A host with one cluster, made with these options, whose only node is killed.
async fn killed_alone(options: &[&str]) -> Rig {
    let mut rig = Rig::start(0, true).await;
    let server = [rig.held_server()];
    rig.add_host(1, &server).await;
    let create = ["redis", "create", "shop", "--nodes", "1"];
    rig.run(&[&create, options].concat()).ok();
    rig.green(rig.hosts[0].proxy, &[&rig.hosts[0].daemon]).await;
    rig.kill_nodes(1);
    rig.seen("redis-node-down", &rig.controllers[0]).await;
    rig.release();
    rig
}

/// A node that keeps nothing comes back empty: nothing goes on without an operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_without_its_data_is_down_until_an_operator_accepts_the_loss() {
    let rig = killed_alone(&[]).await;
    rig.seen("redis-node-lost", &rig.controllers[0]).await;
    rig.seen("redis-shard-down", &rig.controllers[0]).await;
    let (_, status) = rig.status();
    let findings = status["findings"].as_array().unwrap();
    let down = findings.iter().find(|finding| finding["code"] == "redis-shard-down").unwrap();
    let primary = down["object"].as_str().unwrap().rsplit(' ').next().unwrap();
    rig.run(&["redis", "accept-loss", "shop", primary]).ok();
    rig.green(rig.hosts[0].proxy, &[&rig.hosts[0].daemon]).await;
}

/// A cache continues empty; the loss is shown until it is acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_lost_its_data_says_so_until_it_is_acknowledged() {
    let rig = killed_alone(&["--cache"]).await;
    rig.seen("redis-data-lost", &rig.controllers[0]).await;
    eventually("it is served", seen_within(), async || write_all(rig.hosts[0].proxy, "again")).await;
    rig.seen("redis-data-lost", &rig.controllers[1]).await;
    rig.run(&["status", "ack", "redis-data-lost"]).ok();
    rig.green(rig.hosts[0].proxy, &[&rig.hosts[0].daemon]).await;
}

/// A certificate for the proxy that ended in this year.
fn certificate(dir: &TempDir, year: i32) -> [String; 2] {
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(year, 2, 3);
    let key = rcgen::KeyPair::generate().unwrap();
    let (cert_file, key_file) = (dir.join("proxy.pem"), dir.join("proxy.key"));
    std::fs::write(&cert_file, params.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    [format!("redis.tls_cert={}", cert_file.display()), format!("redis.tls_key={}", key_file.display())]
}

/// A machine that is not fit for its host: a disk with less room than is to be kept free, and a certificate of the past.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_and_an_expired_certificate_are_seen_and_gone_after_the_repair() {
    let mut rig = Rig::start(1, true).await;
    rig.run(&["redis", "create", "shop", "--nodes", "1"]).ok();
    let proxy = rig.hosts[0].proxy;
    rig.green(proxy, &[]).await;

    let mut ill: Vec<String> = certificate(&rig.dir, 2001).into();
    ill.push("host.disk_reserve_mib=1000000000000".to_owned());
    rig.add_host(2, &ill).await;
    rig.seen("host-disk-full", &rig.controllers[0]).await;
    rig.seen("host-certificate-expiring", &rig.controllers[0]).await;
    let (_, status) = rig.status();
    let findings = status["findings"].as_array().unwrap();
    let disk = findings.iter().find(|finding| finding["code"] == "host-disk-full").unwrap();
    assert!(disk["hosts"][0] == "h2" && disk["severity"] == "critical", "{disk}");

    rig.hosts.pop();
    let well = certificate(&rig.dir, 2099);
    rig.add_host(2, &well).await;
    rig.green(proxy, &[&rig.hosts[1].daemon]).await;
}
