//! A cluster of redis-servers, without any proxy.

use std::net::SocketAddr;
use std::time::Duration;

use capstan_testkit::redis::Wire;
use capstan_testkit::{Port, RedisServer, eventually_blocking};

use super::Cluster;

/// Gossip takes a second or two.
const DEADLINE: Duration = Duration::from_secs(60);

/// Redis Cluster itself.
pub struct Native {
    nodes: Vec<RedisServer>,
    _buses: Vec<Port>,
}

impl Native {
    /// Starts nodes, joins them, and waits until each of them reports that the cluster is ok.
    pub async fn start(count: usize) -> anyhow::Result<Native> {
        let (mut nodes, mut buses) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let bus = Port::reserve()?;
            let options = RedisServer::options().set("cluster-enabled", "yes");
            nodes.push(options.set("cluster-port", bus.number().to_string()).start().await?);
            buses.push(bus);
        }
        for (index, node) in nodes.iter().enumerate() {
            let mut wire = Wire::connect(node.address())?;
            let (first, last) = (index * 16_384 / count, (index + 1) * 16_384 / count - 1);
            wire.say(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"))?;
            wire.say(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1))?;
            let (first, bus) = (nodes[0].address().port(), buses[0].number());
            wire.say(&format!("CLUSTER MEET 127.0.0.1 {first} {bus}"))?;
        }
        let native = Native { nodes, _buses: buses };
        eventually_blocking("every node reports that the cluster is ok", DEADLINE, || native.is_well());
        Ok(native)
    }

    fn is_well(&self) -> Result<(), String> {
        for node in &self.nodes {
            let mut wire = Wire::connect(node.address()).map_err(|e| e.to_string())?;
            let info = wire.say("CLUSTER INFO").map_err(|e| e.to_string())?;
            let slots = wire.say("CLUSTER SLOTS").map_err(|e| e.to_string())?;
            if !info.contains("cluster_state:ok") || !slots.starts_with(&format!("*{}\r\n", self.nodes.len()))
            {
                return Err(info);
            }
        }
        Ok(())
    }
}

impl Cluster for Native {
    fn seeds(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(RedisServer::address).collect()
    }
}
