//! The topics brokers of a process: one for each host that has the role.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use capstan_access::Guard;
use capstan_console::Metrics;
use capstan_control::keys::HostId;
use capstan_meta::Store;
use capstan_meta::session::Session;
use capstan_steward::spec::Policy;
use capstan_topics::agent::Shelf;
use capstan_topics::commit::create_topic;
use capstan_topics::keys::Brokers;
use capstan_topics::spec::Delivery;
use capstan_topics::{Broker, BrokerOptions, BrokerTls, SERVICE, api};
use tokio::net::TcpListener;

use super::access::open_guard;
use super::listen::bind;
use super::local::LocalHost;
use super::logs::{HolderPlace, start_holder};
use super::process::{LISTENER, Process};
use crate::config::{Config, HostRole, Topics};

/// The name of the broker's address in a host's record.
const ADDRESS: &str = "topics";

/// The topic that `capstan up` creates on its first start.
pub(crate) const DEMO_TOPIC: &str = "/default/hello";

/// Binds one address per broker, counted from the configured one.
pub(crate) async fn bind_topics(settings: &Topics, brokers: u32) -> Result<Vec<TcpListener>> {
    let mut bound = Vec::new();
    for at in 0..brokers {
        let mut address = settings.listen;
        if address.port() != 0 {
            let port = address.port().checked_add(u16::try_from(at)?);
            address.set_port(port.context("the port of topics.listen is too high")?);
        }
        bound.push(bind(address, "topics.listen").await?);
    }
    Ok(bound)
}

/// Starts the broker of this process's host. Returns the address for clients.
pub(crate) async fn start_topics(
    process: &Process,
    store: &Store,
    session: &Session,
    config: &Config,
    metrics: &Metrics,
    guard: Guard,
) -> Result<SocketAddr> {
    let listener = bind(config.topics.listen, "topics.listen").await?;
    let place = HolderPlace::of_host(config, SERVICE)?;
    let options = options(&config.topics, place.host.clone(), &listener, metrics, guard)?;
    start(process, store, session, &place, options, listener).await
}

/// Starts a broker on each local host. They share one disk, so a second copy would protect nothing.
pub(crate) async fn start_local_topics(
    process: &Process,
    store: &Store,
    session: &Session,
    config: &Config,
    metrics: &Metrics,
    hosts: &mut [LocalHost],
    listeners: Vec<TcpListener>,
) -> Result<()> {
    let guard = open_guard(store, config.access.of_up(config.topics.listen)).await?;
    let is_first_start = store.list(&Brokers {}).await?.entries.is_empty();
    for (host, listener) in hosts.iter_mut().zip(listeners) {
        let place = HolderPlace::of_local(config, host, SERVICE)?;
        let options = options(&config.topics, host.id.clone(), &listener, metrics, guard.clone())?;
        let options = BrokerOptions { copies: options.copies.or(Some(1)), ..options };
        let at = start(process, store, session, &place, options, listener).await?;
        host.role(HostRole::Topics)?;
        host.addresses.insert(ADDRESS.to_owned(), at.to_string());
    }
    if is_first_start && !hosts.is_empty() {
        // Once: a demo topic that was deleted stays away.
        let made = create_topic(store, &DEMO_TOPIC.parse()?, Delivery::Reliable, 1).await;
        made.with_context(|| format!("cannot create topic {DEMO_TOPIC}"))?;
    }
    Ok(())
}

fn options(
    settings: &Topics,
    host: HostId,
    listener: &TcpListener,
    metrics: &Metrics,
    guard: Guard,
) -> Result<BrokerOptions> {
    let options = BrokerOptions::new(host, settings.cluster.clone(), listener.local_addr()?);
    let advertise = settings.advertise.clone().unwrap_or_else(|| options.advertise.clone());
    let (counters, tier) = (metrics.topics.clone(), settings.tier.clone());
    let tls = settings.tls.as_ref().map(|tls| {
        let opened = BrokerTls::open(tls.cert.clone(), tls.key.clone(), tls.authority.clone());
        opened.context("cannot use the certificates of topics (topics.tls_cert, topics.tls_ca or tls.dir)")
    });
    let tls = tls.transpose()?;
    Ok(BrokerOptions { advertise, counters, copies: settings.copies, tier, guard, tls, ..options })
}

async fn start(
    process: &Process,
    store: &Store,
    session: &Session,
    place: &HolderPlace,
    options: BrokerOptions,
    listener: TcpListener,
) -> Result<SocketAddr> {
    let address = listener.local_addr()?;
    let shelf = Arc::new(Shelf::default());
    let holder = start_holder(process, store, session, place, shelf.clone()).await?;
    let broker = Broker::start(options, holder, shelf, store, session, Policy::default())
        .await
        .with_context(|| format!("cannot start the broker of host {}", place.host))?;
    process.start_once(LISTENER, &format!("topics of {}", place.host), async move |stop| {
        api::serve(broker, listener, stop).await.context("serving topics did not end in order")
    });
    Ok(address)
}
