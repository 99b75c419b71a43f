//! What do clients see of a database? Proxies instead of nodes: who has which slots, and who replicates them.

use std::collections::{BTreeMap, BTreeSet};

use capstan_control::epoch::Epoch;
use sha2::{Digest, Sha256};

use crate::address::Address;
use crate::keys::ClusterName;
use crate::nmctl::NodeRole;
use crate::slots::SlotRange;

/// One proxy with slots, and the proxies that hold replicas of its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The proxy that owns the slots.
    pub proxy: Address,
    /// Its slots, merged.
    pub ranges: Vec<SlotRange>,
    /// Proxies without slots of their own that hold replicas.
    pub replicas: Vec<Address>,
}

/// A database as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Its name.
    pub name: ClusterName,
    /// This proxy.
    pub me: Address,
    /// Proxies with slots, by address.
    pub shards: Vec<Shard>,
    /// Proxies that have neither slots nor replicas (yet), this one among them if so.
    pub idle: Vec<Address>,
    /// The epoch of what is shown.
    pub epoch: Epoch,
}

impl Topology {
    /// From the proxy of every slot, and the roles of all nodes.
    pub(super) fn of(
        name: &ClusterName,
        me: &Address,
        owners: Vec<Option<Address>>,
        nodes: &[&NodeRole],
        epoch: Epoch,
    ) -> Topology {
        let ranges = merged(owners);
        let replicas = replicas(nodes, &ranges);
        let shown: BTreeSet<&Address> = ranges.keys().chain(replicas.values().flatten()).collect();
        let everyone = nodes.iter().map(|node| &node.proxy).chain([me]).collect::<BTreeSet<_>>();
        let idle = everyone.difference(&shown).map(|proxy| (*proxy).clone()).collect();
        let shard = |(proxy, ranges): (Address, Vec<SlotRange>)| {
            let replicas = replicas.get(&proxy).cloned().unwrap_or_default().into_iter().collect();
            Shard { proxy, ranges, replicas }
        };
        let shards = ranges.into_iter().map(shard).collect();
        Topology { name: name.clone(), me: me.clone(), shards, idle, epoch }
    }

    /// Slots that somebody serves.
    #[must_use]
    pub fn assigned(&self) -> u32 {
        self.shards.iter().flat_map(|shard| &shard.ranges).map(|range| range.len()).sum()
    }

    /// The id of a proxy.
    #[must_use]
    pub fn id(&self, proxy: &Address) -> String {
        node_id(&self.name, proxy)
    }

    /// Every range with the shard that it belongs to, in order of slot.
    #[must_use]
    pub fn ranges(&self) -> Vec<(SlotRange, &Shard)> {
        let of_shard = |shard| Shard::ranges_of(shard).map(move |range| (range, shard));
        let mut ranges: Vec<_> = self.shards.iter().flat_map(of_shard).collect();
        ranges.sort_by_key(|(range, _)| *range);
        ranges
    }

    /// Every proxy that is shown.
    #[must_use]
    pub fn known_nodes(&self) -> usize {
        self.shards.iter().map(|shard| 1 + shard.replicas.len()).sum::<usize>() + self.idle.len()
    }
}

impl Shard {
    fn ranges_of(shard: &Shard) -> impl Iterator<Item = SlotRange> {
        shard.ranges.iter().copied()
    }
}

/// The id of a proxy in a database: always the same 40 hex digits, without anybody having to remember them.
#[must_use]
pub fn node_id(database: &ClusterName, proxy: &Address) -> String {
    hex_id("node", database, proxy)
}

/// The id of a proxy together with those that replicate it.
#[must_use]
pub fn shard_id(database: &ClusterName, proxy: &Address) -> String {
    hex_id("shard", database, proxy)
}

fn hex_id(kind: &str, database: &ClusterName, proxy: &Address) -> String {
    let digest = Sha256::digest(format!("{kind} {database} {proxy}"));
    digest.iter().take(20).map(|byte| format!("{byte:02x}")).collect()
}

/// The ranges of every proxy, as long as possible.
fn merged(owners: Vec<Option<Address>>) -> BTreeMap<Address, Vec<SlotRange>> {
    let mut ranges: BTreeMap<Address, Vec<SlotRange>> = BTreeMap::new();
    let mut first = 0;
    for slot in 0..owners.len() {
        if owners.get(slot + 1) == owners.get(slot) {
            continue;
        }
        let range = SlotRange::new(first as u32, slot as u32).ok();
        if let Some((owner, range)) = owners[slot].as_ref().zip(range) {
            ranges.entry(owner.clone()).or_default().push(range);
        }
        first = slot + 1;
    }
    ranges
}

/// For each proxy with slots, the proxies that have none and hold replicas of its nodes. A proxy is shown once: under
/// the first shard that it replicates.
fn replicas(
    nodes: &[&NodeRole],
    owners: &BTreeMap<Address, Vec<SlotRange>>,
) -> BTreeMap<Address, BTreeSet<Address>> {
    let proxy_of: BTreeMap<&Address, &Address> = nodes.iter().map(|node| (&node.node, &node.proxy)).collect();
    let (mut replicas, mut shown) = (BTreeMap::<Address, BTreeSet<Address>>::new(), BTreeSet::new());
    for node in nodes.iter().filter(|node| !owners.contains_key(&node.proxy)) {
        let primary = node.replica_of.as_ref().and_then(|primary| proxy_of.get(primary));
        let Some(primary) = primary.filter(|primary| owners.contains_key(**primary)) else { continue };
        if shown.insert(&node.proxy) {
            replicas.entry((*primary).clone()).or_default().insert(node.proxy.clone());
        }
    }
    replicas
}
