//! `capstan meta serve`: the embedded store alone, on the etcd v3 wire.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::commands::version::VERSION;
use crate::config::{Flag, Mode};
use crate::context::Context;
use crate::daemon::{self, Endpoints, Process};
use crate::exit::Exit;
use crate::logging;

#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// The data directory (setting meta.dir)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// The address to serve on; port 0 takes any free one (setting meta.listen)
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<String>,
    /// Write the endpoint as JSON to this file once it serves
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

pub(crate) async fn run(args: ServeArgs, context: &mut Context) -> Result<Exit> {
    context.flags.extend(args.dir.iter().map(|dir| Flag::new("--dir", "meta.dir", dir.display())));
    context.flags.extend(args.listen.iter().map(|listen| Flag::new("--listen", "meta.listen", listen)));
    let config = context.config()?;
    if config.meta.mode == Mode::Etcd {
        bail!("meta.mode is `etcd`: there is no embedded store to serve; unset it");
    }
    logging::begin(&context.layers()?)?;
    let mut process = Process::new(config.host.stop_deadline)?;
    let listener = daemon::bind(config.meta.listen, "meta.listen").await?;
    daemon::renew_overdue(&config)?;
    let store = daemon::open(&config.meta).await?;
    let scheme = if config.meta.serve_tls.is_some() { "https" } else { "http" };
    let endpoints = Endpoints {
        meta: format!("{scheme}://{}", listener.local_addr()?),
        http: None,
        topics: None,
        docs: None,
        docs_nodes: Vec::new(),
        services: Default::default(),
        host: None,
        dir: Some(std::path::absolute(&config.meta.dir)?),
        pid: std::process::id(),
        version: VERSION.to_owned(),
    };
    daemon::start_wire(&mut process, listener, store, &config)?;
    let announce = || {
        tracing::info!(address = endpoints.meta, "serving the etcd v3 wire");
        endpoints.announce(&config.meta.dir, args.ready_file.as_deref())
    };
    let exit = process.run(announce).await;
    Endpoints::withdraw(&config.meta.dir);
    exit
}
