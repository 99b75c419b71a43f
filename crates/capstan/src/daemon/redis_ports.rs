//! Which ports do the local hosts' proxies and nodes use? The same at every start: nodes are identified by their
//! address. A port that is chosen here is bound later, by a redis-server, and again after every restart: it is outside the
//! range from which the kernel takes ports for connections and for listeners on port 0, our own among them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context as _, Result};
use capstan_redis::Address;

use super::redis::RedisHost;
use crate::config;

/// The file in the data directory with ports that the system chose at the first start.
const FILE: &str = "redis-ports.json";

/// Below this are the well-known ports of servers.
const LOWEST: u16 = 10_000;
/// With fewer ports outside the kernel's range, several installations on one machine would meet.
const ENOUGH: usize = 1_000;
/// Ports that are tried before the kernel is asked for one.
const TRIES: usize = 1_000;

/// The ports of the local hosts.
pub(super) enum Ports {
    /// Counted from the settings.
    Counted { proxies: SocketAddr, nodes: u16 },
    /// Chosen once and stored: for every host the proxy's port, then those of its nodes.
    Chosen(Vec<Vec<u16>>),
}

impl Ports {
    pub(super) fn of(settings: &config::Redis, data: &Path, hosts: usize) -> Result<Ports> {
        match settings.listen.port() {
            0 => remembered(&data.join(FILE), hosts, usize::from(settings.nodes) + 1).map(Ports::Chosen),
            _ => Ok(Ports::Counted { proxies: settings.listen, nodes: settings.first_node_port }),
        }
    }

    /// The addresses of one host; the caller sets its directory.
    pub(super) fn host(&self, at: usize, settings: &config::Redis) -> Result<RedisHost> {
        let ip = settings.listen.ip();
        let (proxy, nodes) = match self {
            Ports::Counted { proxies, nodes } => {
                let at = u16::try_from(at)?;
                let first =
                    nodes.checked_add(at * settings.nodes).context("redis.first_node_port is too high")?;
                let proxy = proxies.port().checked_add(at).context("the port of redis.listen is too high")?;
                (proxy, (first..first.saturating_add(settings.nodes)).collect())
            }
            Ports::Chosen(hosts) => {
                let [proxy, nodes @ ..] = &**hosts.get(at).context("more hosts than ports")? else {
                    anyhow::bail!("{FILE} has a host without ports; remove it");
                };
                (*proxy, nodes.to_vec())
            }
        };
        let address = |port: &u16| Ok(SocketAddr::from((ip, *port)).to_string().parse::<Address>()?);
        let nodes = nodes.iter().map(address).collect::<Result<_>>()?;
        Ok(RedisHost { listen: SocketAddr::from((ip, proxy)), nodes, dir: Default::default() })
    }
}

/// The ports in the file; missing ones are chosen and added.
fn remembered(path: &Path, hosts: usize, each: usize) -> Result<Vec<Vec<u16>>> {
    let mut known: Vec<Vec<u16>> = match std::fs::read(path) {
        Ok(text) => {
            serde_json::from_slice(&text).with_context(|| format!("cannot read {}", path.display()))?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let before = known.clone();
    known.resize(hosts.max(known.len()), Vec::new());
    // Held until all are chosen, so that none is chosen twice.
    let mut held = Vec::new();
    for ports in &mut known {
        while ports.len() < each {
            let listener = bind(&outside(ephemeral())).context("no free port")?;
            ports.push(listener.local_addr()?.port());
            held.push(listener);
        }
    }
    if known != before {
        std::fs::write(path, serde_json::to_vec(&known)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(known)
}

/// The kernel's own range; Linux's default where it cannot be read.
fn ephemeral() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|number| number.parse().ok());
    numbers.next().unwrap_or(32_768)..=numbers.next().unwrap_or(60_999)
}

/// The ports above the kernel's range, else those below it; none: there is no room on either side.
fn outside(ephemeral: RangeInclusive<u16>) -> Option<RangeInclusive<u16>> {
    let above = ephemeral.end().checked_add(1).map(|first| first..=u16::MAX);
    let below = ephemeral.start().checked_sub(1).map(|last| LOWEST..=last);
    [above, below].into_iter().flatten().find(|ports| ports.len() >= ENOUGH)
}

/// Binds a free port, one of these if possible.
fn bind(ports: &Option<RangeInclusive<u16>>) -> std::io::Result<TcpListener> {
    let tries = ports.iter().flat_map(|ports| std::iter::repeat_n(ports, TRIES));
    let mut candidates = tries.map(|ports| rand::random_range(ports.clone()));
    let chosen = candidates.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
    chosen.map_or_else(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_chosen_outside_the_kernels_range() {
        assert_eq!(outside(32_768..=60_999), Some(61_000..=u16::MAX));
        assert_eq!(outside(32_768..=u16::MAX), Some(LOWEST..=32_767));
        assert_eq!(outside(1_024..=u16::MAX), None);
        let port = bind(&outside(32_768..=60_999)).unwrap().local_addr().unwrap().port();
        assert!(port >= 61_000, "{port}");
        assert_ne!(bind(&None).unwrap().local_addr().unwrap().port(), 0);
    }

    #[test]
    fn chosen_ports_stay() {
        let dir = capstan_testkit::TempDir::new("ports").unwrap();
        let path = dir.join(FILE);
        let first = remembered(&path, 2, 3).unwrap();
        assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
        assert_eq!(remembered(&path, 2, 3).unwrap(), first);
        let more = remembered(&path, 3, 3).unwrap();
        assert_eq!(more[..2], first);
    }
}
