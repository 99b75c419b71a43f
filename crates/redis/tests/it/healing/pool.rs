//! Real hosts in this process: proxies, supervised redis-servers, coordinators in real time. A test
//! partitions coordinators from a proxy; processes are really killed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan_control::tasks::{Kind as TaskKind, OnFailure, Stage, Supervisor};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::faults::{Faults, Faulty};
use capstan_meta::view::View;
use capstan_meta::{OwnedTask, Store};
use capstan_redis::agent::{Agent, AgentConfig, Kind};
use capstan_redis::board::Board;
use capstan_redis::broker;
use capstan_redis::coordinator::{Coordinator, Proxies, Reply, Unreached, Wire as Admin};
use capstan_redis::facts::Tree;
use capstan_redis::host::{self, Identity, NodeSecret};
use capstan_redis::nmctl::Message;
use capstan_redis::slots::Slot;
use capstan_redis::spec::ClusterSpec;
use capstan_redis::status::NodeRecord;
use capstan_redis::timing::Timing;
use capstan_redis::{Address, ClusterName};
use capstan_redis_proxy::{Config, Limits, Proxy};
use capstan_testkit::redis::{self, Wire};
use capstan_testkit::{Port, TempDir, eventually, try_eventually_blocking};
use nix::sys::signal::Signal;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent::Homes;

pub(super) const SOON: Duration = Duration::from_secs(60);
const SECRET: &str = "of this test";
const KEEPING: TaskKind =
    TaskKind { name: "redis-host", on_failure: OnFailure::Restart, stage: Stage::Holding };

/// The path from a coordinator to the proxies, some of which are cut off.
#[derive(Clone)]
struct Way {
    admin: Arc<Admin>,
    coordinator: u64,
    cut: Arc<Mutex<BTreeSet<(u64, Address)>>>,
}

impl Proxies for Way {
    async fn send(&self, proxy: &Address, message: &Message) -> Result<Reply, Unreached> {
        if self.cut.lock().unwrap().contains(&(self.coordinator, proxy.clone())) {
            return Err(Unreached("cut off".to_owned()));
        }
        self.admin.send(proxy, message).await
    }
}

pub(super) struct Host {
    pub address: Address,
    store: Store,
    server: Option<PathBuf>,
    running: Option<(Proxy, Supervisor)>,
    homes: Option<Homes>,
    dir: TempDir,
    port: Port,
    _nodes: Vec<Port>,
}

impl Host {
    async fn start(store: &Store, nodes: usize, server: Option<PathBuf>) -> Host {
        let (port, dir) = (Port::reserve().unwrap(), TempDir::new("host").unwrap());
        let nodes: Vec<Port> = (0..nodes).map(|_| Port::reserve().unwrap()).collect();
        let address: Address = port.addr().to_string().parse().unwrap();
        let addresses: Vec<Address> =
            nodes.iter().map(|port| port.addr().to_string().parse().unwrap()).collect();
        broker::add_host(store, &address, &addresses).await.unwrap();
        let homes = Some(Homes::new());
        let mut host =
            Host { address, store: store.clone(), server, running: None, homes, dir, port, _nodes: nodes };
        host.boot();
        host
    }

    /// Starts its daemon, on the state of the previous one.
    pub fn boot(&mut self) {
        let supervisor = Supervisor::new(1);
        let homes = self.homes.as_ref().unwrap();
        let config = AgentConfig { dir: homes.0.path().to_owned(), server: self.server.clone() };
        let agent = Arc::new(Agent::start(config, &supervisor).unwrap());
        let config = Config {
            listen: self.port.addr(),
            announce: None,
            workers: 1,
            limits: Limits::default(),
            tls: None,
            admin_password: Some(SECRET.to_owned()),
            state_dir: Some(self.dir.path().to_owned()),
            require_lease: true,
        };
        let proxy = Proxy::start(config, agent.nodes(), &supervisor).unwrap();
        let me = Identity {
            proxy: self.address.clone(),
            nodes: Kind::Supervised,
            secret: NodeSecret::new(SECRET),
        };
        let store = self.store.clone();
        supervisor.start(KEEPING, "nodes", move |stop| {
            let (store, agent, me) = (store.clone(), agent.clone(), me.clone());
            async move {
                let view = View::open(store.clone(), Tree::ranges(), host::view_options()).await?;
                host::keep(&me, &agent, &store, &view, &stop).await
            }
        });
        self.running = Some((proxy, supervisor));
    }

