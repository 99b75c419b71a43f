//! How do frames arrive? A listener, a task for each connection, and a way to the log that a frame is about.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::frame::{Frame, MAX_FRAME, Packet};
use crate::keys::{HolderId, LogName};

/// Bytes read at once.
const READ: usize = 256 * 1024;
/// Connections at the same time: far more hosts than one host shares logs with.
const MAX_CONNECTIONS: usize = 1024;

/// Takes what arrives.
pub(crate) trait Deliver: Clone + Send + Sync + 'static {
    /// Brings a packet to its log; waits while that log is busy.
    fn deliver(&self, from: &HolderId, log: LogName, packet: Packet) -> impl Future<Output = ()> + Send;
}

/// Serves connections for as long as the future is polled.
pub(crate) async fn serve(listener: TcpListener, deliver: impl Deliver) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(stream, deliver.clone()))),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for logs");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, deliver: impl Deliver) {
    stream.set_nodelay(true).ok();
    let mut reader = BufReader::with_capacity(READ, stream);
    let Ok(Frame::Hello(from)) = next(&mut reader).await else { return };
    loop {
        match next(&mut reader).await {
            Ok(Frame::About(log, packet)) => deliver.deliver(&from, log, packet).await,
            Ok(Frame::Hello(_)) => return,
            Err(error) => {
                tracing::debug!(%from, %error, "connection from holder ended");
                return;
            }
        }
    }
}

async fn next(reader: &mut BufReader<TcpStream>) -> io::Result<Frame> {
    let length = reader.read_u32_le().await? as usize;
    let nonsense = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    if length > MAX_FRAME {
        return Err(nonsense("a frame that is too long"));
    }
    let mut bytes = BytesMut::zeroed(length);
    reader.read_exact(&mut bytes).await?;
    Frame::decode(bytes.freeze()).ok_or_else(|| nonsense("a frame that makes no sense"))
}
