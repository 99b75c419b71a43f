//! Real hosts in this process: proxies, supervised redis-servers, coordinators in real time. What a test cuts is the
//! way from coordinators to a proxy; what it kills is killed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use capstan_control::tasks::{Kind as TaskKind, OnFailure, Stage, Supervisor};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::view::{View, ViewOptions};
use capstan_meta::{OwnedTask, Store};
use capstan_redis::agent::{Agent, AgentConfig, Kind};
use capstan_redis::broker::{self, Tree};
use capstan_redis::coordinator::{Board, Coordinator, Proxies, Reply, Timing, Unreached, Wire as Admin};
use capstan_redis::data::proxy::{Config, Limits, Proxy};
use capstan_redis::host::{self, Identity, NodeSecret};
use capstan_redis::nmctl::Message;
use capstan_redis::slots::Slot;
use capstan_redis::spec::ClusterSpec;
use capstan_redis::status::NodeRecord;
use capstan_redis::{Address, ClusterName};
use capstan_testkit::redis::{self, Wire};
use capstan_testkit::{Port, TempDir, eventually};
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent::Homes;

pub(super) const SOON: Duration = Duration::from_secs(60);
const SECRET: &str = "of this test";
const KEEPING: TaskKind =
    TaskKind { name: "redis-host", on_failure: OnFailure::Restart, stage: Stage::Holding };

/// The way from a coordinator to the proxies, where some are cut off.
#[derive(Clone)]
struct Way {
    admin: Arc<Admin>,
    cut: Arc<Mutex<BTreeSet<Address>>>,
}

impl Proxies for Way {
    async fn tell(&self, proxy: &Address, message: &Message) -> Result<Reply, Unreached> {
        if self.cut.lock().unwrap().contains(proxy) {
            return Err(Unreached("cut off".to_owned()));
        }
        self.admin.tell(proxy, message).await
    }
}

pub(super) struct Host {
    pub address: Address,
    proxy: Option<Proxy>,
    supervisor: Supervisor,
    homes: Option<Homes>,
    _dir: TempDir,
    _ports: Vec<Port>,
}

impl Host {
    async fn start(store: &Store, nodes: usize) -> Host {
        let (homes, dir, supervisor) = (Homes::new(), TempDir::new("host").unwrap(), Supervisor::new(1));
        let ports: Vec<Port> = (0..nodes).map(|_| Port::reserve().unwrap()).collect();
        let config = AgentConfig { dir: homes.0.path().to_owned(), server: None };
        let agent = Arc::new(Agent::start(config, &supervisor).unwrap());
        let config = Config {
            listen: "127.0.0.1:0".parse().unwrap(),
            announce: None,
            workers: 1,
            limits: Limits::default(),
            tls: None,
            admin_password: Some(SECRET.to_owned()),
            state_dir: Some(dir.path().to_owned()),
            require_lease: true,
        };
        let proxy = Proxy::start(config, agent.nodes(), &supervisor).unwrap();
        let address: Address = proxy.address().to_string().parse().unwrap();
        let addresses: Vec<Address> =
            ports.iter().map(|port| port.addr().to_string().parse().unwrap()).collect();
        broker::add_host(store, &address, &addresses).await.unwrap();
        let me =
            Identity { proxy: address.clone(), nodes: Kind::Supervised, secret: NodeSecret::new(SECRET) };
        let store = store.clone();
        supervisor.start(KEEPING, "nodes", move |stop| {
            let (store, agent, me) = (store.clone(), agent.clone(), me.clone());
            async move {
                let view = View::open(store.clone(), Tree::ranges(), ViewOptions::default()).await?;
                host::keep(&me, &agent, &store, &view, &stop).await
            }
        });
        Host { address, proxy: Some(proxy), supervisor, homes: Some(homes), _dir: dir, _ports: ports }
    }

    /// Nothing of it is left from one moment to the next.
    pub async fn kill(&mut self) {
        self.supervisor.shut_down(Duration::ZERO).await;
        self.homes = None;
        self.proxy = None;
    }

    pub fn client(&self) -> anyhow::Result<Wire> {
        Wire::connect(self.address.as_str().parse()?)
    }
}

