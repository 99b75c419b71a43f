//! `capstan host`: the daemon of one machine of a cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use capstan_console::Findings;
use capstan_meta::Store;
use capstan_redis::Address;
use capstan_redis::facts::PROXY_ADDRESS;

use crate::commands::remote::{Remote, Role, open};
use crate::config::{Config, HostRole};
use crate::context::Context;
use crate::daemon::{self, Process, RedisHost, RedisShared, SelfCheck, WorkerPlace};
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
    let has = |role: HostRole| config.host.roles.contains(&role);
    let serves = ["meta"].into_iter().chain(config.host.roles.iter().map(|role| role.name()));
    let dir = match (has(HostRole::Redis), has(HostRole::Fleet)) {
        (true, _) => Some(config.redis.dir.as_path()),
        (false, true) => Some(config.fleet.dir.as_path()),
        (false, false) => None,
    };
    let role = Role { host: Some(&config.host.id), serves: serves.collect(), dir };
    let mut remote = open(&config, role, context).await?;
    let Remote { process, store, session, address, endpoints, metrics, findings, guard } = &mut remote;
    let mut addresses = BTreeMap::from([("http".to_owned(), address.to_string())]);
    if config.host.roles.contains(&HostRole::Redis) {
        let proxy = start_redis(process, store, &config)?;
        addresses.insert(PROXY_ADDRESS.to_owned(), proxy.to_string());
        let secret = config.redis.secret.clone().context("redis.secret is not set")?;
        daemon::watch_proxies(process, store, &secret, vec![proxy]);
    }
    if config.host.roles.contains(&HostRole::Docs) {
        let api = daemon::start_docs_host(process, store, session, &config, metrics).await?;
        addresses.insert(daemon::DOCS_ADDRESS.to_owned(), api.to_string());
        endpoints.docs = Some(daemon::docs_url(&config, api));
    }
    let redis = addresses.get(PROXY_ADDRESS).cloned();
    let roles: Vec<&str> =
        ["console"].into_iter().chain(config.host.roles.iter().map(|role| role.name())).collect();
    daemon::start_host(process, store, session, &config.host, &roles, addresses)?;
    daemon::start_self_check(process, session, &config.host.id, self_check(&config)?)?;
    for role in &config.host.roles {
        match role {
            HostRole::Fleet => start_fleet(process, store, findings, &config)?,
            // Started before the host was registered: its record contains the proxy's address.
            HostRole::Redis => {}
            HostRole::Topics => {
                let at =
                    daemon::start_topics(process, store, session, &config, metrics, guard.clone()).await?;
                endpoints.topics = Some(config.topics.url(at));
            }
            // Started before the host was registered: its record contains the API's address.
            HostRole::Docs => {}
        }
    }
    remote.endpoints.services.extend(redis.map(|proxy| (PROXY_ADDRESS.to_owned(), proxy)));
    remote.run("host is up", args.ready_file.as_deref()).await
}

/// The disks and certificates of this host.
fn self_check(config: &Config) -> Result<SelfCheck> {
    let dirs = config.host.roles.iter().map(|role| match role {
        HostRole::Fleet => config.fleet.dir.clone(),
        HostRole::Redis => config.redis.dir.clone(),
        HostRole::Topics | HostRole::Docs => config.holders.dir.clone(),
    });
    let mut dirs: Vec<PathBuf> = dirs.collect();
    dirs.sort();
    dirs.dedup();
    let id = &config.host.id;
    Ok(SelfCheck::of(config, format!("host {id}"), Some(id.parse()?), dirs))
}

/// This host's software is updated with the fleet.
fn start_fleet(process: &Process, store: &Store, findings: &Findings, config: &Config) -> Result<()> {
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
    daemon::start_worker(process, store, &settings.tree, findings, place);
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
