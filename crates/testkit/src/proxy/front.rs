//! The accept loop: owns the listener and every connection, and performs orders for all of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::pump::Pump;
use super::{Counters, Direction, Weather};

pub(super) struct Front {
    pub(super) addr: SocketAddr,
    pub(super) upstream: SocketAddr,
    pub(super) weather: Arc<watch::Sender<Weather>>,
    pub(super) settle: watch::Sender<u64>,
    pub(super) counters: Arc<Counters>,
}

impl Front {
    pub(super) async fn serve(self, listener: TcpListener) {
        let mut listener = Some(listener);
        let mut changes = self.weather.subscribe();
        let mut connections = JoinSet::new();
        let mut age = 0;
        loop {
            let now = *changes.borrow_and_update();
            if now.refusing {
                listener = None;
            } else if listener.is_none() {
                // The port is reserved, so only a server that ignores reservations can conflict.
                let Ok(bound) = TcpListener::bind(self.addr).await else { return };
                listener = Some(bound);
            }
            if now.age != age {
                connections.shutdown().await;
                age = now.age;
            }
            self.settle.send_replace(now.order);
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                client = accept(listener.as_ref()) => {
                    self.counters.connections.fetch_add(1, Ordering::Relaxed);
                    connections.spawn(self.connection(client));
                }
                Some(_ended) = connections.join_next() => {}
            }
        }
    }

    /// Forwards until both directions have ended, or one breaks; then both sockets are closed.
    fn connection(&self, client: TcpStream) -> impl Future<Output = ()> + use<> {
        let (addr, weather, counters) =
            (self.upstream, Arc::clone(&self.weather), Arc::clone(&self.counters));
        async move {
            let Ok(server) = TcpStream::connect(addr).await else { return };
            // Small writes must arrive as they were made: the proxy adds no latency.
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let pump = |direction| Pump::new(direction, Arc::clone(&weather), Arc::clone(&counters));
            let requests = pump(Direction::ToUpstream).run(from_client, to_server);
            let answers = pump(Direction::ToClient).run(from_server, to_client);
            let _ = tokio::try_join!(requests, answers);
        }
    }
}

/// The next connection; pending while there is no listener.
async fn accept(listener: Option<&TcpListener>) -> TcpStream {
    if let Some(listener) = listener {
        // A client that left before it was accepted is not an error.
        loop {
            if let Ok((client, _)) = listener.accept().await {
                return client;
            }
            tokio::task::yield_now().await;
        }
    }
    std::future::pending().await
}
