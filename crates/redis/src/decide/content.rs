//! What has to be pushed to a proxy? Pure: from the tree to the messages for one proxy, all at the epoch of
//! its host.

use std::collections::BTreeMap;

use capstan_control::epoch::Epoch;

use crate::address::Address;
use crate::facts::{ClusterTree, Seen, Tree, is_bad};
use crate::keys::{ClusterName, ConfigKey};
use crate::nmctl::{
    Announcement, Claim, Entry, Flags, InSync, Message, NodeRole, SetConf, SetRepl, SetSync, Settings,
};
use crate::shard::ShardRecord;
use crate::slots::{SlotRange, overlap};
use crate::spec::{Acks, Serving};
use crate::status::{NodeRecord, SlotEntry, Tag};

/// How a database is served. An unreadable configuration closes the database: otherwise it would be open to
/// everyone, because an empty list of users disables authentication.
fn settings(tree: &Tree, name: &ClusterName, cluster: &ClusterTree) -> Settings {
    let serving = cluster.config.as_ref().map(|config| &config.record.serving);
    match serving {
        None if is_bad(tree, &ConfigKey { cluster: name.clone() }) => Settings::closed(),
        None => Settings::default(),
        Some(serving) => settings_of(serving).unwrap_or_else(|_| Settings::closed()),
    }
}

/// The settings that proxies get. Both are the same document, for two readers.
pub(crate) fn settings_of(serving: &Serving) -> serde_json::Result<Settings> {
    serde_json::to_value(serving).and_then(serde_json::from_value)
}

/// Whether writes of a cluster are acknowledged only when the replicas in sync have them.
pub(crate) fn awaits_replicas(cluster: &ClusterTree) -> bool {
    cluster.config.as_ref().is_some_and(|config| config.record.serving.acks == Acks::Replica)
}

/// The replicas that must have a write, for the primaries behind a proxy; `None` if there are no such primaries.
/// Independent of the epoch of the rest: a set changes without one.
#[must_use]
pub fn awaited_replicas(tree: &Tree, proxy: &Address) -> Option<SetSync> {
    let epoch = tree.host(proxy)?.epoch.as_ref()?.record;
    let strict = tree.active().filter(|(_, cluster)| awaits_replicas(cluster));
    let shards = strict.flat_map(|(name, cluster)| {
        let here = cluster.primaries().filter(|seen| seen.record.proxy_address == *proxy);
        here.filter_map(move |seen| {
            let node = &seen.record.address;
            let shard = cluster.shards.get(node)?;
            let members = shard.record.awaited(node).cloned().collect();
            let revision = revision(shard);
            Some(InSync { db: name.clone(), node: node.clone(), revision, members })
        })
    });
    let shards: Vec<InSync> = shards.collect();
    (!shards.is_empty()).then(|| SetSync { epoch, flags: Flags::default(), shards })
}

/// The revision of a shard's record.
pub(crate) fn revision(shard: &Seen<ShardRecord>) -> u64 {
    u64::try_from(shard.mod_revision.0).unwrap_or(0)
}

/// Everything that is pushed to a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The epoch of its host.
    pub epoch: Epoch,
    /// The slots of its nodes.
    pub own: Vec<Entry>,
    /// The slots of the other proxies of its databases.
    pub peers: Vec<Entry>,
    /// Every node of its databases.
    pub roles: Vec<NodeRole>,
    /// How its databases are served.
    pub settings: Vec<(ClusterName, Settings)>,
}

/// The order in which a proxy's own slots and those of other proxies are pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// It gains slots, or none change owner: own slots first, so that it serves as soon as others redirect to
    /// it.
    OwnFirst,
    /// It loses slots: the other proxies' first, so that it redirects clients instead of failing them.
    PeersFirst,
}

impl Content {
    /// The content for a registered proxy; `None` while a change of one of its clusters has no epoch here
    /// yet.
    #[must_use]
    pub fn of(tree: &Tree, proxy: &Address) -> Option<Content> {
        tree.is_settled(proxy).then(|| Content::unsettled(tree, proxy)).flatten()
    }

