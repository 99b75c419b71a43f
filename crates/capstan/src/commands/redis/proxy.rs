//! `capstan redis proxy`: a proxy without a control plane, configured by hand with `NMCTL`.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;
use capstan_redis::Address;
use capstan_redis::agent::{NodeAuth, Nodes};
use capstan_redis_proxy::{Config, Limits, Proxy};

use crate::config::ServeTls;
use crate::context::Context;
use crate::daemon::{Process, client_tls};
use crate::exit::Exit;
use crate::logging;

#[derive(Debug, clap::Args)]
pub(crate) struct ProxyArgs {
    /// The address to serve on; port 0 takes any free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:6380")]
    listen: SocketAddr,
    /// The address advertised to clients and other proxies, if different
    #[arg(long, value_name = "HOST:PORT")]
    announce: Option<Address>,
    /// Threads, each with its own connections to every node
    #[arg(long, value_name = "N", default_value_t = 1)]
    workers: usize,
    /// The password of user `admin`, who may send NMCTL; without one, NMCTL is for this machine only
    #[arg(long, value_name = "PASSWORD", env = "CAPSTAN_REDIS_ADMIN_PASSWORD", hide_env_values = true)]
    admin_password: Option<String>,
    /// Persist the NMCTL state in this directory, for restarts
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Answer clients that speak TLS with this certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key (PEM) of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Clients that speak TLS must show a certificate of this authority (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Refuse clients without TLS, except those that log in as `admin`
    #[arg(long, requires = "tls_cert")]
    tls_only: bool,
    /// The password of the nodes, if they have one
    #[arg(long, value_name = "PASSWORD", env = "CAPSTAN_REDIS_NODE_PASSWORD", hide_env_values = true)]
    node_password: Option<String>,
    /// Most clients at once
    #[arg(long, value_name = "N", default_value_t = Limits::default().clients)]
    max_clients: usize,
}

pub(crate) async fn run(args: ProxyArgs, context: &mut Context) -> Result<Exit> {
    let config = context.config()?;
    logging::begin(&context.layers()?)?;
    let process = Process::new(config.host.stop_deadline)?;
    let open = args.admin_password.is_none();
    let files = args.tls_cert.zip(args.tls_key);
    let files = files.map(|(cert, key)| ServeTls { cert, key, client_ca: args.tls_client_ca });
    let auth = args.node_password.map(|password| NodeAuth { password: password.into() });
    let proxy = Proxy::start(
        Config {
            listen: args.listen,
            announce: args.announce,
            workers: args.workers,
            limits: Limits { clients: args.max_clients, ..Limits::default() },
            tls: client_tls(files.as_ref(), args.tls_only)?,
            admin_password: args.admin_password,
            state_dir: args.state_dir,
            require_lease: false,
        },
        Nodes::external(auth),
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
