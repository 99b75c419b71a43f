//! Which addresses do host names have? Looked up on a thread that may block, and cached.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Shared;
use super::mailbox::Mailbox;

/// How long a result is cached.
const KEEP: Duration = Duration::from_secs(30);
/// How long after a failure the lookup is retried.
const AGAIN: Duration = Duration::from_secs(1);
/// Concurrent lookups; more wait for their turn. A proxy has a few nodes and peers.
const MOST_AT_ONCE: usize = 8;

/// The cached results.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<HashMap<Box<str>, Known>>);

#[derive(Clone, Copy, Debug)]
struct Known {
    ip: Option<IpAddr>,
    until: Instant,
    asked: bool,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// The address.
    Found(IpAddr),
    /// The lookup is in progress.
    Pending,
    /// There is no such name.
    NotFound,
}

impl Names {
    /// The address of a host name or IP address. Never blocks: the workers are woken when the lookup ends.
    pub(super) fn lookup(shared: &Arc<Shared>, host: &str, now: Instant) -> Lookup {
        if let Ok(ip) = host.parse() {
            return Lookup::Found(ip);
        }
        let mut names = shared.names.0.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = names.values().filter(|known| known.asked).count();
        let known = names.get(host).copied();
        let stale = known.is_none_or(|known| known.until <= now && !known.asked);
        let mut asked = known.is_some_and(|known| known.asked);
        if stale && busy < MOST_AT_ONCE {
            asked = true;
            let ip = known.and_then(|known| known.ip);
            names.insert(host.into(), Known { ip, until: now, asked });
            drop(names);
            ask(Arc::clone(shared), host.into());
        }
        match known.and_then(|known| known.ip) {
            Some(ip) => Lookup::Found(ip),
            None if asked || stale => Lookup::Pending,
            None => Lookup::NotFound,
        }
    }
}

/// Looks a name up on a thread of its own: it may take seconds.
fn ask(shared: Arc<Shared>, host: Box<str>) {
    let name = host.clone();
    let on_failure = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name("redis-names".to_owned()).spawn(move || {
        let found: Vec<IpAddr> =
            (&*host, 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip()).collect();
        // If there are both, most servers are bound to the IPv4 address.
        let ip = found.iter().find(|ip| ip.is_ipv4()).or(found.first()).copied();
        learn(&shared, host, ip);
        shared.mailboxes.iter().for_each(Mailbox::wake);
    });
    if let Err(error) = thread {
        tracing::warn!(%name, %error, "cannot start a host name lookup");
        learn(&on_failure, name, None);
    }
}

fn learn(shared: &Shared, host: Box<str>, ip: Option<IpAddr>) {
    if ip.is_none() {
        tracing::warn!(%host, "host name not found");
    }
    let mut names = shared.names.0.lock().unwrap_or_else(PoisonError::into_inner);
    // An outdated address is better than none.
    let ip = ip.or_else(|| names.get(&host).and_then(|known| known.ip));
    let until = Instant::now() + if ip.is_some() { KEEP } else { AGAIN };
    names.insert(host, Known { ip, until, asked: false });
}
