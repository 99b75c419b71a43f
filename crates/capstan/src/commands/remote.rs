//! What `capstan host` and `capstan controller` have in common: HTTP of their own, and metadata somewhere else.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use capstan_console::{Metrics, State};
use capstan_meta::Store;
use capstan_meta::session::Session;

use crate::commands::version::VERSION;
use crate::config::Config;
use crate::connect;
use crate::context::Context;
use crate::daemon::{self, Endpoints, Process};
use crate::exit::Exit;
use crate::logging;

/// A process that uses a store elsewhere.
pub(super) struct Remote {
    pub(super) process: Process,
    pub(super) store: Store,
    pub(super) session: Session,
    /// Where HTTP is served.
    pub(super) address: SocketAddr,
    endpoints: Endpoints,
}

/// Binds, connects, serves HTTP, begins a lease.
pub(super) async fn open(config: &Config, host: Option<&str>, context: &Context) -> Result<Remote> {
    logging::begin(&context.layers()?)?;
    let process = Process::new(config.host.stop_deadline)?;
    let listener = daemon::bind(config.http_listen, "http.listen").await?;
    let address = listener.local_addr()?;
    let store = connect::connect(&config.meta).await?;
    let endpoints = Endpoints {
        meta: config.meta.endpoints.join(","),
        http: Some(format!("http://{address}")),
        host: host.map(str::to_owned),
        dir: None,
        pid: std::process::id(),
        version: VERSION.to_owned(),
    };
    let state = State {
        store: store.clone(),
        fleet: config.fleet.tree.clone(),
        proxies: daemon::proxies(&config.redis, None)?,
        health: process.health.clone(),
        metrics: Metrics::new(VERSION),
        tasks: process.supervisor.clone(),
        about: Arc::new(endpoints.about()),
    };
    daemon::start_http(&process, listener, state);
    let session = daemon::start_session(store.clone(), &config.host);
    Ok(Remote { process, store, session, address, endpoints })
}

impl Remote {
    /// Runs until it is stopped.
    pub(super) async fn run(self, message: &str, ready_file: Option<&Path>) -> Result<Exit> {
        let Remote { process, address, endpoints, .. } = self;
        process
            .run(|| {
                tracing::info!(http = %address, message);
                ready_file.map_or(Ok(()), |path| endpoints.write(path))
            })
            .await
    }
}
