//! How do connections come and go? Accepted up to a bound, served until they end, drained with a deadline at shutdown.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;

use super::authority::Lenient;
use super::dispatch::Dispatch;
use super::options::{Limits, Options};
use super::service::Wire;
use crate::error::MetaError;
use crate::store::Backend;

/// What one call may have in flight towards us before we have read it: a whole request, so that a large put needs no
/// second round trip.
const STREAM_WINDOW: u32 = 2 << 20;
/// What all calls of a connection may have in flight together; bounds the memory that a connection can pin.
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Answers are written in frames as large as the client allows; this is what we allow it.
const FRAME_BYTES: u32 = 64 << 10;
/// What one call may have waiting to be written before it has to wait.
const SEND_BUFFER: usize = 1 << 20;
/// Request headers beyond this are refused.
const HEADER_BYTES: u32 = 16 << 10;
/// A connection on which nothing moves is asked whether it is still there ...
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// ... and closed without an answer within this time.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// A client that does not finish its TLS handshake within this time is let go.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after an accept that failed (out of file descriptors, say), so that failing does not take all of a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a store cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The store does not say who it is.
    #[error("store does not answer: {0}")]
    Store(#[from] MetaError),
    /// The listening socket does not say where it listens.
    #[error("listening socket: {0}")]
    Socket(#[from] io::Error),
}

/// Serves a store on a bound socket until `shutdown` resolves, then drains; returns when every connection is closed.
///
/// Dropping the future closes everything at once.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use capstan_meta::{embedded, wire};
///
/// let store = Arc::new(embedded::Embedded::in_memory(embedded::Options::default()));
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:2379").await?;
/// wire::serve(listener, store, wire::Options::default(), std::future::pending()).await?;
/// # Ok(())
/// # }
/// ```
pub async fn serve(
    listener: TcpListener,
    backend: Arc<dyn Backend>,
    mut options: Options,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    if options.advertise_url.is_none() {
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        options.advertise_url = Some(format!("{scheme}://{}", listener.local_addr()?));
    }
    let incoming = TcpListenerStream::new(listener).map(|accepted| accepted.and_then(without_delay));
    serve_incoming(incoming, backend, options, shutdown).await
}

/// Answers are small and awaited: they must not wait for the acknowledgement of the one before.
fn without_delay(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Serves a store on connections that come from anywhere: a simulated network, an in-memory pipe, a Unix socket.
///
/// Ends like [`serve`], or after its last connection when `incoming` ends.
pub async fn serve_incoming<IO>(
    incoming: impl Stream<Item = io::Result<IO>>,
    backend: Arc<dyn Backend>,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let wire = Arc::new(Wire::new(backend, options).await?);
    let mut connections = JoinSet::new();
    accept(&wire, incoming, &mut connections, shutdown).await;
    wire.stopping.cancel();
    let drained =
        timeout(wire.options.drain, async { while connections.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::info!(connections = connections.len(), "closing connections that did not drain in time");
        connections.shutdown().await;
    }
    Ok(())
}

async fn accept<IO>(
    wire: &Arc<Wire>,
    incoming: impl Stream<Item = io::Result<IO>>,
    connections: &mut JoinSet<()>,
    shutdown: impl Future<Output = ()>,
) where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = wire.options.limits;
    let builder = builder(limits);
    let mut incoming = pin!(incoming);
    let mut shutdown = pin!(shutdown);
    let mut open = true;
    while open || !connections.is_empty() {
        let room = open && connections.len() < limits.connections;
        tokio::select! {
            () = &mut shutdown => return,
            accepted = incoming.next(), if room => match accepted {
                Some(Ok(io)) => {
                    connections.spawn(connection(io, builder.clone(), wire.clone()));
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "connection not accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
                None => open = false,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

fn builder(limits: Limits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder
        .http2()
        .timer(TokioTimer::new())
        .adaptive_window(false)
        .auto_date_header(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADER_BYTES)
        .max_concurrent_streams(limits.calls_per_connection)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// One connection, from handshake to end. What goes wrong on it concerns nobody else.
async fn connection<IO>(io: IO, builder: Builder<TokioExecutor>, wire: Arc<Wire>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(tls) = wire.options.tls.as_ref() else {
        return speak(io, builder, wire).await;
    };
    match timeout(HANDSHAKE_TIMEOUT, tls.acceptor().accept(io)).await {
        Ok(Ok(io)) => speak(io, builder, wire).await,
        Ok(Err(error)) => tracing::debug!(%error, "tls handshake failed"),
        Err(_) => tracing::debug!("tls handshake took too long"),
    }
}

async fn speak<IO>(io: IO, builder: Builder<TokioExecutor>, wire: Arc<Wire>)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stopping: CancellationToken = wire.stopping.clone();
    let io = TokioIo::new(Lenient::new(io));
    let mut connection = pin!(builder.serve_connection(io, Dispatch::new(wire)));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended badly");
    }
}
