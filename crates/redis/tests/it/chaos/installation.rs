//! A whole installation in processes of its own: etcd, two coordinators, hosts with their redis-servers; everything can
//! be killed, stopped, cut off and started again.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use capstan_control::tasks::{Kind as TaskKind, OnFailure, Stage, Supervisor};
use capstan_meta::Store;
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::view::View;
use capstan_redis::agent::{Agent, AgentConfig, Kind};
use capstan_redis::broker;
use capstan_redis::coordinator::{Coordinator, Proxies, Reply, Unreached, Wire as Admin};
use capstan_redis::facts::Tree;
use capstan_redis::host::{self, Identity, NodeSecret};
use capstan_redis::nmctl::Message;
use capstan_redis::spec::ClusterSpec;
use capstan_redis::status::NodeRecord;
use capstan_redis::timing::Timing;
use capstan_redis::{Address, ClusterName, check};
use capstan_redis_proxy::{Config, Limits, Proxy};
use capstan_testkit::redis::{Wire, write_all};
use capstan_testkit::{Port, Process, Ready, TempDir, eventually, process};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::healing::Pace;
use crate::moves::{kill_server, reaper};

pub(super) const SOON: Duration = Duration::from_secs(240);
const HOST: &str = "chaos::installation::host_process";
const COORDINATOR: &str = "chaos::installation::coordinator_process";
const SECRET: &str = "of this installation";
const COORDINATORS: usize = 2;
/// The coordinators do not give up early.
const PATIENT: &str = "patient";
/// A node that is loading does not reply for seconds.
const NODE_REPLIES_WITHIN: Duration = Duration::from_secs(1);
const LOOP: TaskKind = TaskKind { name: "redis", on_failure: OnFailure::Restart, stage: Stage::Holding };

fn name() -> ClusterName {
    "chaos".parse().unwrap()
}

/// For a machine that is so busy that a process may not run for seconds.
fn patient() -> Timing {
    let (grant_ttl, session_ttl) = (Duration::from_secs(6), Duration::from_secs(15));
    Timing { grant_ttl, session_ttl, reply_within: Duration::from_secs(2), ..Timing::default() }
}

async fn connect(endpoint: &str) -> Result<Store, capstan_meta::MetaError> {
    Ok(Store::new(Etcd::connect(EtcdOptions::new([endpoint])).await?))
}

/// The process of a host, as `capstan host` runs it; does nothing in an ordinary run.
#[test]
fn host_process() {
    let Some(arguments) = process::child_arguments(HOST) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let [endpoint, listen, dir, server, nodes @ ..] = arguments.as_slice() else {
            panic!("{arguments:?}")
        };
        let supervisor = Supervisor::new(1);
        let config = AgentConfig { dir: nodes_dir(dir.as_ref()), server: Some(server.into()) };
        let agent = Arc::new(Agent::start(config, &supervisor).unwrap());
        let config = Config {
            listen: listen.parse().unwrap(),
            announce: None,
            workers: 1,
            limits: Limits::default(),
            tls: None,
            admin_password: Some(SECRET.to_owned()),
            state_dir: Some(proxy_dir(dir.as_ref())),
            require_lease: true,
        };
        let proxy = Proxy::start(config, agent.nodes(), &supervisor).unwrap();
        let me = Identity {
            proxy: proxy.address().to_string().parse().unwrap(),
            nodes: Kind::Supervised,
            secret: NodeSecret::new(SECRET),
        };
        let nodes: Vec<Address> = nodes.iter().map(|node| node.parse().unwrap()).collect();
        let endpoint = endpoint.clone();
        supervisor.start(LOOP, "nodes", move |stop| {
            let (endpoint, agent, me, nodes) = (endpoint.clone(), agent.clone(), me.clone(), nodes.clone());
            async move {
                let store = connect(&endpoint).await?;
                broker::add_host(&store, &me.proxy, &nodes).await?;
                let view = View::open(store.clone(), Tree::ranges(), host::view_options()).await?;
                host::keep(&me, &agent, &store, &view, &stop).await
            }
        });
        process::report_ready("");
        std::future::pending::<()>().await;
    });
}

