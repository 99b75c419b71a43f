//! What have the proxies reported recently? Filled by the watchers, read by the deciding parts. It is not
//! authoritative: a decision based on it is guarded by the tree.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use capstan_control::epoch::Epoch;
use capstan_meta::{LeaseId, latest};
use tokio::time::Instant;

use capstan_redis_proxy::nodes::{Data, Health};

use crate::address::Address;
use crate::decide::content::Content;
use crate::keys::ClusterName;
use crate::nmctl::{Announcement, Flags, Holding};

/// Remembered offset observations of a node: longer than a replica may lag.
const OFFSETS: usize = 32;

/// A proxy's report about one of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFact {
    /// Its health.
    pub health: Health,
    /// Its primary; `None` for a primary.
    pub replica_of: Option<Address>,
    /// Whether a replica is linked to its primary.
    pub linked: bool,
    /// Its replication offset.
    pub offset: u64,
    /// The number of keys.
    pub keys: u64,
    /// The memory used by its data, in bytes.
    pub used_memory: u64,
    /// How much of its shard's data it holds.
    pub data: Data,
    /// A number that grows while it loads, syncs or executes.
    pub progress: u64,
    /// The owner of its data, as `cluster/incarnation`; `None` if it is free.
    pub owner: Option<String>,
    /// Why it is not ready.
    pub why: Option<String>,
    /// How old this was when it was reported, at most.
    pub age: Duration,
}

impl NodeFact {
    /// Parses one line of `NMCTL INFO`: `node:<address> health=ready role=primary offset=5 ...`.
    #[must_use]
    pub fn parse(line: &str) -> Option<(Address, NodeFact)> {
        let (address, facts) = line.trim().strip_prefix("node:")?.split_once(' ')?;
        let mut fact = NodeFact { linked: true, ..NodeFact::default() };
        let (facts, why) = facts.split_once(" why=").map_or((facts, None), |(facts, why)| (facts, Some(why)));
        fact.why = why.map(|why| serde_json::from_str(why).unwrap_or_else(|_| why.to_owned()));
        for word in facts.split(' ') {
            match word.split_once('=') {
                Some(("health", health)) => fact.health = Health::of_word(health).unwrap_or_default(),
                Some(("data", data)) => fact.data = Data::of_word(data),
                Some(("progress", number)) => fact.progress = number.parse().unwrap_or(0),
                Some(("of", primary)) => fact.replica_of = primary.parse().ok(),
                Some(("linked", linked)) => fact.linked = linked == "true",
                Some(("offset", number)) => fact.offset = number.parse().unwrap_or(0),
                Some(("keys", number)) => fact.keys = number.parse().unwrap_or(0),
                Some(("used_memory", number)) => fact.used_memory = number.parse().unwrap_or(0),
                Some(("age_ms", number)) => {
                    fact.age = Duration::from_millis(number.parse().unwrap_or(u64::MAX))
                }
                Some(("owner", owner)) => fact.owner = Some(owner.to_owned()),
                Some(_) | None => {}
            }
        }
        Some((address.parse().ok()?, fact))
    }

    /// Whether the proxy can use it.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.health == Health::Ready
    }

    /// Whether it serves as a primary of this cluster, with all data.
    #[must_use]
    pub fn leads(&self, cluster: &ClusterName) -> bool {
        let owner = self.owner.as_deref().and_then(|owner| owner.rsplit_once('/'));
        let owned = owner.is_some_and(|(name, _)| name == cluster.as_str());
        owned && self.is_ready() && self.replica_of.is_none() && self.data.is_current()
    }

    /// Whether it could be promoted at this moment.
    #[must_use]
    pub fn can_lead(&self) -> bool {
        self.is_ready()
    }

    /// Whether it is a replica linked to its primary.
    #[must_use]
    pub fn is_linked(&self) -> bool {
        self.is_ready() && self.linked
    }
}

/// What a proxy holds: this, or what was pushed at the epoch of its fence or later. It stays valid when the
/// proxy is not reachable any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The epoch of the fence.
    pub fenced: Epoch,
    /// What it held then.
    pub holding: Holding,
}

impl Held {
    /// What a proxy holds that has just confirmed a content.
    #[must_use]
    pub fn of(content: &Content) -> Held {
        let own =
            Announcement { epoch: content.epoch, flags: Flags::default(), entries: content.own.clone() };
        Held { fenced: content.epoch, holding: Holding { own, released: Vec::new() } }
    }

    /// The epoch of the last `SETDB` that it accepted.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.holding.own.epoch
    }

    /// Whether the proxy can only hold this or the content at this epoch.
    #[must_use]
    pub fn covers_until(&self, epoch: Epoch) -> bool {
        self.fenced >= epoch || (self.fenced == self.epoch() && self.fenced.next() >= epoch)
    }
}

