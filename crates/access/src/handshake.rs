//! How does a server begin TLS with a client? Within a bounded time. A client that sends plain HTTP is refused in its own
//! protocol, so that its user learns why.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub use tokio_rustls::server::TlsStream;

/// A client that has not finished its handshake by then is not served.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);
/// The first byte of a TLS handshake, and of no HTTP request.
const HANDSHAKE: u8 = 0x16;
/// The beginning of an HTTP/2 connection, and of no HTTP/1 request.
const HTTP2: [u8; 4] = *b"PRI ";
/// Bytes of a refused request that are read, so that closing the connection does not discard the refusal.
const REFUSED_BYTES: u64 = 64 * 1024;
/// How long they may take to arrive.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);

/// The reason for the refusal of a plain client.
const REASON: &str = "this port is served over TLS only: use https:// and trust the authority of the cluster (ca.pem in tls.dir)\n";
/// An HTTP/2 SETTINGS frame without settings, which precedes every other frame of a server.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// Type of the GOAWAY frame.
const GOAWAY: u8 = 7;
/// Error code of GOAWAY: the properties of the transport do not meet the minimum.
const INADEQUATE_SECURITY: u8 = 12;

/// Begins TLS on accepted connections. Cheap to clone.
#[derive(Clone)]
pub struct Handshake(TlsAcceptor);

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handshake")
    }
}

impl Handshake {
    /// With this configuration, for clients of one application protocol (such as `http/1.1`).
    #[must_use]
    pub fn new(mut config: ServerConfig, protocol: &str) -> Handshake {
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Handshake(TlsAcceptor::from(Arc::new(config)))
    }

    /// The encrypted connection. An error leaves nothing to serve: the connection is closed, and never used plainly.
    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        match timeout(HANDSHAKE_WITHIN, self.begin(stream)).await {
            Ok(done) => done,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the tls handshake took too long")),
        }
    }

    async fn begin(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        stream.set_nodelay(true)?;
        let mut first = [0];
        match stream.peek(&mut first).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ if first[0] == HANDSHAKE => self.0.accept(stream).await,
            _ => {
                refuse(stream).await?;
                Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not use TLS"))
            }
        }
    }
}

async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let mut first = [0; HTTP2.len()];
    stream.read_exact(&mut first).await?;
    let refusal = if first == HTTP2 { http2_refusal() } else { http1_refusal() };
    stream.write_all(&refusal).await?;
    stream.shutdown().await?;
    let (mut rest, mut nowhere) = (stream.take(REFUSED_BYTES), tokio::io::sink());
    let read = tokio::io::copy(&mut rest, &mut nowhere);
    // A client that goes on sending loses the refusal at worst.
    drop(timeout(REFUSED_WITHIN, read).await);
    Ok(())
}

fn http1_refusal() -> Vec<u8> {
    let length = REASON.len();
    format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{REASON}"
    )
    .into_bytes()
}

fn http2_refusal() -> Vec<u8> {
    // The last stream that was served (none) and the error code precede the reason.
    let payload = [&[0; 4][..], &[0, 0, 0, INADEQUATE_SECURITY], REASON.as_bytes()].concat();
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    [&SETTINGS[..], &length[1..], &[GOAWAY, 0, 0, 0, 0, 0], &payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goaway_frame_has_the_length_of_its_payload() {
        let bytes = http2_refusal();
        let frame = &bytes[SETTINGS.len()..];
        let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
        assert_eq!((frame[3], frame.len()), (GOAWAY, 9 + length));
        assert_eq!(frame[9..17], [0, 0, 0, 0, 0, 0, 0, INADEQUATE_SECURITY]);
    }
}