/// The process of a coordinator; does nothing in an ordinary run.
#[test]
fn coordinator_process() {
    let Some(arguments) = process::child_arguments(COORDINATOR) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let [endpoint, address, cuts, times] = <[String; 4]>::try_from(arguments).unwrap();
        let supervisor = Supervisor::new(1);
        supervisor.start(LOOP, "coordinator", move |stop| {
            let (endpoint, cuts) = (endpoint.clone(), PathBuf::from(&cuts));
            let timing = if times == PATIENT { patient() } else { Timing::default() };
            let address: Address = address.parse().unwrap();
            let controller = address.as_str().replace(':', "-").parse().unwrap();
            async move {
                let store = connect(&endpoint).await?;
                let way = Way { admin: Admin::new(Some(SECRET.to_owned()), timing.reply_within), cuts };
                let me = (controller, &address);
                Coordinator::start(store, way, me, timing, rand::random()).await?.run(stop).await;
                Ok(())
            }
        });
        process::report_ready("");
        std::future::pending::<()>().await;
    });
}

/// The path from a coordinator to the proxies. A file with the address of a proxy cuts it.
struct Way {
    admin: Admin,
    cuts: PathBuf,
}

impl Proxies for Way {
    async fn send(&self, proxy: &Address, message: &Message) -> Result<Reply, Unreached> {
        if self.cuts.join(proxy.as_str()).exists() {
            return Err(Unreached("cut off".to_owned()));
        }
        self.admin.send(proxy, message).await
    }
}

fn nodes_dir(dir: &Path) -> PathBuf {
    dir.join("nodes")
}

fn proxy_dir(dir: &Path) -> PathBuf {
    dir.join("proxy")
}

/// A child process that can be started again. Its way to the store can be cut.
struct Member {
    child: &'static str,
    arguments: Vec<String>,
    /// `None`: it is dead.
    process: Option<Process>,
    dir: TempDir,
}

impl Member {
    async fn boot(&mut self) {
        let ready = self.dir.join("ready");
        let child = process::child_test(self.child, &ready, &self.arguments).unwrap();
        let mut process = child.spawn(self.dir.join("log")).unwrap();
        process.ready(&Ready::File(ready), SOON).await.unwrap();
        self.process = Some(process);
    }

    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill9().unwrap();
        }
    }

    fn log(&self) -> String {
        self.process.as_ref().map_or_else(|| "dead".to_owned(), Process::log_tail)
    }
}

/// One machine: a daemon with its proxy, and redis-servers.
pub(super) struct Host {
    member: Member,
    pub way_to_store: capstan_testkit::Proxy,
    pub port: Port,
    nodes: Vec<Port>,
    reaper: std::process::Child,
}

impl Host {
    async fn start(etcd: SocketAddr, nodes: usize, server: &Path) -> Host {
        // In memory: what a killed server has written is there afterwards, however slow the disk of the machine is.
        let (dir, port) = (TempDir::in_memory("chaos-host").unwrap(), Port::reserve().unwrap());
        let nodes: Vec<Port> = (0..nodes).map(|_| Port::reserve().unwrap()).collect();
        let way_to_store = capstan_testkit::Proxy::start(etcd).await.unwrap();
        let mut arguments = vec![way_to_store.endpoint(), port.addr().to_string()];
        arguments.extend([dir.path(), server].map(|path| path.display().to_string()));
        arguments.extend(nodes.iter().map(|node| node.addr().to_string()));
        let reaper = reaper(dir.path());
        let mut host = Host {
            member: Member { child: HOST, arguments, process: None, dir },
            way_to_store,
            port,
            nodes,
            reaper,
        };
        host.boot().await;
        host
    }

    pub(super) fn address(&self) -> Address {
        self.port.addr().to_string().parse().unwrap()
    }

    /// Starts its daemon on the state of the previous one.
    pub(super) async fn boot(&mut self) {
        self.member.boot().await;
    }

    pub(super) fn is_dead(&self) -> bool {
        self.member.process.is_none()
    }

    /// kill -9 of the daemon; its servers run on.
    pub(super) fn kill_daemon(&mut self) {
        self.member.kill();
    }

    /// kill -9 of all its servers.
    pub(super) fn kill_servers(&self) {
        self.nodes.iter().filter_map(|node| self.pid(node.number())).for_each(kill_server);
    }

