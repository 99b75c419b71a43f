//! What can be chosen about the wire: name, address, encryption, bounds.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls;

use super::auth::TokenKind;
use crate::tls;

/// How a store is served.
#[derive(Clone, Debug)]
pub struct Options {
    /// The member's name in `etcdctl member list`.
    pub name: String,
    /// The URL that clients are told to use; by default the address that is listened on. Clients that follow the
    /// member list connect to it, so it must be reachable for them.
    pub advertise_url: Option<String>,
    /// Encryption; none is plain text.
    pub tls: Option<Tls>,
    /// What tokens of users are, where users are asked for.
    pub tokens: TokenKind,
    /// The bounds.
    pub limits: Limits,
    /// A watcher that asked for it and hears nothing for this long is told how far it is (at least 100 ms).
    pub progress_notify_interval: Duration,
    /// How long calls may go on after shutdown was asked for.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: "default".into(),
            advertise_url: None,
            tls: None,
            tokens: TokenKind::default(),
            limits: Limits::default(),
            progress_notify_interval: Duration::from_secs(600),
            drain: Duration::from_secs(5),
        }
    }
}

/// Bounds of what clients may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A larger request is refused. 1.5 MiB, as clients of the format expect.
    pub request_bytes: usize,
    /// Connections at one time; more wait to be accepted.
    pub connections: usize,
    /// Calls at one time on one connection; a well-behaved client queues the rest.
    pub calls_per_connection: u32,
    /// Watchers on one stream; one more is refused.
    pub watchers_per_stream: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            request_bytes: 3 << 19,
            connections: 10_000,
            calls_per_connection: 20_000,
            watchers_per_stream: 100_000,
        }
    }
}

impl Limits {
    /// What gRPC itself takes: a request and half a mebibyte for its wrapping. Also where watch answers are split.
    pub(super) fn message_bytes(self) -> usize {
        self.request_bytes + (512 << 10)
    }
}

/// A certificate and, if clients must show one too, who signs theirs.
#[derive(Clone)]
pub struct Tls(Arc<rustls::ServerConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads a certificate chain, its key and, to demand certificates from clients, their authority; all in PEM.
    pub fn from_pem(chain: &[u8], key: &[u8], client_authority: Option<&[u8]>) -> io::Result<Tls> {
        Ok(Tls::new(tls::server(chain, key, client_authority)?))
    }

    /// With a configuration, such as one whose certificate is renewed while it is used.
    #[must_use]
    pub fn new(mut config: rustls::ServerConfig) -> Tls {
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Tls(Arc::new(config))
    }

    pub(super) fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        tokio_rustls::TlsAcceptor::from(self.0.clone())
    }
}
