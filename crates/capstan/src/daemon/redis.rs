//! The Redis service of a process: the proxy and the nodes of a host, and a coordinator.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use capstan_control::keys::HostId;
use capstan_meta::Store;
use capstan_meta::backoff::Backoff;
use capstan_meta::view::View;
use capstan_redis::agent::{Agent, AgentConfig, Kind, find_server};
use capstan_redis::broker;
use capstan_redis::coordinator::{Coordinator, Wire};
use capstan_redis::drain::SERVICE;
use capstan_redis::facts::{PROXY_ADDRESS, Tree};
use capstan_redis::host::{self, Identity, NodeSecret};
use capstan_redis::spec::{ClusterSpec, Persistence, Serving};
use capstan_redis::timing::Timing;
use capstan_redis::{Address, ClusterName};
use capstan_redis_proxy::{ClientTls, Limits, PlainClients, Proxy};

use super::health::watch_proxies;
use super::local::LocalHost;
use super::process::{LISTENER, LOOP, Process};
use super::redis_ports::Ports;
use super::serve::server_tls;
use crate::config::{self, Config, HostRole, ServeTls};

/// The file in a data directory with the secret of a single machine's installation.
pub(crate) const SECRET_FILE: &str = "redis-secret";
/// Bytes of a generated secret; it has twice as many characters.
const SECRET_BYTES: usize = 24;
/// Pauses between attempts to register a host or to create the demo while the store is unreachable.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The demo cluster.
pub(crate) const DEMO: &str = "demo";

/// The Redis part of one host.
#[derive(Clone, Debug)]
pub(crate) struct RedisHost {
    /// The address of its proxy.
    pub(crate) listen: SocketAddr,
    /// The nodes that it offers.
    pub(crate) nodes: Vec<Address>,
    /// The directory for the proxy's state and the nodes' data.
    pub(crate) dir: PathBuf,
}

/// What all hosts and coordinators of an installation share.
#[derive(Clone)]
pub(crate) struct RedisShared {
    pub(crate) store: Store,
    pub(crate) secret: String,
    pub(crate) settings: config::Redis,
}

/// The secret in this data directory, generated on first use.
pub(crate) fn secret_of(dir: &Path) -> Result<String> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let path = dir.join(SECRET_FILE);
    let text = || std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()));
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    match made {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(text()?.trim().to_owned()),
        Err(error) => Err(error).with_context(|| format!("cannot write {}", path.display())),
        Ok(mut file) => {
            let bytes: [u8; SECRET_BYTES] = rand::random();
            let secret: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(file, "{secret}").and_then(|()| file.sync_all())?;
            Ok(secret)
        }
    }
}

/// A client for node facts of proxies, with the secret of the settings or of a data directory.
pub(crate) fn proxies(settings: &config::Redis, data: Option<&Path>) -> Result<Option<Arc<Wire>>> {
    let secret = match (&settings.secret, data) {
        (Some(secret), _) => Some(secret.clone()),
        (None, Some(data)) => Some(secret_of(data)?),
        (None, None) => None,
    };
    Ok(secret.map(|secret| Arc::new(Wire::new(Some(secret), Timing::default().reply_within))))
}

/// The TLS options for clients of this host.
pub(crate) fn client_tls(files: Option<&ServeTls>, tls_only: bool) -> Result<Option<ClientTls>> {
    let Some(files) = files else { return Ok(None) };
    let plain = if tls_only { PlainClients::Refused } else { PlainClients::Served };
    let config = server_tls(files)
        .context("cannot use the certificate, the key or the authority for TLS with clients")?;
    Ok(Some(ClientTls::new(Arc::new(config), plain)))
}

