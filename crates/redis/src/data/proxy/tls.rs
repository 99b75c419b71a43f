//! How do clients speak to a proxy in secret? On the same port: who begins with a TLS handshake is answered in TLS.
//!
//! One port for both means that `MOVED` and `CLUSTER SLOTS` lead everybody to the right place, whichever way he came.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;

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
        let server = capstan_meta::tls::server(chain, key, client_authority)?;
        Ok(ClientTls::new(Arc::new(server), plain))
    }
}