    /// The same, also while a change of one of its clusters has no epoch here yet: for comparison only, never
    /// pushed.
    #[must_use]
    pub fn unsettled(tree: &Tree, proxy: &Address) -> Option<Content> {
        let epoch = tree.host(proxy)?.epoch.as_ref()?.record;
        let mut content =
            Content { epoch, own: Vec::new(), peers: Vec::new(), roles: Vec::new(), settings: Vec::new() };
        let here = |cluster: &ClusterTree| cluster.proxies().contains(proxy);
        for (name, cluster) in tree.active().filter(|(_, cluster)| here(cluster)) {
            content.add(name, cluster, proxy);
            content.settings.push((name.clone(), settings(tree, name, cluster)));
        }
        Some(content)
    }

    fn add(&mut self, name: &ClusterName, cluster: &ClusterTree, proxy: &Address) {
        let mut others: BTreeMap<&Address, Vec<SlotRange>> = BTreeMap::new();
        for seen in cluster.nodes.values() {
            let node = &seen.record;
            self.roles.push(NodeRole {
                db: name.clone(),
                node: node.address.clone(),
                proxy: node.proxy_address.clone(),
                replica_of: node.replica_of.clone(),
            });
            if node.proxy_address == *proxy {
                self.own.extend(node.slots.iter().map(|entry| own_entry(name, node, entry)));
            } else {
                others.entry(&node.proxy_address).or_default().extend(node.owned());
            }
        }
        for (other, mut ranges) in others {
            ranges.sort();
            let entry =
                |range| Entry { db: name.clone(), address: other.clone(), claim: Claim::Stable(range) };
            self.peers.extend(ranges.into_iter().map(entry));
        }
    }

    /// The messages, in this order; all of them idempotent at their epoch.
    #[must_use]
    pub fn messages(&self, order: Order) -> Vec<Message> {
        let announcement = |entries: &Vec<Entry>| Announcement {
            epoch: self.epoch,
            flags: Flags::default(),
            entries: entries.clone(),
        };
        let (own, peers) =
            (Message::SetDb(announcement(&self.own)), Message::SetPeer(announcement(&self.peers)));
        let conf = Message::SetConf(SetConf {
            epoch: self.epoch,
            flags: Flags::default(),
            databases: self.settings.clone(),
        });
        let roles = Message::SetRepl(SetRepl {
            epoch: self.epoch,
            flags: Flags::default(),
            nodes: self.roles.clone(),
        });
        match order {
            Order::OwnFirst => vec![conf, roles, own, peers],
            Order::PeersFirst => vec![conf, peers, own, roles],
        }
    }

    /// The messages for a proxy that has this other content. Settings and roles that it already has come
    /// last: clients may wait for the rest.
    #[must_use]
    pub fn messages_after(&self, known: Option<&Content>) -> Vec<Message> {
        let mut messages = self.messages(self.order_after(known));
        let is_known = |message: &Message| match message {
            Message::SetConf(_) => known.is_some_and(|known| known.settings == self.settings),
            Message::SetRepl(_) => known.is_some_and(|known| known.roles == self.roles),
            _ => false,
        };
        messages.sort_by_key(is_known);
        messages
    }

    /// The ranges that the proxy serves.
    pub fn owned(&self) -> impl Iterator<Item = (&ClusterName, SlotRange, &Claim)> {
        self.own
            .iter()
            .filter(|entry| entry.claim.owns())
            .map(|entry| (&entry.db, entry.claim.range(), &entry.claim))
    }

    /// Whether this has slots that another content of the same proxy does not.
    #[must_use]
    pub fn has_beyond(&self, other: &Content) -> bool {
        self.owned().any(|(db, range, _)| {
            let kept: u32 = other
                .owned()
                .filter(|(also, ..)| *also == db)
                .filter_map(|(_, kept, _)| overlap(range, kept))
                .map(SlotRange::len)
                .sum();
            kept < range.len()
        })
    }

    /// The order in which to push it to a proxy that has this other content.
    #[must_use]
    pub fn order_after(&self, known: Option<&Content>) -> Order {
        match known {
            Some(known) if known.has_beyond(self) && !self.has_beyond(known) => Order::PeersFirst,
            Some(_) | None => Order::OwnFirst,
        }
    }
}

fn own_entry(name: &ClusterName, node: &NodeRecord, entry: &SlotEntry) -> Entry {
    let range = entry.range;
    let claim = match &entry.tag {
        Tag::Stable => Claim::Stable(range),
        Tag::Migrating(end) => Claim::Migrating { to: end.proxy.clone(), range, pairing: Some(end.epoch) },
        Tag::Importing(end) => Claim::Importing { from: end.proxy.clone(), range, pairing: Some(end.epoch) },
    };
    Entry { db: name.clone(), address: node.address.clone(), claim }
}