/// Starts the proxy and the nodes of a host, and offers them to clusters. Returns the address for clients.
pub(crate) fn start_redis_host(process: &Process, shared: &RedisShared, host: RedisHost) -> Result<Address> {
    let agent = AgentConfig { dir: host.dir.join("nodes"), server: shared.settings.server.clone() };
    let agent = Arc::new(Agent::start(agent, &process.supervisor)?);
    let config = capstan_redis_proxy::Config {
        listen: host.listen,
        announce: None,
        workers: shared.settings.workers,
        limits: Limits {
            clients: shared.settings.max_clients,
            idle: shared.settings.client_idle,
            move_rate: shared.settings.move_rate,
            ..Limits::default()
        },
        tls: client_tls(shared.settings.tls.as_ref(), shared.settings.tls_only)?,
        admin_password: Some(shared.secret.clone()),
        state_dir: Some(host.dir.join("proxy")),
        require_lease: true,
    };
    let proxy = Proxy::start(config, agent.nodes(), &process.supervisor)?;
    let address: Address = proxy.address().to_string().parse()?;
    tracing::info!(proxy = %address, nodes = host.nodes.len(), "serving redis");
    stop_in_order(process, &address, proxy);
    let (kind, secret, nodes) = match &shared.settings.external {
        None => (Kind::Supervised, NodeSecret::new(&shared.secret), host.nodes),
        Some(given) => (Kind::External, NodeSecret::given(given.password.as_deref()), given.nodes.clone()),
    };
    let me = Identity { proxy: address.clone(), nodes: kind, secret };
    keep_nodes(process, shared, agent, me, nodes);
    Ok(address)
}

/// Stops the workers in the first stage of a shutdown.
fn stop_in_order(process: &Process, address: &Address, mut proxy: Proxy) {
    process.start_once(LISTENER, &format!("redis proxy {address}"), async move |stop| {
        stop.cancelled().await;
        tokio::task::spawn_blocking(move || proxy.stop()).await.context("the proxy did not stop in order")
    });
}

fn keep_nodes(process: &Process, shared: &RedisShared, agent: Arc<Agent>, me: Identity, nodes: Vec<Address>) {
    let store = shared.store.clone();
    process.supervisor.start(LOOP, format!("redis nodes {}", me.proxy), move |stop| {
        let (store, agent, me, nodes) = (store.clone(), agent.clone(), me.clone(), nodes.clone());
        async move {
            broker::add_host(&store, &me.proxy, &nodes).await?;
            let view = View::open(store.clone(), Tree::ranges(), host::view_options()).await?;
            host::keep(&me, &agent, &store, &view, &stop).await
        }
    });
}

/// Starts a coordinator. The address identifies its process to operators.
pub(crate) fn start_coordinator(
    process: &Process,
    shared: &RedisShared,
    controller: &str,
    address: SocketAddr,
) -> Result<()> {
    let (controller, address): (HostId, Address) = (controller.parse()?, address.to_string().parse()?);
    let (store, secret) = (shared.store.clone(), shared.secret.clone());
    let timing = Timing {
        ping_every: shared.settings.ping_every,
        grant_ttl: shared.settings.lease,
        ..Timing::default()
    };
    process.supervisor.start(LOOP, "redis coordinator", move |stop| {
        let (store, secret) = (store.clone(), secret.clone());
        let (controller, address) = (controller.clone(), address.clone());
        async move {
            // Identifies this run of the coordinator: two of them must not count as one.
            let seed = rand::random();
            let proxies = Wire::new(Some(secret), timing.reply_within);
            Coordinator::start(store, proxies, (controller, &address), timing, seed).await?.run(stop).await;
            Ok(())
        }
    });
    Ok(())
}

/// Starts Redis on the local hosts of `capstan up`, with a demo cluster. Without a server program it only logs a
/// warning.
pub(crate) fn start_local_redis(
    process: &Process,
    store: &Store,
    config: &Config,
    console: SocketAddr,
    hosts: &mut [LocalHost],
) -> Result<()> {
    let data = std::path::absolute(&config.meta.dir)?;
    if hosts.is_empty() || !has_server(&config.redis) {
        return Ok(());
    }
    let secret = config.redis.secret.clone().map_or_else(|| secret_of(&data), Ok)?;
    // Local hosts run their own nodes: several hosts cannot offer the same servers.
    let settings = config::Redis { external: None, ..config.redis.clone() };
    let shared = RedisShared { store: store.clone(), secret, settings };
    let ports = Ports::of(&config.redis, &data, hosts.len())?;
    for (at, host) in hosts.iter_mut().enumerate() {
        let place = RedisHost { dir: host.dir.join("redis"), ..ports.host(at, &config.redis)? };
        let proxy = start_redis_host(process, &shared, place)?;
        host.role(HostRole::Redis)?;
        host.services.push(SERVICE.parse()?);
        host.addresses.insert(PROXY_ADDRESS.to_owned(), proxy.to_string());
    }
    start_coordinator(process, &shared, &config.host.id, console)?;
    let proxies = hosts.iter().filter_map(|host| host.addresses.get(PROXY_ADDRESS)?.parse().ok());
    let proxies: Vec<Address> = proxies.collect();
    watch_proxies(process, store, &shared.secret, proxies.clone());
    start_demo(process, &shared, DEMO, proxies)
}

