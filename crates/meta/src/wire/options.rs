//! What can be chosen about the wire: name, address, encryption, bounds.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

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
        let chain = certificates(chain)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(invalid)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let versions = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(invalid)?;
        let clients = match client_authority {
            None => versions.with_no_client_auth(),
            Some(authority) => {
                let mut roots = rustls::RootCertStore::empty();
                for certificate in certificates(authority)? {
                    roots.add(certificate).map_err(invalid)?;
                }
                let verifier =
                    rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                versions.with_client_cert_verifier(verifier.build().map_err(invalid)?)
            }
        };
        let mut config = clients.with_single_cert(chain, key).map_err(invalid)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls(Arc::new(config)))
    }

    pub(super) fn acceptor(&self) -> tokio_rustls::TlsAcceptor {
        tokio_rustls::TlsAcceptor::from(self.0.clone())
    }
}

fn certificates(pem: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(invalid)?;
    if found.is_empty() {
        return Err(invalid("no certificate in the PEM"));
    }
    Ok(found)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
