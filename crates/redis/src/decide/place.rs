//! Which free nodes does a cluster get? Spread over hosts, replicas away from their primary.

use std::collections::{BTreeMap, BTreeSet};

use super::entries::{take_front, uncovered};
use crate::address::Address;
use crate::facts::{ClusterTree, Tree};
use crate::keys::ClusterName;
use crate::status::{NodeRecord, Place, Role, SlotEntry};

/// The free nodes by host, and how many nodes of the cluster each host has.
#[derive(Clone, Debug)]
pub struct Pool {
    free: BTreeMap<Address, Vec<Address>>,
    of_cluster: BTreeMap<Address, usize>,
}

impl Pool {
    /// The available nodes: none on hosts that are being drained or reported as failed.
    #[must_use]
    pub fn of(tree: &Tree, cluster: Option<&ClusterTree>) -> Pool {
        let alive = tree.alive();
        let reported: BTreeSet<&Address> = tree
            .failures
            .iter()
            .filter(|(key, _)| alive.contains(&key.report_id))
            .map(|(key, _)| &key.address)
            .collect();
        let mut free: BTreeMap<Address, Vec<Address>> = BTreeMap::new();
        let taken = |node: &Address| cluster.is_some_and(|cluster| cluster.nodes.contains_key(node));
        for Place { proxy, node } in tree.free_nodes() {
            if !tree.draining.contains(&proxy) && !reported.contains(&proxy) && !taken(&node) {
                free.entry(proxy).or_default().push(node);
            }
        }
        let mut of_cluster = BTreeMap::new();
        for node in cluster.into_iter().flat_map(|cluster| cluster.nodes.values()) {
            *of_cluster.entry(node.record.proxy_address.clone()).or_default() += 1;
        }
        Pool { free, of_cluster }
    }

    /// The number of available nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.free.values().map(Vec::len).sum()
    }

    /// Whether no node is available.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A host for each node with forbidden hosts, for as many of them as possible.
    fn matching(&self, forbidden: &[&BTreeSet<Address>]) -> Vec<Option<Address>> {
        let mut hosts: Vec<(&Address, usize)> =
            self.free.iter().map(|(proxy, free)| (proxy, free.len())).collect();
        let here = |proxy: &Address| self.of_cluster.get(proxy).copied().unwrap_or(0);
        hosts.sort_by_key(|(proxy, free)| (here(proxy), std::cmp::Reverse(*free)));
        let guests = vec![Vec::new(); hosts.len()];
        let mut matching = Matching { forbidden, hosts, guests };
        for guest in 0..forbidden.len() {
            matching.seat(guest, &mut BTreeSet::new());
        }
        let mut found = vec![None; forbidden.len()];
        for ((proxy, _), guests) in matching.hosts.iter().zip(&matching.guests) {
            for guest in guests {
                found[*guest] = Some((*proxy).clone());
            }
        }
        found
    }

    fn take_on(&mut self, proxy: &Address) -> Option<Place> {
        let free = self.free.get_mut(proxy).filter(|free| !free.is_empty())?;
        let node = free.remove(0);
        *self.of_cluster.entry(proxy.clone()).or_default() += 1;
        Some(Place { proxy: proxy.clone(), node })
    }

    /// Takes a node: from the host with the fewest of the cluster, then with the most free ones.
    pub fn take(&mut self, not_on: &BTreeSet<Address>) -> Option<Place> {
        let rank = |(proxy, free): &(&Address, &Vec<Address>)| {
            let here = self.of_cluster.get(*proxy).copied().unwrap_or(0);
            (here, std::cmp::Reverse(free.len()), (*proxy).clone())
        };
        let candidates =
            self.free.iter().filter(|(proxy, free)| !free.is_empty() && !not_on.contains(*proxy));
        let proxy = candidates.min_by_key(rank)?.0.clone();
        self.take_on(&proxy)
    }
}

/// The nodes that a cluster lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Nodes to add, primaries before their replicas.
    pub additions: Vec<NodeRecord>,
    /// Nodes for which there is no free one.
    pub unplaced: usize,
}

