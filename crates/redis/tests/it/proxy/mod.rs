//! The data path, with real redis-servers behind it.

mod basics;

use capstan_redis::data::proxy::{Config, Limits, Proxy};
use capstan_testkit::RedisServer;

/// A proxy in front of one node.
fn proxy(node: &RedisServer) -> anyhow::Result<Proxy> {
    Ok(Proxy::start(Config {
        listen: "127.0.0.1:0".parse()?,
        workers: 2,
        limits: Limits::default(),
        tls: None,
        node: Some(node.address().to_string().parse()?),
    })?)
}
