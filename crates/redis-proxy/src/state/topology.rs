//! What do clients see of a database? Proxies instead of nodes: which one has which slots, and which ones
//! replicate them.

use std::collections::{BTreeMap, BTreeSet};

use capstan_control::epoch::Epoch;
use sha2::{Digest, Sha256};

use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::NodeRole;
use capstan_redis_protocol::slots::SlotRange;

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
    /// The configuration epoch.
    pub epoch: Epoch,
}

impl Topology {
    /// Built from the proxy of every slot, and the roles of all nodes.
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

    /// The number of slots with an owner.
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

    /// The number of proxies shown.
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

/// The id of a proxy in a database: 40 hex digits derived from its address, so nothing has to be stored.
#[must_use]
pub fn node_id(database: &ClusterName, proxy: &Address) -> String {
    hex_id("node", database, proxy)
}

/// The id of a shard: a proxy and those that replicate it.
#[must_use]
pub fn shard_id(database: &ClusterName, proxy: &Address) -> String {
    hex_id("shard", database, proxy)
}

fn hex_id(kind: &str, database: &ClusterName, proxy: &Address) -> String {
    let digest = Sha256::digest(format!("{kind} {database} {proxy}"));
    digest.iter().take(20).map(|byte| format!("{byte:02x}")).collect()
}

/// The ranges of every proxy, merged.
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

/// For each proxy with slots, the proxies that have none and hold replicas of its nodes. A proxy is shown
/// once: under the first shard that it replicates.
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
