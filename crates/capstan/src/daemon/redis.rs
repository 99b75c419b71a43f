//! The Redis service of a process: the proxy and the nodes of a host, and a coordinator.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use capstan_meta::Store;
use capstan_meta::backoff::Backoff;
use capstan_meta::view::{View, ViewOptions};
use capstan_redis::agent::{Agent, AgentConfig, Kind, find_server};
use capstan_redis::broker::{self, PROXY_ADDRESS, Tree};
use capstan_redis::coordinator::{Coordinator, SERVICE, Timing, Wire};
use capstan_redis::data::proxy::{self, ClientTls, Limits, PlainClients, Proxy};
use capstan_redis::host::{self, Identity, NodeSecret};
use capstan_redis::spec::{ClusterSpec, Serving};
use capstan_redis::{Address, ClusterName};

use super::local::LocalHost;
use super::process::{LISTENER, LOOP, Process};
use super::redis_ports::Ports;
use crate::config::{self, Config, HostRole, ServeTls};
use crate::connect::read;

/// The file in a data directory with the secret of a single machine's installation.
const SECRET_FILE: &str = "redis-secret";
/// Bytes of a secret that was made here; twice as many characters.
const SECRET_BYTES: usize = 24;
/// Pauses between attempts to register a host or to create the demo while the store is not there yet.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The cluster that a newcomer finds.
pub(crate) const DEMO: &str = "demo";

/// What one host does for Redis.
#[derive(Clone, Debug)]
pub(crate) struct RedisHost {
    /// Where its proxy listens.
    pub(crate) listen: SocketAddr,
    /// The nodes that it offers.
    pub(crate) nodes: Vec<Address>,
    /// Where the proxy's state and the nodes' data are.
    pub(crate) dir: PathBuf,
}

/// What all hosts and coordinators of an installation share.
#[derive(Clone)]
pub(crate) struct RedisShared {
    pub(crate) store: Store,
    pub(crate) secret: String,
    pub(crate) settings: config::Redis,
}

/// The secret in this data directory, made when it is asked for the first time.
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

/// A way to ask proxies about their nodes, with the secret of the settings or of a data directory.
pub(crate) fn proxies(settings: &config::Redis, data: Option<&Path>) -> Result<Option<Arc<Wire>>> {
    let secret = match (&settings.secret, data) {
        (Some(secret), _) => Some(secret.clone()),
        (None, Some(data)) => Some(secret_of(data)?),
        (None, None) => None,
    };
    Ok(secret.map(|secret| Arc::new(Wire::new(Some(secret), Timing::default().reply_within))))
}

/// How this host's clients may speak TLS, as the settings say.
pub(crate) fn client_tls(files: Option<&ServeTls>, tls_only: bool) -> Result<Option<ClientTls>> {
    let Some(files) = files else { return Ok(None) };
    let plain = if tls_only { PlainClients::Refused } else { PlainClients::Served };
    let authority = files.client_ca.as_deref().map(read).transpose()?;
    let tls = ClientTls::from_pem(&read(&files.cert)?, &read(&files.key)?, authority.as_deref(), plain);
    tls.map(Some).context("cannot use the certificate, the key or the authority for TLS with clients")
}

/// Starts the proxy and the nodes of a host, and offers them to clusters. Says where clients connect to.
pub(crate) fn start_redis_host(process: &Process, shared: &RedisShared, host: RedisHost) -> Result<Address> {
    let agent = AgentConfig { dir: host.dir.join("nodes"), server: shared.settings.server.clone() };
    let agent = Arc::new(Agent::start(agent, &process.supervisor)?);
    let config = proxy::Config {
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

/// The workers end when the process stops taking work.
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
            let view = View::open(store.clone(), Tree::ranges(), ViewOptions::default()).await?;
            host::keep(&me, &agent, &store, &view, &stop).await
        }
    });
}

/// Starts a coordinator. The address says to people which process it is.
pub(crate) fn start_coordinator(process: &Process, shared: &RedisShared, address: SocketAddr) -> Result<()> {
    let address: Address = address.to_string().parse()?;
    let (store, secret) = (shared.store.clone(), shared.secret.clone());
    let timing = Timing {
        ping_every: shared.settings.ping_every,
        grant_ttl: shared.settings.lease,
        ..Timing::default()
    };
    process.supervisor.start(LOOP, "redis coordinator", move |stop| {
        let (store, secret, address) = (store.clone(), secret.clone(), address.clone());
        async move {
            // Names this life of the coordinator: two of them must not be taken for one.
            let seed = rand::random();
            let proxies = Wire::new(Some(secret), timing.reply_within);
            Coordinator::start(store, proxies, &address, timing, seed).await?.run(stop).await;
            Ok(())
        }
    });
    Ok(())
}

/// Has the local hosts of `capstan up` serve Redis, with a cluster to try. Without a server program they do not, which
/// is said and no more.
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
    start_coordinator(process, &shared, console)?;
    start_demo(process, &shared, DEMO, u32::try_from(hosts.len())?)
}

fn has_server(settings: &config::Redis) -> bool {
    let there = settings.server.is_some() || find_server().is_some();
    if !there {
        tracing::warn!("neither redis-server nor valkey-server is on the PATH; local hosts serve no redis");
    }
    there
}

/// Creates a cluster for newcomers, unless there is one of that name or has been: who deletes it does not want it.
pub(crate) fn start_demo(process: &Process, shared: &RedisShared, name: &str, nodes: u32) -> Result<()> {
    let name: ClusterName = name.parse()?;
    let store = shared.store.clone();
    process.start_once(LOOP, "redis demo", async move |stop| {
        let mut retry = Backoff::new(RETRY.0, RETRY.1, u64::from(std::process::id()));
        while !stop.is_cancelled() {
            match create_once(&store, &name, nodes).await {
                Ok(()) => break,
                Err(error) => tracing::debug!(%error, "the demo cluster is not there yet"),
            }
            tokio::time::sleep(retry.next_wait()).await;
        }
        stop.cancelled().await;
        Ok(())
    });
    Ok(())
}

async fn create_once(store: &Store, name: &ClusterName, nodes: u32) -> Result<()> {
    let tree = Tree::read(store).await?;
    if tree.clusters.get(name).is_some_and(|cluster| cluster.exists() || cluster.last_epoch.is_some()) {
        return Ok(());
    }
    let serving = Serving { default: true, ..Serving::default() };
    broker::create_cluster(store, name, &ClusterSpec { serving, ..ClusterSpec::of(nodes) }).await?;
    tracing::info!(cluster = %name, nodes, "created a redis cluster to try");
    Ok(())
}