/// What is known of one proxy.
#[derive(Clone, Debug, Default)]
pub struct ProxyFact {
    /// Whether it replied to the last request.
    pub reached: bool,
    /// Consecutive missed pings.
    pub misses: u32,
    /// When the first of them was missed.
    pub missed_since: Option<Instant>,
    /// The content that it has confirmed.
    pub confirmed: Option<Arc<Content>>,
    /// When it confirmed it.
    pub confirmed_at: Option<Instant>,
    /// What it may hold.
    pub held: Option<Arc<Held>>,
    /// Its nodes.
    pub nodes: BTreeMap<Address, NodeFact>,
    /// When it last reported them.
    pub nodes_at: Option<Instant>,
    /// Since when a node is unhealthy.
    pub ill_since: BTreeMap<Address, Instant>,
    /// Since when such a node makes no progress either.
    pub stuck_since: BTreeMap<Address, Instant>,
    /// Since when a node is unhealthy, or not linked to its primary.
    pub unlinked_since: BTreeMap<Address, Instant>,
    /// When a node was last seen to serve as a primary. It stays when the proxy is not reachable any more.
    pub led_at: BTreeMap<Address, Instant>,
    /// Since when the proxy had been unreachable before its last reports: for so long its nodes may have been unlinked.
    pub away_since: Option<Instant>,
    /// Recent offsets of nodes, oldest first.
    pub offsets: BTreeMap<Address, VecDeque<(Instant, u64)>>,
    /// The replicas that must have a write, by primary, as the proxy has them.
    pub in_sync: InSyncAt,
    /// The registration under which the proxy acknowledged a grant, sent after all coordinators counted this one.
    pub acknowledged: Option<LeaseId>,
    /// The last refusal or connection error, as text.
    pub trouble: Option<String>,
}

/// What a proxy has confirmed of the replicas that must have a write.
#[derive(Clone, Debug, Default)]
pub enum InSyncAt {
    /// Nothing yet.
    #[default]
    Unconfirmed,
    /// It is of an earlier version, and takes the word of any replica.
    Ignored,
    /// The revisions of the shards' records, by primary, and when they were confirmed.
    Confirmed(BTreeMap<Address, (u64, Instant)>),
}

impl ProxyFact {
    /// Whether a node was unlinked for a moment while its primary, behind `primary`'s proxy, served: it lacks writes.
    /// The same makes it leave the in-sync set, where the store can be written to.
    #[must_use]
    pub fn missed_writes(&self, node: &Address, of: &Address, primary: &ProxyFact, moment: Duration) -> bool {
        let unlinked_since = self.unlinked_since.get(node);
        let served_at = primary.led_at.get(of);
        unlinked_since.zip(served_at).is_some_and(|(since, served_at)| *served_at >= *since + moment)
    }

    /// The first offset of a node that was observed at that time or later.
    #[must_use]
    pub fn offset_since(&self, node: &Address, at: Instant) -> Option<u64> {
        let known = self.offsets.get(node)?;
        known.iter().find(|(seen, _)| *seen >= at).map(|(_, offset)| *offset)
    }

    /// The offset of a node at that time, if it was observed.
    #[must_use]
    pub fn offset_at(&self, node: &Address, at: Instant) -> Option<u64> {
        let known = self.offsets.get(node)?;
        known.iter().rev().find(|(seen, _)| *seen <= at).map(|(_, offset)| *offset)
    }

    /// Records whether it replied. What it reported before it was unreachable says nothing about its nodes now.
    pub fn answered(&mut self, reached: bool) {
        if reached && !self.reached {
            self.nodes.clear();
            self.nodes_at = None;
            self.away_since = self.away_since.or(self.missed_since);
        }
        self.reached = reached;
    }

