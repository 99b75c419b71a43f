//! `capstan up`: everything for one machine in one process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use capstan_console::{Metrics, State};
use capstan_meta::Store;
use capstan_meta::embedded::Embedded;
use capstan_redis::broker::PROXY_ADDRESS;
use tokio::net::TcpListener;

use crate::commands::version::VERSION;
use crate::config::{Config, Flag, Mode};
use crate::context::Context;
use crate::daemon::{self, Endpoints, LocalHost, Process};
use crate::exit::Exit;
use crate::logging;
use crate::output::Format;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  capstan up\n  capstan up --dir /var/lib/capstan --port-base 7800\n  \
    capstan up --port-base 0 --ready-file ready.json   # for scripts: any free ports, told in the file")]
pub(crate) struct UpArgs {
    /// The data directory (setting meta.dir)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The first port (7700 by default): console here, metadata on the next one; 0 takes any free ones
    #[arg(long, value_name = "PORT")]
    port_base: Option<u16>,
    /// Write all endpoints as JSON to this file once everything serves
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

/// What has been bound and opened.
struct Opened {
    http: TcpListener,
    wire: TcpListener,
    embedded: Embedded,
    endpoints: Endpoints,
}

pub(crate) async fn run(args: UpArgs, context: &mut Context) -> Result<Exit> {
    set_flags(&args, context);
    let config = context.config()?;
    if config.meta.mode == Mode::Etcd {
        bail!(
            "meta.mode is `etcd`, and `capstan up` brings its own store; use `capstan host` and `capstan controller`"
        );
    }
    logging::begin(&context.layers()?)?;
    let mut process = Process::new(config.host.stop_deadline)?;
    let opened = open(&config).await?;
    let endpoints = opened.endpoints.clone();
    let hosts = start(&mut process, opened, &config).await?;
    let announce = || {
        endpoints.announce(&config.meta.dir, args.ready_file.as_deref())?;
        greet(&endpoints, &hosts, context)
    };
    let exit = process.run(announce).await;
    Endpoints::withdraw(&config.meta.dir);
    exit
}

fn set_flags(args: &UpArgs, context: &mut Context) {
    context.flags.extend(args.dir.iter().map(|dir| Flag::new("--dir", "meta.dir", dir.display())));
    if let Some(base) = args.port_base {
        let next = if base == 0 { 0 } else { base.saturating_add(1) };
        context.flags.push(Flag::new("--port-base", "http.listen", format!("127.0.0.1:{base}")));
        context.flags.push(Flag::new("--port-base", "meta.listen", format!("127.0.0.1:{next}")));
        let (proxies, nodes) =
            if base == 0 { (0, 1) } else { (base.saturating_add(11), base.saturating_add(21)) };
        context.flags.push(Flag::new("--port-base", "redis.listen", format!("127.0.0.1:{proxies}")));
        context.flags.push(Flag::new("--port-base", "redis.first_node_port", nodes));
    }
}

/// Binds everything, then opens the store: a taken port leaves no trace.
async fn open(config: &Config) -> Result<Opened> {
    let http = daemon::bind(config.http_listen, "http.listen").await?;
    let wire = daemon::bind(config.meta.listen, "meta.listen").await?;
    let embedded = daemon::open(&config.meta).await?;
    let scheme = if config.meta.serve_tls.is_some() { "https" } else { "http" };
    let endpoints = Endpoints {
        meta: format!("{scheme}://{}", wire.local_addr()?),
        http: Some(format!("http://{}", http.local_addr()?)),
        host: Some(config.host.id.clone()),
        dir: Some(std::path::absolute(&config.meta.dir)?),
        pid: std::process::id(),
        version: VERSION.to_owned(),
    };
    Ok(Opened { http, wire, embedded, endpoints })
}

async fn start(process: &mut Process, opened: Opened, config: &Config) -> Result<Vec<LocalHost>> {
    let Opened { http, wire, embedded, endpoints } = opened;
    let store = Store::new(embedded.clone());
    let console = http.local_addr()?;
    let addresses = BTreeMap::from([
        ("http".to_owned(), console.to_string()),
        ("meta".to_owned(), wire.local_addr()?.to_string()),
    ]);
    let watched = embedded.clone();
    let state = State {
        store: store.clone(),
        fleet: config.fleet.tree.clone(),
        proxies: daemon::proxies(&config.redis, Some(&std::path::absolute(&config.meta.dir)?))?,
        health: process.health.clone(),
        metrics: Metrics::with_watchers(VERSION, move || watched.watchers()),
        tasks: process.supervisor.clone(),
        about: Arc::new(endpoints.about()),
    };
    daemon::start_wire(process, wire, embedded, config)?;
    daemon::start_http(process, http, state);
    let session = daemon::start_session(store.clone(), &config.host);
    daemon::start_controller(process, &store, &session, &config.host.id);
    let roles = ["meta", "controller", "console"];
    daemon::start_host(process, &store, &session, &config.host, &roles, addresses)?;
    // An updater that died with this process need not be waited for longer than the process itself.
    let ttl = config.fleet.leader_ttl.min(config.host.lease_ttl);
    daemon::start_updater(process, &store, &config.fleet.tree, &config.host.id, ttl);
    let mut hosts = daemon::local_hosts(config)?;
    daemon::start_local_fleet(process, &store, config, &mut hosts).await?;
    daemon::start_local_redis(process, &store, config, console, &mut hosts)?;
    daemon::start_local_hosts(process, &store, &session, &hosts)?;
    Ok(hosts)
}

/// What runs where, and what to type next.
fn greet(endpoints: &Endpoints, hosts: &[LocalHost], context: &mut Context) -> Result<()> {
    if context.out.format == Format::Json {
        return context.out.json(endpoints).and_then(|()| context.out.flush());
    }
    let dir = endpoints.dir.clone().unwrap_or_default();
    let host = endpoints.host.clone().unwrap_or_default();
    let http = endpoints.http.clone().unwrap_or_default();
    let there = if std::path::absolute("data").ok() == Some(dir.clone()) {
        String::new()
    } else {
        format!(" --meta {}", endpoints.meta)
    };
    let (playing, tries) = match hosts {
        [] => (String::new(), String::new()),
        [.., last] => (
            format!(
                "  local      {} hosts: local-1 to {}, below {}/hosts\n",
                hosts.len(),
                last.id,
                dir.display()
            ),
            try_redis(hosts, &there) + &try_fleet(&dir, &there),
        ),
    };
    context.out.line(format!(
        "Capstan {VERSION} is up.\n\n  \
         console    {http}\n  \
         metadata   {meta} (etcd v3 wire)\n  \
         host       {host}\n  \
         data       {dir}\n{playing}\n\
         Next, in another terminal:\n\n  \
         capstan status{there}\n  \
         capstan hosts list{there}\n  \
         capstan meta tree{there}\n  \
         ETCDCTL_API=3 etcdctl --endpoints {wire} get / --prefix\n\n\
         {tries}Ctrl-C stops it; the data stays.",
        meta = endpoints.meta,
        // etcdctl 3.4 takes a scheme for most commands, but not for `endpoint status`.
        wire = endpoints.meta.trim_start_matches("http://"),
        dir = dir.display(),
    ))?;
    context.out.flush()
}

/// How a newcomer uses the cluster that was made for them.
fn try_redis(hosts: &[LocalHost], there: &str) -> String {
    let proxy = hosts.iter().find_map(|host| host.addresses.get(PROXY_ADDRESS));
    let Some((host, port)) = proxy.and_then(|proxy| proxy.rsplit_once(':')) else { return String::new() };
    let demo = daemon::DEMO;
    format!(
        "Use the Redis cluster {demo}, and let it grow under your hands:\n\n  \
         redis-cli -c -h {host} -p {port} set hello world\n  \
         capstan redis show {demo}{there}\n  \
         capstan redis scale {demo} --nodes {}{there}\n\n",
        hosts.len() * 2
    )
}

/// How a newcomer updates the local hosts.
fn try_fleet(dir: &Path, there: &str) -> String {
    let sample =
        if there.is_empty() { String::new() } else { format!(" {}", dir.join(daemon::SAMPLE_DIR).display()) };
    format!(
        "Update the local hosts, one drained host at a time:\n\n  \
         capstan fleet release sample{sample}\n  \
         capstan fleet apply{there}\n  \
         capstan fleet status --watch{there}\n\n"
    )
}
