//! How is the API of a node reached? Over TLS if this process has certificates, and then over nothing else: a node that
//! does not use TLS, or shows a certificate of another authority, gets no request.

use std::net::SocketAddr;

use capstan_access::tls::LiveTls;
use reqwest::ClientBuilder;

use crate::error::DocsError;

/// The way to the nodes of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) http: reqwest::Client,
    scheme: &'static str,
}

impl Way {
    /// Completes a client with what all requests to nodes have in common.
    pub(crate) fn new(client: ClientBuilder, tls: Option<&LiveTls>) -> Result<Way, DocsError> {
        let broken = |error: &dyn std::error::Error| DocsError::Broken(error.to_string());
        // A redirect would take the secret of the cluster elsewhere.
        let client = client.no_proxy().redirect(reqwest::redirect::Policy::none());
        let (client, scheme) = match tls {
            None => (client, "http"),
            Some(tls) => {
                let config = tls.client().map_err(|error| broken(&error))?;
                (client.tls_backend_preconfigured(config).https_only(true), "https")
            }
        };
        Ok(Way { http: client.build().map_err(|error| broken(&error))?, scheme })
    }

    /// The address of something below a node's root.
    pub(crate) fn url(&self, node: SocketAddr, path: &str) -> String {
        format!("{}://{node}/{path}", self.scheme)
    }
}
