//! How does a command travel? The data path of the proxy, between clients and nodes.
//!
//! A proxy has a few workers, each a thread with its own listener on the same port, its own clients and its
//! own pipelined connections to the nodes. They share nothing on the path of a command; they read a routing
//! table that one `keeper` swaps atomically. Read first: `worker` (the loop), `session` (a client), `link` (a
//! node), `dispatch` (how a command is executed).

mod accounts;
mod admin;
mod adoption;
mod arena;
mod block;
mod client_command;
mod client_list;
mod confirm;
mod cursor;
mod dedicated;
mod dispatch;
mod facts;
mod gathering;
mod keeper;
mod limits;
mod link;
mod local;
mod mailbox;
mod merge;
mod monitor;
mod names;
mod outbox;
mod pause;
mod permissions;
mod pubsub;
mod replies;
mod route;
mod session;
mod slot_scan;
mod spread;
mod stream;
mod subscriptions;
mod tls;
mod transact;
mod transaction;
mod waiter;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use capstan_control::tasks::{Kind, OnFailure, Stage, Supervisor};
use capstan_meta::clock;
use tokio::sync::mpsc;

use crate::conversation::Credentials;
use crate::moves::{Moves, MovesConfig};
use crate::nodes::Nodes;
use crate::state::{DamagedState, ProxyState, Routing, Serving, StateFile};
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::PasswordHash;

use adoption::Adoption;
use facts::Counters;
use keeper::{Keeper, Order};
pub use limits::Limits;
use mailbox::Mailbox;
use names::Names;
use pause::Pause;
pub use tls::{ClientTls, PlainClients};
use worker::Worker;

/// Most workers that make sense: more threads than this have no cores to run on.
const MAX_WORKERS: usize = 256;
/// The owner of the pushed state: without it no message can be accepted.
const KEEPER: Kind = Kind { name: "redis-keeper", on_failure: OnFailure::ShutDown, stage: Stage::Holding };
/// The files in the state directory: the pushed state, and the ledger of moves.
const STATE_FILE: &str = "proxy.state";
const LEDGER_FILE: &str = "moves.ledger";

/// The configuration of a proxy.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address for clients.
    pub listen: SocketAddr,
    /// The address announced to clients and other proxies; by default the one that it listens on.
    pub announce: Option<Address>,
    /// Threads; each has its own connections to every node.
    pub workers: usize,
    /// Bounds.
    pub limits: Limits,
    /// TLS for clients: optional or required.
    pub tls: Option<ClientTls>,
    /// The password of `AUTH admin`. Without one, `NMCTL` is limited to local connections.
    pub admin_password: Option<String>,
    /// Where accepted messages are persisted; without it, a restarted proxy is empty, and slots do not move.
    pub state_dir: Option<PathBuf>,
    /// Whether it requires a lease from the start.
    pub require_lease: bool,
}

