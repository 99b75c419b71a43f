//! Connections of clients that speak TLS. Handshakes take place beside each other: a client that does not finish its own
//! holds up no other.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use capstan_access::handshake::{Handshake, TlsStream};
use capstan_access::tls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;

use crate::data::detach;

/// Handshakes at a time; further clients wait to be accepted.
const MAX_HANDSHAKES: usize = 256;
/// Connections that are ready and not yet served.
const MAX_READY: usize = 64;
/// Pause after a failure to accept, such as too many open files.
const RETRY: Duration = Duration::from_millis(100);
/// What is spoken inside.
const HTTP2: &str = "h2";

type Encrypted = io::Result<TlsStream<TcpStream>>;

/// The connections whose handshake succeeded. Accepting ends when the stream is dropped.
pub(super) fn encrypted(listener: TcpListener, config: ServerConfig) -> impl Stream<Item = Encrypted> + Send {
    let (ready, connections) = mpsc::channel(MAX_READY);
    detach(accept(listener, Handshake::new(config, HTTP2), ready));
    ReceiverStream::new(connections)
}

async fn accept(listener: TcpListener, handshake: Handshake, ready: mpsc::Sender<Encrypted>) {
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
        let (handshake, ready) = (handshake.clone(), ready.clone());
        detach(async move {
            let _permit = permit;
            match handshake.accept(stream).await {
                // The server has stopped if nothing takes it.
                Ok(stream) => drop(ready.send(Ok(stream)).await),
                Err(error) => tracing::debug!(%error, "tls handshake failed"),
            }
        });
    }
}
