//! What goes over a wire? A forwarder between two processes that keeps every byte of both directions.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A wire with a listener on it. It ends when it is dropped.
#[derive(Debug)]
pub struct Tap {
    /// Where it accepts connections.
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
    _forwarding: JoinSet<()>,
}

impl Tap {
    /// Forwards connections to this address.
    pub async fn start(to: SocketAddr) -> std::io::Result<Tap> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut forwarding = JoinSet::new();
        forwarding.spawn(forward_all(listener, to, seen.clone()));
        Ok(Tap { address, seen, _forwarding: forwarding })
    }

    /// How many bytes went over it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether this text went over it.
    #[must_use]
    pub fn has_seen(&self, text: &str) -> bool {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

async fn forward_all(listener: TcpListener, to: SocketAddr, seen: Arc<Mutex<Vec<u8>>>) {
    let mut forwarding = JoinSet::new();
    loop {
        while forwarding.try_join_next().is_some() {}
        let Ok((near, _)) = listener.accept().await else { return };
        // A process that is not there yet: the other side sees a closed connection, and tries again.
        let Ok(far) = TcpStream::connect(to).await else { continue };
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        forwarding.spawn(pump(near_in, far_out, seen.clone()));
        forwarding.spawn(pump(far_in, near_out, seen.clone()));
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, seen: Arc<Mutex<Vec<u8>>>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        seen.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..read]);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