/// Why a proxy did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A thread or its event queue cannot be created.
    #[error("cannot start a worker")]
    Worker(#[source] io::Error),
    /// The state directory cannot be used.
    #[error("cannot use the state directory {}", path.display())]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The recorded moves cannot be resumed.
    #[error("{0}")]
    Moves(String),
    /// The persisted state is damaged.
    #[error(transparent)]
    State(#[from] DamagedState),
}

/// The state that all workers share.
struct Shared {
    limits: Limits,
    tls: Option<ClientTls>,
    names: Names,
    address: Address,
    admin: Option<PasswordHash>,
    /// In plain text, to authenticate at other proxies.
    admin_password: Option<String>,
    nodes: Nodes,
    /// `None` without a state directory.
    moves: Option<Moves>,
    routing: ArcSwap<Routing>,
    adoption: Adoption,
    lent: Mutex<Lent>,
    orders: mpsc::Sender<Order>,
    mailboxes: Vec<Mailbox>,
    stopping: AtomicBool,
    clients: AtomicUsize,
    next_client: AtomicU64,
    /// The number of `MONITOR` clients.
    monitors: AtomicUsize,
    /// The databases with a `CLIENT PAUSE`.
    pauses: Mutex<Vec<Pause>>,
    is_paused: AtomicBool,
    counters: Counters,
    started: Instant,
    run_id: String,
}

/// For how long data may be served, and how long the machine had been suspended when that was decided.
#[derive(Clone, Copy, Debug)]
struct Lent {
    serving: Serving,
    suspended: Duration,
}

impl Lent {
    const NOTHING: Lent = Lent { serving: Serving::NotNow, suspended: Duration::ZERO };

    /// For how long data may be served as of now.
    fn serving(self) -> Serving {
        match self.serving {
            Serving::Until { .. } => {
                self.serving.after_suspension(clock::slept(self.suspended, clock::suspended()))
            }
            Serving::Always | Serving::NotNow => self.serving,
        }
    }
}

impl Shared {
    fn lent(&self) -> Lent {
        *self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lend(&self, lent: Lent) {
        *self.lent.lock().unwrap_or_else(PoisonError::into_inner) = lent;
    }
}

/// A running proxy; stops when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// Binds the port and starts the workers. `nodes` has the state of the nodes; the keeper runs under the
    /// supervisor.
    pub fn start(config: Config, nodes: Nodes, supervisor: &Supervisor) -> Result<Proxy, StartError> {
        let (file, state) = load(config.state_dir.as_deref())?;
        let (address, listeners) = listen(&config)?;
        let polls = listeners.iter().map(|_| mio::Poll::new()).collect::<io::Result<Vec<_>>>();
        let polls = polls.map_err(StartError::Worker)?;
        let (orders, inbox) = mpsc::channel(keeper::QUEUE);
        let needs_lease = config.require_lease;
        let shared = Arc::new(shared(config, address, nodes.clone(), supervisor, orders, &polls)?);
        let mut proxy = Proxy { address, shared: Arc::clone(&shared), threads: Vec::new() };
        let keeper = Keeper::new(Arc::clone(&shared), nodes, state, file, needs_lease);
        let mut keeper = Some((keeper.map_err(StartError::Moves)?, inbox));
        supervisor.start(KEEPER, "redis proxy", move |stop| {
            let keeper = keeper.take();
            async move {
                if let Some((keeper, inbox)) = keeper {
                    stop.run_until_cancelled(keeper.run(inbox)).await;
                }
                Ok(())
            }
        });
        for (number, (listener, poll)) in listeners.into_iter().zip(polls).enumerate() {
            let worker =
                Worker::new(number, Arc::clone(&shared), poll, listener).map_err(StartError::Worker)?;
            proxy.threads.push(spawn(number, worker).map_err(StartError::Worker)?);
        }
        Ok(proxy)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections and ends the threads.
    pub fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.mailboxes.iter().for_each(Mailbox::wake);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("proxy worker panicked");
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The state that was persisted last.
fn load(dir: Option<&std::path::Path>) -> Result<(Option<StateFile>, ProxyState), StartError> {
    let Some(dir) = dir else { return Ok((None, ProxyState::default())) };
    std::fs::create_dir_all(dir).map_err(|source| StartError::StateDir { path: dir.to_owned(), source })?;
    let file = StateFile::at(dir.join(STATE_FILE));
    let state = file.load()?;
    Ok((Some(file), state))
}

/// One listener per worker, all on the same port.
fn listen(config: &Config) -> Result<(SocketAddr, Vec<std::net::TcpListener>), StartError> {
    let failed = |source| StartError::Listen { address: config.listen, source };
    let first = worker::listen(config.listen).map_err(failed)?;
    // Port 0 selects any; the other workers use the same one.
    let address = first.local_addr().map_err(failed)?;
    let mut listeners = vec![first];
    for _ in 1..config.workers.clamp(1, MAX_WORKERS) {
        listeners.push(worker::listen(address).map_err(failed)?);
    }
    Ok((address, listeners))
}

fn shared(
    config: Config,
    address: SocketAddr,
    nodes: Nodes,
    supervisor: &Supervisor,
    orders: mpsc::Sender<Order>,
    polls: &[mio::Poll],
) -> Result<Shared, StartError> {
    let invalid = |e| StartError::Listen { address, source: io::Error::new(io::ErrorKind::InvalidInput, e) };
    let announced = match config.announce.clone() {
        Some(announced) => announced,
        None => address.to_string().parse().map_err(invalid)?,
    };
    let moves = open_moves(&config, &announced, &nodes, supervisor)?;
    let mailbox = |poll: &mio::Poll| Worker::waker(poll).map(Mailbox::new);
    let random: [u8; 20] = rand::random();
    Ok(Shared {
        limits: config.limits.allowed(),
        tls: config.tls,
        names: Names::default(),
        address: announced,
        admin: config.admin_password.as_ref().map(|password| PasswordHash::of(password.as_bytes())),
        admin_password: config.admin_password,
        nodes,
        moves,
        routing: ArcSwap::default(),
        adoption: Adoption::new(polls.len()),
        lent: Mutex::new(Lent::NOTHING),
        orders,
        mailboxes: polls.iter().map(mailbox).collect::<io::Result<_>>().map_err(StartError::Worker)?,
        stopping: AtomicBool::new(false),
        clients: AtomicUsize::new(0),
        next_client: AtomicU64::new(1),
        monitors: AtomicUsize::new(0),
        pauses: Mutex::default(),
        is_paused: AtomicBool::new(false),
        counters: Counters::default(),
        started: Instant::now(),
        run_id: random.iter().map(|byte| format!("{byte:02x}")).collect(),
    })
}

/// The moves, if the proxy can persist releases.
fn open_moves(
    config: &Config,
    proxy: &Address,
    nodes: &Nodes,
    supervisor: &Supervisor,
) -> Result<Option<Moves>, StartError> {
    let Some(dir) = &config.state_dir else { return Ok(None) };
    let admin = config.admin_password.clone();
    let admin = admin.map(|password| Credentials { user: Some("admin".to_owned()), password });
    let moves = MovesConfig { proxy: proxy.clone(), admin, ledger: dir.join(LEDGER_FILE) };
    let moves = Moves::open(moves, nodes.clone(), supervisor)
        .map_err(|source| StartError::StateDir { path: dir.clone(), source })?;
    moves.set_rate(config.limits.move_rate);
    Ok(Some(moves))
}

fn spawn(number: usize, worker: Worker) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(format!("redis-proxy-{number}")).spawn(move || {
        if let Err(error) = worker.run() {
            tracing::error!(%error, "proxy worker failed");
        }
    })
}
