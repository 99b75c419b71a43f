//! What a process serves: the embedded store on the etcd wire, and HTTP.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use capstan_access::tls::{ClientCerts, LiveTls, ServerConfig, TlsFiles};
use capstan_console::{Peer, State, TlsListener, router};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::wire::{self, JwtKeys, TokenKind};
use tokio::net::TcpListener;

use super::process::{LISTENER, Process};
use crate::config::{AuthToken, Config, HostTls, Meta, ServeTls};

/// Read, write and enter, for the owner alone.
const PRIVATE: u32 = 0o700;

/// Opens or creates the data directory.
pub(crate) async fn open(meta: &Meta) -> Result<Embedded> {
    close_to_others(&meta.dir).with_context(|| format!("the data directory {}", meta.dir.display()))?;
    let options = embedded::Options {
        history: meta.history.unwrap_or(0),
        quota_bytes: meta.quota_bytes,
        request_bytes: meta.request_bytes,
        ..embedded::Options::default()
    };
    let store = Embedded::open(&meta.dir, options).await?;
    tracing::info!(dir = %meta.dir.display(), "store opened");
    Ok(store)
}

/// Only the user of this process may read a data directory: it holds secrets, such as the key that unseals Vault.
fn close_to_others(dir: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE).create(dir)?;
    if std::fs::metadata(dir)?.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(dir, Permissions::from_mode(PRIVATE))?;
    }
    Ok(())
}

/// Serves the store on the etcd wire; the process closes it at its end.
pub(crate) fn start_wire(
    process: &mut Process,
    listener: TcpListener,
    store: Embedded,
    config: &Config,
) -> Result<()> {
    let options = wire_options(&config.meta, &config.host.id)?;
    process.holds(store.clone());
    let watched = store.clone();
    // A store whose disk failed answers nothing any more: the process ends, and its supervisor decides.
    process.start_once(LISTENER, "store", async move |stop| {
        tokio::select! {
            () = stop.cancelled() => Ok(()),
            error = watched.failed() => Err(anyhow::Error::from(error).context("the metadata store failed")),
        }
    });
    process.start_once(LISTENER, "wire", async move |stop| {
        Ok(wire::serve(listener, Arc::new(store), options, stop.cancelled_owned()).await?)
    });
    process.health.ready("wire");
    Ok(())
}

fn wire_options(meta: &Meta, name: &str) -> Result<wire::Options> {
    let tls = match &meta.serve_tls {
        Some(files) => {
            let config = server_tls(files).context("cannot use the files for TLS on meta.listen")?;
            Some(wire::Tls::new(config))
        }
        None => None,
    };
    let tokens = match &meta.auth_token {
        AuthToken::Simple => TokenKind::default(),
        AuthToken::Jwt(keys) => {
            let keys = JwtKeys::from_setting(keys).context("cannot use meta.auth_token")?;
            TokenKind::Jwt(Arc::new(keys))
        }
    };
    let limits = wire::Limits { request_bytes: meta.request_bytes, ..wire::Limits::default() };
    Ok(wire::Options { name: name.to_owned(), tls, tokens, limits, ..wire::Options::default() })
}

/// A server with these files as they are at every handshake.
pub(super) fn server_tls(files: &ServeTls) -> Result<ServerConfig> {
    let ServeTls { cert, key, client_ca } = files.clone();
    let clients = if client_ca.is_some() { ClientCerts::Required } else { ClientCerts::Ignored };
    Ok(LiveTls::open(TlsFiles { cert, key, authority: client_ca })?.server(clients)?)
}

/// Serves HTTP, over TLS if there are certificates; pending requests are completed during a shutdown.
pub(crate) fn start_http(
    process: &Process,
    listener: TcpListener,
    tls: Option<&HostTls>,
    state: State,
) -> Result<()> {
    let app = router(state).into_make_service_with_connect_info::<Peer>();
    match tls {
        None => process.start_once(LISTENER, "http", async move |stop| {
            let serving = axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned());
            serving.await.context("cannot serve HTTP")
        }),
        Some(own) => {
            let listener = encrypted(listener, own)?;
            process.start_once(LISTENER, "http", async move |stop| {
                let serving = axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned());
                serving.await.context("cannot serve HTTP over TLS")
            });
        }
    }
    process.health.ready("http");
    Ok(())
}

/// Hosts show certificates, for renewals; browsers and operators do not.
fn encrypted(listener: TcpListener, own: &HostTls) -> Result<TlsListener> {
    Ok(TlsListener::new(listener, own.live()?.server(ClientCerts::Optional)?)?)
}
