//! Which redis-server processes should run on this host, and what are they? The supervisor of this host's nodes.
//!
//! Every node has a directory that says whose data it holds, and a process that is known by its id, the time of its
//! start and the server's own run id. A process starts behind a password that nobody else knows, and gets the real one
//! only when it is known what it holds: a primary that comes back empty is reported as lost, and neither a client nor
//! a replica can take it for what it was.
//!
//! It knows nothing of the metadata: what is wanted comes as plain values.
//!
//! Read first: [`Nodes`] (what the proxy asks before it takes a node), [`Wanted`] (what the metadata asks for), `judge`
//! (what is decided), `node` (what is done).

mod config;
mod judge;
mod node;
mod nodes;
mod probe;
mod process;
mod record;
mod takeover;
mod wanted;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use capstan_control::epoch::Epoch;
use capstan_control::tasks::{Kind as TaskKind, OnFailure, Stage, Supervisor, TaskError};
use capstan_meta::backoff::Backoff;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use config::Version;
use node::{Node, Program};
pub use nodes::{Health, NodeAuth, NodeReport, NodeState, Nodes};
pub use wanted::{Incarnation, Kind, Persistence, Role, Wanted};

use crate::address::Address;

const NODES: TaskKind =
    TaskKind { name: "redis-nodes", on_failure: OnFailure::Restart, stage: Stage::Holding };
/// How often a healthy node is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often the end of a process is looked for between two looks.
const PULSE: Duration = Duration::from_millis(50);
/// Pauses between attempts at a node that does not come up.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// Server programs that are looked for, in this order.
const SERVERS: [&str; 2] = ["redis-server", "valkey-server"];

/// Why an agent cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No server program.
    #[error("neither redis-server nor valkey-server is on the PATH; install one, or name its path")]
    NoServer,
    /// A program that is none.
    #[error("{path} is not a Redis server: {why}")]
    NotAServer {
        /// Which file.
        path: PathBuf,
        /// What it did instead.
        why: String,
    },
}

/// How an agent works.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Below this, every node has a directory.
    pub dir: PathBuf,
    /// The server program; `None` looks on the PATH.
    pub server: Option<PathBuf>,
}

/// The roles of nodes, and the epoch that they were told with.
#[derive(Clone, Debug, Default)]
struct Roles {
    epoch: Epoch,
    roles: HashMap<Address, Role>,
}

/// What all nodes are told from outside.
#[derive(Clone)]
struct Orders {
    wanted: watch::Receiver<Arc<BTreeMap<Address, Wanted>>>,
    roles: watch::Receiver<Roles>,
    accepted: watch::Receiver<HashMap<Address, String>>,
}

/// The supervisor of this host's nodes. It runs as long as the [`Supervisor`] that it was started on.
#[derive(Debug)]
pub struct Agent {
    wanted: watch::Sender<Arc<BTreeMap<Address, Wanted>>>,
    roles: watch::Sender<Roles>,
    accepted: watch::Sender<HashMap<Address, String>>,
    nodes: Nodes,
}

impl Agent {
    /// Begins with no node wanted; nodes that run already are left alone until they are.
    pub fn start(config: AgentConfig, supervisor: &Supervisor) -> Result<Agent, AgentError> {
        let program = find_program(config.server.as_deref())?;
        let agent = Agent {
            wanted: watch::Sender::default(),
            roles: watch::Sender::default(),
            accepted: watch::Sender::default(),
            nodes: Nodes::supervised(),
        };
        let orders = Orders {
            wanted: agent.wanted.subscribe(),
            roles: agent.roles.subscribe(),
            accepted: agent.accepted.subscribe(),
        };
        let nodes = agent.nodes.clone();
        supervisor.start(NODES, "nodes", move |stop| {
            let host = Host { dir: config.dir.clone(), program: program.clone(), nodes: nodes.clone() };
            host.run(orders.clone(), stop)
        });
        Ok(agent)
    }

    /// What the proxy asks.
    #[must_use]
    pub fn nodes(&self) -> Nodes {
        self.nodes.clone()
    }

    /// All nodes of this host, as they should be. Who is not in it is stopped, in order, and keeps its data.
    pub fn want(&self, wanted: Vec<Wanted>) {
        let wanted = Arc::new(wanted.into_iter().map(|it| (it.node.clone(), it)).collect());
        self.wanted.send_if_modified(|known| {
            let changed = *known != wanted;
            *known = wanted;
            changed
        });
    }

    /// Who leads and who follows. False, and nothing happens, if a higher epoch was told before.
    pub fn set_roles(&self, epoch: Epoch, roles: impl IntoIterator<Item = (Address, Role)>) -> bool {
        let roles = Roles { epoch, roles: roles.into_iter().collect() };
        let mut taken = false;
        self.roles.send_if_modified(|known| {
            taken = epoch >= known.epoch;
            if taken {
                *known = roles;
            }
            taken
        });
        taken
    }

