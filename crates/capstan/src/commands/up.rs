//! `capstan up`: everything for one machine in one process.

mod banner;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use capstan_console::{Findings, Metrics, State};
use capstan_meta::Store;
use capstan_meta::embedded::Embedded;
use capstan_redis::facts::PROXY_ADDRESS;
use tokio::net::TcpListener;

use crate::commands::version::VERSION;
use crate::config::{Config, Flag, Mode};
use crate::context::Context;
use crate::daemon::{self, Endpoints, LocalHost, Process, SelfCheck, UpdaterPlace};
use crate::exit::Exit;
use crate::logging::{self, Sink};
use crate::output::Format;

use banner::banner;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  capstan up\n  capstan up --dir /var/lib/capstan --port-base 7800\n  \
    capstan up --port-base 0 --ready-file ready.json   # for scripts: any free ports, told in the file")]
pub(crate) struct UpArgs {
    /// The data directory (setting meta.dir)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The first port (default 7700) for the console; metadata uses the next one; 0 picks free ports
    #[arg(long, value_name = "PORT")]
    port_base: Option<u16>,
    /// Write all endpoints as JSON to this file once everything serves
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

/// The services of this process, as named in findings.
const SERVES: [&str; 6] = ["meta", "control", "host", "redis", "topics", "fleet"];

/// The terminal output: the banner, then one line per event. The log goes to a file, unless a setting asks for more.
struct Screen {
    log: Sink,
    /// Set when the banner was printed.
    greeted: Arc<AtomicBool>,
}

impl Screen {
    fn of(config: &Config, context: &Context) -> Screen {
        let options = &context.options;
        let asked = options.log.is_some() || options.log_level.is_some() || options.output == Format::Json;
        let log = match io::stderr().is_terminal() && !asked {
            true => Sink::File(config.meta.dir.join("log").join("capstan.log")),
            false => Sink::Stderr,
        };
        Screen { log, greeted: Arc::default() }
    }
}

/// The bound listeners and the opened store.
struct Opened {
    http: TcpListener,
    wire: TcpListener,
    /// One for each broker.
    topics: Vec<TcpListener>,
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
    daemon::check_local_holders(&config.holders)?;
    let screen = Screen::of(&config, context);
    logging::begin_to(&context.layers()?, &screen.log)?;
    let mut process = Process::new(config.host.stop_deadline)?;
    let opened = open(&config).await?;
    let mut endpoints = opened.endpoints.clone();
    let hosts = start(&mut process, opened, &config, &screen).await?;
    let docs = hosts.iter().filter_map(|host| host.addresses.get(daemon::DOCS_ADDRESS));
    endpoints.docs_nodes = docs.map(|address| daemon::docs_url(&config, address)).collect();
    endpoints.docs = endpoints.docs_nodes.first().cloned();
    let proxy = hosts.iter().find_map(|host| host.addresses.get(PROXY_ADDRESS));
    let registry = endpoints.http.iter().map(|http| format!("{http}{}", capstan_console::SCHEMA_REGISTRY));
    endpoints.services.extend(registry.map(|url| ("schema_registry".to_owned(), url)));
    endpoints.services.extend(proxy.map(|proxy| (PROXY_ADDRESS.to_owned(), proxy.clone())));
    let announce = || {
        endpoints.announce(&config.meta.dir, args.ready_file.as_deref())?;
        greet(&endpoints, &hosts, context)?;
        screen.greeted.store(true, Ordering::Release);
        Ok(())
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
        let topics = if base == 0 { 0 } else { base.saturating_add(91) };
        context.flags.push(Flag::new("--port-base", "topics.listen", format!("127.0.0.1:{topics}")));
        let docs = if base == 0 { 0 } else { base.saturating_add(51) };
        context.flags.push(Flag::new("--port-base", "docs.listen", format!("127.0.0.1:{docs}")));
    }
}

/// Binds everything, then opens the store: a port in use leaves no trace.
async fn open(config: &Config) -> Result<Opened> {
    let http = daemon::bind(config.http_listen, "http.listen").await?;
    let wire = daemon::bind(config.meta.listen, "meta.listen").await?;
    let topics = daemon::bind_topics(&config.topics, config.up_hosts).await?;
    daemon::renew_overdue(config)?;
    let embedded = daemon::open(&config.meta).await?;
    let scheme = if config.meta.serve_tls.is_some() { "https" } else { "http" };
    let endpoints = Endpoints {
        meta: format!("{scheme}://{}", wire.local_addr()?),
        http: Some(format!("{}://{}", config.http_scheme(), http.local_addr()?)),
        topics: topics
            .first()
            .map(|first| Ok::<_, io::Error>(config.topics.url(first.local_addr()?)))
            .transpose()?,
        docs: None,
        docs_nodes: Vec::new(),
        services: BTreeMap::new(),
        host: Some(config.host.id.clone()),
        dir: Some(std::path::absolute(&config.meta.dir)?),
        pid: std::process::id(),
        version: VERSION.to_owned(),
    };
    Ok(Opened { http, wire, topics, embedded, endpoints })
}

async fn start(
    process: &mut Process,
    opened: Opened,
    config: &Config,
    screen: &Screen,
) -> Result<Vec<LocalHost>> {
    let Opened { http, wire, topics, embedded, endpoints } = opened;
    let data = std::path::absolute(&config.meta.dir)?;
    let store = daemon::succeed(&data, Store::new(embedded.clone())).await?;
    daemon::sign_local_user_in(&store, &data).await?;
    let findings = Findings::new(store.clone(), config.fleet.tree.clone());
    let console = http.local_addr()?;
    let addresses = BTreeMap::from([
        ("http".to_owned(), console.to_string()),
        ("meta".to_owned(), wire.local_addr()?.to_string()),
    ]);
    let watched = embedded.clone();
    let secret = config.redis.secret.clone().map_or_else(|| daemon::secret_of(&data), Ok)?;
    let state = State {
        store: store.clone(),
        fleet: config.fleet.tree.clone(),
        proxies: daemon::proxies(&config.redis, Some(&data))?,
        health: process.health.clone(),
        findings: findings.clone(),
        metrics: Metrics::with_watchers(VERSION, move || watched.watchers()),
        tasks: process.supervisor.clone(),
        access: daemon::open_guard(&store, config.access.of_up(console)).await?,
        signer: daemon::signer(config, Some(secret.clone()))?,
        about: Arc::new(endpoints.about(&SERVES)),
    };
    let metrics = state.metrics.clone();
    daemon::start_wire(process, wire, embedded, config)?;
    daemon::start_http(process, http, config.tls.as_ref(), state)?;
    let session = daemon::start_session(store.clone(), &config.host);
    daemon::start_certificates(process, &store, &session, config, console)?;
    daemon::start_controller(process, &store, &session, &config.host.id);
    daemon::start_steward(process, &store, &session, &config.host.id)?;
    let roles = ["meta", "controller", "console"];
    daemon::start_host(process, &store, &session, &config.host, &roles, addresses)?;
    let check = SelfCheck::of(config, format!("host {}", config.host.id), None, vec![data.clone()]);
    daemon::start_self_check(process, &session, &config.host.id, check)?;
    // An updater that died with this process expires no later than the process itself.
    let ttl = config.fleet.leader_ttl.min(config.host.lease_ttl);
    let mut hosts = daemon::local_hosts(config)?;
    let sample = daemon::start_local_fleet(process, &store, config, &findings, &mut hosts).await?;
    let trust = config.fleet.trust.clone().or(sample);
    let place = UpdaterPlace { name: &config.host.id, ttl, trust: trust.as_deref(), findings: &findings };
    daemon::start_updater(process, &store, &config.fleet.tree, place)?;
    daemon::start_local_redis(process, &store, config, console, &mut hosts)?;
    daemon::start_local_topics(process, &store, &session, config, &metrics, &mut hosts, topics).await?;
    daemon::start_local_docs(process, &store, &session, config, &metrics, &mut hosts).await?;
    daemon::start_local_hosts(process, &store, &session, &hosts)?;
    daemon::start_prober(process, &store, &session, daemon::probing(&secret), &config.host.id, &metrics)?;
    daemon::log_findings(process, &findings);
    daemon::await_green(process, &findings);
    if let Sink::File(_) = screen.log {
        daemon::show_events(process, &store, &findings, screen.greeted.clone());
    }
    Ok(hosts)
}

/// Prints the banner: addresses and next commands.
fn greet(endpoints: &Endpoints, hosts: &[LocalHost], context: &mut Context) -> Result<()> {
    if context.out.format == Format::Json {
        return context.out.json(endpoints).and_then(|()| context.out.flush());
    }
    context.out.line(banner(endpoints, hosts.len()))?;
    context.out.flush()
}
