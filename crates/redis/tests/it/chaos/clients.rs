//! Clients that append to lists and read them through all proxies, and record what they saw.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use capstan_testkit::redis::Wire;
use capstan_testkit::seed;
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::history::{Event, Outcome};

const CLIENTS: u64 = 4;
/// Lists in use at a time, in as many slots; each is replaced by a new one when it is long.
const LISTS: u64 = 12;
const LONGEST: u64 = 150;
/// A client that waits longer than this for a reply closes its connection.
const REPLY_WITHIN: Duration = Duration::from_millis(1500);
/// Keys that are written to see that every slot is served.
const PROBE_KEYS: u32 = 60;
const PAUSE: Duration = Duration::from_millis(8);
/// More redirects than this in a row: the client gives up, and nothing was executed.
const MOST_REDIRECTS: usize = 8;

/// A reply, or why there is none.
enum Reply {
    Text(String),
    /// Nothing was executed.
    Refused(String),
    /// It may have been executed.
    Unknown(String),
}

/// A client that follows redirects.
pub(super) struct Client {
    proxies: Vec<SocketAddr>,
    owners: HashMap<String, SocketAddr>,
    wires: HashMap<SocketAddr, Wire>,
    turn: usize,
}

impl Client {
    pub(super) fn of(proxies: &[SocketAddr]) -> Client {
        Client { proxies: proxies.to_vec(), owners: HashMap::new(), wires: HashMap::new(), turn: 0 }
    }

    /// Sends a command about a list to its owner, as far as this client knows it.
    fn ask(&mut self, list: &str, words: &str) -> Reply {
        for _ in 0..MOST_REDIRECTS {
            let known = self.owners.get(list).copied();
            let at = known.unwrap_or(self.proxies[self.turn % self.proxies.len()]);
            let reply = self.send(at, words);
            let moved = match &reply {
                Reply::Text(text) => {
                    text.strip_prefix("-MOVED ").and_then(|moved| moved.trim().split(' ').nth(1))
                }
                Reply::Refused(_) | Reply::Unknown(_) => None,
            };
            if let Some(owner) = moved {
                self.owners.insert(list.to_owned(), owner.parse().unwrap());
                continue;
            }
            let served = matches!(&reply, Reply::Text(text) if !text.starts_with('-'));
            if !served {
                // Another proxy may know another owner.
                self.owners.remove(list);
                self.turn += 1;
            }
            return reply;
        }
        Reply::Refused("redirected for too long".to_owned())
    }

    fn send(&mut self, at: SocketAddr, words: &str) -> Reply {
        let mut wire = match self.wires.remove(&at).map_or_else(|| connect(at), Ok) {
            Ok(wire) => wire,
            Err(error) => return Reply::Refused(format!("{error:#}")),
        };
        match wire.say(words) {
            Ok(text) => {
                self.wires.insert(at, wire);
                let refused = ["-CLUSTERDOWN", "-TRYAGAIN"].iter().any(|code| text.starts_with(code));
                let answered = text.starts_with("-MOVED") || !text.starts_with('-');
                match (refused, answered) {
                    (true, _) => Reply::Refused(text),
                    (_, true) => Reply::Text(text),
                    (false, false) => Reply::Unknown(text),
                }
            }
            Err(error) => Reply::Unknown(format!("{error:#}")),
        }
    }

    pub(super) fn append(&mut self, list: &str, element: u64) -> Outcome {
        match self.ask(list, &format!("RPUSH {list} {element}")) {
            Reply::Text(text) => match text.strip_prefix(':').and_then(|length| length.trim().parse().ok()) {
                Some(length) => Outcome::Appended { element, length },
                None => panic!("unexpected reply to an append: {text:?}"),
            },
            Reply::Refused(_) => Outcome::Refused { element },
            Reply::Unknown(_) => Outcome::Unknown { element },
        }
    }

    /// The whole list; an error if it is not served.
    pub(super) fn read(&mut self, list: &str) -> Result<Vec<u64>, String> {
        match self.ask(list, &format!("LRANGE {list} 0 -1")) {
            Reply::Text(text) if text.starts_with('*') => {
                let elements = text.lines().filter(|line| !line.starts_with(['*', '$']));
                Ok(elements.map(|element| element.parse().unwrap()).collect())
            }
            Reply::Text(why) | Reply::Refused(why) | Reply::Unknown(why) => Err(why),
        }
    }
}

fn connect(at: SocketAddr) -> anyhow::Result<Wire> {
    let mut wire = Wire::connect(at)?;
    wire.socket().set_read_timeout(Some(REPLY_WITHIN))?;
    Ok(wire)
}

/// Clients at work.
pub(super) struct Load {
    pub began: Instant,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU32>,
    clients: Vec<JoinHandle<Vec<Event>>>,
    proxies: Vec<SocketAddr>,
}

impl Load {
    pub(super) fn start(proxies: &[SocketAddr], seed: u64) -> Load {
        let (began, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let sent = Arc::new(AtomicU32::new(0));
        let clients = (0..CLIENTS).map(|number| {
            let (stop, all, client) = (stop.clone(), sent.clone(), Client::of(proxies));
            let rng = seed::rng(seed ^ (number + 1));
            tokio::task::spawn_blocking(move || work(client, number, began, (&stop, &all), rng))
        });
        let clients = clients.collect();
        Load { began, stop, sent, clients, proxies: proxies.to_vec() }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether clients have sent as many appends.
    pub(super) fn has_sent(&self, appends: u32) -> Result<(), u32> {
        let sent = self.sent.load(Ordering::Relaxed);
        if sent >= appends { Ok(()) } else { Err(sent) }
    }

    /// About how many commands the file of each of these primaries has.
    pub(super) fn appends_of_one(&self, primaries: u32) -> u32 {
        self.sent.load(Ordering::Relaxed) / primaries + PROBE_KEYS
    }

    /// Ends the clients; returns what they saw.
    pub(super) async fn finish(&mut self) -> Vec<Event> {
        self.stop.store(true, Ordering::Relaxed);
        let mut events = Vec::new();
        for client in self.clients.drain(..) {
            events.extend(client.await.unwrap());
        }
        events
    }

    /// What the lists of these events contain now; an error if one is not served.
    pub(super) fn contents(&self, events: &[Event]) -> Result<BTreeMap<String, Vec<u64>>, String> {
        let mut client = Client::of(&self.proxies);
        let mut lists = BTreeMap::new();
        for event in events {
            if !lists.contains_key(&event.list) {
                let elements = client.read(&event.list).map_err(|why| format!("{}: {why}", event.list))?;
                lists.insert(event.list.clone(), elements);
            }
        }
        Ok(lists)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn work(
    mut client: Client,
    number: u64,
    began: Instant,
    (stop, all): (&AtomicBool, &AtomicU32),
    mut rng: StdRng,
) -> Vec<Event> {
    let mut events = Vec::new();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let list = format!("list-{}-{}", sent / LONGEST, rng.random_range(0..LISTS));
        let invoked = began.elapsed();
        let outcome = if rng.random_bool(0.7) {
            sent += 1;
            all.fetch_add(1, Ordering::Relaxed);
            Some(client.append(&list, number * 1_000_000_000 + sent))
        } else {
            client.read(&list).ok().map(Outcome::Read)
        };
        if let Some(outcome) = outcome {
            events.push(Event { list, invoked, returned: began.elapsed(), outcome });
        }
        // tidy: allow, because this is the pace of a client
        Handle::current().block_on(tokio::time::sleep(PAUSE));
    }
    events
}
