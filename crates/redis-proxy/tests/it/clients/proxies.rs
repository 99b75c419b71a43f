//! A cluster of proxies, each with a redis-server behind it, configured by hand.

use std::net::SocketAddr;

use anyhow::ensure;
use capstan_control::tasks::Supervisor;
use capstan_redis_proxy::nodes::Nodes;
use capstan_redis_proxy::{Config, Limits, Proxy};
use capstan_testkit::RedisServer;
use capstan_testkit::redis::Wire;

use super::Cluster;

/// Proxies that share the slots evenly.
pub struct Proxies {
    // Before the nodes, so that no proxy logs a lost node.
    proxies: Vec<Proxy>,
    nodes: Vec<RedisServer>,
    _supervisor: Supervisor,
}

impl Proxies {
    /// Starts them and configures each of them.
    pub async fn start(count: usize) -> anyhow::Result<Proxies> {
        let supervisor = Supervisor::default();
        let (mut proxies, mut nodes) = (Vec::new(), Vec::new());
        for _ in 0..count {
            nodes.push(RedisServer::start().await?);
            let config = Config {
                listen: "127.0.0.1:0".parse()?,
                announce: None,
                workers: 2,
                limits: Limits::default(),
                tls: None,
                admin_password: None,
                state_dir: None,
                require_lease: false,
            };
            proxies.push(Proxy::start(config, Nodes::external(None), &supervisor)?);
        }
        let cluster = Proxies { proxies, nodes, _supervisor: supervisor };
        for index in 0..count {
            cluster.tell_all(index)?;
        }
        Ok(cluster)
    }

    /// Their addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.proxies.iter().map(Proxy::address).collect()
    }

    fn tell_all(&self, index: usize) -> anyhow::Result<()> {
        let count = self.proxies.len();
        let slots = |of: usize| format!("{}-{}", of * 16_384 / count, (of + 1) * 16_384 / count - 1);
        let peers = (0..count).filter(|other| *other != index);
        let peers: String =
            peers.map(|of| format!(" db {} {}", self.proxies[of].address(), slots(of))).collect();
        let roles: String = (0..count)
            .map(|of| format!(" db {} {} primary", self.nodes[of].address(), self.proxies[of].address()))
            .collect();
        let own = format!(" db {} {}", self.nodes[index].address(), slots(index));
        for message in [
            format!("NMCTL SETPEER 1 NOFLAG{peers}"),
            format!("NMCTL SETDB 1 NOFLAG{own}"),
            format!("NMCTL SETREPL 1 NOFLAG{roles}"),
        ] {
            let said = Wire::connect(self.proxies[index].address())?.say(&message)?;
            ensure!(said == "+OK\r\n", "{message}: {said}");
        }
        Ok(())
    }
}

impl Cluster for Proxies {
    fn seeds(&self) -> Vec<SocketAddr> {
        self.addresses()
    }
}
