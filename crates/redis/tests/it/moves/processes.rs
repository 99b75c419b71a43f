//! The processes of an installation, each a child of the test that can be killed: store, hosts and
//! coordinators.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use capstan_control::tasks::Supervisor;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::view::{View, ViewOptions};
use capstan_meta::{Store, wire};
use capstan_redis::Address;
use capstan_redis::agent::{Agent, AgentConfig, Kind};
use capstan_redis::broker;
use capstan_redis::coordinator::{Coordinator, Wire as CoordinatorWire};
use capstan_redis::facts::Tree;
use capstan_redis::host::{self, Identity, NodeSecret};
use capstan_redis::timing::Timing;
use capstan_redis_proxy::{Config, Limits, Proxy};
use capstan_testkit::redis::Wire;
use capstan_testkit::{Port, Process, Ready, TempDir, eventually, eventually_blocking, process};
use redis::aio::MultiplexedConnection;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::host::SOON;

const STORE: &str = "moves::processes::store_process";
const HOST: &str = "moves::processes::host_process";
const COORDINATOR: &str = "moves::processes::coordinator_process";
/// The admin password of the proxies, and the secret of the nodes' passwords.
const SECRET: &str = "moves-secret";

/// Slower to give up than the default: on a loaded machine a late process is not dead, and a killed proxy
/// restarts before its nodes are reassigned. A session is much longer than a grant, because a coordinator
/// stops granting that much earlier than its session ends.
fn timing() -> Timing {
    Timing {
        ping_every: Duration::from_millis(250),
        reply_within: Duration::from_secs(2),
        grant_ttl: Duration::from_secs(8),
        patience: 80,
        session_ttl: Duration::from_secs(30),
        nodes_every: Duration::from_millis(500),
        ..Timing::default()
    }
}

async fn store(endpoint: &str) -> Store {
    Store::new(Etcd::connect(EtcdOptions::new([endpoint])).await.unwrap())
}

/// The process of a host: proxy, agent and nodes; does nothing in an ordinary run.
#[test]
fn host_process() {
    let Some(arguments) = process::child_arguments(HOST) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(serve_host(&arguments));
}

async fn serve_host(arguments: &[String]) {
    let [endpoint, listen, dir, nodes @ ..] = arguments else { panic!("{arguments:?}") };
    let supervisor = Supervisor::new(1);
    let agent = Arc::new(
        Agent::start(AgentConfig { dir: nodes_dir(dir.as_ref()), server: None }, &supervisor).unwrap(),
    );
    let config = Config {
        listen: listen.parse().unwrap(),
        announce: None,
        workers: 2,
        limits: Limits { hold: Duration::from_secs(30), ..Limits::default() },
        tls: None,
        admin_password: Some(SECRET.to_owned()),
        state_dir: Some(Path::new(dir).join("proxy")),
        require_lease: true,
    };
    let proxy = Proxy::start(config, agent.nodes(), &supervisor).unwrap();
    let address: Address = proxy.address().to_string().parse().unwrap();
    let me = Identity { proxy: address, nodes: Kind::Supervised, secret: NodeSecret::new(SECRET) };
    let store = store(endpoint).await;
    let nodes: Vec<Address> = nodes.iter().map(|node| node.parse().unwrap()).collect();
    broker::add_host(&store, &me.proxy, &nodes).await.unwrap();
    let view = View::open(store.clone(), Tree::ranges(), ViewOptions::default()).await.unwrap();
    process::report_ready(listen);
    host::keep(&me, &agent, &store, &view, &CancellationToken::new()).await.unwrap();
}

/// The process of a coordinator; does nothing in an ordinary run.
#[test]
fn coordinator_process() {
    let Some(arguments) = process::child_arguments(COORDINATOR) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = store(&arguments[0]).await;
        let proxies = CoordinatorWire::new(Some(SECRET.to_owned()), timing().reply_within);
        let address: Address = arguments[1].parse().unwrap();
        let me = (arguments[1].replace(':', "-").parse().unwrap(), &address);
        let coordinator = Coordinator::start(store, proxies, me, timing(), rand::random()).await.unwrap();
        process::report_ready("");
        coordinator.run(CancellationToken::new()).await;
    });
}

/// The process of an embedded store; does nothing in an ordinary run.
#[test]
fn store_process() {
    let Some(arguments) = process::child_arguments(STORE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let backend = Embedded::open(arguments[0].as_ref(), embedded::Options::default()).await.unwrap();
        let listener = TcpListener::bind(&arguments[1]).await.unwrap();
        process::report_ready(&arguments[1]);
        let never = std::future::pending();
        wire::serve(listener, Arc::new(backend), wire::Options::default(), never).await.unwrap();
    });
}

/// An embedded store on disk, behind the wire protocol that other machines would use.
pub(super) struct StoreProcess {
    pub endpoint: String,
    _process: Process,
    _port: Port,
    _dir: TempDir,
}

impl StoreProcess {
    pub(super) async fn start() -> StoreProcess {
        let (dir, port) = (TempDir::new("meta").unwrap(), Port::reserve().unwrap());
        let arguments = [dir.join("data").display().to_string(), port.addr().to_string()];
        let process = spawn(STORE, &dir, &arguments).await;
        let endpoint = format!("http://{}", port.addr());
        StoreProcess { endpoint, _process: process, _port: port, _dir: dir }
    }
}

fn nodes_dir(dir: &Path) -> PathBuf {
    dir.join("nodes")
}

/// A coordinator that can be killed and replaced by another one.
pub(super) struct CoordinatorProcess {
    process: Process,
    arguments: [String; 2],
    dir: TempDir,
}