    /// Lets a lost node serve again, empty: for a primary without replicas, where there is nothing better. The run id
    /// is that of the report which said so.
    pub fn accept_loss(&self, node: Address, run_id: String) {
        self.accepted.send_modify(|accepted| drop(accepted.insert(node, run_id)));
    }
}

/// What the nodes of a host share.
#[derive(Clone)]
struct Host {
    dir: PathBuf,
    program: Program,
    nodes: Nodes,
}

impl Host {
    /// Keeps one task for each node until asked to stop. A node that is wanted again while it stops waits for its end.
    async fn run(self, mut orders: Orders, stop: CancellationToken) -> Result<(), TaskError> {
        let mut tasks = JoinSet::new();
        let mut running: HashMap<Address, CancellationToken> = HashMap::new();
        loop {
            let wanted = orders.wanted.borrow_and_update().clone();
            for (_, task) in running.iter().filter(|(node, _)| !wanted.contains_key(node)) {
                task.cancel();
            }
            for (address, wanted) in &*wanted {
                if !running.contains_key(address) {
                    let token = stop.child_token();
                    running.insert(address.clone(), token.clone());
                    tasks.spawn(self.clone().keep(wanted.clone(), orders.clone(), token));
                }
            }
            tokio::select! {
                () = stop.cancelled() => break,
                changed = orders.wanted.changed() => if changed.is_err() {
                    // Nobody can ask for anything else any more: the nodes run on until the process stops.
                    stop.cancelled().await;
                    break;
                },
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => drop(running.remove(&ended?)),
            }
        }
        running.values().for_each(CancellationToken::cancel);
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Keeps one node. It ends when it is not wanted any more, after an orderly stop.
    async fn keep(self, mut wanted: Wanted, mut orders: Orders, stop: CancellationToken) -> Address {
        let address = wanted.node.clone();
        let mut retry = Backoff::new(RETRY.0, RETRY.1, u64::from(address.port()));
        let dir = self.dir.join(format!("node-{}", address.port()));
        let mut node = loop {
            match Node::open(address.clone(), self.program.clone(), dir.clone()) {
                Ok(node) => break node,
                Err(error) => warn!(node = %address, %error, "node cannot be supervised"),
            }
            tokio::select! {
                () = stop.cancelled() => return address,
                () = sleep(retry.next_wait()) => {}
            }
        };
        while !stop.is_cancelled() {
            orders.roles.mark_unchanged();
            if let Some(newest) = orders.wanted.borrow_and_update().get(&address) {
                wanted.clone_from(newest);
            }
            let role = orders.roles.borrow().roles.get(&address).cloned().unwrap_or_default();
            let accepted = orders.accepted.borrow().get(&address).cloned();
            let report = node.turn(&wanted, &role, accepted.as_deref()).await;
            let healthy = matches!(report.state, NodeState::Ready { .. });
            if healthy {
                retry.reset()
            } else {
                note(&address, &report, &retry)
            }
            self.nodes.publish(&address, Some(report));
            let pause = if healthy { LOOK_EVERY } else { retry.next_wait() };
            tokio::select! {
                () = stop.cancelled() => {}
                _ = orders.wanted.changed() => {}
                _ = orders.roles.changed() => {}
                () = died(&mut node), if healthy => self.report_death(&address),
                () = sleep(pause) => {}
            }
        }
        node.stop(&wanted).await;
        self.nodes.publish(&address, None);
        address
    }

    /// The proxy must not wait for the next look to know.
    fn report_death(&self, address: &Address) {
        warn!(node = %address, "the process of a node ended");
        if let Some(report) = self.nodes.reports().get(address) {
            let state = NodeState::NotReady { why: "its process ended".into() };
            self.nodes.publish(address, Some(NodeReport { state, health: Health::Down, ..report.clone() }));
        }
    }
}

/// One line for each failure in a row would fill the log: only those at powers of two are said.
fn note(address: &Address, report: &NodeReport, retry: &Backoff) {
    if let NodeState::NotReady { why } = &report.state
        && (retry.failures() + 1).is_power_of_two()
    {
        warn!(node = %address, why = %why, attempts = retry.failures() + 1, "node is not ready");
    }
}

/// Waits for the end of the node's process.
async fn died(node: &mut Node) {
    while !node.has_died() {
        sleep(PULSE).await;
    }
}

/// Finds the server program and asks it what it is.
fn find_program(named: Option<&Path>) -> Result<Program, AgentError> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => find_server().ok_or(AgentError::NoServer)?,
    };
    let not_a_server = |why: String| AgentError::NotAServer { path: path.clone(), why };
    let output = std::process::Command::new(&path).arg("--version").output();
    let output = output.map_err(|e| not_a_server(e.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = Version::parse(&text).ok_or_else(|| not_a_server("it does not say its version".into()))?;
    Ok(Program { path, version })
}

/// The server program that is taken when none is named.
#[must_use]
pub fn find_server() -> Option<PathBuf> {
    SERVERS.iter().find_map(|name| on_path(name))
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
