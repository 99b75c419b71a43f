//! A proxy in memory: the real state and lease of a proxy, without clients, and nodes that only have a
//! health.

use std::collections::{BTreeMap, BTreeSet};

use capstan_control::epoch::Epoch;
use capstan_redis::coordinator::Reply;
use capstan_redis::nmctl::{Claim, Holding, Message};
use capstan_redis::{Address, ClusterName, SlotRange};
use capstan_redis_proxy::state::{Clock, Lease, Move, ProxyState, Verdict};
use tokio::time::Instant;

/// How often a source is asked before it releases.
const COPIES_FOR: u32 = 3;

/// A range of a database importing from a proxy, and the pairing.
pub type Arrival = (ClusterName, Address, SlotRange, Option<Epoch>);

pub struct SimProxy {
    pub up: bool,
    pub state: ProxyState,
    pub lease: Lease,
    pub nodes: BTreeMap<Address, SimNode>,
    asked: BTreeMap<Move, u32>,
    /// Complete imports. Imported keys are removed when the import is not announced any more.
    arrived: BTreeSet<Arrival>,
    lives: u64,
}

#[derive(Clone, Debug, Default)]
pub struct SimNode {
    pub down: bool,
    pub lost: bool,
    pub offset: u64,
}

impl SimProxy {
    pub fn new(nodes: impl IntoIterator<Item = Address>) -> SimProxy {
        let nodes = nodes.into_iter().map(|node| (node, SimNode::default())).collect();
        SimProxy {
            up: true,
            state: ProxyState::default(),
            lease: Lease::new(true, Clock::new(0, Instant::now().into_std())),
            nodes,
            asked: BTreeMap::new(),
            arrived: BTreeSet::new(),
            lives: 0,
        }
    }

    /// Its process ends; the pushed state is on disk.
    pub fn crash(&mut self) {
        self.up = false;
    }

    pub fn restart(&mut self) {
        self.up = true;
        self.lives += 1;
        self.lease = Lease::new(true, Clock::new(self.lives, Instant::now().into_std()));
        self.asked.clear();
        for node in self.nodes.values_mut() {
            node.down = false;
        }
    }

    pub fn obey(&mut self, message: &Message) -> Reply {
        match message {
            Message::Lease(grant) => {
                self.lease.grant(grant, Instant::now().into_std());
                Reply::Done
            }
            Message::Releasing(told) => match self.state.releasing(told) {
                Err(refusal) => Reply::Refused(refusal.to_string()),
                Ok(moves) => {
                    let asked = moves.iter().map(|one| {
                        let count = self.asked.entry(one.clone()).or_default();
                        *count += 1;
                        *count
                    });
                    if asked.min().unwrap_or(0) < COPIES_FOR {
                        return Reply::Refused("MIGRATING copying keys=1 bytes=10 pass=0 dirty=1".to_owned());
                    }
                    self.state = self.state.with_released(moves);
                    Reply::Done
                }
            },
            Message::Info => Reply::Text(self.about()),
            Message::Epoch => Reply::Text(format!(
                "SETDB\n{}\nSETPEER\n{}\nCLOCK\n{}\nSTANDING\n1",
                self.state.own().epoch,
                self.state.peers().epoch,
                self.lease.clock().reading(Instant::now().into_std())
            )),
            Message::Fence(_) => match self.accept(message) {
                Reply::Done => Reply::Text(self.holding().lines().join("\n")),
                refused => refused,
            },
            Message::Moves | Message::ListDb => Reply::Text(String::new()),
            _ => self.accept(message),
        }
    }

    fn accept(&mut self, message: &Message) -> Reply {
        if let Message::SetDb(told) = message
            && let Some(entry) =
                told.entries.iter().find(|entry| self.nodes.get(&entry.address).is_some_and(|node| node.down))
        {
            return Reply::Refused(format!("TRYAGAIN node {} not ready: it is down", entry.address));
        }
        match self.state.accept(message) {
            Err(refusal) => Reply::Refused(refusal.to_string()),
            Ok(Verdict::Unchanged) => Reply::Done,
            Ok(Verdict::Accept(next)) => {
                self.state = *next;
                let migrating: BTreeSet<Move> = self.state.moves().collect();
                self.asked.retain(|one, _| migrating.contains(one));
                let coming: Vec<Arrival> = self.coming().collect();
                self.arrived.retain(|one| coming.contains(one));
                let used: BTreeSet<Address> =
                    self.state.roles().nodes.iter().map(|role| role.node.clone()).collect();
                for (_, node) in self.nodes.iter_mut().filter(|(address, _)| !used.contains(*address)) {
                    *node = SimNode::default();
                }
                // A replica without its data gets everything from its primary.
                for role in self.state.roles().nodes.iter().filter(|role| role.replica_of.is_some()) {
                    if let Some(node) = self.nodes.get_mut(&role.node) {
                        node.lost = false;
                    }
                }
                Reply::Done
            }
        }
    }

