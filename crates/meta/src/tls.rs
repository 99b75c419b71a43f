//! What does every server of Capstan that speaks TLS have in common? A certificate chain with its key, in PEM, and the
//! authority of those who must show a certificate themselves, if somebody must.

use std::io;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

/// A server with this certificate chain and its key. With an authority, clients must show a certificate that it signed.
pub fn server(chain: &[u8], key: &[u8], client_authority: Option<&[u8]>) -> io::Result<ServerConfig> {
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let versions = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(invalid)?;
    let clients = match client_authority {
        None => versions.with_no_client_auth(),
        Some(pem) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(authority(pem)?, provider);
            versions.with_client_cert_verifier(verifier.build().map_err(invalid)?)
        }
    };
    clients.with_single_cert(certificates(chain)?, private_key(key)?).map_err(invalid)
}

/// Whoever these certificates signed is believed.
pub fn authority(pem: &[u8]) -> io::Result<Arc<RootCertStore>> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(invalid)?;
    }
    Ok(Arc::new(roots))
}

/// The certificates in a PEM; one with none is a mistake.
pub fn certificates(pem: &[u8]) -> io::Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(invalid)?;
    if found.is_empty() { Err(invalid("no certificate in the PEM")) } else { Ok(found) }
}

/// The private key in a PEM.
pub fn private_key(pem: &[u8]) -> io::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem).map_err(invalid)
}

/// What was given cannot be used.
pub fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
