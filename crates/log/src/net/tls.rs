//! Which processes may connect? Without certificates every one that reaches the port. With them both ends present one,
//! signed by the same authority and naming the holder, so no holder can impersonate another.

use std::fmt;
use std::io;
use std::sync::Arc;

use capstan_meta::tls::{self, invalid};
use tokio::net::TcpStream;
use tokio_rustls::rustls::client::verify_server_name;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{self, ClientConfig, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::keys::HolderId;

/// A holder's certificate, and the authority that signs those of all holders.
#[derive(Clone)]
pub struct Tls {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads a certificate chain, its key and the authority of all holders, all in PEM. The certificate must be valid
    /// for servers and clients and have the holder's id among its DNS names.
    pub fn from_pem(chain: &[u8], key: &[u8], authority: &[u8]) -> io::Result<Tls> {
        let server = tls::server(chain, key, Some(authority))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(invalid)?
            .with_root_certificates(tls::authority(authority)?)
            .with_client_auth_cert(tls::certificates(chain)?, tls::private_key(key)?)
            .map_err(invalid)?;
        Ok(Tls::new(server, client))
    }

    /// With configurations of both sides, such as ones whose certificate is renewed while they are used. The server's must
    /// require certificates of clients.
    #[must_use]
    pub fn new(mut server: ServerConfig, client: ClientConfig) -> Tls {
        // A link only writes: session tickets would stay in its socket forever.
        server.send_tls13_tickets = 0;
        Tls { server: Arc::new(server), client: Arc::new(client) }
    }

    /// Accepts a connection with a certificate.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<server::TlsStream<TcpStream>> {
        TlsAcceptor::from(Arc::clone(&self.server)).accept(stream).await
    }

    /// Connects to a holder and verifies its certificate.
    pub(super) async fn connect(
        &self,
        to: &HolderId,
        stream: TcpStream,
    ) -> io::Result<client::TlsStream<TcpStream>> {
        TlsConnector::from(Arc::clone(&self.client)).connect(name_of(to)?, stream).await
    }
}

/// Checks that the certificate of this connection names this holder.
pub(super) fn speaks_for(stream: &server::TlsStream<TcpStream>, holder: &HolderId) -> io::Result<()> {
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let shown = shown.ok_or_else(|| invalid("no certificate was presented"))?;
    let parsed = ParsedCertificate::try_from(shown).map_err(invalid)?;
    verify_server_name(&parsed, &name_of(holder)?).map_err(invalid)
}

fn name_of(holder: &HolderId) -> io::Result<ServerName<'static>> {
    ServerName::try_from(holder.as_str().to_owned()).map_err(invalid)
}