    /// The announced imports.
    pub fn coming(&self) -> impl Iterator<Item = Arrival> {
        self.state.own().entries.iter().filter_map(|entry| match &entry.claim {
            Claim::Importing { from, range, pairing } => {
                Some((entry.db.clone(), from.clone(), *range, *pairing))
            }
            Claim::Stable(_) | Claim::Migrating { .. } => None,
        })
    }

    /// Marks an import as complete.
    pub fn has_arrived(&mut self, what: Arrival) {
        self.arrived.insert(what);
    }

    /// Whether an import is complete.
    pub fn has(&self, what: &Arrival) -> bool {
        self.arrived.contains(what)
    }

    fn holding(&self) -> Holding {
        let own = self.state.own().clone();
        Holding { released: self.state.released().map(Move::entry).collect(), own }
    }

    fn about(&self) -> String {
        let roles = &self.state.roles().nodes;
        let line = |(address, node): (&Address, &SimNode)| {
            let role = roles.iter().find(|role| role.node == *address);
            let health = if node.lost {
                "lost"
            } else if node.down {
                "down"
            } else {
                "ready"
            };
            let owner = role.map(|role| format!(" owner={}/1", role.db)).unwrap_or_default();
            let keys = if role.is_some() { 5 } else { 0 };
            let follows = match role.and_then(|role| role.replica_of.as_ref()) {
                Some(primary) => format!("replica of={primary} linked=true"),
                None => "primary".to_owned(),
            };
            format!(
                "node:{address} health={health} role={follows} offset={} keys={keys}{owner}\n",
                node.offset
            )
        };
        self.nodes.iter().map(line).collect()
    }

    /// What it may serve at this moment.
    pub fn serves(&self) -> Vec<(ClusterName, SlotRange)> {
        let now = Instant::now().into_std();
        if !self.up {
            return Vec::new();
        }
        let serving = self.lease.serving(now);
        let mut serves = Vec::new();
        for entry in self.state.own().entries.iter().filter(|entry| entry.claim.owns()) {
            let range = entry.claim.range();
            let released = self.state.released().any(|one| one.db == entry.db && one.range == range);
            let ready = self.nodes.get(&entry.address).is_some_and(|node| !node.down && !node.lost);
            if released || !ready {
                continue;
            }
            let pieces = self.state.tenure().pieces(&entry.db, range).into_iter();
            let backed = pieces.filter(|(_, since)| since.is_some_and(|since| serving.allows(now, since)));
            let ranges = backed.flat_map(|(piece, _)| self.not_peers(&entry.db, piece));
            serves.extend(ranges.map(|range| (entry.db.clone(), range)));
        }
        serves
    }

    /// The parts of a range that no peer claims at a higher epoch.
    fn not_peers(&self, db: &ClusterName, range: SlotRange) -> Vec<SlotRange> {
        if self.state.peers().epoch <= self.state.own().epoch {
            return vec![range];
        }
        let mut left = vec![(u32::from(range.first()), u32::from(range.last()))];
        for entry in self.state.peers().entries.iter().filter(|entry| entry.db == *db) {
            if let Claim::Stable(peer) = entry.claim {
                let (first, last) = (u32::from(peer.first()), u32::from(peer.last()));
                let cut = |(a, b): (u32, u32)| {
                    let before = (a < first).then(|| (a, b.min(first.saturating_sub(1))));
                    let behind = (b > last).then(|| (a.max(last + 1), b));
                    before.into_iter().chain(behind).filter(|(a, b)| a <= b)
                };
                left = left.into_iter().flat_map(cut).collect();
            }
        }
        left.into_iter().map(|(a, b)| SlotRange::new(a, b).unwrap()).collect()
    }
}
