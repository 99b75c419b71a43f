//! How do frames arrive? A listener, one task per connection, and delivery to the log that a frame belongs to.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::frame::{Frame, MAX_FRAME, Packet};
use super::tls::{self, Tls};
use crate::config::Incarnation;
use crate::keys::{HolderId, LogName};

/// Bytes per read.
const READ: usize = 256 * 1024;
/// The maximum of connections: far more hosts than one host shares logs with.
const MAX_CONNECTIONS: usize = 1024;
/// Timeout for the hello.
const PATIENCE: Duration = Duration::from_secs(5);

/// Receives packets.
pub(crate) trait Deliver: Clone + Send + Sync + 'static {
    /// Delivers a packet to its log; waits while that log is busy.
    fn deliver(
        &self,
        from: &HolderId,
        log: LogName,
        incarnation: Incarnation,
        packet: Packet,
    ) -> impl Future<Output = ()> + Send;
}

/// Serves connections for as long as the future is polled.
pub(crate) async fn serve(listener: TcpListener, tls: Option<Tls>, deliver: impl Deliver) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(stream, tls.clone(), deliver.clone()))),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept log connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, tls: Option<Tls>, deliver: impl Deliver) {
    let peer = stream.peer_addr().map_or_else(|_| "unknown".to_owned(), |address| address.to_string());
    match tokio::time::timeout(PATIENCE, greet(stream, tls)).await {
        Ok(Ok((from, frames))) => listen(from, frames, deliver).await,
        Ok(Err(error)) => tracing::warn!(%peer, %error, "log connection refused"),
        Err(_) => tracing::warn!(%peer, "log connection timed out without a hello"),
    }
}

type Stream = Box<dyn AsyncRead + Send + Unpin>;

/// Reads the hello: the sender's id and the remaining frames.
async fn greet(stream: TcpStream, tls: Option<Tls>) -> io::Result<(HolderId, Frames)> {
    stream.set_nodelay(true)?;
    let Some(tls) = tls else {
        let mut frames = Frames::of(Box::new(stream));
        return Ok((frames.hello().await?, frames));
    };
    let mut stream = tls.accept(stream).await?;
    let length = stream.read_u32_le().await? as usize;
    let from = hello(Frame::decode(take(&mut stream, length).await?))?;
    tls::speaks_for(&stream, &from)?;
    Ok((from, Frames::of(Box::new(stream))))
}

async fn listen(from: HolderId, mut frames: Frames, deliver: impl Deliver) {
    loop {
        match frames.next().await {
            Ok(Frame::About(log, incarnation, packet)) => {
                deliver.deliver(&from, log, incarnation, packet).await;
            }
            Ok(Frame::Hello(_)) => return,
            Err(error) => {
                tracing::debug!(%from, %error, "connection from holder ended");
                return;
            }
        }
    }
}

/// The frames of a connection.
struct Frames {
    reader: BufReader<Stream>,
}

impl Frames {
    fn of(stream: Stream) -> Frames {
        Frames { reader: BufReader::with_capacity(READ, stream) }
    }

    async fn hello(&mut self) -> io::Result<HolderId> {
        hello(Some(self.next().await?))
    }

    async fn next(&mut self) -> io::Result<Frame> {
        let length = self.reader.read_u32_le().await? as usize;
        let bytes = take(&mut self.reader, length).await?;
        Frame::decode(bytes).ok_or_else(|| nonsense("invalid frame"))
    }
}

async fn take(reader: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<Bytes> {
    if length > MAX_FRAME {
        return Err(nonsense("frame too long"));
    }
    let mut bytes = BytesMut::zeroed(length);
    reader.read_exact(&mut bytes).await?;
    Ok(bytes.freeze())
}

fn hello(frame: Option<Frame>) -> io::Result<HolderId> {
    match frame {
        Some(Frame::Hello(holder)) => Ok(holder),
        Some(Frame::About(..)) | None => Err(nonsense("the first frame is not a hello")),
    }
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
