//! `capstan redis proxy`: a proxy without a control plane, told with `NMCTL` by hand.

use std::net::SocketAddr;

use anyhow::Result;
use capstan_redis::Address;
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
    /// Threads, each with its own connections to every node
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// The node that has every slot
    #[arg(long, value_name = "IP:PORT", hide = true)]
    node: Option<Address>,
}

pub(crate) async fn run(args: ProxyArgs, context: &mut Context) -> Result<Exit> {
    let config = context.config()?;
    logging::begin(&context.layers()?)?;
    let process = Process::new(config.host.stop_deadline)?;
    let proxy = Proxy::start(Config {
        listen: args.listen,
        workers: args.workers,
        limits: Limits::default(),
        tls: None,
        node: args.node,
    })?;
    process
        .run(|| {
            tracing::info!(address = %proxy.address(), "serving the redis protocol");
            Ok(())
        })
        .await
}
