//! What the Redis service of this process was told.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{HostRole, Reader};

/// Section `redis`.
#[derive(Clone)]
pub(crate) struct Redis {
    pub(crate) listen: SocketAddr,
    pub(crate) nodes: u16,
    pub(crate) first_node_port: u16,
    pub(crate) dir: PathBuf,
    pub(crate) server: Option<PathBuf>,
    pub(crate) workers: usize,
    pub(crate) secret: Option<String>,
    pub(crate) ping_every: Duration,
    pub(crate) lease: Duration,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redis({}, {} nodes)", self.listen, self.nodes)
    }
}

impl Reader<'_> {
    pub(super) fn redis(&mut self, meta_dir: &Path, roles: &[HostRole]) -> Option<Redis> {
        let listen = self.address("redis.listen")?;
        self.closed(listen, "redis.listen", "redis.allow_insecure", "");
        let (nodes, workers) = (self.count("redis.nodes"), self.count("redis.workers"));
        if !(1..=60).contains(&nodes) {
            self.problem("redis.nodes", "must be between 1 and 60");
        }
        if !(1..=256).contains(&workers) {
            self.problem("redis.workers", "must be between 1 and 256");
        }
        let first = self.count("redis.first_node_port");
        if !(1..=65_000).contains(&first) {
            self.problem("redis.first_node_port", "must be between 1 and 65000");
        }
        let (ping_every, lease) = (self.span("redis.ping_every"), self.span("redis.lease"));
        if !(Duration::from_millis(50)..=Duration::from_secs(10)).contains(&ping_every) {
            self.problem("redis.ping_every", "must be between 50ms and 10s");
        }
        if lease < ping_every * 2 {
            self.problem("redis.lease", "must be at least twice `redis.ping_every`");
        }
        let (dir, secret) = (self.text("redis.dir"), self.text("redis.secret"));
        if roles.contains(&HostRole::Redis) && secret.is_empty() {
            self.problem("host.roles", "`redis` needs `redis.secret`, the same on all hosts and controllers");
        }
        Some(Redis {
            listen,
            nodes: u16::try_from(nodes).ok()?,
            first_node_port: u16::try_from(first).ok()?,
            dir: if dir.is_empty() { meta_dir.join("redis") } else { PathBuf::from(dir) },
            server: self.existing("redis.server"),
            workers: usize::try_from(workers).ok()?,
            secret: (!secret.is_empty()).then_some(secret),
            ping_every,
            lease,
        })
    }
}
