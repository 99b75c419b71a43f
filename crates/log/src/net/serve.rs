//! How do frames arrive? A listener, a task for each connection, and a way to the log that a frame is about.

use std::io;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::fragment::Assembly;
use super::frame::{FRAGMENT, Frame, MAX_FRAME, Packet};
use super::tls::{self, Tls};
use crate::keys::{HolderId, LogName};

/// Bytes read at once.
const READ: usize = 256 * 1024;
/// Connections at the same time: far more hosts than one host shares logs with.
const MAX_CONNECTIONS: usize = 1024;
/// Who does not say who it is within this does not take up a connection any longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Takes what arrives.
pub(crate) trait Deliver: Clone + Send + Sync + 'static {
    /// Brings a packet to its log; waits while that log is busy.
    fn deliver(&self, from: &HolderId, log: LogName, packet: Packet) -> impl Future<Output = ()> + Send;
}

/// Serves connections for as long as the future is polled.
pub(crate) async fn serve(listener: TcpListener, tls: Option<Tls>, deliver: impl Deliver) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => drop(connections.spawn(connection(stream, tls.clone(), deliver.clone()))),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for logs");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, tls: Option<Tls>, deliver: impl Deliver) {
    let peer = stream.peer_addr().map_or_else(|_| "somebody".to_owned(), |address| address.to_string());
    match tokio::time::timeout(PATIENCE, greet(stream, tls)).await {
        Ok(Ok((from, frames))) => listen(from, frames, deliver).await,
        Ok(Err(error)) => tracing::warn!(%peer, %error, "connection for logs refused"),
        Err(_) => tracing::warn!(%peer, "connection for logs said nothing"),
    }
}

type Stream = Box<dyn AsyncRead + Send + Unpin>;

/// Who is there, and what else they say.
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
            Ok(Frame::About(log, packet)) => deliver.deliver(&from, log, packet).await,
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
    assembly: Assembly,
}

impl Frames {
    fn of(stream: Stream) -> Frames {
        Frames { reader: BufReader::with_capacity(READ, stream), assembly: Assembly::default() }
    }

    async fn hello(&mut self) -> io::Result<HolderId> {
        hello(Some(self.next().await?))
    }

    async fn next(&mut self) -> io::Result<Frame> {
        loop {
            let length = self.reader.read_u32_le().await? as usize;
            let mut bytes = take(&mut self.reader, length).await?;
            if bytes.first() == Some(&FRAGMENT) {
                bytes.advance(1);
                let Some(whole) = self.assembly.add(bytes) else { continue };
                bytes = whole;
            }
            return Frame::decode(bytes).ok_or_else(|| nonsense("a frame that makes no sense"));
        }
    }
}

async fn take(reader: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<Bytes> {
    if length > MAX_FRAME {
        return Err(nonsense("a frame that is too long"));
    }
    let mut bytes = BytesMut::zeroed(length);
    reader.read_exact(&mut bytes).await?;
    Ok(bytes.freeze())
}

fn hello(frame: Option<Frame>) -> io::Result<HolderId> {
    match frame {
        Some(Frame::Hello(holder)) => Ok(holder),
        Some(Frame::About(..)) | None => Err(nonsense("the first frame does not say who speaks")),
    }
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
