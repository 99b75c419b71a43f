//! `capstan redis proxy`: a proxy without a control plane, told with `NMCTL` by hand.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use capstan_redis::Address;
use capstan_redis::agent::Nodes;
use capstan_redis::data::proxy::{Config, Limits, Proxy};

use crate::context::Context;
use crate::daemon::Process;
use crate::exit::Exit;
use crate::logging;

#[derive(Debug, clap::Args)]
pub(crate) struct ProxyArgs {
    /// The address to serve on; port 0 takes any free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:6380")]
    listen: SocketAddr,
    /// The address that clients and other proxies are told, if it is another one
    #[arg(long, value_name = "HOST:PORT")]
    announce: Option<Address>,
    /// Threads, each with its own connections to every node
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// The password of user `admin`, who may send NMCTL; without one, NMCTL is for this machine only
    #[arg(long, value_name = "PASSWORD", env = "CAPSTAN_REDIS_ADMIN_PASSWORD", hide_env_values = true)]
    admin_password: Option<String>,
    /// Keep what NMCTL said in this directory, so that a restart knows it
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Most clients at once
    #[arg(long, value_name = "N", default_value_t = Limits::default().clients)]
    max_clients: usize,
}

pub(crate) async fn run(args: ProxyArgs, context: &mut Context) -> Result<Exit> {
    let config = context.config()?;
    logging::begin(&context.layers()?)?;
    let process = Process::new(config.host.stop_deadline)?;
    let open = args.admin_password.is_none();
    let proxy = Proxy::start(
        Config {
            listen: args.listen,
            announce: args.announce,
            workers: args.workers,
            limits: Limits { clients: args.max_clients, ..Limits::default() },
            tls: None,
            admin_password: args.admin_password,
            state_dir: args.state_dir,
            require_lease: false,
        },
        Nodes::external(None),
        &process.supervisor,
    )?;
    process
        .run(|| {
            tracing::info!(address = %proxy.address(), "serving the redis protocol");
            if open {
                tracing::warn!("no admin password: NMCTL is accepted from this machine");
            }
            Ok(())
        })
        .await
}
