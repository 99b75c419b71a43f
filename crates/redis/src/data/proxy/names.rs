//! Where do host names lead? Asked of the system by a thread that may wait, and remembered for a while.

use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Shared;
use super::mailbox::Mailbox;

/// How long an answer is believed.
const KEEP: Duration = Duration::from_secs(30);
/// How long after a failure the system is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// Names under way at once; more wait for their turn. A proxy has some nodes and some peers.
const MOST_AT_ONCE: usize = 8;

/// What is known of names.
#[derive(Debug, Default)]
pub(super) struct Names(Mutex<HashMap<Box<str>, Known>>);

#[derive(Clone, Copy, Debug)]
struct Known {
    ip: Option<IpAddr>,
    until: Instant,
    asked: bool,
}

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Led {
    /// There.
    To(IpAddr),
    /// The system is being asked.
    NotYet,
    /// Nowhere.
    Nowhere,
}

impl Names {
    /// The address behind a name; a number is its own. Never waits: whoever has to is woken.
    pub(super) fn lead(shared: &Arc<Shared>, host: &str, now: Instant) -> Led {
        if let Ok(ip) = host.parse() {
            return Led::To(ip);
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
            Some(ip) => Led::To(ip),
            None if asked || stale => Led::NotYet,
            None => Led::Nowhere,
        }
    }
}

/// Asks the system on a thread of its own: it may take seconds.
fn ask(shared: Arc<Shared>, host: Box<str>) {
    let name = host.clone();
    let told = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name("redis-names".to_owned()).spawn(move || {
        let found: Vec<IpAddr> =
            (&*host, 0).to_socket_addrs().into_iter().flatten().map(|address| address.ip()).collect();
        // Where there are both, most servers are bound to the older one.
        let ip = found.iter().find(|ip| ip.is_ipv4()).or(found.first()).copied();
        learn(&shared, host, ip);
        shared.mailboxes.iter().for_each(Mailbox::wake);
    });
    if let Err(error) = thread {
        tracing::warn!(%name, %error, "cannot ask where a name leads");
        learn(&told, name, None);
    }
}

fn learn(shared: &Shared, host: Box<str>, ip: Option<IpAddr>) {
    if ip.is_none() {
        tracing::warn!(%host, "this host name leads nowhere");
    }
    let mut names = shared.names.0.lock().unwrap_or_else(PoisonError::into_inner);
    // An address that was right once is better than none.
    let ip = ip.or_else(|| names.get(&host).and_then(|known| known.ip));
    let until = Instant::now() + if ip.is_some() { KEEP } else { AGAIN };
    names.insert(host, Known { ip, until, asked: false });
}