    /// Records since when nodes are in their state. Progress resets it: a node that loads or syncs is not
    /// stuck.
    fn observe(&mut self, nodes: &BTreeMap<Address, NodeFact>, now: Instant) {
        let well = |fact: &NodeFact| matches!(fact.health, Health::Ready | Health::Syncing);
        since(&mut self.ill_since, nodes, now, |fact| !well(fact));
        let away_since = self.away_since.take().unwrap_or(now);
        since(&mut self.unlinked_since, nodes, away_since, |fact| !fact.is_linked());
        let leads = |fact: &NodeFact| fact.is_ready() && fact.replica_of.is_none();
        let leading = nodes.iter().filter(|(_, fact)| leads(fact));
        self.led_at
            .extend(leading.filter_map(|(node, fact)| Some((node.clone(), now.checked_sub(fact.age)?))));
        let moved = |node: &Address, fact: &NodeFact| {
            let before = self.nodes.get(node);
            let works = matches!(fact.health, Health::Loading | Health::Syncing);
            works && before.is_some_and(|before| fact.progress > before.progress)
        };
        let moving: Vec<Address> =
            nodes.iter().filter(|(node, fact)| moved(node, fact)).map(|(node, _)| node.clone()).collect();
        self.stuck_since.retain(|node, _| !moving.contains(node));
        since(&mut self.stuck_since, nodes, now, |fact| !well(fact));
        self.offsets.retain(|node, _| nodes.contains_key(node));
        for (node, fact) in nodes {
            let known = self.offsets.entry(node.clone()).or_default();
            // A restarted replication stream is unrelated to the previous one.
            if known.back().is_some_and(|(_, last)| *last > fact.offset) {
                known.clear();
            }
            // One that is older than the clock reaches says nothing.
            known.extend(now.checked_sub(fact.age).map(|at| (at, fact.offset)));
            if known.len() > OFFSETS {
                known.pop_front();
            }
        }
    }
}

/// Keeps since when a condition holds for a node.
fn since(
    known: &mut BTreeMap<Address, Instant>,
    nodes: &BTreeMap<Address, NodeFact>,
    now: Instant,
    holds: impl Fn(&NodeFact) -> bool,
) {
    known.retain(|node, _| nodes.get(node).is_some_and(&holds));
    for (node, _) in nodes.iter().filter(|(_, fact)| holds(fact)) {
        known.entry(node.clone()).or_insert(now);
    }
}

/// The recent reports of all proxies. Clones share the board.
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

    /// Updates the facts of a proxy.
    pub fn note(&self, proxy: &Address, change: impl FnOnce(&mut ProxyFact)) {
        change(self.lock().entry(proxy.clone()).or_default());
        self.changed.set(());
    }

    /// Records why a push did not happen. Wakes no reader: it is no new fact.
    pub fn note_trouble(&self, proxy: &Address, why: &str) {
        self.lock().entry(proxy.clone()).or_default().trouble = Some(why.to_owned());
    }

    /// Records a proxy's report about its nodes.
    pub fn note_nodes(&self, proxy: &Address, nodes: BTreeMap<Address, NodeFact>, now: Instant) {
        self.note(proxy, |fact| {
            fact.observe(&nodes, now);
            fact.nodes = nodes;
            fact.nodes_at = Some(now);
        });
    }

    /// Drops proxies that are not registered any more.
    pub fn keep(&self, registered: impl Fn(&Address) -> bool) {
        self.lock().retain(|proxy, _| registered(proxy));
    }

    /// The epoch that a proxy has confirmed.
    #[must_use]
    pub fn confirmed_epoch(&self, proxy: &Address) -> Option<Epoch> {
        self.lock().get(proxy).and_then(|fact| fact.confirmed.as_ref()).map(|content| content.epoch)
    }

    /// Notifies of changes. None is missed while the reader is busy.
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

    #[test]
    fn coordinators_read_what_is_reported() {
        use capstan_redis_proxy::nodes::{Health, Incarnation, NodeReport, NodeState};
        let report = |state| NodeReport {
            state,
            health: Health::Ready,
            replica_of: None,
            linked: true,
            offset: 5,
            run_id: "abc".to_owned(),
            keys: 3,
            used_memory: 1000,
            starts: 1,
            data: Data::Current,
            progress: 0,
            looked_at: None,
        };
        let node: Address = "127.0.0.1:7001".parse().unwrap();
        let read = |report: &NodeReport| NodeFact::parse(&format!("node:{node} {report}")).unwrap();
        let owner = Some(("demo".parse().unwrap(), Incarnation(2)));
        let ready = report(NodeState::Ready { auth: None, owner });
        let expected = NodeFact {
            health: Health::Ready,
            replica_of: None,
            linked: true,
            offset: 5,
            keys: 3,
            used_memory: 1000,
            data: Data::Current,
            progress: 0,
            owner: Some("demo/2".to_owned()),
            why: None,
            age: Duration::ZERO,
        };
        assert_eq!(read(&ready), (node.clone(), expected.clone()));
        let why = "it said \"health=ready offset=9\"\r\n\\ and ended";
        let lost = NodeReport {
            health: Health::Lost,
            replica_of: Some("h:1".parse().unwrap()),
            linked: false,
            ..report(NodeState::NotReady { why: why.into() })
        };
        assert!(!lost.to_string().contains(['\r', '\n']), "{lost}");
        let expected = NodeFact {
            health: Health::Lost,
            replica_of: Some("h:1".parse().unwrap()),
            linked: false,
            owner: None,
            why: Some(why.to_owned()),
            ..expected
        };
        assert_eq!(read(&lost), (node, expected));
    }
}