    /// Its disk is replaced by an empty one.
    pub(super) fn lose_disk(&self) {
        let dir = self.member.dir.path();
        [nodes_dir(dir), proxy_dir(dir)].iter().for_each(|lost| std::fs::remove_dir_all(lost).unwrap());
    }

    /// SIGSTOP or SIGCONT of the daemon.
    pub(super) fn signal_daemon(&self, signal: Signal) {
        if let Some(process) = &self.member.process {
            process.signal(signal).unwrap();
        }
    }

    /// A signal to its servers.
    pub(super) fn signal_servers(&self, signal: Signal) {
        let pids = self.nodes.iter().filter_map(|node| self.pid(node.number()));
        pids.filter(|pid| is_server(*pid)).for_each(|pid| send(pid, signal));
    }

    /// A signal to the server of one node.
    pub(super) fn signal_server(&self, node: u16, signal: Signal) {
        let pid = self.pid(node).filter(|pid| is_server(*pid));
        pid.into_iter().for_each(|pid| send(pid, signal));
    }

    /// Gives a node the password of its primary again.
    pub(super) fn repair_link(&self, node: &Address) {
        // A node that does not reply gets it with its next start.
        let Ok(mut wire) = self.node(node) else { return };
        let password = self.record(node.port())["password"].as_str().unwrap_or_default().to_owned();
        drop(wire.say(&format!("CONFIG SET masterauth {password}")));
    }

    /// The process id of a node's server, from the agent's record.
    fn pid(&self, node: u16) -> Option<i32> {
        self.record(node)["process"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok())
    }

    /// The agent's record of a node.
    fn record(&self, node: u16) -> serde_json::Value {
        let path = nodes_dir(self.member.dir.path()).join(format!("node-{node}")).join("node.json");
        std::fs::read(path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// A connection to a node itself.
    pub(super) fn node(&self, node: &Address) -> anyhow::Result<Wire> {
        let record = self.record(node.port());
        let mut wire = Wire::connect(node.as_str().parse()?)?;
        wire.socket().set_read_timeout(Some(NODE_REPLIES_WITHIN))?;
        let said = wire.say(&format!("AUTH {}", record["password"].as_str().unwrap_or_default()))?;
        anyhow::ensure!(said == "+OK\r\n", "{node}: {said}");
        Ok(wire)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.member.kill();
        self.kill_servers();
        self.reaper.kill().ok();
        self.reaper.wait().ok();
    }
}

/// A process that has just ended does not get it.
fn send(pid: i32, signal: Signal) {
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
        Err(error) => panic!("cannot send {signal} to {pid}: {error}"),
    }
}

fn is_server(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|command| command.contains("redis-server"))
}

/// A coordinator, its way to the store, and the proxies that it cannot reach.
pub(super) struct Controller {
    member: Member,
    pub way_to_store: capstan_testkit::Proxy,
    cuts: TempDir,
}

impl Controller {
    async fn start(etcd: SocketAddr, number: usize, times: &str) -> Controller {
        let (dir, cuts) = (TempDir::new("chaos-controller").unwrap(), TempDir::new("chaos-cuts").unwrap());
        let way_to_store = capstan_testkit::Proxy::start(etcd).await.unwrap();
        let arguments = vec![
            way_to_store.endpoint(),
            format!("127.0.0.1:{}", number + 1),
            cuts.path().display().to_string(),
            times.to_owned(),
        ];
        let mut controller = Controller {
            member: Member { child: COORDINATOR, arguments, process: None, dir },
            way_to_store,
            cuts,
        };
        controller.boot().await;
        controller
    }

    pub(super) async fn boot(&mut self) {
        self.member.boot().await;
    }

    pub(super) fn is_dead(&self) -> bool {
        self.member.process.is_none()
    }

    pub(super) fn kill(&mut self) {
        self.member.kill();
    }

    pub(super) fn cut(&self, proxy: &Address) {
        std::fs::write(self.cuts.join(proxy.as_str()), "").unwrap();
    }