    /// Ends its daemon at once; its servers run on.
    pub async fn kill_daemon(&mut self) {
        if let Some((proxy, supervisor)) = self.running.take() {
            supervisor.shut_down(Duration::ZERO).await;
            drop(proxy);
        }
    }

    /// kill -9 of all its servers.
    pub fn kill_servers(&self) {
        self.homes.as_ref().unwrap().kill_servers();
    }

    /// Its disk is replaced by an empty one. Neither its daemon nor its servers run.
    pub fn lose_disk(&self) {
        for dir in [self.homes.as_ref().unwrap().0.path(), self.dir.path()] {
            // What was just killed may still write a file in between.
            let removed = || std::fs::remove_dir_all(dir);
            try_eventually_blocking("the directory is gone", SOON, removed).unwrap();
            std::fs::create_dir(dir).unwrap();
        }
    }

    /// Ends all of it at once.
    pub async fn kill(&mut self) {
        self.kill_daemon().await;
        self.homes = None;
    }

    pub fn client(&self) -> anyhow::Result<Wire> {
        Wire::connect(self.address.as_str().parse()?)
    }
}

/// How long servers take to load their keys: a wrapper around redis-server that reads it at every start.
pub(crate) struct Pace {
    dir: TempDir,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        let pace = Pace { dir: TempDir::new("pace").unwrap() };
        pace.set(Duration::ZERO);
        let delay = pace.dir.path().join("delay");
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && exec redis-server --version\n\
             exec redis-server \"$@\" --key-load-delay \"$(cat {})\"\n",
            delay.display()
        );
        std::fs::write(pace.program(), script).unwrap();
        std::fs::set_permissions(pace.program(), std::fs::Permissions::from_mode(0o755)).unwrap();
        pace
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.dir.path().join("redis-server")
    }

    /// From its next start on, a server takes this long to load a key, or a command of its append-only file.
    pub(crate) fn set(&self, each_key: Duration) {
        std::fs::write(self.dir.path().join("delay"), each_key.as_micros().to_string()).unwrap();
    }
}

/// Hosts, coordinators and one cluster.
pub(super) struct Pool {
    pub store: Store,
    /// The store as coordinators and hosts reach it, and what can happen on the way.
    control: Store,
    pub way_to_store: Faults,
    pub hosts: Vec<Host>,
    pub name: ClusterName,
    pub boards: Vec<Board>,
    /// Which coordinators cannot reach which proxies.
    cut: Arc<Mutex<BTreeSet<(u64, Address)>>>,
    coordinators: BTreeMap<u64, OwnedTask>,
    timing: Timing,
    pace: Pace,
    started: Instant,
}

impl Pool {
    pub async fn start(hosts: usize, nodes: usize, coordinators: u64, spec: ClusterSpec) -> Pool {
        Pool::with(Timing::default(), hosts, nodes, coordinators, spec).await
    }

    /// The same, with its own timing.
    pub async fn with(
        timing: Timing,
        hosts: usize,
        nodes: usize,
        coordinators: u64,
        spec: ClusterSpec,
    ) -> Pool {
        let embedded = Embedded::in_memory(embedded::Options::default());
        let store = Store::new(embedded.clone());
        let way_to_store = Faults::seeded(1);
        let control = Store::new(Faulty::new(embedded, way_to_store.clone()));
        let mut pool = Pool {
            store: store.clone(),
            control: control.clone(),
            way_to_store,
            hosts: Vec::new(),
            name: "demo".parse().unwrap(),
            boards: Vec::new(),
            cut: Arc::default(),
            coordinators: BTreeMap::new(),
            timing,
            pace: Pace::new(),
            started: Instant::now(),
        };
        for _ in 0..hosts {
            pool.hosts.push(Host::start(&control, nodes, Some(pool.pace.program())).await);
        }
        for id in 1..=coordinators {
            pool.start_coordinator(id).await;
        }
        pool.started = Instant::now();
        broker::create_cluster(&store, &pool.name, &spec).await.unwrap();
        eventually("every slot is served", SOON, async || pool.write_all("first")).await;
        pool
    }

