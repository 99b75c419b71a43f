//! The common part of `capstan host` and `capstan controller`: their own HTTP, and a remote metadata store.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use capstan_access::{Anonymous, Guard};
use capstan_console::{Findings, Metrics, State};
use capstan_meta::Store;
use capstan_meta::session::Session;

use crate::commands::version::VERSION;
use crate::config::Config;
use crate::connect;
use crate::context::Context;
use crate::daemon::{self, Endpoints, Process};
use crate::exit::Exit;
use crate::logging;

/// A process that uses a remote store.
pub(super) struct Remote {
    pub(super) process: Process,
    pub(super) store: Store,
    pub(super) session: Session,
    /// Where HTTP is served.
    pub(super) address: SocketAddr,
    pub(super) endpoints: Endpoints,
    pub(super) metrics: Metrics,
    pub(super) findings: Findings,
    /// What decides about requests.
    pub(super) guard: Guard,
}

/// The role of a process.
pub(super) struct Role<'r> {
    /// Its host, if any.
    pub(super) host: Option<&'r str>,
    /// Its services, as named in findings.
    pub(super) serves: Vec<&'r str>,
    /// Its exclusive directory, if any.
    pub(super) dir: Option<&'r Path>,
}

/// Binds, connects, serves HTTP, begins a lease.
pub(super) async fn open(config: &Config, role: Role<'_>, context: &mut Context) -> Result<Remote> {
    let host = role.host;
    logging::begin(&context.layers()?)?;
    let listener = daemon::bind(config.http_listen, "http.listen").await?;
    let address = listener.local_addr()?;
    daemon::renew_overdue(config)?;
    // Before signal handlers are installed: a signal during this wait ends the process at once.
    let (mut store, etcd) = connect::connect_patiently(&config.meta).await?;
    if let Some(dir) = role.dir {
        store = daemon::succeed(dir, store).await?;
    }
    let anonymous = config.access.of_cluster();
    if anonymous == Anonymous::Refused {
        daemon::first_admin(&store, &mut context.out).await?;
    }
    let findings = Findings::new(store.clone(), config.fleet.tree.clone());
    let process = Process::new(config.host.stop_deadline)?;
    let endpoints = Endpoints {
        meta: config.meta.endpoints.join(","),
        http: Some(format!("{}://{address}", config.http_scheme())),
        topics: None,
        docs: None,
        docs_nodes: Vec::new(),
        services: BTreeMap::new(),
        host: host.map(str::to_owned),
        dir: None,
        pid: std::process::id(),
        version: VERSION.to_owned(),
    };
    let guard = daemon::open_guard(&store, anonymous).await?;
    let state = State {
        store: store.clone(),
        fleet: config.fleet.tree.clone(),
        proxies: daemon::proxies(&config.redis, None)?,
        health: process.health.clone(),
        findings: findings.clone(),
        metrics: Metrics::new(VERSION),
        tasks: process.supervisor.clone(),
        access: guard.clone(),
        signer: daemon::signer(config, config.redis.secret.clone())?,
        about: Arc::new(endpoints.about(&role.serves)),
    };
    let metrics = state.metrics.clone();
    daemon::start_http(&process, listener, config.tls.as_ref(), state)?;
    daemon::log_findings(&process, &findings);
    let session = daemon::start_session(store.clone(), &config.host);
    daemon::start_certificates(&process, &store, &session, config, address)?;
    if let Some(etcd) = etcd {
        daemon::follow_store_tls(&process, etcd, &config.meta);
    }
    Ok(Remote { process, store, session, address, endpoints, metrics, findings, guard })
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