    pub(super) fn heal(&self) {
        for entry in std::fs::read_dir(self.cuts.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }
}

pub(super) struct Installation {
    pub etcd: capstan_testkit::Etcd,
    pub hosts: Vec<Host>,
    pub controllers: Vec<Controller>,
    pub pace: Pace,
    store: Store,
}

impl Installation {
    /// A cluster whose slots are all served, with every node in its in-sync set.
    pub(super) async fn start(hosts: usize, nodes: usize, spec: &ClusterSpec) -> Installation {
        Installation::with("default", hosts, nodes, spec).await
    }

    /// The same with coordinators that do not give up early.
    pub(super) async fn patient(hosts: usize, nodes: usize, spec: &ClusterSpec) -> Installation {
        Installation::with(PATIENT, hosts, nodes, spec).await
    }

    async fn with(times: &str, hosts: usize, nodes: usize, spec: &ClusterSpec) -> Installation {
        let (etcd, pace) = (capstan_testkit::Etcd::start().await.unwrap(), Pace::new());
        let at = etcd.port().addr();
        let store = connect(etcd.endpoint()).await.unwrap();
        let mut installation = Installation { etcd, hosts: Vec::new(), controllers: Vec::new(), pace, store };
        for _ in 0..hosts {
            let host = Host::start(at, nodes, &installation.pace.program()).await;
            installation.hosts.push(host);
        }
        for number in 0..COORDINATORS {
            installation.controllers.push(Controller::start(at, number, times).await);
        }
        eventually("the hosts are registered", SOON, async || {
            broker::create_cluster(&installation.store, &name(), spec).await
        })
        .await;
        installation.healthy().await;
        installation
    }

    pub(super) fn proxies(&self) -> Vec<SocketAddr> {
        self.hosts.iter().map(|host| host.port.addr()).collect()
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn name(&self) -> ClusterName {
        name()
    }

    pub(super) async fn tree(&self) -> Result<Tree, String> {
        Tree::read(&self.store).await.map_err(|error| error.to_string())
    }

    pub(super) async fn nodes(&self) -> Result<Vec<NodeRecord>, String> {
        let tree = self.tree().await?;
        let cluster = tree.clusters.get(&name()).ok_or("no cluster")?;
        Ok(cluster.nodes.values().map(|seen| seen.record.clone()).collect())
    }

    /// The host of a node.
    pub(super) fn host_of(&self, node: &NodeRecord) -> usize {
        self.hosts.iter().position(|host| host.address() == node.proxy_address).unwrap()
    }

    /// Writes a key to each of many slots. A host without nodes of the cluster does not have the database.
    fn write_all(&self, value: &str) -> Result<(), String> {
        let mut refused = Vec::new();
        for proxy in self.proxies() {
            match write_all(proxy, value) {
                Ok(()) => return Ok(()),
                Err(why) => refused.push(why),
            }
        }
        Err(refused.join("; "))
    }

    /// Waits until nothing is pending, no shard waits, every node is in sync, and every slot is served.
    pub(super) async fn healthy(&self) {
        let healthy = async || {
            let tree = self.tree().await?;
            let report = check::check(&tree, 0);
            let cluster = tree.clusters.get(&name()).ok_or("no cluster")?;
            let records = || cluster.shards.values().map(|seen| &seen.record);
            let waiting: Vec<_> = records().filter_map(|shard| shard.waiting.as_ref()).collect();
            let members: BTreeSet<&Address> = records().flat_map(|shard| &shard.in_sync).collect();
            let outside: Vec<_> = cluster.nodes.keys().filter(|node| !members.contains(node)).collect();
            if !report.is_at_rest() || !waiting.is_empty() || !outside.is_empty() {
                return Err(format!("{report:?}; waiting: {waiting:?}; not in sync: {outside:?}"));
            }
            self.write_all("probe")
        };
        let logs = || {
            let members = self.hosts.iter().map(|host| &host.member);
            let members = members.chain(self.controllers.iter().map(|controller| &controller.member));
            members.map(Member::log).collect::<Vec<_>>().join("\n---\n")
        };
        let outcome = capstan_testkit::try_eventually("the cluster is healthy", SOON, healthy).await;
        if let Err(timed_out) = outcome {
            panic!("{timed_out}\n{}", logs());
        }
    }
}
