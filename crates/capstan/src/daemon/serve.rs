//! What a process serves: the embedded store on the etcd wire, and HTTP.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use capstan_console::{State, router};
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::wire;
use tokio::net::TcpListener;

use super::process::{LISTENER, Process};
use crate::config::{Config, Meta};
use crate::connect::read;

/// Opens the data directory, or makes one.
pub(crate) async fn open(meta: &Meta) -> Result<Embedded> {
    let options = embedded::Options { history: meta.history.unwrap_or(0), ..embedded::Options::default() };
    let store = Embedded::open(&meta.dir, options).await?;
    tracing::info!(dir = %meta.dir.display(), "store opened");
    Ok(store)
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
    process.start_once(LISTENER, "wire", async move |stop| {
        Ok(wire::serve(listener, Arc::new(store), options, stop.cancelled_owned()).await?)
    });
    process.health.ready("wire");
    Ok(())
}

fn wire_options(meta: &Meta, name: &str) -> Result<wire::Options> {
    let tls = match &meta.serve_tls {
        Some(files) => {
            let authority = files.client_ca.as_deref().map(read).transpose()?;
            let tls = wire::Tls::from_pem(&read(&files.cert)?, &read(&files.key)?, authority.as_deref());
            Some(tls.context("cannot use meta.serve_cert, meta.serve_key or meta.serve_client_ca")?)
        }
        None => None,
    };
    Ok(wire::Options { name: name.to_owned(), tls, ..wire::Options::default() })
}

/// Serves HTTP; requests under way are finished when it is asked to stop.
pub(crate) fn start_http(process: &Process, listener: TcpListener, state: State) {
    process.start_once(LISTENER, "http", async move |stop| {
        let serving = axum::serve(listener, router(state)).with_graceful_shutdown(stop.cancelled_owned());
        serving.await.context("cannot serve HTTP")
    });
    process.health.ready("http");
}