/// Hosts, coordinators and one cluster.
pub(super) struct Pool {
    pub store: Store,
    pub hosts: Vec<Host>,
    pub name: ClusterName,
    pub boards: Vec<Board>,
    cut: Arc<Mutex<BTreeSet<Address>>>,
    coordinators: Vec<OwnedTask>,
    started: Instant,
}

impl Pool {
    pub async fn start(hosts: usize, nodes: usize, coordinators: u64, spec: ClusterSpec) -> Pool {
        let store = Store::new(Embedded::in_memory(embedded::Options::default()));
        let mut pool = Pool {
            store: store.clone(),
            hosts: Vec::new(),
            name: "demo".parse().unwrap(),
            boards: Vec::new(),
            cut: Arc::default(),
            coordinators: Vec::new(),
            started: Instant::now(),
        };
        for _ in 0..hosts {
            pool.hosts.push(Host::start(&store, nodes).await);
        }
        for id in 1..=coordinators {
            pool.start_coordinator(id).await;
        }
        pool.started = Instant::now();
        broker::create_cluster(&store, &pool.name, &spec).await.unwrap();
        eventually("every slot is served", SOON, async || pool.write_all("first")).await;
        pool
    }

    pub async fn start_coordinator(&mut self, id: u64) {
        let timing = Timing::default();
        let admin = Arc::new(Admin::new(Some(SECRET.to_owned()), timing.reply_within));
        let way = Way { admin, cut: self.cut.clone() };
        let here = format!("127.0.0.1:{id}").parse().unwrap();
        let coordinator = Coordinator::start(self.store.clone(), way, &here, timing, id).await.unwrap();
        self.boards.push(coordinator.board());
        self.coordinators.push(OwnedTask::spawn(coordinator.run(CancellationToken::new())));
    }

    /// The processes of all coordinators end.
    pub fn kill_coordinators(&mut self) {
        self.coordinators.clear();
    }

    /// No coordinator reaches this proxy any more; clients do.
    pub fn cut_off(&self, proxy: &Address) {
        self.cut.lock().unwrap().insert(proxy.clone());
    }

    /// A coordinator reports nobody until everybody counts it: tests of healing begin when that is over.
    pub async fn warm(&self) {
        let counted = async || match Timing::default().warm_up().checked_sub(self.started.elapsed()) {
            None => Ok(()),
            Some(left) => Err(format!("{left:?} are left")),
        };
        eventually("everybody counts the coordinators", SOON, counted).await;
    }

    pub async fn tree(&self) -> Tree {
        Tree::read(&self.store).await.unwrap()
    }

    pub async fn nodes(&self) -> Vec<NodeRecord> {
        let tree = self.tree().await;
        tree.cluster(&self.name).unwrap().nodes.values().map(|seen| seen.record.clone()).collect()
    }

    /// The primary that has a key's slot.
    pub async fn owner(&self, key: &str) -> NodeRecord {
        self.find_owner(key).await.unwrap()
    }

    /// The same; nobody while it is being replaced.
    pub async fn find_owner(&self, key: &str) -> Option<NodeRecord> {
        let slot = Slot::of(key.as_bytes()).number();
        let has = |node: &NodeRecord| node.owned().any(|range| range.first() <= slot && slot <= range.last());
        self.nodes().await.into_iter().find(has)
    }

    pub fn host(&mut self, address: &Address) -> &mut Host {
        self.hosts.iter_mut().find(|host| host.address == *address).unwrap()
    }

    /// A proxy that lives.
    fn live(&self) -> SocketAddr {
        let live = self.hosts.iter().find(|host| host.proxy.is_some());
        live.unwrap().address.as_str().parse().unwrap()
    }

    /// Writes a key to each of many slots.
    pub fn write_all(&self, value: &str) -> Result<(), String> {
        redis::write_all(self.live(), value)
    }

    /// How many of the keys have this value.
    pub fn count(&self, value: &str) -> usize {
        redis::count(self.live(), value)
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

    /// kill -9 of the redis-server of a node, and of nothing else.
    pub async fn kill_server(&self, node: &Address) {
        let info = self.node(node).await.unwrap().say("INFO server").unwrap();
        let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap();
        let pid = nix::unistd::Pid::from_raw(pid.trim().parse().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    }

    pub async fn end(mut self) {
        self.kill_coordinators();
        for host in &mut self.hosts {
            host.kill().await;
        }
    }
}