fn has_server(settings: &config::Redis) -> bool {
    let there = settings.server.is_some() || find_server().is_some();
    if !there {
        tracing::warn!("no redis-server or valkey-server in PATH, local hosts do not serve redis");
    }
    there
}

/// Creates the demo cluster with one node behind each of these proxies, unless it exists or was deleted before.
fn start_demo(process: &Process, shared: &RedisShared, name: &str, proxies: Vec<Address>) -> Result<()> {
    let name: ClusterName = name.parse()?;
    let (store, health) = (shared.store.clone(), process.health.clone());
    health.waiting("redis demo", "not created yet");
    process.start_once(LOOP, "redis demo", async move |stop| {
        let mut retry = Backoff::new(RETRY.0, RETRY.1, u64::from(std::process::id()));
        while !stop.is_cancelled() {
            match create_once(&store, &name, &proxies).await {
                Ok(()) => {
                    health.ready("redis demo");
                    break;
                }
                Err(error) => tracing::debug!(%error, "cannot create demo cluster yet, will retry"),
            }
            tokio::time::sleep(retry.next_wait()).await;
        }
        stop.cancelled().await;
        Ok(())
    });
    Ok(())
}

async fn create_once(store: &Store, name: &ClusterName, proxies: &[Address]) -> Result<()> {
    let tree = Tree::read(store).await?;
    if tree.clusters.get(name).is_some_and(|cluster| cluster.exists() || cluster.last_epoch.is_some()) {
        return Ok(());
    }
    // A proxy that registers later would have no node of the cluster, and clients start at any of them.
    if let Some(missing) = proxies.iter().find(|proxy| !tree.hosts.contains_key(proxy)) {
        bail!("proxy {missing} has not registered its nodes yet");
    }
    let nodes = u32::try_from(proxies.len())?;
    // Data of the demo survives a crash.
    let serving = Serving { default: true, persistence: Persistence::Aof, ..Serving::default() };
    broker::create_cluster(store, name, &ClusterSpec { serving, ..ClusterSpec::of(nodes) }).await?;
    tracing::info!(cluster = %name, nodes, "demo redis cluster created");
    Ok(())
}

#[cfg(test)]
mod tests {
    use capstan_meta::embedded::{Embedded, Options};

    use super::*;

    #[tokio::test]
    async fn the_demo_has_a_node_behind_every_proxy_however_late_one_registers() {
        let store = Store::new(Embedded::in_memory(Options::default()));
        let address = |port: u16| -> Address { format!("127.0.0.1:{port}").parse().unwrap() };
        let proxies = [1, 2, 3].map(address);
        let name: ClusterName = DEMO.parse().unwrap();
        for (at, proxy) in proxies.iter().enumerate() {
            create_once(&store, &name, &proxies).await.unwrap_err();
            let first = 10 * (u16::try_from(at).unwrap() + 1);
            broker::add_host(&store, proxy, &[address(first), address(first + 1)]).await.unwrap();
        }
        create_once(&store, &name, &proxies).await.unwrap();
        let tree = Tree::read(&store).await.unwrap();
        let spread = |proxy: &Address| {
            let nodes = tree.clusters[&name].nodes.values();
            nodes.filter(|node| node.record.proxy_address == *proxy).count()
        };
        assert_eq!(proxies.each_ref().map(spread), [1, 1, 1]);
    }
}
