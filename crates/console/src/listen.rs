//! Over which connections is HTTP served? Plain ones, or ones with TLS, on which a client may show a certificate.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use capstan_access::handshake::{Handshake, TlsStream};
use capstan_access::tls::ServerConfig;
use capstan_meta::OwnedTask;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Handshakes at a time: each takes a socket and some processor time of this process.
const HANDSHAKES: usize = 256;
/// Connections that wait to be served.
const WAITING: usize = 64;
/// The pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The other end of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Whether the connection has TLS.
    pub encrypted: bool,
    /// The certificate (DER) that it showed and that was verified, if it showed one.
    pub certificate: Option<Arc<[u8]>>,
}

impl Peer {
    fn plain(address: SocketAddr) -> Peer {
        Peer { address, encrypted: false, certificate: None }
    }

    fn of(address: SocketAddr, stream: &TlsStream<TcpStream>) -> Peer {
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        Peer { address, encrypted: true, certificate: shown.map(|der| Arc::from(der.as_ref())) }
    }
}

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Peer {
        Peer::plain(*stream.remote_addr())
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Peer {
        stream.remote_addr().clone()
    }
}

type Arrival = (TlsStream<TcpStream>, Peer);

/// Accepts connections and their handshakes. A client that is slow in its handshake delays no other one.
#[derive(Debug)]
pub struct TlsListener {
    address: SocketAddr,
    arrivals: mpsc::Receiver<Arrival>,
    _accepting: OwnedTask,
}

impl TlsListener {
    /// Serves TLS with this configuration on a bound socket.
    pub fn new(listener: TcpListener, config: ServerConfig) -> io::Result<TlsListener> {
        let address = listener.local_addr()?;
        let (sender, arrivals) = mpsc::channel(WAITING);
        let handshake = Handshake::new(config, "http/1.1");
        let accepting = OwnedTask::spawn(accept_all(listener, handshake, sender));
        Ok(TlsListener { address, arrivals, _accepting: accepting })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = Peer;

    async fn accept(&mut self) -> Arrival {
        match self.arrivals.recv().await {
            Some(arrival) => arrival,
            // The task accepts for as long as this exists.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Peer> {
        Ok(Peer::plain(self.address))
    }
}

async fn accept_all(listener: TcpListener, handshake: Handshake, sender: mpsc::Sender<Arrival>) {
    let permits = Arc::new(Semaphore::new(HANDSHAKES));
    let mut handshakes = JoinSet::new();
    loop {
        while handshakes.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (handshake, sender) = (handshake.clone(), sender.clone());
        handshakes.spawn(async move {
            let _permit = permit;
            match handshake.accept(stream).await {
                Ok(stream) => {
                    let peer = Peer::of(address, &stream);
                    // Nothing is served any more if the listener is gone.
                    drop(sender.send((stream, peer)).await);
                }
                Err(error) => tracing::debug!(%address, %error, "tls handshake failed"),
            }
        });
    }
}