    /// From its next start on, a server takes this long to load the keys of this pool's tests.
    pub fn load_for(&self, all_keys: Duration) {
        self.pace.set(all_keys / u32::try_from(redis::spread_keys().count()).unwrap());
    }

    pub async fn start_coordinator(&mut self, id: u64) {
        let timing = self.timing;
        let admin = Arc::new(Admin::new(Some(SECRET.to_owned()), timing.reply_within));
        let way = Way { admin, coordinator: id, cut: self.cut.clone() };
        let here = format!("127.0.0.1:{id}").parse().unwrap();
        let me = (format!("controller-{id}").parse().unwrap(), &here);
        let coordinator = Coordinator::start(self.control.clone(), way, me, timing, id).await.unwrap();
        self.boards.push(coordinator.board());
        self.coordinators.insert(id, OwnedTask::spawn(coordinator.run(CancellationToken::new())));
    }

    /// Ends all coordinators.
    pub fn kill_coordinators(&mut self) {
        self.coordinators.clear();
    }

    /// Partitions all coordinators, but not clients, from this proxy.
    pub fn cut_off(&self, proxy: &Address) {
        for id in self.coordinators.keys() {
            self.cut_link(*id, proxy);
        }
    }

    /// Partitions one coordinator from this proxy.
    pub fn cut_link(&self, coordinator: u64, proxy: &Address) {
        self.cut.lock().unwrap().insert((coordinator, proxy.clone()));
    }

    /// A new coordinator makes no reports until its warm-up is over: tests of healing begin after it.
    pub async fn warm(&self) {
        let counted = async || match Timing::default().warm_up().checked_sub(self.started.elapsed()) {
            None => Ok(()),
            Some(left) => Err(format!("{left:?} are left")),
        };
        eventually("the coordinators have warmed up", SOON, counted).await;
    }

    /// Whether as many coordinators are registered.
    pub async fn registered(&self, coordinators: usize) -> Result<(), String> {
        let alive = self.tree().await.alive();
        if alive.len() == coordinators { Ok(()) } else { Err(format!("{alive:?}")) }
    }

    pub async fn tree(&self) -> Tree {
        Tree::read(&self.store).await.unwrap()
    }

    pub async fn nodes(&self) -> Vec<NodeRecord> {
        let tree = self.tree().await;
        tree.cluster(&self.name).unwrap().nodes.values().map(|seen| seen.record.clone()).collect()
    }

    /// The primary that owns a key's slot.
    pub async fn owner(&self, key: &str) -> NodeRecord {
        self.find_owner(key).await.unwrap()
    }

    /// The same; `None` while it is being replaced.
    pub async fn find_owner(&self, key: &str) -> Option<NodeRecord> {
        let slot = Slot::of(key.as_bytes()).number();
        let has = |node: &NodeRecord| node.owned().any(|range| range.first() <= slot && slot <= range.last());
        self.nodes().await.into_iter().find(has)
    }

    pub fn host(&mut self, address: &Address) -> &mut Host {
        self.hosts.iter_mut().find(|host| host.address == *address).unwrap()
    }

    /// The live proxies. One without nodes of the cluster does not have the database.
    fn live(&self) -> impl Iterator<Item = SocketAddr> {
        let live = self.hosts.iter().filter(|host| host.running.is_some());
        live.map(|host| host.address.as_str().parse().unwrap())
    }

    /// Writes a key to each of many slots.
    pub fn write_all(&self, value: &str) -> Result<(), String> {
        let mut refused = Vec::new();
        for proxy in self.live() {
            match redis::write_all(proxy, value) {
                Ok(()) => return Ok(()),
                Err(why) => refused.push(why),
            }
        }
        Err(refused.join("; "))
    }

