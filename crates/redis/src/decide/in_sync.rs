//! Which nodes may be promoted? Keeps the in-sync set of every shard. Pure: from the tree and the proxies'
//! reports to transactions.
//!
//! The set changes only while the primary is healthy, and only by facts reported after the primary was seen
//! to be healthy: a replica that lost its link because the primary died stays a member.
//!
//! With `acks: replica` a replica enters in two steps (ADR redis-0005). First it is joining: writes wait for it from
//! when the primary's proxy has confirmed that. It becomes a member when it also has what the primary had then: now it
//! has every acknowledged write.

use std::collections::BTreeSet;
use std::time::Duration;

use capstan_meta::record::Key;
use tokio::time::Instant;

use super::content::{awaits_replicas, revision};
use super::heal::{Facts, SEEN_WITHIN, Sight};
use super::verdict::dead_addresses;
use crate::address::Address;
use crate::board::{InSyncAt, NodeFact, ProxyFact};
use crate::decide::Draft;
use crate::decide::Steps;
use crate::facts::{ClusterTree, Seen, Tree};
use crate::keys::{ClusterEpochKey, ClusterName, ClusterNodeKey, ShardKey};
use crate::shard::ShardRecord;
use crate::status::NodeRecord;
use crate::timing::Timing;

/// A replica that has what its primary had this long ago has caught up.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(1);
/// A member that lacks what its primary had this long ago is no longer in sync: the window of asynchronous
/// replication.
const LAGS_AFTER: Duration = Duration::from_secs(10);
/// The tolerated difference then: what is in flight between two reports.
pub(crate) const IN_SYNC_BYTES: u64 = 1 << 20;
/// Facts of a node that are older than this many report intervals do not count.
const LOOKS: u32 = 4;
/// Shards whose first record is written in one transaction; each takes one operation and two guards.
const SHARDS_PER_TXN: usize = 32;

/// The next changes of in-sync sets.
#[must_use]
pub fn in_sync_changes(sight: Sight<'_>) -> Steps {
    changes(sight.tree, sight.facts, sight.timing, sight.at)
}

pub(crate) fn changes(tree: &Tree, facts: &Facts, timing: &Timing, at: Instant) -> Steps {
    let dead = dead_addresses(tree, timing.quorum());
    let mut steps = Steps::default();
    for (name, cluster) in tree.active() {
        steps.commits.extend(first_records(name, cluster));
        let look = Look { name, cluster, facts, dead: &dead, timing, at };
        let known = cluster
            .primaries()
            .filter_map(|seen| Some((&seen.record, cluster.shards.get(&seen.record.address)?)));
        steps.commits.extend(known.filter_map(|(primary, shard)| look.change(primary, shard)));
    }
    steps
}

/// Records of shards that have none: of a cluster that was just created, or by an earlier version.
fn first_records(name: &ClusterName, cluster: &ClusterTree) -> Option<Draft> {
    let unknown = |seen: &&Seen<NodeRecord>| !cluster.shards.contains_key(&seen.record.address);
    let mut primaries = cluster.primaries().filter(unknown).take(SHARDS_PER_TXN).peekable();
    primaries.peek()?;
    let epoch = cluster.epoch.as_ref().map(|seen| seen.record).unwrap_or_default();
    let mut draft = Draft::new(format!("record the shards of cluster {name}"));
    draft.guard(ClusterEpochKey { cluster: name.clone() }.as_seen(cluster.epoch.as_deref()));
    for seen in primaries {
        let primary = &seen.record.address;
        let key = ShardKey { cluster: name.clone(), primary: primary.clone() };
        let truth = ClusterNodeKey { cluster: name.clone(), node: primary.clone() };
        let record = ShardRecord::new(primary, epoch);
        draft.guard(key.absent()).guard(truth.unchanged(seen)).then(key.put(&record));
    }
    Some(draft)
}

struct Look<'l> {
    name: &'l ClusterName,
    cluster: &'l ClusterTree,
    facts: &'l Facts,
    dead: &'l BTreeSet<Address>,
    timing: &'l Timing,
    at: Instant,
}

