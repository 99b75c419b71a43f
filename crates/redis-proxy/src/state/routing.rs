//! Where does a slot's command go? An immutable table, derived from the state and swapped atomically.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use capstan_control::epoch::Epoch;

use super::login::{DEFAULT, Entrance, Login, LoginRefused};
use super::proxy_state::{Move, ProxyState};
use super::topology::Topology;
use crate::gate::Gate;
use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::acl::Rules;
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::{Claim, Mode, NodeRole, Settings};
use capstan_redis_protocol::slots::{SLOTS, Slot, SlotRange};

/// The index of the place without an owner.
const UNOWNED: u16 = 0;

/// The part of the state that the data path needs.
#[derive(Debug, Default)]
pub struct Routing {
    databases: Vec<Arc<Database>>,
    handed_over: BTreeSet<Address>,
    in_sync: HashMap<Address, Vec<Address>>,
}

/// Where a slot is served.
#[derive(Debug)]
pub enum Place {
    /// No known owner: commands for the slot wait a moment, then fail.
    Unowned,
    /// By a node of this host.
    Own {
        /// The node.
        node: Address,
        /// The epoch since which it is held.
        since: Epoch,
        /// Decides whether a command may pass, if the slot is moving away.
        gate: Option<Arc<Gate>>,
    },
    /// By another proxy.
    Peer {
        /// The proxy.
        proxy: Address,
        /// A node of this host that replicates the slot, for clients that accept reads from replicas.
        replica: Option<Address>,
    },
}

/// What a user may do in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Everything that clients may do.
    Everything,
    /// What these rules permit.
    Restricted(Arc<Rules>),
    /// Nothing: there is no such user, or no longer.
    NoUser,
}

/// One database, as this proxy sees it.
#[derive(Debug)]
pub struct Database {
    name: ClusterName,
    settings: Settings,
    places: Vec<Place>,
    /// The place of every slot.
    slots: Box<[u16]>,
    /// Nodes of this host with slots, or that will get some.
    primaries: Vec<Address>,
    /// Nodes of this host that replicate others.
    replicas: Vec<NodeRole>,
    topology: Topology,
}

impl Routing {
    /// The table for a state. `me` is the announced address of this proxy; `gate` finds the gate of a move.
    pub fn of(state: &ProxyState, me: &Address, gate: impl Fn(&Move) -> Option<Arc<Gate>>) -> Routing {
        let database = |name: ClusterName| Arc::new(Database::of(name, state, me, &gate));
        Routing {
            databases: state.databases().into_iter().map(database).collect(),
            handed_over: state.handed_over().clone(),
            in_sync: state
                .in_sync()
                .flat_map(|message| message.shards)
                .map(|shard| (shard.node, shard.members))
                .collect(),
        }
    }

    /// The replicas of a node that must have a write before it is acknowledged with `acks: replica`, besides that at
    /// least one must. Empty if no other node may be promoted in its place.
    #[must_use]
    pub fn members(&self, node: &Address) -> &[Address] {
        self.in_sync.get(node).map_or(&[], Vec::as_slice)
    }

    /// Whether a node that has no slots in this table lost them in a planned handover.
    #[must_use]
    pub fn was_handed_over(&self, node: &Address) -> bool {
        self.handed_over.contains(node)
    }

    /// All databases, by name.
    #[must_use]
    pub fn databases(&self) -> &[Arc<Database>] {
        &self.databases
    }

    /// A database.
    #[must_use]
    pub fn database(&self, name: &ClusterName) -> Option<&Arc<Database>> {
        self.databases.iter().find(|database| database.name == *name)
    }

    /// What a connection may do before it authenticates.
    #[must_use]
    pub fn entrance(&self) -> Entrance {
        super::login::entrance(&self.databases)
    }

    /// Authenticates: `AUTH [user] password`.
    pub fn log_in(&self, user: Option<&[u8]>, password: &[u8]) -> Result<Login, LoginRefused> {
        super::login::log_in(&self.databases, user, password)
    }
}