    /// How many of the keys have this value.
    pub fn count(&self, value: &str) -> usize {
        self.live().map(|proxy| count(proxy, value)).max().unwrap_or(0)
    }

    /// A connection to a node itself.
    pub async fn node(&self, node: &Address) -> anyhow::Result<Wire> {
        let nodes = self.nodes().await;
        let record = nodes.iter().find(|record| record.address == *node);
        let life = record.map_or(0, |record| record.incarnation);
        let digest = Sha256::digest(format!("{SECRET}\0{}/{life}", self.name));
        let password: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut wire = Wire::connect(node.as_str().parse()?)?;
        let said = wire.say(&format!("AUTH {password}"))?;
        anyhow::ensure!(said == "+OK\r\n", "{node}: {said}");
        Ok(wire)
    }

    /// kill -9 of the redis-server of a node only.
    pub async fn kill_server(&self, node: &Address) {
        self.signal(node, Signal::SIGKILL).await;
    }

    /// Sends a signal to the redis-server of a node.
    pub async fn signal(&self, node: &Address, signal: Signal) -> nix::unistd::Pid {
        let info = self.node(node).await.unwrap().say("INFO server").unwrap();
        let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap();
        let pid = nix::unistd::Pid::from_raw(pid.trim().parse().unwrap());
        nix::sys::signal::kill(pid, signal).unwrap();
        pid
    }

    /// Waits until a coordinator reports a proxy, and it had a moment to act on it.
    pub async fn believed_dead(&self) {
        let reported = async || match self.tree().await.failures.len() {
            0 => Err("no proxy is reported".to_owned()),
            _ => Ok(Instant::now()),
        };
        let since: Instant = eventually("a host is reported", SOON, reported).await;
        let acted = async || match since.elapsed() {
            passed if passed > Duration::from_secs(3) => Ok(()),
            passed => Err(format!("only {passed:?} have passed")),
        };
        eventually("coordinators could act on it", SOON, acted).await;
    }

    /// The nodes that may be promoted.
    pub async fn members(&self) -> BTreeSet<Address> {
        let tree = self.tree().await;
        let shards = tree.cluster(&self.name).unwrap().shards.values();
        shards.flat_map(|seen| seen.record.in_sync.clone()).collect()
    }

    /// Waits until every node is in its in-sync set.
    pub async fn in_sync(&self) {
        let known = async || {
            let (nodes, members) = (self.nodes().await, self.members().await);
            if nodes.iter().all(|node| members.contains(&node.address)) {
                Ok(())
            } else {
                Err(format!("{members:?}"))
            }
        };
        eventually("every node is in sync", SOON, known).await;
    }

    /// Waits until a replica is not in its in-sync set.
    pub async fn out_of_sync(&self, replica: &NodeRecord) {
        let known = async || {
            let members = self.members().await;
            if members.contains(&replica.address) { Err(format!("{members:?}")) } else { Ok(()) }
        };
        eventually("a replica is not in sync", SOON, known).await;
    }

    /// What the shards wait for, as text.
    pub async fn waits(&self) -> Vec<String> {
        let tree = self.tree().await;
        let shards = tree.cluster(&self.name).unwrap().shards.values();
        shards.filter_map(|seen| seen.record.waiting.clone()).map(|waiting| waiting.state).collect()
    }

    pub async fn end(mut self) {
        self.kill_coordinators();
        for host in &mut self.hosts {
            host.kill().await;
        }
    }
}

/// How many of the keys have this value; zero if any is not served.
fn count(proxy: SocketAddr, value: &str) -> usize {
    let expected = format!("${}\r\n{value}\r\n", value.len());
    let mut found = 0;
    for key in redis::spread_keys() {
        match Wire::follow(proxy, &format!("GET {key}")) {
            Ok(said) if said == expected => found += 1,
            Ok(said) if !said.starts_with('-') => {}
            Ok(_) | Err(_) => return 0,
        }
    }
    found
}
