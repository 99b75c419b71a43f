//! The document store of a process: the node of a host, and the demo collection of local hosts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use capstan_console::Metrics;
use capstan_docs::metrics::DocsMetrics;
use capstan_docs::node::SERVICE;
use capstan_docs::spec::ClusterSpec;
use capstan_docs::{Node, NodeOptions, Prepared, api};
use capstan_meta::Store;
use capstan_meta::session::Session;

use super::listen::bind;
use super::local::LocalHost;
use super::logs::{HolderPlace, start_holder};
use super::process::{LISTENER, LOOP, Process};
use crate::config::{Config, HostRole, HostTls};

/// The name of the API's address in a host's record.
pub(crate) const DOCS_ADDRESS: &str = "docs";
/// Local hosts share a disk: a second copy protects nothing, and all but one of them may be drained at a time.
const LOCAL_MIN_COPIES: usize = 1;

/// The database and the collection of the demo.
const DEMO: (&str, &str) = ("demo", "planets");
/// Pause before the demo is retried while the tokens have no primary.
const RETRY: Duration = Duration::from_millis(500);

/// The options of one host's node.
struct Place {
    holder: HolderPlace,
    listen: SocketAddr,
    dir: PathBuf,
    backups: PathBuf,
    copies: usize,
    min_copies: usize,
    metrics: DocsMetrics,
}

/// The base URL for clients of a node's API, over TLS if the process has certificates.
pub(crate) fn docs_url(config: &Config, address: impl std::fmt::Display) -> String {
    format!("{}://{address}/db", config.http_scheme())
}

/// Starts the node of this process's host. Returns the address of its API.
pub(crate) async fn start_docs_host(
    process: &Process,
    store: &Store,
    session: &Session,
    config: &Config,
    metrics: &Metrics,
) -> Result<SocketAddr> {
    let settings = &config.docs;
    let place = Place {
        holder: HolderPlace::of_host(config, SERVICE)?,
        listen: settings.listen,
        dir: settings.dir.clone(),
        backups: settings.backup_dir.clone(),
        copies: settings.copies,
        min_copies: settings.copies / 2 + 1,
        metrics: metrics.docs.clone(),
    };
    let (_, address) = start_node(process, store, session, config, place).await?;
    Ok(address)
}

/// Starts the nodes of the local hosts of `capstan up`, with a demo collection. Returns the addresses of their APIs.
pub(crate) async fn start_local_docs(
    process: &Process,
    store: &Store,
    session: &Session,
    config: &Config,
    metrics: &Metrics,
    hosts: &mut [LocalHost],
) -> Result<Vec<SocketAddr>> {
    let copies = config.docs.copies.min(hosts.len());
    let (mut addresses, mut last) = (Vec::new(), None);
    for (at, host) in hosts.iter_mut().enumerate() {
        let mut listen = config.docs.listen;
        if listen.port() != 0 {
            let port = u16::try_from(at).ok().and_then(|at| listen.port().checked_add(at));
            listen.set_port(port.context("the port of docs.listen is too high")?);
        }
        let holder = HolderPlace::of_local(config, host, SERVICE)?;
        let place = Place {
            holder,
            listen,
            dir: host.dir.join("docs"),
            backups: config.docs.backup_dir.join(host.id.as_str()),
            copies,
            min_copies: LOCAL_MIN_COPIES,
            metrics: metrics.docs.clone(),
        };
        let (node, address) = start_node(process, store, session, config, place).await?;
        host.role(HostRole::Docs)?;
        host.addresses.insert(DOCS_ADDRESS.to_owned(), address.to_string());
        addresses.push(address);
        last = Some(node);
    }
    if let Some(node) = last {
        start_demo(process, node);
    }
    Ok(addresses)
}

async fn start_node(
    process: &Process,
    store: &Store,
    session: &Session,
    config: &Config,
    place: Place,
) -> Result<(Node, SocketAddr)> {
    let settings = &config.docs;
    let listener = bind(place.listen, "docs.listen").await?;
    let address = listener.local_addr()?;
    let cluster = ClusterSpec {
        token_digits: settings.token_digits,
        copies: place.copies,
        min_copies: place.min_copies,
        auto_add: settings.auto_add,
        ..ClusterSpec::default()
    };
    let options = NodeOptions {
        id: place.holder.host.clone(),
        dir: std::path::absolute(&place.dir)?,
        backups: std::path::absolute(&place.backups)?,
        http: address,
        tls: config.tls.as_ref().map(HostTls::live).transpose()?,
        cluster,
        cache_bytes: settings.cache_bytes,
        queue: settings.queue.clone(),
        move_bytes_per_second: settings.move_bytes_per_second,
        metrics: place.metrics,
    };
    let prepared = Prepared::open(options, store).await.context("cannot open the document store")?;
    let holder_place = HolderPlace { joining: prepared.joining(), ..place.holder };
    let holder = start_holder(process, store, session, &holder_place, prepared.owner()).await?;
    let node = prepared.start(holder, session).await.context("cannot start the document store")?;
    let (served, id) = (node.clone(), node.id().clone());
    tracing::info!(node = %id, http = %address, "serving documents");
    let closing = node.clone();
    process.start_once(LISTENER, &format!("docs {id}"), async move |stop| {
        let stopped = async move {
            stop.cancelled_owned().await;
            closing.close_streams();
        };
        let serving = api::serve(listener, served, api::ConnectionLimits::default(), stopped);
        serving.await.context("cannot serve documents")
    });
    Ok((node, address))
}

/// Creates the demo collection, unless there is already a database.
fn start_demo(process: &Process, node: Node) {
    process.supervisor.start(LOOP, "docs demo", move |stop| {
        let node = node.clone();
        async move {
            while let Err(error) = api::create_demo(&node, DEMO.0, DEMO.1).await {
                tracing::debug!(%error, "cannot create demo collection yet, will retry");
                tokio::time::sleep(RETRY).await;
            }
            stop.cancelled().await;
            Ok(())
        }
    });
}
