//! The settings of the Redis service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use capstan_redis::Address;

use super::{HostRole, Reader, ServeTls, Value};

/// Section `redis`.
#[derive(Clone)]
pub(crate) struct Redis {
    pub(crate) listen: SocketAddr,
    pub(crate) tls: Option<ServeTls>,
    pub(crate) tls_only: bool,
    pub(crate) nodes: u16,
    /// Externally managed servers, if the host runs none itself.
    pub(crate) external: Option<External>,
    pub(crate) first_node_port: u16,
    pub(crate) dir: PathBuf,
    pub(crate) server: Option<PathBuf>,
    pub(crate) workers: usize,
    pub(crate) max_clients: usize,
    pub(crate) client_idle: Duration,
    pub(crate) secret: Option<String>,
    pub(crate) ping_every: Duration,
    pub(crate) lease: Duration,
    /// Keys per second of all moves from this host; zero: no limit.
    pub(crate) move_rate: u64,
}

/// Redis servers that are registered, not started.
#[derive(Clone)]
pub(crate) struct External {
    pub(crate) nodes: Vec<Address>,
    pub(crate) password: Option<String>,
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
        let tls = self.redis_tls();
        let tls_only = self.value("redis.tls_only") == Some(Value::Flag(true));
        if tls_only && tls.is_none() {
            self.problem("redis.tls_only", "needs `tls.dir`, or `redis.tls_cert` and `redis.tls_key`");
        }
        let external = self.external_nodes();
        let (nodes, workers) = (self.count("redis.nodes"), self.count("redis.workers"));
        if !(1..=60).contains(&nodes) {
            self.problem("redis.nodes", "must be between 1 and 60");
        }
        if !(1..=256).contains(&workers) {
            self.problem("redis.workers", "must be between 1 and 256");
        }
        let max_clients = self.count("redis.max_clients");
        if max_clients == 0 {
            self.problem("redis.max_clients", "must be at least 1");
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
            tls,
            tls_only,
            external,
            nodes: u16::try_from(nodes).ok()?,
            first_node_port: u16::try_from(first).ok()?,
            dir: if dir.is_empty() { meta_dir.join("redis") } else { PathBuf::from(dir) },
            server: self.existing("redis.server"),
            workers: usize::try_from(workers).ok()?,
            max_clients: usize::try_from(max_clients).ok()?,
            client_idle: self.span("redis.client_idle"),
            secret: (!secret.is_empty()).then_some(secret),
            ping_every,
            lease,
            move_rate: self.count("redis.move_rate"),
        })
    }

    fn redis_tls(&mut self) -> Option<ServeTls> {
        let identity = self.identity("redis.tls_cert", "redis.tls_key");
        let client_ca = self.existing("redis.tls_client_ca");
        let own = || self.own_certificates().map(|(_, host)| (host.clone(), host));
        let identity = identity.or_else(own);
        if identity.is_none() && client_ca.is_some() {
            self.problem("redis.tls_client_ca", "needs `redis.tls_cert` and `redis.tls_key`");
        }
        identity.map(|(cert, key)| ServeTls { cert, key, client_ca })
    }

    fn external_nodes(&mut self) -> Option<External> {
        let mut nodes: Vec<Address> = Vec::new();
        for text in self.list("redis.external_nodes") {
            match text.parse::<Address>() {
                Ok(node) if nodes.contains(&node) => {
                    self.problem("redis.external_nodes", &format!("{node} is listed twice"));
                }
                Ok(node) => nodes.push(node),
                Err(error) => self.problem("redis.external_nodes", &error.to_string()),
            }
        }
        let password = self.text("redis.external_password");
        if nodes.is_empty() && !password.is_empty() {
            self.problem("redis.external_password", "needs `redis.external_nodes`");
        }
        (!nodes.is_empty()).then(|| External { nodes, password: (!password.is_empty()).then_some(password) })
    }
}
