//! How do clients speak to a proxy in secret? On the same port: who begins with a TLS handshake is answered in TLS.
//!
//! One port for both means that `MOVED` and `CLUSTER SLOTS` lead everybody to the right place, whichever way he came.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// TLS for clients.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub(super) server: Arc<ServerConfig>,
    pub(super) plain: PlainClients,
}

/// What becomes of clients that do not speak TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainClients {
    /// They are served.
    Served,
    /// They are told to. Coordinators and other proxies, who log in as `admin`, go on to speak plainly.
    Refused,
}

/// What a client that should speak TLS is told.
pub(super) const SPEAK_TLS: &str =
    "ERR this proxy serves clients over TLS only; connect with TLS (redis-cli --tls)";

impl ClientTls {
    /// With a configuration made elsewhere.
    #[must_use]
    pub fn new(server: Arc<ServerConfig>, plain: PlainClients) -> ClientTls {
        ClientTls { server, plain }
    }

    /// With a certificate chain and its key. Clients must show a certificate of the authority, if there is one.
    pub fn from_pem(
        chain: &[u8],
        key: &[u8],
        client_authority: Option<&[u8]>,
        plain: PlainClients,
    ) -> io::Result<ClientTls> {
        let key = PrivateKeyDer::from_pem_slice(key).map_err(invalid)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let versions = ServerConfig::builder_with_provider(Arc::clone(&provider))
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
        let server = clients.with_single_cert(certificates(chain)?, key).map_err(invalid)?;
        Ok(ClientTls::new(Arc::new(server), plain))
    }
}

fn certificates(pem: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(invalid)?;
    if found.is_empty() { Err(invalid("no certificate in the PEM")) } else { Ok(found) }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
