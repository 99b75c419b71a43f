//! Which nodes of a shard may be promoted without loss? The shard's record: its lineage and its in-sync set.
//!
//! A shard is a primary and its replicas. The primary is always a member of its own in-sync set; a replica
//! enters when it is linked and caught up, and leaves by a guarded transaction when its link is down or its
//! lag exceeds a bound, as long as the primary is healthy. While the primary is unhealthy the set does not
//! change: it contains the nodes that had everything when the primary was last healthy. Automation promotes
//! members only, and a promotion compares the record that it was decided on.

use std::collections::BTreeSet;

use capstan_control::epoch::Epoch;
use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::address::Address;

/// The record of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// Names the shard for as long as it exists, whichever node is its primary.
    pub id: String,
    /// Grows when history forks: when the shard continues with a node that was not known to have all data.
    pub lineage: u64,
    /// The nodes that may be promoted.
    pub in_sync: BTreeSet<Address>,
    /// Replicas that writes already wait for with `acks: replica`, and that may be promoted as soon as the primary's
    /// proxy has confirmed it and they have everything from before.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub joining: BTreeSet<Address>,
    /// Whether a primary has served since the shard was created, or its data was last given up: from then on a primary
    /// with a new directory has lost its disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub established: bool,
    /// How the present primary was chosen.
    #[serde(default)]
    pub succession: Succession,
    /// Whether its primary restores data that was set aside on its host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recovering: bool,
    /// Why the shard is not served, while automation can only wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<Waiting>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Whether a new primary has to wait for the previous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Succession {
    /// A planned handover: it serves only when it has everything that the previous primary has.
    #[default]
    Agreed,
    /// The previous primary was found dead: it is not waited for if it is unreachable.
    Forced,
}

/// What a shard without a serving primary waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// The state of its primary, in one word: `loading`, `lost`, `unreachable` ...
    pub state: String,
    /// Why automation can only wait, in one sentence.
    pub cause: String,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

json_records!(ShardRecord);

impl ShardRecord {
    /// The record of a new shard with this primary, at this epoch of its cluster.
    #[must_use]
    pub fn new(primary: &Address, epoch: Epoch) -> ShardRecord {
        ShardRecord {
            id: format!("{primary}@{epoch}"),
            lineage: 1,
            in_sync: BTreeSet::from([primary.clone()]),
            joining: BTreeSet::new(),
            established: false,
            succession: Succession::Agreed,
            recovering: false,
            waiting: None,
            extra: Extra::default(),
        }
    }

    /// Whether automation may promote this node.
    #[must_use]
    pub fn may_promote(&self, node: &Address) -> bool {
        self.in_sync.contains(node)
    }

    /// The replicas that must have a write of this primary before it is acknowledged with `acks: replica`: a superset of
    /// those that may be promoted, at any time.
    pub fn awaited<'s>(&'s self, primary: &'s Address) -> impl Iterator<Item = &'s Address> {
        self.in_sync.union(&self.joining).filter(move |node| *node != primary)
    }

    /// Whether no other node has as much data as this one.
    #[must_use]
    pub fn is_only(&self, node: &Address) -> bool {
        self.in_sync.iter().all(|member| member == node)
    }

    /// After a planned handover. The old primary stays a member: until the new one serves, it has everything.
    #[must_use]
    pub fn handed_over(&self, from: &Address, to: &Address) -> ShardRecord {
        let in_sync = BTreeSet::from([from.clone(), to.clone()]);
        ShardRecord {
            in_sync,
            joining: BTreeSet::new(),
            succession: Succession::Agreed,
            recovering: false,
            waiting: None,
            ..self.clone()
        }
    }

    /// After a member replaced a primary that was found dead. The others re-enter when they have caught up.
    #[must_use]
    pub fn succeeded_by(&self, to: &Address) -> ShardRecord {
        let in_sync = BTreeSet::from([to.clone()]);
        ShardRecord {
            in_sync,
            joining: BTreeSet::new(),
            succession: Succession::Forced,
            recovering: false,
            waiting: None,
            ..self.clone()
        }
    }

    /// After a node was made primary with data that was set aside on its host.
    #[must_use]
    pub fn recovered_by(&self, to: &Address) -> ShardRecord {
        ShardRecord { recovering: true, ..self.forked_to(to) }
    }

    /// After a node took over that is not known to have everything: history forks.
    #[must_use]
    pub fn forked_to(&self, to: &Address) -> ShardRecord {
        ShardRecord { lineage: self.lineage + 1, established: false, ..self.succeeded_by(to) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_forks_only_when_a_stranger_continues_it() {
        let (a, b): (Address, Address) = ("h:1".parse().unwrap(), "h:2".parse().unwrap());
        let shard = ShardRecord::new(&a, Epoch(7));
        assert!(shard.may_promote(&a) && !shard.may_promote(&b) && shard.is_only(&a));
        let planned = shard.handed_over(&a, &b);
        assert!(planned.may_promote(&a) && planned.may_promote(&b));
        assert_eq!((planned.lineage, planned.succession), (1, Succession::Agreed));
        let forced = planned.succeeded_by(&b);
        assert!(forced.is_only(&b));
        assert_eq!((forced.lineage, forced.succession, forced.id.as_str()), (1, Succession::Forced, "h:1@7"));
        assert_eq!(forced.forked_to(&a).lineage, 2);
        let served = ShardRecord { established: true, ..shard };
        assert!(served.handed_over(&a, &b).established && served.succeeded_by(&b).established);
        assert!(!served.forked_to(&b).established, "the next node begins empty");
    }
}
