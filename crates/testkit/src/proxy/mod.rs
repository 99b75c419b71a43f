//! A TCP proxy with faults on demand: cut, hold, half-open, delay, one direction only, after a number of bytes.
//!
//! Each direction of the stream has a [`Flow`], which can be changed at any time and takes effect at once, also on open
//! connections. [`Proxy::cut`] and [`Proxy::heal`] affect both directions and the listener.

mod front;
mod pump;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Port;
use front::Front;

/// Which half of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the upstream server: requests.
    ToUpstream,
    /// From the upstream server to the client: responses.
    ToClient,
}

/// How the bytes of one direction are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flow {
    /// They pass.
    #[default]
    Pass,
    /// They pass, each this much later; order and throughput stay the same.
    Delay(Duration),
    /// They wait, and pass after [`Proxy::heal`]: a short partition, a paused peer.
    Hold,
    /// They are discarded and the connection stays open: half-open, a peer that vanished. A connection that has lost
    /// bytes is closed at the next flow that passes bytes, since its stream has a hole.
    Swallow,
    /// This many more bytes pass, over all connections; the connection that carries the last of them is closed right
    /// after it (with 0: before its next byte), and the direction returns to [`Flow::Pass`] for the others.
    CutAfter(u64),
}

/// The current orders for the pumps and the accept loop.
#[derive(Debug, Clone, Copy, Default)]
struct Weather {
    to_upstream: Flow,
    to_client: Flow,
    /// Whether new connections are refused.
    refusing: bool,
    /// Connections accepted in an earlier age are closed.
    age: u64,
    /// Counts orders to the accept loop, which confirms each.
    order: u64,
}

impl Weather {
    fn flow(&self, direction: Direction) -> Flow {
        match direction {
            Direction::ToUpstream => self.to_upstream,
            Direction::ToClient => self.to_client,
        }
    }

    fn flow_mut(&mut self, direction: Direction) -> &mut Flow {
        match direction {
            Direction::ToUpstream => &mut self.to_upstream,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

/// The traffic so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Connections accepted.
    pub connections: u64,
    /// Bytes handed to the upstream server.
    pub to_upstream: u64,
    /// Bytes handed to clients.
    pub to_client: u64,
    /// Bytes swallowed, both ways.
    pub swallowed: u64,
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    to_upstream: AtomicU64,
    to_client: AtomicU64,
    swallowed: AtomicU64,
}

/// A running proxy; its connections are closed on drop.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    weather: Arc<watch::Sender<Weather>>,
    /// The last order that the accept loop has performed.
    settled: watch::Receiver<u64>,
    counters: Arc<Counters>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// Starts to forward from a fresh loopback port to `upstream`, which need not be up yet.
    pub async fn start(upstream: SocketAddr) -> anyhow::Result<Self> {
        let port = Port::reserve()?;
        let listener = TcpListener::bind(port.addr()).await.context("cannot bind the proxy's port")?;
        let weather = Arc::new(watch::Sender::new(Weather::default()));
        let (settle, settled) = watch::channel(0);
        let counters = Arc::new(Counters::default());
        let addr = port.addr();
        let front =
            Front { addr, upstream, weather: Arc::clone(&weather), settle, counters: Arc::clone(&counters) };
        let mut tasks = JoinSet::new();
        tasks.spawn(front.serve(listener));
        Ok(Self { port, weather, settled, counters, _tasks: tasks })
    }

    /// The address for clients.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.port.addr()
    }

    /// `http://<addr>`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Sets the flow of one direction.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.weather.send_modify(|weather| *weather.flow_mut(direction) = flow);
    }

    /// Sets the flow of both directions.
    pub fn set_both(&self, flow: Flow) {
        self.weather.send_modify(|weather| (weather.to_upstream, weather.to_client) = (flow, flow));
    }

    /// Closes every connection and refuses new ones, as if the server were down; returns when done.
    pub async fn cut(&self) {
        self.order(|weather| (weather.age, weather.refusing) = (weather.age + 1, true)).await;
    }

    /// Closes every connection and accepts new ones. Returns when done.
    pub async fn close_connections(&self) {
        self.order(|weather| weather.age += 1).await;
    }

    /// Passes bytes both ways and accepts connections; returns when done.
    pub async fn heal(&self) {
        let fair = |w: &mut Weather| *w = Weather { age: w.age, order: w.order, ..Weather::default() };
        self.order(fair).await;
    }

    async fn order(&self, change: impl FnOnce(&mut Weather)) {
        self.weather.send_modify(|weather| {
            change(weather);
            weather.order += 1;
        });
        let order = self.weather.borrow().order;
        let carried_out = self.settled.clone().wait_for(|done| *done >= order).await.is_ok();
        assert!(carried_out, "the proxy's accept loop has ended: it could not bind {} again", self.addr());
    }

    /// The traffic so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            connections: self.counters.connections.load(Ordering::Relaxed),
            to_upstream: self.counters.to_upstream.load(Ordering::Relaxed),
            to_client: self.counters.to_client.load(Ordering::Relaxed),
            swallowed: self.counters.swallowed.load(Ordering::Relaxed),
        }
    }
}
