//! How do connections of clients come and go? Accepted up to a bound, and closed if they do not say within a time what
//! they ask for. `http/input.rs` bounds the time of a body.

use std::io;
use std::pin::pin;
use std::time::Duration;

use capstan_access::handshake::Handshake;
use capstan_access::tls::ClientCerts;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::http::router;
use crate::node::Node;

/// How long a client may take for the head of a request, also between two requests of one connection.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of the head of a request, and of a body that are read at a time; a larger head is refused.
const HEAD_BYTES: usize = 64 * 1024;
/// Connections of one node; further clients wait in the backlog of the socket.
const CONNECTIONS: usize = 8_192;
/// How long requests that have begun may go on when the node stops.
const DRAIN_WITHIN: Duration = Duration::from_secs(10);
/// Pause after an accept that failed (out of file descriptors, say), so that failing does not take all of a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Limits of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// How long a client may take for the head of a request.
    pub head_within: Duration,
    /// Connections at a time.
    pub connections: usize,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits { head_within: HEAD_WITHIN, connections: CONNECTIONS }
    }
}

/// Serves a node on a bound socket until `stop` resolves; then requests that have begun are answered. A node with
/// certificates serves TLS and nothing else; clients may show a certificate and need none.
pub async fn serve(
    listener: TcpListener,
    node: Node,
    limits: ConnectionLimits,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let tls = node.inner.tls.as_ref().map(|tls| tls.server(ClientCerts::Optional)).transpose()?;
    let tls = tls.map(|config| Handshake::new(config, "http/1.1"));
    let (app, stopping) = (router(node), CancellationToken::new());
    let builder = builder(limits);
    let (mut connections, mut stop) = (JoinSet::new(), pin!(stop));
    loop {
        let room = connections.len() < limits.connections;
        tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept(), if room => match accepted {
                Ok((stream, _)) => {
                    let connection = connection(stream, tls.clone(), builder.clone(), app.clone(), stopping.clone());
                    connections.spawn(connection);
                }
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    stopping.cancel();
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_WITHIN, drained).await.is_err() {
        tracing::info!(connections = connections.len(), "closing connections that did not drain in time");
    }
    Ok(())
}

fn builder(limits: ConnectionLimits) -> Builder<TokioExecutor> {
    // To tell the versions apart takes a client's first bytes, for which there is no time limit.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head_within).max_buf_size(HEAD_BYTES);
    builder
}

/// One connection. What goes wrong on it concerns no other one.
async fn connection(
    stream: TcpStream,
    tls: Option<Handshake>,
    builder: Builder<TokioExecutor>,
    app: axum::Router,
    stopping: CancellationToken,
) {
    let ended = match tls {
        None => plain(stream, &builder, app, stopping).await,
        Some(handshake) => encrypted(stream, &handshake, &builder, app, stopping).await,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended badly");
    }
}

async fn plain(
    stream: TcpStream,
    builder: &Builder<TokioExecutor>,
    app: axum::Router,
    stopping: CancellationToken,
) -> io::Result<()> {
    // Answers are small and awaited: they must not wait for the acknowledgement of the one before.
    stream.set_nodelay(true)?;
    speak(stream, builder, app, stopping).await
}

async fn encrypted(
    stream: TcpStream,
    handshake: &Handshake,
    builder: &Builder<TokioExecutor>,
    app: axum::Router,
    stopping: CancellationToken,
) -> io::Result<()> {
    let accepted = tokio::select! {
        accepted = handshake.accept(stream) => accepted?,
        () = stopping.cancelled() => return Ok(()),
    };
    speak(accepted, builder, app, stopping).await
}

async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    builder: &Builder<TokioExecutor>,
    app: axum::Router,
    stopping: CancellationToken,
) -> io::Result<()> {
    let service = TowerToHyperService::new(app);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopping.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    ended.map_err(io::Error::other)
}
