//! Connections of clients that speak TLS. Handshakes take place beside each other: a client that does not finish its own
//! holds up no other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;

use crate::data::detach;

/// Handshakes at a time; further clients wait to be accepted.
const MAX_HANDSHAKES: usize = 256;
/// How long a handshake may take.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// Connections that are ready and not yet served.
const MAX_READY: usize = 64;
/// Pause after a failure to accept, such as too many open files.
const RETRY: Duration = Duration::from_millis(100);
/// What is spoken inside.
const HTTP2: &[u8] = b"h2";

type Encrypted = io::Result<TlsStream<TcpStream>>;

/// The connections whose handshake succeeded. Accepting ends when the stream is dropped.
pub(super) fn encrypted(
    listener: TcpListener,
    mut config: ServerConfig,
) -> impl Stream<Item = Encrypted> + Send {
    config.alpn_protocols = vec![HTTP2.to_vec()];
    let (ready, connections) = mpsc::channel(MAX_READY);
    detach(accept(listener, TlsAcceptor::from(Arc::new(config)), ready));
    ReceiverStream::new(connections)
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, ready: mpsc::Sender<Encrypted>) {
    let handshakes = Arc::new(Semaphore::new(MAX_HANDSHAKES));
    loop {
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ready.closed() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "accepting a client failed; trying again");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        };
        let (acceptor, ready) = (acceptor.clone(), ready.clone());
        detach(async move {
            let _permit = permit;
            match tokio::time::timeout(HANDSHAKE_WITHIN, shake(acceptor, stream)).await {
                // The server has stopped if nothing takes it.
                Ok(Ok(stream)) => drop(ready.send(Ok(stream)).await),
                Ok(Err(error)) => tracing::debug!(%error, "handshake of a client failed"),
                Err(_) => tracing::debug!("handshake of a client took too long"),
            }
        });
    }
}

async fn shake(acceptor: TlsAcceptor, stream: TcpStream) -> Encrypted {
    stream.set_nodelay(true)?;
    acceptor.accept(stream).await
}
