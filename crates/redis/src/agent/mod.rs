//! Which redis-server processes should run on this host, and in which state? The supervisor of this host's
//! nodes.
//!
//! Every node has a directory with a record of the owner of its data, and a process that is identified by its
//! id, its start time and the server's own run id. A process starts with a secret password, and gets the real
//! one only after its data is checked: a primary that restarts empty is reported as lost, and neither a
//! client nor a replica can mistake it for the original.
//!
//! The agent has no access to the metadata: the desired state is passed in as plain values.
//!
//! Read first: [`Nodes`] (what the proxy checks before it uses a node), [`Wanted`] (the desired state),
//! `judge` (decisions), `node` (actions).

mod aside;
mod config;
mod error;
mod functions;
mod judge;
mod node;
mod probe;
mod process;
mod record;
mod silence;
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
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

pub use capstan_redis_proxy::nodes::Data;
pub use capstan_redis_proxy::nodes::{Health, Incarnation, NodeAuth, NodeReport, NodeState, Nodes};
pub use config::Version;
pub use judge::{Handover, RoleStep, Verdict, data, handover, may_follow, role_step, verdict};
use node::{Asked, Node, Program};
pub use probe::Seen;
pub use record::{ProcessMark, Record};
pub use wanted::{Former, Kind, Order, Persistence, Role, Wanted};

use crate::address::Address;

const NODES: TaskKind =
    TaskKind { name: "redis-nodes", on_failure: OnFailure::Restart, stage: Stage::Holding };
/// How often a healthy node is checked.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often the process is checked between two checks of the node.
const PULSE: Duration = Duration::from_millis(50);
/// Backoff between attempts to start a node.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// A role changes only if the metadata confirmed it this recently: shorter than it takes to declare a host
/// dead and to promote another node, so that a host that was frozen does not take back what it lost.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(2);
/// Server programs to search for, in this order.
const SERVERS: [&str; 2] = ["redis-server", "valkey-server"];

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// No server program.
    #[error("neither redis-server nor valkey-server is on the PATH; install one, or name its path")]
    NoServer,
    /// The program is not a Redis server.
    #[error("{path} is not a Redis server: {why}")]
    NotAServer {
        /// Which file.
        path: PathBuf,
        /// What it did instead.
        why: String,
    },
}

/// The configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The parent directory of all nodes' directories.
    pub dir: PathBuf,
    /// The server program; `None` searches the PATH.
    pub server: Option<PathBuf>,
}

/// The roles of nodes, and their epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Roles {
    epoch: Epoch,
    roles: HashMap<Address, Order>,
}

/// The desired state of all nodes.
#[derive(Clone)]
struct Orders {
    wanted: watch::Receiver<Arc<BTreeMap<Address, Wanted>>>,
    roles: watch::Receiver<Roles>,
    accepted: watch::Receiver<HashMap<Address, String>>,
    confirmed: watch::Receiver<Option<Instant>>,
}

impl Orders {
    /// Whether the roles were confirmed recently.
    fn are_confirmed(&self) -> bool {
        self.confirmed.borrow().is_none_or(|at| at.elapsed() <= CONFIRMED_WITHIN)
    }
}

/// The supervisor of this host's nodes. It runs as long as the [`Supervisor`] that it was started on.
#[derive(Debug)]
pub struct Agent {
    wanted: watch::Sender<Arc<BTreeMap<Address, Wanted>>>,
    roles: watch::Sender<Roles>,
    accepted: watch::Sender<HashMap<Address, String>>,
    confirmed: watch::Sender<Option<Instant>>,
    nodes: Nodes,
}

impl Agent {
    /// Starts without nodes; running nodes are left alone until they are wanted.
    pub fn start(config: AgentConfig, supervisor: &Supervisor) -> Result<Agent, AgentError> {
        let program = find_program(config.server.as_deref())?;
        let agent = Agent {
            wanted: watch::Sender::default(),
            roles: watch::Sender::default(),
            accepted: watch::Sender::default(),
            confirmed: watch::Sender::default(),
            nodes: Nodes::supervised(),
        };
        let orders = Orders {
            wanted: agent.wanted.subscribe(),
            roles: agent.roles.subscribe(),
            accepted: agent.accepted.subscribe(),
            confirmed: agent.confirmed.subscribe(),
        };
        let nodes = agent.nodes.clone();
        supervisor.start(NODES, "nodes", move |stop| {
            let host = Host { dir: config.dir.clone(), program: program.clone(), nodes: nodes.clone() };
            host.run(orders.clone(), stop)
        });
        Ok(agent)
    }

    /// The published state of the nodes, for the proxy.
    #[must_use]
    pub fn nodes(&self) -> Nodes {
        self.nodes.clone()
    }

