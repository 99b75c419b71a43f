//! What have the proxies said lately? Filled by the watchers, read by whoever decides. Nothing on it is truth: a
//! decision that looks at it is guarded by the tree.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capstan_control::epoch::Epoch;
use capstan_meta::latest;
use tokio::time::Instant;

use super::content::Content;
use crate::address::Address;
use crate::nmctl::{Announcement, Flags, Holding};

/// What a proxy says about one of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFact {
    /// `ready`, `starting`, `down` or `lost`.
    pub health: String,
    /// Whom it follows; nothing for a primary.
    pub replica_of: Option<Address>,
    /// Whether a replica hears its primary.
    pub linked: bool,
    /// How much of the stream of writes it has.
    pub offset: u64,
    /// Keys in it.
    pub keys: u64,
    /// Bytes that its data takes.
    pub used_memory: u64,
    /// Whose data it holds, as `cluster/incarnation`; nothing if it is free.
    pub owner: Option<String>,
    /// Why it is not ready.
    pub why: Option<String>,
}

impl NodeFact {
    /// One line of `NMCTL INFO`: `node:<address> health=ready role=primary offset=5 ...`.
    #[must_use]
    pub fn parse(line: &str) -> Option<(Address, NodeFact)> {
        let (address, facts) = line.trim().strip_prefix("node:")?.split_once(' ')?;
        let mut fact = NodeFact { linked: true, ..NodeFact::default() };
        let (facts, why) = facts.split_once(" why=").map_or((facts, None), |(facts, why)| (facts, Some(why)));
        fact.why = why.map(|why| serde_json::from_str(why).unwrap_or_else(|_| why.to_owned()));
        for word in facts.split(' ') {
            match word.split_once('=') {
                Some(("health", health)) => fact.health = health.to_owned(),
                Some(("of", primary)) => fact.replica_of = primary.parse().ok(),
                Some(("linked", linked)) => fact.linked = linked == "true",
                Some(("offset", number)) => fact.offset = number.parse().unwrap_or(0),
                Some(("keys", number)) => fact.keys = number.parse().unwrap_or(0),
                Some(("used_memory", number)) => fact.used_memory = number.parse().unwrap_or(0),
                Some(("owner", owner)) => fact.owner = Some(owner.to_owned()),
                Some(_) | None => {}
            }
        }
        Some((address.parse().ok()?, fact))
    }

    /// Whether the proxy can use it.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.health == "ready"
    }
}

/// What a proxy has: this, or what it was told at the epoch of its fence or later. It stays true when the proxy cannot
/// be reached any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The epoch of the fence.
    pub fenced: Epoch,
    /// What it had then.
    pub holding: Holding,
}

impl Held {
    /// What a proxy has that has just confirmed a content.
    #[must_use]
    pub fn of(content: &Content) -> Held {
        let own =
            Announcement { epoch: content.epoch, flags: Flags::default(), entries: content.own.clone() };
        Held { fenced: content.epoch, holding: Holding { own, released: Vec::new() } }
    }

    /// The last message that it has obeyed.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.holding.own.epoch
    }

    /// Whether nothing but what it had and what it must have at this epoch can have been told to it.
    #[must_use]
    pub fn knows_all_until(&self, epoch: Epoch) -> bool {
        self.fenced >= epoch || (self.fenced == self.epoch() && self.fenced.next() >= epoch)
    }
}

/// What is known of one proxy.
#[derive(Clone, Debug, Default)]
pub struct ProxyFact {
    /// Whether it answered last time.
    pub reached: bool,
    /// Pings in a row that it did not answer.
    pub misses: u32,
    /// When the first of them was found out.
    pub missed_since: Option<Instant>,
    /// What it has confirmed to know.
    pub confirmed: Option<Arc<Content>>,
    /// When it did.
    pub confirmed_at: Option<Instant>,
    /// What it can have been told.
    pub held: Option<Arc<Held>>,
    /// Its nodes.
    pub nodes: BTreeMap<Address, NodeFact>,
    /// When it last spoke of them.
    pub nodes_at: Option<Instant>,
    /// Since when a node is in bad health.
    pub ill_since: BTreeMap<Address, Instant>,
    /// What it last refused or why it was not reached, in words.
    pub trouble: Option<String>,
}

/// What the proxies have said lately. Clones are the same board.
#[derive(Clone, Debug)]
pub struct Board {
    proxies: Arc<Mutex<BTreeMap<Address, ProxyFact>>>,
    changed: Arc<latest::Sender<()>>,
}

impl Default for Board {
    fn default() -> Board {
        Board { proxies: Arc::default(), changed: Arc::new(latest::Sender::new(())) }
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Address, ProxyFact>> {
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a proxy.
    #[must_use]
    pub fn of(&self, proxy: &Address) -> ProxyFact {
        self.lock().get(proxy).cloned().unwrap_or_default()
    }

    /// Everything.
    #[must_use]
    pub fn all(&self) -> BTreeMap<Address, ProxyFact> {
        self.lock().clone()
    }

    /// Notes something about a proxy.
    pub fn note(&self, proxy: &Address, change: impl FnOnce(&mut ProxyFact)) {
        change(self.lock().entry(proxy.clone()).or_default());
        self.changed.set(());
    }

    /// Notes why something was not told to a proxy. Nobody is woken: nothing is known that was not known before.
    pub fn note_trouble(&self, proxy: &Address, why: &str) {
        self.lock().entry(proxy.clone()).or_default().trouble = Some(why.to_owned());
    }

    /// Notes what a proxy said about its nodes.
    pub fn note_nodes(&self, proxy: &Address, nodes: BTreeMap<Address, NodeFact>, now: Instant) {
        self.note(proxy, |fact| {
            fact.ill_since.retain(|node, _| nodes.get(node).is_some_and(|node| !node.is_ready()));
            for (node, _) in nodes.iter().filter(|(_, node)| !node.is_ready()) {
                fact.ill_since.entry(node.clone()).or_insert(now);
            }
            fact.nodes = nodes;
            fact.nodes_at = Some(now);
        });
    }

    /// Forgets proxies that are not registered any more.
    pub fn keep(&self, registered: impl Fn(&Address) -> bool) {
        self.lock().retain(|proxy, _| registered(proxy));
    }

    /// The epoch that a proxy has confirmed.
    #[must_use]
    pub fn confirmed_epoch(&self, proxy: &Address) -> Option<Epoch> {
        self.lock().get(proxy).and_then(|fact| fact.confirmed.as_ref()).map(|content| content.epoch)
    }

    /// To wait until something is noted. Nothing is missed while the reader looks elsewhere.
    #[must_use]
    pub fn notes(&self) -> latest::Receiver<()> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_a_node_is_understood() {
        let line = "node:h:7001 health=ready role=replica of=h:1 linked=false offset=5 run_id=x keys=3 used_memory=10 starts=1 owner=demo/2";
        let (address, fact) = NodeFact::parse(line).unwrap();
        assert_eq!(address.as_str(), "h:7001");
        assert_eq!(
            (fact.linked, fact.offset, fact.keys, fact.owner.as_deref()),
            (false, 5, 3, Some("demo/2"))
        );
        let (_, fact) =
            NodeFact::parse("node:h:1 health=lost role=primary offset=0 why=\"it came back empty\"").unwrap();
        assert_eq!((fact.is_ready(), fact.why.as_deref()), (false, Some("it came back empty")));
        assert_eq!(NodeFact::parse("address:h:1"), None);
    }
}