impl Database {
    fn of(
        name: ClusterName,
        state: &ProxyState,
        me: &Address,
        gate: &impl Fn(&Move) -> Option<Arc<Gate>>,
    ) -> Database {
        let settings = state.conf().databases.iter().find(|(db, _)| *db == name);
        let settings = settings.map(|(_, settings)| settings.clone()).unwrap_or_default();
        let nodes: Vec<&NodeRole> = state.roles().nodes.iter().filter(|node| node.db == name).collect();
        let mut table = SlotTable::new();
        table.claim_peers(&name, state, &nodes, me);
        table.claim_own(&name, state, gate);
        let owners = table.owners(me);
        Database {
            primaries: own_primaries(&name, state, &nodes, me),
            replicas: nodes
                .iter()
                .filter(|node| node.proxy == *me && node.replica_of.is_some())
                .map(|node| (*node).clone())
                .collect(),
            topology: Topology::of(&name, me, owners, &nodes, epoch(state)),
            places: table.places,
            slots: table.slots,
            name,
            settings,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &ClusterName {
        &self.name
    }

    /// How it is served.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What a user may do. Without users, `default` may do everything.
    #[must_use]
    pub fn permission(&self, user: &str) -> Permission {
        match self.settings.users.iter().find(|known| known.name == user) {
            Some(known) => known.restrictions().map_or(Permission::Everything, Permission::Restricted),
            None if self.settings.users.is_empty() && user == DEFAULT => Permission::Everything,
            None => Permission::NoUser,
        }
    }

    /// Whether commands for slots of other proxies are forwarded.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.settings.mode == Mode::Single
    }

    /// Where a slot is served.
    #[must_use]
    #[inline]
    pub fn place(&self, slot: Slot) -> &Place {
        &self.places[self.place_index(slot)]
    }

    /// The index of [`place`](Self::place) in [`places`](Self::places), for data kept per place.
    #[must_use]
    #[inline]
    pub fn place_index(&self, slot: Slot) -> usize {
        usize::from(self.slots[slot.index()])
    }

    /// All places; the first has no owner.
    #[must_use]
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Nodes of this host with slots, or that will get some.
    #[must_use]
    pub fn primaries(&self) -> &[Address] {
        &self.primaries
    }

    /// Nodes of this host that replicate others.
    #[must_use]
    pub fn replicas(&self) -> &[NodeRole] {
        &self.replicas
    }

    /// The database as presented to clients.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }
}

/// The higher of the epochs of own and of others' slots: the configuration epoch that clients see.
fn epoch(state: &ProxyState) -> Epoch {
    state.own().epoch.max(state.peers().epoch)
}

fn own_primaries(name: &ClusterName, state: &ProxyState, nodes: &[&NodeRole], me: &Address) -> Vec<Address> {
    let claimed = state.own().entries.iter().filter(|entry| entry.db == *name).map(|entry| &entry.address);
    let announced =
        nodes.iter().filter(|node| node.proxy == *me && node.replica_of.is_none()).map(|node| &node.node);
    let mut primaries: Vec<Address> = claimed.chain(announced).cloned().collect();
    primaries.sort();
    primaries.dedup();
    primaries
}

struct SlotTable {
    places: Vec<Place>,
    slots: Box<[u16]>,
}

impl SlotTable {
    fn new() -> SlotTable {
        SlotTable { places: vec![Place::Unowned], slots: vec![UNOWNED; usize::from(SLOTS)].into() }
    }

    fn claim_peers(&mut self, name: &ClusterName, state: &ProxyState, nodes: &[&NodeRole], me: &Address) {
        let mut known: HashMap<&Address, u16> = HashMap::new();
        for entry in state.peers().entries.iter().filter(|entry| entry.db == *name && entry.claim.owns()) {
            let place = *known.entry(&entry.address).or_insert_with(|| {
                let replica = replica_of_peer(nodes, &entry.address, me);
                self.place(Place::Peer { proxy: entry.address.clone(), replica })
            });
            self.take(entry.claim.range(), place, |_| true);
        }
    }

    /// Own claims win over peers' unless those are newer; an importing range belongs to its source until
    /// another owner is pushed.
    fn claim_own(
        &mut self,
        name: &ClusterName,
        state: &ProxyState,
        gate: &impl Fn(&Move) -> Option<Arc<Gate>>,
    ) {
        let newer = state.own().epoch >= state.peers().epoch;
        let mut known: HashMap<(&Address, Epoch), u16> = HashMap::new();
        for entry in state.own().entries.iter().filter(|entry| entry.db == *name) {
            let (node, range) = (&entry.address, entry.claim.range());
            let pieces = state.tenure().pieces(name, range).into_iter();
            let pieces = pieces.map(|(piece, since)| (piece, since.unwrap_or(state.own().epoch)));
            match &entry.claim {
                Claim::Stable(_) => {
                    for (piece, since) in pieces {
                        let stable = || Place::Own { node: node.clone(), since, gate: None };
                        let place = *known.entry((node, since)).or_insert_with(|| self.place(stable()));
                        self.take(piece, place, |taken| newer || taken == UNOWNED);
                    }
                }
                Claim::Migrating { .. } => {
                    let gate = Move::of(entry).and_then(|id| gate(&id));
                    for (piece, since) in pieces {
                        let place = self.place(Place::Own { node: node.clone(), since, gate: gate.clone() });
                        self.take(piece, place, |taken| newer || taken == UNOWNED);
                    }
                }
                Claim::Importing { from, .. } => {
                    let place = self.place(Place::Peer { proxy: from.clone(), replica: None });
                    self.take(range, place, |taken| taken == UNOWNED);
                }
            }
        }
    }

    fn place(&mut self, place: Place) -> u16 {
        self.places.push(place);
        // A message has fewer entries than this can count.
        u16::try_from(self.places.len() - 1).unwrap_or(UNOWNED)
    }

    fn take(&mut self, range: SlotRange, place: u16, may: impl Fn(u16) -> bool) {
        for slot in range.first()..=range.last() {
            let taken = &mut self.slots[usize::from(slot)];
            if may(*taken) {
                *taken = place;
            }
        }
    }

    /// The proxy of every slot that has one.
    fn owners(&self, me: &Address) -> Vec<Option<Address>> {
        let proxy = |place: &Place| match place {
            Place::Unowned => None,
            Place::Own { .. } => Some(me.clone()),
            Place::Peer { proxy, .. } => Some(proxy.clone()),
        };
        self.slots.iter().map(|place| proxy(&self.places[usize::from(*place)])).collect()
    }
}

/// A node of this host that replicates everything that the other proxy has of the database. Certain only if
/// the other proxy has one primary of it: peers are announced by their ranges, not by their nodes.
fn replica_of_peer(nodes: &[&NodeRole], peer: &Address, me: &Address) -> Option<Address> {
    let mut primaries = nodes.iter().filter(|node| node.proxy == *peer && node.replica_of.is_none());
    let (Some(primary), None) = (primaries.next(), primaries.next()) else { return None };
    let replicates = |node: &&&NodeRole| node.proxy == *me && node.replica_of.as_ref() == Some(&primary.node);
    nodes.iter().find(replicates).map(|node| node.node.clone())
}
