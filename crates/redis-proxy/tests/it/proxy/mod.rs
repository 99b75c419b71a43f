//! The data path, with real redis-servers behind it.

mod acks;
mod basics;
mod busy;
mod fanout;
mod faults;
mod forwarding;
mod hosts;
mod replaced;
mod roster;
mod rules;
mod sessions;
mod shapes;
mod tls;

use std::net::SocketAddr;
use std::time::Duration;

use capstan_control::tasks::Supervisor;
use capstan_redis_proxy::nodes::Nodes;
use capstan_redis_proxy::{Config, Limits, Proxy};
use capstan_testkit::RedisServer;
use capstan_testkit::redis::Wire;

/// Loaded machines are slow.
const DEADLINE: Duration = Duration::from_secs(20);

/// A proxy and the nodes behind it.
struct Setup {
    proxy: Proxy,
    nodes: Vec<RedisServer>,
    _supervisor: Supervisor,
}

impl Setup {
    /// A proxy in front of nodes that share the slots evenly.
    async fn start(nodes: usize) -> anyhow::Result<Setup> {
        Setup::with(nodes, Limits::default(), "{}").await
    }

    /// The same with bounds and settings of the database.
    async fn with(nodes: usize, limits: Limits, settings: &str) -> anyhow::Result<Setup> {
        Setup::on(Config { limits, ..config()? }, nodes, settings).await
    }

    async fn on(config: Config, nodes: usize, settings: &str) -> anyhow::Result<Setup> {
        let mut servers = Vec::new();
        for _ in 0..nodes {
            servers.push(RedisServer::start().await?);
        }
        let supervisor = Supervisor::default();
        let proxy = Proxy::start(config, Nodes::external(None), &supervisor)?;
        let setup = Setup { proxy, nodes: servers, _supervisor: supervisor };
        let ranges = setup.ranges();
        setup.tell(&format!("NMCTL SETDB 1 NOFLAG {ranges}"))?;
        setup.tell(&format!("NMCTL SETCONF 1 NOFLAG db {settings}"))?;
        Ok(setup)
    }

    fn ranges(&self) -> String {
        let count = self.nodes.len();
        let range = |(index, node): (usize, &RedisServer)| {
            let (first, last) = (index * 16_384 / count, (index + 1) * 16_384 / count - 1);
            format!("db {} {first}-{last}", node.address())
        };
        self.nodes.iter().enumerate().map(range).collect::<Vec<_>>().join(" ")
    }

    fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    fn client(&self) -> anyhow::Result<Wire> {
        Wire::connect(self.address())
    }

    fn tell(&self, message: &str) -> anyhow::Result<()> {
        let reply = self.client()?.say(message)?;
        anyhow::ensure!(reply == "+OK\r\n", "{message}: {reply}");
        Ok(())
    }
}

/// A proxy that accepts NMCTL from this machine and persists nothing.
fn config() -> anyhow::Result<Config> {
    Ok(Config {
        listen: "127.0.0.1:0".parse()?,
        announce: None,
        workers: 2,
        limits: Limits::default(),
        tls: None,
        admin_password: None,
        state_dir: None,
        require_lease: false,
    })
}

/// Waits until a condition is true; an error counts as not yet.
fn until(condition: &str, mut look: impl FnMut() -> anyhow::Result<bool>) {
    capstan_testkit::eventually_blocking(condition, DEADLINE, || match look() {
        Ok(true) => Ok(()),
        Ok(false) => Err("not yet".to_owned()),
        Err(error) => Err(format!("{error:#}")),
    });
}
