//! Does the agent keep nodes in their desired state? With real servers that are killed, adopted, wiped and
//! promoted.

use std::sync::Arc;
use std::time::Duration;

use capstan_control::epoch::Epoch;
use capstan_control::tasks::Supervisor;
use capstan_redis::Address;
use capstan_redis::agent::{
    Agent, AgentConfig, Former, Health, Incarnation, Kind, NodeReport, NodeState, Order, Persistence, Role,
    Wanted,
};
use capstan_redis::shard::Succession;
use capstan_testkit::{Port, RedisServer, TempDir, eventually};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use crate::moves::kill_server;

const PASSWORD: &str = "open sesame";
const SOON: Duration = Duration::from_secs(30);

struct Host {
    agent: Agent,
    supervisor: Supervisor,
}

/// A directory of nodes. Servers outlive their supervisor by design; those of a failed test end with its
/// directory.
pub(crate) struct Homes(pub(crate) TempDir);

impl Homes {
    pub(crate) fn new() -> Homes {
        Homes(TempDir::new("agent").unwrap())
    }
}

impl Homes {
    /// kill -9 of every server that was started below it. When this returns, none of them writes any more.
    pub(crate) fn kill_servers(&self) {
        let homes = std::fs::read_dir(self.0.path()).into_iter().flatten().flatten();
        for record in homes.filter_map(|home| std::fs::read_to_string(home.path().join("node.json")).ok()) {
            let Some((_, pid)) = record.split_once("\"pid\":") else { continue };
            let pid: i32 = pid.split(',').next().unwrap().parse().unwrap();
            kill_server(pid);
        }
    }
}

impl Drop for Homes {
    fn drop(&mut self) {
        self.kill_servers();
    }
}

impl Host {
    fn start(Homes(dir): &Homes) -> Host {
        let supervisor = Supervisor::new(1);
        let config = AgentConfig { dir: dir.path().to_owned(), server: None };
        let agent = Agent::start(config, &supervisor).unwrap();
        Host { agent, supervisor }
    }

    fn report(&self, node: &Address) -> Option<NodeReport> {
        self.agent.nodes().reports().get(node).cloned()
    }

    async fn until(&self, what: &str, node: &Address, is: impl Fn(&NodeReport) -> bool) -> NodeReport {
        eventually(what, SOON, async || match self.report(node) {
            Some(report) if is(&report) => Ok(report),
            other => Err(format!("{other:?}")),
        })
        .await
    }

    async fn ready(&self, wanted: &Wanted) -> NodeReport {
        let is = |report: &NodeReport| matches!(&report.state, NodeState::Ready { owner, .. } if *owner == wanted.owner);
        self.until("the node is ready", &wanted.node, is).await
    }

    async fn stop(self) {
        let report = self.supervisor.shut_down(SOON).await;
        assert!(report.hung.is_empty(), "{report}");
    }
}

fn wanted(port: &Port, owner: Option<(&str, u64)>, persistence: Persistence) -> Wanted {
    Wanted {
        node: port.addr().to_string().parse().unwrap(),
        kind: Kind::Supervised,
        owner: owner.map(|(name, incarnation)| (name.parse().unwrap(), Incarnation(incarnation))),
        max_memory: Some(50 << 20),
        eviction: false,
        persistence,
        password: Some(PASSWORD.to_owned()),
        former: Former::Erased,
        peers: Vec::new(),
    }
}

async fn connect(node: &Address) -> redis::RedisResult<MultiplexedConnection> {
    let url = format!("redis://:{}@{node}/", PASSWORD.replace(' ', "%20"));
    // A takeover holds writes back for a second, and so does a disk that is slow.
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(SOON)).set_response_timeout(Some(SOON));
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

async fn set(node: &Address, key: &str) {
    let mut connection = connect(node).await.unwrap();
    redis::cmd("SET").arg(key).arg("1").exec_async(&mut connection).await.unwrap();
}

async fn keys(node: &Address) -> u64 {
    let mut connection = connect(node).await.unwrap();
    redis::cmd("DBSIZE").query_async(&mut connection).await.unwrap()
}

async fn pid(node: &Address) -> i32 {
    let mut connection = connect(node).await.unwrap();
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await.unwrap();
    info.lines().find_map(|line| line.strip_prefix("process_id:")).unwrap().trim().parse().unwrap()
}

/// Waits until the kernel has what a node with an append-only file acknowledged: while a sync takes long, its server
/// holds writes back, and loses them with its process.
async fn flushed(node: &Address) {
    let mut connection = connect(node).await.unwrap();
    eventually("the kernel has everything", SOON, async || {
        let info: String = redis::cmd("INFO").arg("persistence").query_async(&mut connection).await.unwrap();
        if info.contains("aof_buffer_length:0\r\n") { Ok(()) } else { Err(info) }
    })
    .await;
}

