//! How does a command travel? The data path of the proxy: clients, nodes, and nothing between them but this.
//!
//! A proxy is a few [workers](worker), each a thread with its own listener on the same port, its own clients and its own
//! pipelined connections to the nodes. Nothing is shared between them on the way of a command. Read first: `worker`
//! (the loop), `session` (a client), `link` (a node).

#![allow(dead_code, reason = "the parts for sessions follow")]

mod arena;
mod dispatch;
mod limits;
mod link;
mod outbox;
mod replies;
mod request;
mod session;
mod stream;
mod waiter;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use crate::address::Address;

pub use limits::Limits;
use worker::Worker;

/// Most workers that make sense: more threads than this have no cores to run on.
const MAX_WORKERS: usize = 256;

/// How a proxy is started.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect to.
    pub listen: SocketAddr,
    /// Threads; each has its own connections to every node.
    pub workers: usize,
    /// Bounds.
    pub limits: Limits,
    /// Clients must speak TLS, with this.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Every slot is there. (Until the state is told with `NMCTL`.)
    pub node: Option<Address>,
}

/// Why a proxy did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The port cannot be had.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A thread or its event queue cannot be had.
    #[error("cannot start a worker")]
    Worker(#[source] io::Error),
}

/// What all workers know.
struct Shared {
    limits: Limits,
    tls: Option<Arc<rustls::ServerConfig>>,
    address: Address,
    stopping: AtomicBool,
    clients: AtomicUsize,
    next_client: AtomicU64,
    node: Option<Address>,
}

/// A running proxy; stops when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    workers: Vec<Running>,
}

struct Running {
    waker: mio::Waker,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Binds the port and starts the workers.
    pub fn start(config: Config) -> Result<Proxy, StartError> {
        let failed = |source| StartError::Listen { address: config.listen, source };
        let first = worker::listen(config.listen).map_err(failed)?;
        // Port 0 asks for any; the other workers then listen on the one that was given.
        let address = first.local_addr().map_err(failed)?;
        let mut listeners = vec![first];
        for _ in 1..config.workers.clamp(1, MAX_WORKERS) {
            listeners.push(worker::listen(address).map_err(failed)?);
        }
        let shown = address
            .to_string()
            .parse()
            .map_err(|e| failed(io::Error::new(io::ErrorKind::InvalidInput, e)))?;
        let shared = Arc::new(Shared {
            limits: config.limits,
            tls: config.tls,
            address: shown,
            stopping: AtomicBool::new(false),
            clients: AtomicUsize::new(0),
            next_client: AtomicU64::new(1),
            node: config.node,
        });
        let mut proxy = Proxy { address, shared, workers: Vec::new() };
        for (number, listener) in listeners.into_iter().enumerate() {
            proxy.workers.push(proxy.spawn(number, listener).map_err(StartError::Worker)?);
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
        for worker in &mut self.workers {
            if let Err(error) = worker.waker.wake() {
                tracing::warn!(%error, "cannot wake a worker");
            }
            if worker.thread.take().is_some_and(|thread| thread.join().is_err()) {
                tracing::error!("a worker has panicked");
            }
        }
    }

    fn spawn(&self, number: usize, listener: std::net::TcpListener) -> io::Result<Running> {
        let (worker, waker) = Worker::new(Arc::clone(&self.shared), listener)?;
        let thread = std::thread::Builder::new().name(format!("redis-proxy-{number}")).spawn(move || {
            if let Err(error) = worker.run() {
                tracing::error!(%error, "a worker of the proxy has ended");
            }
        })?;
        Ok(Running { waker, thread: Some(thread) })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}
