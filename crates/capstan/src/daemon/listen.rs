//! Binds addresses: all of them before anything else is started, with an error that names the remedy.

use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::exit::CannotListen;

/// Listens on an address; `setting` is its name, for the error.
pub(crate) async fn bind(address: SocketAddr, setting: &'static str) -> Result<TcpListener, CannotListen> {
    TcpListener::bind(address).await.map_err(|cause| CannotListen { address, setting, cause })
}
