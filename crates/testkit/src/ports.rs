//! Loopback ports that no two tests get at the same time, in this process or another.
//!
//! A server that can bind port 0 and report its port should do that. The others (etcd, redis-server) need a number, and
//! asking the kernel for a free one and closing it again is a race. So a port here is a lock file that is held as long
//! as the [`Port`] lives, outside the kernel's range for outgoing connections: a server can be killed and restarted on
//! it without losing it to another client.

use std::fs::{File, TryLockError};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, bail};
use rand::RngExt;

/// With fewer candidates parallel tests would conflict.
const ENOUGH: u16 = 2_000;
/// Below this are the well-known ports of servers (redis 6379, etcd 2379, ...).
const LOWEST: u16 = 10_000;
/// How many random positions are tried before the search gives up.
const TRIES: usize = 2_000;

/// One reserved loopback port, until dropped.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// Holds the lock; the kernel releases it when this process ends.
    _lock: File,
}

impl Port {
    /// Reserves a port without a listener.
    pub fn reserve() -> anyhow::Result<Self> {
        let mut block = PortBlock::reserve(1)?;
        block.ports.pop().context("an empty block of ports")
    }

    /// The number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }

    /// `127.0.0.1:<number>`.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }

    /// Takes the lock of one port, if it is free and the port has no listener.
    fn try_reserve(number: u16) -> anyhow::Result<Option<Self>> {
        let path = lock_directory()?.join(number.to_string());
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.with_context(|| format!("cannot open port lock {}", path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(e).context(format!("cannot lock {}", path.display())),
        }
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok();
        Ok(free.then_some(Self { number, _lock: lock }))
    }
}

/// Consecutive reserved ports, for programs that take a base port.
#[derive(Debug)]
pub struct PortBlock {
    ports: Vec<Port>,
}

impl PortBlock {
    /// Reserves `count` consecutive ports.
    pub fn reserve(count: u16) -> anyhow::Result<Self> {
        let candidates = candidates(ephemeral_range());
        let mut rng = rand::rng();
        for _ in 0..TRIES {
            let base = rng.random_range(candidates.start..candidates.end.saturating_sub(count));
            if let Some(ports) = (base..base + count).map(Port::try_reserve).collect::<Result<_, _>>()? {
                return Ok(Self { ports });
            }
        }
        bail!("no {count} consecutive free loopback ports in {candidates:?} after {TRIES} tries")
    }

    /// The first number.
    #[must_use]
    pub fn base(&self) -> u16 {
        self.ports[0].number
    }

    /// The ports, first to last.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.ports
    }
}

/// One directory per user: users cannot open each other's lock files.
fn lock_directory() -> anyhow::Result<PathBuf> {
    let user = std::fs::metadata("/proc/self").context("cannot read /proc/self")?.uid();
    let dir = std::env::temp_dir().join(format!("capstan-test-ports-{user}"));
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}

/// The kernel's range for outgoing connections; Linux's default where it cannot be read.
fn ephemeral_range() -> Range<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().filter_map(|n| n.parse().ok());
    numbers.next().unwrap_or(32_768)..numbers.next().unwrap_or(60_999)
}

/// Ports below the ephemeral range, else above it, else inside it (then only the lock protects).
fn candidates(ephemeral: Range<u16>) -> Range<u16> {
    let below = LOWEST..ephemeral.start;
    let above = ephemeral.end.saturating_add(1)..u16::MAX;
    [below, above].into_iter().find(|range| range.len() >= usize::from(ENOUGH)).unwrap_or(LOWEST..u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_avoid_the_ephemeral_range_where_they_can() {
        assert_eq!(candidates(32_768..60_999), LOWEST..32_768);
        assert_eq!(candidates(1_024..60_999), 61_000..u16::MAX);
        assert_eq!(candidates(1_024..65_535), LOWEST..u16::MAX);
    }
}