impl Look<'_> {
    /// The change of one shard's set, if its primary is healthy.
    fn change(&self, primary: &NodeRecord, shard: &Seen<ShardRecord>) -> Option<Draft> {
        let fact = self.facts.get(&primary.proxy_address)?;
        let own = self.well(fact, primary)?;
        let mut next = shard.record.clone();
        next.in_sync.insert(primary.address.clone());
        let replicas: Vec<&NodeRecord> =
            self.cluster.replicas_of(&primary.address).map(|seen| &seen.record).collect();
        let follows = |node: &Address| replicas.iter().any(|it| it.address == *node);
        next.in_sync.retain(|node| *node == primary.address || follows(node));
        next.joining.retain(follows);
        for replica in replicas {
            match self.judge(primary, fact, own, replica) {
                Standing::CaughtUp if self.may_enter(fact, shard, primary, replica) => {
                    next.joining.remove(&replica.address);
                    next.in_sync.insert(replica.address.clone());
                }
                Standing::CaughtUp => drop(next.joining.insert(replica.address.clone())),
                Standing::Behind => {
                    next.joining.remove(&replica.address);
                    next.in_sync.remove(&replica.address);
                }
                Standing::Unknown => {}
            }
        }
        (next.waiting, next.recovering, next.established) = (None, false, true);
        if next == shard.record {
            return None;
        }
        let members: Vec<&str> = next.in_sync.iter().map(Address::as_str).collect();
        let what = format!("shard {} of cluster {}: in-sync set {}", next.id, self.name, members.join(" "));
        let key = ShardKey { cluster: self.name.clone(), primary: primary.address.clone() };
        let mut draft = Draft::new(what);
        draft.guard(key.unchanged(shard)).then(key.put(&next));
        Some(draft)
    }

    /// Whether a replica that has caught up may be promoted from now on: it has every write that was acknowledged
    /// without it, and none will be any more.
    fn may_enter(
        &self,
        fact: &ProxyFact,
        shard: &Seen<ShardRecord>,
        primary: &NodeRecord,
        replica: &NodeRecord,
    ) -> bool {
        if !awaits_replicas(self.cluster) || shard.record.may_promote(&replica.address) {
            return true;
        }
        let confirmed = match &fact.in_sync {
            InSyncAt::Unconfirmed => return false,
            InSyncAt::Ignored => return true,
            InSyncAt::Confirmed(shards) => shards.get(&primary.address),
        };
        let Some((known, since)) = confirmed else { return false };
        let awaited = shard.record.joining.contains(&replica.address) && *known >= revision(shard);
        let must_have = fact.offset_since(&primary.address, *since + SEEN_WITHIN);
        let seen = self.facts.get(&replica.proxy_address).and_then(|there| there.nodes.get(&replica.address));
        let has = seen.zip(must_have).is_some_and(|(seen, must_have)| seen.offset >= must_have);
        awaited && has
    }

    /// The fact of a primary that serves and has reported recently.
    fn well<'f>(&self, fact: &'f ProxyFact, primary: &NodeRecord) -> Option<&'f NodeFact> {
        let reported_at = fact.nodes_at.filter(|_| fact.reached)?;
        let own = fact.nodes.get(&primary.address)?;
        (self.is_recent(reported_at) && own.leads(self.name)).then_some(own)
    }

    fn is_recent(&self, reported_at: Instant) -> bool {
        self.at.saturating_duration_since(reported_at) <= self.timing.nodes_every * LOOKS
    }

    fn judge(
        &self,
        primary: &NodeRecord,
        fact: &ProxyFact,
        own: &NodeFact,
        replica: &NodeRecord,
    ) -> Standing {
        let Some(there) = self.facts.get(&replica.proxy_address) else { return Standing::Unknown };
        // The primary was healthy after this: the replica's state does not come from the primary's death.
        let before_now = |since: Instant| fact.nodes_at.is_some_and(|at| at >= since + SEEN_WITHIN);
        if self.dead.contains(&replica.proxy_address) {
            let gone = there.missed_since.is_some_and(before_now);
            return if gone { Standing::Behind } else { Standing::Unknown };
        }
        let (Some(seen), Some(reported_at)) = (there.nodes.get(&replica.address), there.nodes_at) else {
            return Standing::Unknown;
        };
        let linked = seen.is_ready() && seen.linked && seen.replica_of.as_ref() == Some(&primary.address);
        if !linked {
            let since = there.unlinked_since.get(&replica.address).copied();
            return if since.is_some_and(before_now) { Standing::Behind } else { Standing::Unknown };
        }
        let had = |ago: Duration| {
            let at = reported_at.checked_sub(seen.age + ago)?;
            fact.offset_at(&primary.address, at)
        };
        if had(LAGS_AFTER).is_some_and(|had| seen.offset + IN_SYNC_BYTES < had) {
            return Standing::Behind;
        }
        let must_have = had(CAUGHT_UP_WITHIN).unwrap_or(own.offset);
        // A proxy that was unreachable has reported nothing since: what it reported before says nothing about now.
        if self.is_recent(reported_at) && seen.data.is_current() && seen.offset + IN_SYNC_BYTES >= must_have {
            Standing::CaughtUp
        } else {
            Standing::Unknown
        }
    }
}

/// The state of a replica relative to its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It may be promoted.
    CaughtUp,
    /// It must not be promoted.
    Behind,
    /// Undecided by the available facts.
    Unknown,
}

#[cfg(test)]
mod tests;
