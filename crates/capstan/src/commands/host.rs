//! `capstan host`: the daemon of one machine of a cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use capstan_meta::Store;
use capstan_redis::Address;
use capstan_redis::broker::PROXY_ADDRESS;

use crate::commands::remote::{Remote, open};
use crate::config::{Config, HostRole};
use crate::context::Context;
use crate::daemon::{self, Process, RedisHost, RedisShared, WorkerPlace};
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  capstan host --meta http://127.0.0.1:7701 --set host.id=box2 --set \
    http.listen=127.0.0.1:7710\n  \
    capstan host --set host.roles=fleet --set fleet.lrn=2 --set fleet.trust=trust.json --set fleet.source=/srv/releases")]
pub(crate) struct HostArgs {
    /// Write the endpoints as JSON to this file once the host is registered
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

pub(crate) async fn run(args: HostArgs, context: &mut Context) -> Result<Exit> {
    let config = context.config()?;
    let remote = open(&config, Some(&config.host.id), context).await?;
    let Remote { process, store, session, address, .. } = &remote;
    let mut addresses = BTreeMap::from([("http".to_owned(), address.to_string())]);
    if config.host.roles.contains(&HostRole::Redis) {
        let proxy = start_redis(process, store, &config)?;
        addresses.insert(PROXY_ADDRESS.to_owned(), proxy.to_string());
    }
    let roles: Vec<&str> =
        ["console"].into_iter().chain(config.host.roles.iter().map(|role| role.name())).collect();
    daemon::start_host(process, store, session, &config.host, &roles, addresses)?;
    for role in &config.host.roles {
        match role {
            HostRole::Fleet => start_fleet(process, store, &config)?,
            // Started before the host was registered: its record says where the proxy is.
            HostRole::Redis => {}
        }
    }
    remote.run("host is up", args.ready_file.as_deref()).await
}

/// This host's software is updated with the fleet.
fn start_fleet(process: &Process, store: &Store, config: &Config) -> Result<()> {
    let settings = &config.fleet;
    // The settings were refused without these; see the checks of `host.roles`.
    let lrn = settings.lrn.context("fleet.lrn is not set")?;
    let trust = settings.trust.clone().context("fleet.trust is not set")?;
    let ttl = config.host.lease_ttl;
    let mut place =
        WorkerPlace::new(lrn, config.host.id.parse()?, &settings.dir, &settings.root, trust, ttl)?;
    if let Some(source) = &settings.source {
        place.source = source.clone();
    }
    daemon::start_worker(process, store, &settings.tree, place);
    Ok(())
}

/// This host serves Redis.
fn start_redis(process: &Process, store: &Store, config: &Config) -> Result<Address> {
    let settings = config.redis.clone();
    let secret = settings.secret.clone().context("redis.secret is not set")?;
    let last = settings.first_node_port.saturating_add(settings.nodes);
    let address = |port| Ok(SocketAddr::from((settings.listen.ip(), port)).to_string().parse::<Address>()?);
    let nodes = (settings.first_node_port..last).map(address).collect::<Result<_>>()?;
    let host = RedisHost { listen: settings.listen, nodes, dir: settings.dir.clone() };
    daemon::start_redis_host(process, &RedisShared { store: store.clone(), secret, settings }, host)
}