impl CoordinatorProcess {
    pub(super) async fn start(endpoint: &str, number: usize) -> CoordinatorProcess {
        let dir = TempDir::new("coordinator").unwrap();
        let arguments = [endpoint.to_owned(), format!("127.0.0.1:{}", number + 1)];
        let process = spawn(COORDINATOR, &dir, &arguments).await;
        CoordinatorProcess { process, arguments, dir }
    }

    /// kill -9, and another one in its place.
    pub(super) async fn crash(&mut self) {
        self.process.kill9().unwrap();
        self.process = spawn(COORDINATOR, &self.dir, &self.arguments).await;
    }
}

/// Waits for the end of the test, however it ends, and then for that of the host; its nodes end last.
const REAPER: &str = "read -r over; sleep 1; for record in \"$1\"/node-*/node.json; do \
    pid=$(sed -n 's/.*\"pid\":\\([0-9]*\\).*/\\1/p' \"$record\"); \
    grep -q redis-server \"/proc/$pid/cmdline\" 2>/dev/null && kill -KILL \"$pid\"; done";

/// Ends the nodes of a host when the test is killed: they outlive their host by design.
pub(crate) fn reaper(dir: &Path) -> std::process::Child {
    let mut command = std::process::Command::new("/bin/sh");
    command.args(["-c", REAPER, "reaper"]).arg(nodes_dir(dir));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    // A killed test may take its whole process group with it.
    command.process_group(0).spawn().unwrap()
}

/// A host that can be killed: its proxy, or one of its nodes.
pub(super) struct HostProcess {
    process: Process,
    reaper: std::process::Child,
    port: Port,
    nodes: Vec<Port>,
    arguments: Vec<String>,
    dir: TempDir,
}

impl HostProcess {
    pub(super) async fn start(endpoint: &str, nodes: usize) -> HostProcess {
        let (dir, port) = (TempDir::new("host").unwrap(), Port::reserve().unwrap());
        let nodes: Vec<Port> = (0..nodes).map(|_| Port::reserve().unwrap()).collect();
        let mut arguments =
            vec![endpoint.to_owned(), port.addr().to_string(), dir.path().display().to_string()];
        arguments.extend(nodes.iter().map(|node| node.addr().to_string()));
        let process = spawn(HOST, &dir, &arguments).await;
        let reaper = reaper(dir.path());
        HostProcess { process, reaper, port, nodes, arguments, dir }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.port.addr()
    }

    /// kill -9 of the process with the proxy, and another one in its place. Its nodes run on.
    pub(super) async fn crash(&mut self) {
        self.process.kill9().unwrap();
        self.process = spawn(HOST, &self.dir, &self.arguments).await;
    }

    /// kill -9 of a redis-server of the host; its agent starts another.
    pub(super) fn kill_node(&self, address: &SocketAddr) {
        for node in self.nodes.iter().filter(|node| node.addr() == *address) {
            let Some(pid) = self.record(node)["process"]["pid"].as_i64() else { continue };
            kill_server(i32::try_from(pid).unwrap());
        }
    }

    /// A message of the admin; the reply with its line ends.
    pub(super) fn say(&self, words: &str) -> anyhow::Result<String> {
        let mut wire = Wire::connect(self.address())?;
        let login = wire.say(&format!("AUTH admin {SECRET}"))?;
        anyhow::ensure!(login == "+OK\r\n", "{login}");
        wire.say(words)
    }

    /// Connections to the nodes themselves, bypassing the proxy.
    pub(super) async fn node_connections(&self) -> Vec<MultiplexedConnection> {
        let mut connections = Vec::new();
        for node in &self.nodes {
            // A node that was replaced gets another password while it is emptied.
            connections.push(eventually("a node answers", SOON, async || self.connect(node).await).await);
        }
        connections
    }

    async fn connect(&self, node: &Port) -> redis::RedisResult<MultiplexedConnection> {
        let password = self.record(node)["password"].as_str().unwrap_or_default().to_owned();
        let client = redis::Client::open(format!("redis://:{password}@{}/", node.addr()))?;
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(SOON));
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd("PING").exec_async(&mut connection).await?;
        Ok(connection)
    }

    /// The agent's record of a node.
    fn record(&self, node: &Port) -> serde_json::Value {
        let path = nodes_dir(self.dir.path()).join(format!("node-{}", node.number())).join("node.json");
        std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// The end of the process's log, for a test that failed.
    pub(super) fn log(&self) -> String {
        self.process.log_tail()
    }
}

impl Drop for HostProcess {
    /// Nodes outlive their host by design; those of a test end with it.
    fn drop(&mut self) {
        self.process.kill9().ok();
        self.nodes.iter().for_each(|node| self.kill_node(&node.addr()));
        self.reaper.kill().ok();
        self.reaper.wait().ok();
    }
}

/// kill -9 of a server. When this returns, it writes no more.
pub(crate) fn kill_server(pid: i32) {
    let command = || std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if command().contains("redis-server") {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).ok();
        // That of a zombie is empty.
        eventually_blocking("the server is gone", SOON, || match command() {
            gone if gone.is_empty() => Ok(()),
            running => Err(running),
        });
    }
}

async fn spawn(child: &str, dir: &TempDir, arguments: &[String]) -> Process {
    let ready = dir.join("ready");
    let mut process = process::child_test(child, &ready, arguments).unwrap().spawn(dir.join("log")).unwrap();
    process.ready(&Ready::File(ready), SOON).await.unwrap();
    process
}
