//! Two hosts whose proxies are processes of their own, and a test that plays the coordinator.

use std::time::Duration;

use capstan_control::tasks::Supervisor;
use capstan_redis::agent::Nodes;
use capstan_redis::data::proxy::{Config, Limits, Proxy};
use capstan_testkit::redis::{RedisServer, Wire};
use capstan_testkit::{Port, Process, Ready, TempDir, process, try_eventually};

use super::host::SOON;

const CHILD: &str = "moves::proxies::proxy_process";

/// The process of a proxy; nothing in an ordinary run.
#[test]
fn proxy_process() {
    let Some(arguments) = process::child_arguments(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let config = Config {
            listen: arguments[0].parse().unwrap(),
            announce: None,
            workers: 2,
            limits: Limits { hold: Duration::from_secs(20), ..Limits::default() },
            tls: None,
            admin_password: None,
            state_dir: Some(arguments[1].clone().into()),
            require_lease: false,
        };
        let proxy = Proxy::start(config, Nodes::external(None), &Supervisor::default()).unwrap();
        process::report_ready(&proxy.address().to_string());
        std::future::pending::<()>().await;
    });
}

/// A proxy, its node, and the epoch that it was last told.
pub(super) struct ProxyHost {
    pub node: RedisServer,
    process: Process,
    port: Port,
    dir: TempDir,
    epoch: u64,
}

impl ProxyHost {
    pub(super) async fn start() -> ProxyHost {
        let (node, port) = (RedisServer::start().await.unwrap(), Port::reserve().unwrap());
        let dir = TempDir::new("proxy").unwrap();
        let process = spawn(&port, &dir).await;
        ProxyHost { node, process, port, dir, epoch: 0 }
    }

    pub(super) fn address(&self) -> std::net::SocketAddr {
        self.port.addr()
    }

    /// kill -9 of the proxy, and another one in its place.
    pub(super) async fn crash(&mut self) {
        self.process.kill9().unwrap();
        self.process = spawn(&self.port, &self.dir).await;
    }

    /// One message; the reply without its line end.
    pub(super) fn say(&self, words: &str) -> anyhow::Result<String> {
        Ok(Wire::connect(self.address())?.say(words)?.trim_end().to_owned())
    }

    /// `SETDB` and `SETPEER` of the next epoch, until they are obeyed: `own` has `{node}` for the node.
    pub(super) async fn tell(&mut self, order: [&str; 2], own: &str, peers: &str) {
        self.epoch += 1;
        let node = self.node.address().to_string();
        for message in order {
            let entries = if message == "SETDB" { own.replace("{node}", &node) } else { peers.to_owned() };
            let words = format!("NMCTL {message} {} NOFLAG {entries}", self.epoch);
            let words = words.trim_end();
            try_eventually("the proxy obeys", SOON, async || match self.say(words) {
                Ok(reply) if reply == "+OK" => Ok(()),
                Ok(reply) => Err(reply),
                Err(error) => Err(error.to_string()),
            })
            .await
            .unwrap_or_else(|late| panic!("{words}: {late}"));
        }
    }

    /// Asks for the release once.
    pub(super) fn release(&self, range: &str) -> anyhow::Result<String> {
        self.say(&format!("NMCTL RELEASING {} NOFLAG db {} {range}", self.epoch, self.node.address()))
    }
}

async fn spawn(port: &Port, dir: &TempDir) -> Process {
    let ready = dir.join("ready");
    let arguments = [port.addr().to_string(), dir.join("state").display().to_string()];
    let child = process::child_test(CHILD, &ready, arguments).unwrap();
    let mut child = child.spawn(dir.join("proxy.log")).unwrap();
    child.ready(&Ready::File(ready), SOON).await.unwrap();
    child
}

/// Source and target of the lower half of the slots, as a coordinator sees them.
pub(super) struct Pair {
    pub source: ProxyHost,
    pub target: ProxyHost,
}

const LOSER_FIRST: [&str; 2] = ["SETPEER", "SETDB"];
const GAINER_FIRST: [&str; 2] = ["SETDB", "SETPEER"];

impl Pair {
    /// The source has all slots.
    pub(super) async fn start() -> Pair {
        let (mut source, mut target) = (ProxyHost::start().await, ProxyHost::start().await);
        source.tell(GAINER_FIRST, "db {node} 0-16383", "").await;
        target.tell(GAINER_FIRST, "", &format!("db {} 0-16383", source.address())).await;
        Pair { source, target }
    }

    /// The lower half begins to move.
    pub(super) async fn begin(&mut self) {
        let (from, to) = (self.source.address(), self.target.address());
        let all_there = format!("db {from} 0-16383");
        self.target.tell(GAINER_FIRST, &format!("db {{node}} importing {from} 0-8191"), &all_there).await;
        let own = format!("db {{node}} migrating {to} 0-8191 db {{node}} 8192-16383");
        self.source.tell(GAINER_FIRST, &own, "").await;
    }

    /// Asks for the release until it is given.
    pub(super) async fn released(&self) {
        capstan_testkit::eventually("the range is released", SOON, async || {
            match self.source.release("0-8191") {
                Ok(reply) if reply == "+OK" => Ok(()),
                Ok(reply) => Err(reply),
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
    }

    /// The lower half is the target's.
    pub(super) async fn commit(&mut self) {
        let (from, to) = (self.source.address(), self.target.address());
        self.target.tell(GAINER_FIRST, "db {node} 0-8191", &format!("db {from} 8192-16383")).await;
        self.source.tell(LOSER_FIRST, "db {node} 8192-16383", &format!("db {to} 0-8191")).await;
    }
}