    /// Sets the desired state of all nodes. A node that is not listed is stopped regularly and keeps its
    /// data.
    pub fn want(&self, wanted: Vec<Wanted>) {
        let wanted = Arc::new(wanted.into_iter().map(|it| (it.node.clone(), it)).collect());
        self.wanted.send_if_modified(|known| {
            let changed = *known != wanted;
            *known = wanted;
            changed
        });
    }

    /// Sets the roles. Returns false, and does nothing, if a higher epoch was set before.
    pub fn set_roles<O: Into<Order>>(
        &self,
        epoch: Epoch,
        roles: impl IntoIterator<Item = (Address, O)>,
    ) -> bool {
        let roles = roles.into_iter().map(|(node, order)| (node, order.into()));
        let roles = Roles { epoch, roles: roles.collect() };
        let mut taken = false;
        self.roles.send_if_modified(|known| {
            taken = epoch >= known.epoch;
            let changed = taken && *known != roles;
            if taken {
                *known = roles;
            }
            changed
        });
        taken
    }

    /// Confirms the roles as of this time. After the first call, roles change only shortly after a
    /// confirmation.
    pub fn confirm_roles(&self, at: Instant) {
        self.confirmed.send_replace(Some(at));
    }

    /// Lets a lost node serve again, empty: for a primary without replicas, where there is no alternative.
    /// The run id is that of the report of the loss.
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
    /// Runs one task per node until it is stopped. A node that is wanted again while it stops waits for its
    /// end.
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
                    // The desired state cannot change any more: the nodes run on until the process stops.
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

    /// Keeps one node in its desired state. Ends after a regular stop when the node is not wanted any more.
    async fn keep(self, mut wanted: Wanted, mut orders: Orders, stop: CancellationToken) -> Address {
        let address = wanted.node.clone();
        let mut retry = Backoff::new(RETRY.0, RETRY.1, u64::from(address.port()));
        let dir = self.dir.join(format!("node-{}", address.port()));
        let mut node = loop {
            match Node::open(address.clone(), self.program.clone(), dir.clone()) {
                Ok(node) => break node,
                Err(error) => warn!(node = %address, %error, "cannot supervise node"),
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
            let order = orders.roles.borrow().roles.get(&address).cloned().unwrap_or_default();
            let accepted = orders.accepted.borrow().get(&address).cloned();
            let confirmed = || orders.are_confirmed();
            let asked = Asked {
                wanted: &wanted,
                order: &order,
                accepted: accepted.as_deref(),
                confirmed: &confirmed,
            };
            let report = node.turn(&asked).await;
            let healthy = matches!(report.state, NodeState::Ready { .. });
            if healthy {
                retry.reset()
            } else {
                note(&address, &report, &retry)
            }
            let down = report.health == Health::Down;
            self.nodes.publish(&address, Some(report));
            // Only a node that does not start gets growing pauses.
            let pause = match (healthy, down) {
                (true, _) => LOOK_EVERY,
                (false, true) => retry.next_wait(),
                (false, false) => retry.next_wait().min(LOOK_EVERY),
            };
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

    /// Publishes the end of the process at once, before the next check.
    fn report_death(&self, address: &Address) {
        warn!(node = %address, "node process exited");
        if let Some(report) = self.nodes.reports().get(address) {
            let state = NodeState::NotReady { why: "its process exited".into() };
            self.nodes.publish(address, Some(NodeReport { state, health: Health::Down, ..report.clone() }));
        }
    }
}

/// Consecutive failures of a usual start: a process needs a moment until it listens.
const USUAL_FAILURES: u32 = 7;

/// Logs consecutive failures only at powers of two.
fn note(address: &Address, report: &NodeReport, retry: &Backoff) {
    if let NodeState::NotReady { why } = &report.state
        && (retry.failures() + 1).is_power_of_two()
    {
        let attempts = retry.failures() + 1;
        match attempts > USUAL_FAILURES {
            true => warn!(node = %address, why = %why, attempts, "node is not ready"),
            false => debug!(node = %address, why = %why, attempts, "node is not ready yet"),
        }
    }
}

/// Waits for the end of the node's process.
async fn died(node: &mut Node) {
    while !node.has_died() {
        sleep(PULSE).await;
    }
}

/// Finds the server program and checks its version.
fn find_program(named: Option<&Path>) -> Result<Program, AgentError> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => find_server().ok_or(AgentError::NoServer)?,
    };
    let not_a_server = |why: String| AgentError::NotAServer { path: path.clone(), why };
    let output = std::process::Command::new(&path).arg("--version").output();
    let output = output.map_err(|e| not_a_server(e.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = Version::parse(&text).ok_or_else(|| not_a_server("it does not print a version".into()))?;
    Ok(Program { path, version })
}

/// The default server program.
#[must_use]
pub fn find_server() -> Option<PathBuf> {
    SERVERS.iter().find_map(|name| on_path(name))
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