/// Kills the server of a node and waits until a new process of it is ready.
async fn revive(host: &Host, want: &Wanted) {
    let before = host.ready(want).await.run_id;
    kill(&want.node).await;
    host.until("it is back", &want.node, |it| it.run_id != before && it.health == Health::Ready).await;
}

/// Kills the server of a node by its own process id, as the kernel does when memory is short.
async fn kill(node: &Address) {
    let pid = nix::unistd::Pid::from_raw(pid(node).await);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

async fn has_keys(host: &Host, node: &Address, count: u64) -> NodeReport {
    host.until("the agent has seen the keys", node, |report| {
        report.keys == count && report.health == Health::Ready
    })
    .await
}

#[tokio::test]
async fn a_node_is_started_as_wanted() {
    let (dir, port) = (Homes::new(), Port::reserve().unwrap());
    let host = Host::start(&dir);
    let want = wanted(&port, Some(("demo", 1)), Persistence::None);
    host.agent.want(vec![want.clone()]);
    assert_eq!(host.ready(&want).await.starts, 1, "the port was still held when the server started");
    let mut connection = connect(&want.node).await.unwrap();
    let memory: Vec<String> =
        redis::cmd("CONFIG").arg("GET").arg("maxmemory").query_async(&mut connection).await.unwrap();
    assert_eq!(memory[1], (50 << 20).to_string());
    let debug = redis::cmd("DEBUG").arg("SLEEP").arg("0").exec_async(&mut connection).await;
    assert!(debug.unwrap_err().to_string().contains("not allowed"));
    let larger = Wanted { max_memory: Some(60 << 20), ..want.clone() };
    host.agent.want(vec![larger]);
    eventually("the limit has changed", SOON, async || {
        let memory: Vec<String> = redis::cmd("CONFIG")
            .arg("GET")
            .arg("maxmemory")
            .query_async(&mut connection.clone())
            .await
            .map_err(|e| e.to_string())?;
        if memory[1] == (60 << 20).to_string() { Ok(()) } else { Err(memory[1].clone()) }
    })
    .await;
    host.agent.want(vec![]);
    eventually("the node is gone", SOON, async || match connect(&want.node).await {
        Ok(_) => Err("it still answers"),
        Err(_) => Ok(()),
    })
    .await;
    host.stop().await;
}

/// A running process that turns its append-only file on writes to a temporary file until its first rewrite is complete: a
/// kill before that would lose what it acknowledged.
#[tokio::test]
async fn the_first_write_to_a_node_of_a_durable_cluster_survives_a_kill() {
    let (dir, port) = (Homes::new(), Port::reserve().unwrap());
    let host = Host::start(&dir);
    let free = wanted(&port, None, Persistence::None);
    host.agent.want(vec![free.clone()]);
    host.ready(&free).await;
    let want = wanted(&port, Some(("demo", 1)), Persistence::Aof);
    host.agent.want(vec![want.clone()]);
    let before = host.ready(&want).await.run_id;
    set(&want.node, "first").await;
    flushed(&want.node).await;
    kill(&want.node).await;
    host.until("it is back", &want.node, |it| it.run_id != before && it.health == Health::Ready).await;
    assert_eq!(keys(&want.node).await, 1);
    host.stop().await;
}

#[tokio::test]
async fn an_emptied_primary_is_lost_until_that_is_accepted() {
    let (dir, port) = (Homes::new(), Port::reserve().unwrap());
    let host = Host::start(&dir);
    let want = wanted(&port, Some(("demo", 1)), Persistence::None);
    host.agent.want(vec![want.clone()]);
    host.ready(&want).await;
    // At once: the agent may not have observed the key.
    set(&want.node, "k").await;
    kill(&want.node).await;
    let lost = host.until("it is lost", &want.node, |it| it.health == Health::Lost).await;
    assert!(connect(&want.node).await.is_err(), "an emptied node accepts no connection");
    host.agent.accept_loss(want.node.clone(), lost.run_id);
    host.ready(&want).await;
    assert_eq!(keys(&want.node).await, 0);
    host.stop().await;
}

#[tokio::test]
async fn data_survives_as_its_persistence_says() {
    let (dir, port) = (Homes::new(), Port::reserve().unwrap());
    let want = wanted(&port, Some(("demo", 1)), Persistence::Aof);
    let host = Host::start(&dir);
    host.agent.want(vec![want.clone()]);
    host.ready(&want).await;
    set(&want.node, "k").await;
    has_keys(&host, &want.node, 1).await;
    let mut connection = connect(&want.node).await.unwrap();
    redis::cmd("SET").arg("k2").arg("1").exec_async(&mut connection).await.unwrap();
    flushed(&want.node).await;
    revive(&host, &want).await;
    assert_eq!(keys(&want.node).await, 2);
    host.stop().await;

    let none = wanted(&port, Some(("demo", 1)), Persistence::None);
    let host = Host::start(&dir);
    host.agent.want(vec![none.clone()]);
    host.ready(&none).await;
    assert_eq!(keys(&none.node).await, 2, "an orderly stop keeps the data");
    host.stop().await;
}

#[test]
fn a_node_outlives_its_supervisor_and_is_adopted() {
    let (dir, port) = (Homes::new(), Port::reserve().unwrap());
    let want = wanted(&port, Some(("demo", 1)), Persistence::None);
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let doomed = runtime();
    let before = doomed.block_on(async {
        let host = Host::start(&dir);
        host.agent.want(vec![want.clone()]);
        host.ready(&want).await;
        set(&want.node, "k").await;
        has_keys(&host, &want.node, 1).await;
        pid(&want.node).await
    });
    // Everything is dropped at once, as by a kill; nothing is stopped regularly.
    doomed.shutdown_timeout(SOON);
    runtime().block_on(async {
        let host = Host::start(&dir);
        host.agent.want(vec![want.clone()]);
        let report = host.ready(&want).await;
        assert_eq!((pid(&want.node).await, report.keys, report.starts), (before, 1, 0));
        // A regular stop that is not recorded has still saved the data.
        host.supervisor.shut_down(Duration::ZERO).await;
    });
    runtime().block_on(async {
        let host = Host::start(&dir);
        host.agent.want(vec![want.clone()]);
        host.ready(&want).await;
        assert_eq!(keys(&want.node).await, 1);
        host.stop().await;
    });
}

#[tokio::test]
async fn a_node_is_emptied_before_somebody_else_gets_it() {
    let (dir, port) = (Homes::new(), Port::reserve().unwrap());
    let host = Host::start(&dir);
    let free = wanted(&port, None, Persistence::None);
    host.agent.want(vec![free.clone()]);
    host.ready(&free).await;
    let before = pid(&free.node).await;
    let first = wanted(&port, Some(("demo", 1)), Persistence::Aof);
    host.agent.want(vec![first.clone()]);
    host.ready(&first).await;
    assert_eq!(pid(&free.node).await, before, "an empty free node is taken as it is");
    set(&first.node, "secret").await;
    let again = wanted(&port, Some(("demo", 2)), Persistence::Aof);
    host.agent.want(vec![again.clone()]);
    host.ready(&again).await;
    assert_eq!(keys(&again.node).await, 0, "the same name, but another life of it");
    revive(&host, &again).await;
    assert_eq!(keys(&again.node).await, 0, "nothing was left on disk either");
    host.stop().await;
}

#[tokio::test]
async fn a_stranger_at_the_port_is_reported_and_left_alone() {
    let (dir, port) = (Homes::new(), Port::reserve().unwrap());
    let stranger = std::net::TcpListener::bind(port.addr()).unwrap();
    let host = Host::start(&dir);
    let want = wanted(&port, Some(("demo", 1)), Persistence::None);
    host.agent.want(vec![want.clone()]);
    let report = host.until("it is reported", &want.node, |it| it.health == Health::Down).await;
    assert!(
        matches!(&report.state, NodeState::NotReady { why } if why.contains("in use by another process"))
    );
    drop(stranger);
    host.ready(&want).await;
    host.stop().await;
}

#[tokio::test]
async fn an_empty_primary_never_wipes_its_replica() {
    let (dir, ports) = (Homes::new(), [Port::reserve().unwrap(), Port::reserve().unwrap()]);
    let [primary, replica] = [0, 1].map(|at: usize| wanted(&ports[at], Some(("demo", 1)), Persistence::None));
    let host = Arc::new(Host::start(&dir));
    host.agent.want(vec![primary.clone(), replica.clone()]);
    host.ready(&primary).await;
    set(&primary.node, "k").await;
    let follows = |of: &Wanted| Role::ReplicaOf(of.node.clone());
    assert!(host.agent.set_roles(Epoch(5), [(replica.node.clone(), follows(&primary))]));
    has_keys(&host, &primary.node, 1).await;
    host.until("the replica is in sync", &replica.node, |it| it.linked && it.keys == 1).await;

    kill(&primary.node).await;
    host.until("the primary is lost", &primary.node, |it| it.health == Health::Lost).await;
    let seen = host.until("the replica misses it", &replica.node, |it| !it.linked).await;
    assert_eq!(seen.keys, 1);

    assert!(!host.agent.set_roles::<Role>(Epoch(4), []), "a lower epoch is refused");
    let forced = Order { succession: Succession::Forced, ..Order::from(Role::Primary) };
    let roles = [(primary.node.clone(), follows(&replica).into()), (replica.node.clone(), forced)];
    assert!(host.agent.set_roles(Epoch(6), roles));
    host.until("the replica leads", &replica.node, |it| it.replica_of.is_none() && it.keys == 1).await;
    host.until("the old primary follows", &primary.node, |it| it.linked && it.keys == 1).await;
    Arc::into_inner(host).unwrap().stop().await;
}

/// Writes new keys to a node until it refuses one; returns the number of accepted ones.
async fn write_until_refused(node: Address) -> u64 {
    let mut connection = connect(&node).await.unwrap();
    let mut taken = 0;
    loop {
        let set = redis::cmd("SET").arg(format!("written-{taken}")).arg(taken).to_owned();
        match set.exec_async(&mut connection).await {
            Ok(()) => taken += 1,
            Err(error) => {
                assert_eq!(error.code(), Some("READONLY"), "{error}");
                return taken;
            }
        }
    }
}

#[tokio::test]
async fn a_replica_takes_over_under_load_and_has_every_write_that_was_taken() {
    let (dir, ports) = (Homes::new(), [Port::reserve().unwrap(), Port::reserve().unwrap()]);
    let host = Host::start(&dir);
    let [old, new] = ports.each_ref().map(|port| wanted(port, Some(("demo", 1)), Persistence::None));
    host.agent.want(vec![old.clone(), new.clone()]);
    let roles = |leads: &Wanted, follows: &Wanted| {
        [(leads.node.clone(), Role::Primary), (follows.node.clone(), Role::ReplicaOf(leads.node.clone()))]
    };
    host.agent.set_roles(Epoch(1), roles(&old, &new));
    host.until("the replica follows", &new.node, |it| it.replica_of.is_some() && it.linked).await;
    let mut writer = tokio::task::JoinSet::new();
    writer.spawn(write_until_refused(old.node.clone()));
    host.until("the replica has some of it", &new.node, |it| it.keys > 0).await;
    host.agent.set_roles(Epoch(2), roles(&new, &old));
    let taken = writer.join_next().await.unwrap().unwrap();
    host.until("it leads", &new.node, |it| it.replica_of.is_none() && it.health == Health::Ready).await;
    host.until("the old one follows", &old.node, |it| it.replica_of.as_ref() == Some(&new.node)).await;
    assert_eq!(keys(&new.node).await, taken);
    host.stop().await;
}

/// D6: the state of another node says nothing about this one.
#[tokio::test]
async fn d6_a_node_whose_primary_does_not_answer_is_not_down() {
    let (dir, ports) = (Homes::new(), [Port::reserve().unwrap(), Port::reserve().unwrap()]);
    let host = Host::start(&dir);
    let [primary, node] = ports.each_ref().map(|port| wanted(port, Some(("demo", 1)), Persistence::None));
    host.agent.want(vec![primary.clone(), node.clone()]);
    host.ready(&primary).await;
    host.ready(&node).await;
    let frozen = nix::unistd::Pid::from_raw(pid(&primary.node).await);
    nix::sys::signal::kill(frozen, nix::sys::signal::Signal::SIGSTOP).unwrap();
    host.agent.set_roles(Epoch(1), [(node.node.clone(), Role::ReplicaOf(primary.node.clone()))]);
    let why = |it: &NodeReport| match &it.state {
        NodeState::NotReady { why } => why.to_string(),
        NodeState::Ready { .. } => String::new(),
    };
    let waits = host.until("it waits", &node.node, |it| why(it).contains("cannot be followed")).await;
    assert_eq!(waits.health, Health::Ready, "{waits}");
    host.until("the other one is frozen", &primary.node, |it| it.health == Health::Frozen).await;
    nix::sys::signal::kill(frozen, nix::sys::signal::Signal::SIGCONT).unwrap();
    host.until("it follows", &node.node, |it| it.linked && it.replica_of.is_some()).await;
    host.stop().await;
}

/// D8: a host that was frozen resumes with outdated orders, and must not act on them.
#[tokio::test]
async fn d8_a_role_that_is_not_confirmed_is_not_taken_back() {
    let (dir, ports) = (Homes::new(), [Port::reserve().unwrap(), Port::reserve().unwrap()]);
    let host = Host::start(&dir);
    let [old, new] = ports.each_ref().map(|port| wanted(port, Some(("demo", 1)), Persistence::None));
    host.agent.want(vec![old.clone(), new.clone()]);
    let leads = |leads: &Wanted, follows: &Wanted| {
        [(leads.node.clone(), Role::Primary), (follows.node.clone(), Role::ReplicaOf(leads.node.clone()))]
    };
    host.agent.set_roles(Epoch(1), leads(&new, &old));
    host.until("it follows", &old.node, |it| it.replica_of.is_some() && it.linked).await;
    // The metadata last seen by this host says the opposite, and is outdated.
    let long_ago = tokio::time::Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
    host.agent.confirm_roles(long_ago);
    host.agent.set_roles(Epoch(2), leads(&old, &new));
    let refused = |it: &NodeReport| {
        matches!(&it.state, NodeState::NotReady { why } if why.contains("not confirmed"))
            && it.replica_of.is_some()
    };
    host.until("it does not lead", &old.node, refused).await;
    assert_eq!(host.report(&new.node).unwrap().replica_of, None, "the primary still leads");
    host.agent.confirm_roles(tokio::time::Instant::now() + Duration::from_secs(60));
    host.until("it leads when that is confirmed", &old.node, |it| it.replica_of.is_none()).await;
    host.stop().await;
}

/// Data of a cluster that still exists is renamed, not removed, and can be restored.
#[tokio::test]
async fn data_that_leaves_a_cluster_is_set_aside_and_can_be_brought_back() {
    let (dir, port) = (Homes::new(), Port::reserve().unwrap());
    let host = Host::start(&dir);
    let want = |former, owner| Wanted { former, ..wanted(&port, owner, Persistence::None) };
    let owned = want(Former::SetAside, Some(("demo", 1)));
    host.agent.want(vec![owned.clone()]);
    host.ready(&owned).await;
    set(&owned.node, "k").await;
    has_keys(&host, &owned.node, 1).await;
    let free = want(Former::SetAside, None);
    host.agent.want(vec![free.clone()]);
    host.ready(&free).await;
    assert_eq!(keys(&free.node).await, 0);
    let again = want(Former::BroughtBack, Some(("demo", 1)));
    host.agent.want(vec![again.clone()]);
    host.ready(&again).await;
    assert_eq!(keys(&again.node).await, 1);
    host.agent.want(vec![free.clone()]);
    host.ready(&free).await;
    let other = want(Former::BroughtBack, Some(("demo", 2)));
    host.agent.want(vec![other.clone()]);
    host.until("nothing is there for another life", &other.node, |it| it.health == Health::Lost).await;
    host.stop().await;
}

#[tokio::test]
async fn a_server_of_somebody_else_is_emptied_used_and_left_alone() {
    let homes = Homes::new();
    let host = Host::start(&homes);
    let options = || RedisServer::options().set("requirepass", PASSWORD);
    let (server, second) = (options().start().await.unwrap(), options().start().await.unwrap());
    let of = |server: &RedisServer, owner: Option<(&str, u64)>| Wanted {
        node: server.address().to_string().parse().unwrap(),
        kind: Kind::External,
        owner: owner.map(|(name, incarnation)| (name.parse().unwrap(), Incarnation(incarnation))),
        max_memory: None,
        eviction: false,
        persistence: Persistence::None,
        password: Some(PASSWORD.to_owned()),
        former: Former::Erased,
        peers: Vec::new(),
    };
    let (free, owned) = (of(&server, None), of(&server, Some(("c", 1))));
    set(&free.node, "of another owner").await;
    host.agent.want(vec![free.clone()]);
    host.ready(&free).await;
    assert_eq!(keys(&free.node).await, 1, "what is only registered is not touched");
    host.agent.want(vec![owned.clone()]);
    host.ready(&owned).await;
    assert_eq!(keys(&owned.node).await, 0, "a cluster gets it empty");
    set(&owned.node, "k").await;
    has_keys(&host, &owned.node, 1).await;

    let follower = of(&second, Some(("c", 1)));
    host.agent.want(vec![owned.clone(), follower.clone()]);
    host.ready(&follower).await;
    let roles =
        [(owned.node.clone(), Role::Primary), (follower.node.clone(), Role::ReplicaOf(owned.node.clone()))];
    host.agent.set_roles(Epoch(1), roles);
    host.until("it follows", &follower.node, |report| report.linked && report.keys == 1).await;

    let process = pid(&owned.node).await;
    host.stop().await;
    assert_eq!(pid(&owned.node).await, process, "an external server is not stopped");
}
