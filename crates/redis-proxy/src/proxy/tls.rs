//! How do clients use TLS? On the same port: a connection that begins with a TLS handshake is encrypted.
//!
//! One port for both means that `MOVED` and `CLUSTER SLOTS` are valid for all clients.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;

/// TLS for clients.
#[derive(Clone, Debug)]
pub struct ClientTls {
    pub(super) server: Arc<ServerConfig>,
    pub(super) plain: PlainClients,
}

/// How clients without TLS are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainClients {
    /// They are served.
    Served,
    /// They are refused. Coordinators and other proxies, which authenticate as `admin`, still use plain
    /// connections.
    Refused,
}

/// The error for a client that must use TLS.
pub(super) const SPEAK_TLS: &str =
    "ERR this proxy serves clients over TLS only; connect with TLS (redis-cli --tls)";

impl ClientTls {
    /// With an existing configuration.
    #[must_use]
    pub fn new(server: Arc<ServerConfig>, plain: PlainClients) -> ClientTls {
        ClientTls { server, plain }
    }

    /// With a certificate chain and its key. If there is an authority, clients must present a certificate
    /// signed by it.
    pub fn from_pem(
        chain: &[u8],
        key: &[u8],
        client_authority: Option<&[u8]>,
        plain: PlainClients,
    ) -> io::Result<ClientTls> {
        let server = capstan_meta::tls::server(chain, key, client_authority)?;
        Ok(ClientTls::new(Arc::new(server), plain))
    }
}