/// The nodes that the specification requires and the cluster does not have. New primaries share the slots
/// without an owner.
#[must_use]
pub fn missing(tree: &Tree, name: &ClusterName, cluster: &ClusterTree) -> Missing {
    let mut planner = Planner {
        name,
        incarnation: cluster.incarnation(),
        pool: Pool::of(tree, Some(cluster)),
        found: Missing::default(),
    };
    let present: Vec<&NodeRecord> = cluster.primaries().map(|node| &node.record).collect();
    let lacking = cluster.wanted_primaries().saturating_sub(present.len());
    let mut slots = uncovered(present.iter().flat_map(|node| node.owned()));
    let mut primaries: Vec<(Address, Address, usize)> = present
        .iter()
        .map(|node| {
            let has = cluster.replicas_of(&node.address).count();
            (node.address.clone(), node.proxy_address.clone(), has)
        })
        .collect();
    for left in (1..=lacking).rev() {
        let count = slots.iter().map(|range| range.len()).sum::<u32>().div_ceil(left as u32);
        if let Some(place) = planner.primary(|| take_front(&mut slots, count)) {
            primaries.push((place.node, place.proxy, 0));
        }
    }
    let mut families: Vec<Family> = primaries
        .into_iter()
        .map(|(primary, proxy, has)| {
            let replicas = cluster.replicas_of(&primary).map(|node| node.record.proxy_address.clone());
            let hosts = replicas.chain([proxy]).collect();
            Family { lacks: cluster.wanted_replicas().saturating_sub(has), primary, hosts }
        })
        .collect();
    // One replica per primary, then the next round: each round is a matching, so that no primary takes the
    // only host of another.
    while families.iter().any(|family| family.lacks > 0) {
        planner.round(&mut families);
    }
    planner.found
}

/// A primary, the hosts of it and its replicas, and how many replicas it lacks.
struct Family {
    primary: Address,
    hosts: BTreeSet<Address>,
    lacks: usize,
}

struct Planner<'t> {
    name: &'t ClusterName,
    incarnation: u64,
    pool: Pool,
    found: Missing,
}

impl Planner<'_> {
    fn primary(&mut self, slots: impl FnOnce() -> Vec<crate::SlotRange>) -> Option<Place> {
        let Some(place) = self.pool.take(&BTreeSet::new()) else {
            self.found.unplaced += 1;
            return None;
        };
        let entries = slots().into_iter().map(SlotEntry::stable).collect();
        let record = NodeRecord::primary(
            place.node.clone(),
            place.proxy.clone(),
            self.name.clone(),
            self.incarnation,
            entries,
        );
        self.found.additions.push(record);
        Some(place)
    }

    /// Adds one replica to every family that lacks some, as far as there are hosts.
    fn round(&mut self, families: &mut [Family]) {
        let lacking: Vec<&mut Family> = families.iter_mut().filter(|family| family.lacks > 0).collect();
        let forbidden: Vec<&BTreeSet<Address>> = lacking.iter().map(|family| &family.hosts).collect();
        let hosts = self.pool.matching(&forbidden);
        for (family, host) in lacking.into_iter().zip(hosts) {
            family.lacks -= 1;
            match host.and_then(|host| self.pool.take_on(&host)) {
                None => self.found.unplaced += 1,
                Some(Place { proxy, node }) => {
                    family.hosts.insert(proxy.clone());
                    let record =
                        NodeRecord::primary(node, proxy, self.name.clone(), self.incarnation, Vec::new());
                    let replica_of = Some(family.primary.clone());
                    self.found.additions.push(NodeRecord { role: Role::Replica, replica_of, ..record });
                }
            }
        }
    }
}

/// The assignment of nodes to hosts while a matching is searched.
struct Matching<'p> {
    forbidden: &'p [&'p BTreeSet<Address>],
    /// Hosts in order of preference, with the number of nodes they can provide.
    hosts: Vec<(&'p Address, usize)>,
    guests: Vec<Vec<usize>>,
}

impl Matching<'_> {
    /// Finds a host for one node, moving others if that helps.
    fn seat(&mut self, guest: usize, asked: &mut BTreeSet<usize>) -> bool {
        for at in 0..self.hosts.len() {
            if self.forbidden[guest].contains(self.hosts[at].0) || !asked.insert(at) {
                continue;
            }
            if self.guests[at].len() < self.hosts[at].1 {
                self.guests[at].push(guest);
                return true;
            }
            for seat in 0..self.guests[at].len() {
                let other = self.guests[at][seat];
                if self.seat(other, asked) {
                    self.guests[at][seat] = guest;
                    return true;
                }
            }
        }
        false
    }
}
