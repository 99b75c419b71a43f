//! Which move is it? The identities of both sides of a move, and the claims of an announcement.

use capstan_control::epoch::Epoch;
use serde::{Deserialize, Serialize};

use crate::state::Move;
use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::{Claim, Entry};
use capstan_redis_protocol::slots::{Slot, SlotRange};

/// A range importing to a node of this host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ImportId {
    /// Which database.
    pub db: ClusterName,
    /// The target node.
    pub node: Address,
    /// The source proxy.
    pub from: Address,
    /// Which slots.
    pub range: SlotRange,
    /// The pairing of the move.
    pub pairing: Option<Epoch>,
}

/// Slots of a node of a database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Held {
    /// Which database.
    pub db: ClusterName,
    /// Which node.
    pub node: Address,
    /// Which slots.
    pub range: SlotRange,
}

/// The claims of an announcement about moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    pub leaving: Vec<Move>,
    pub coming: Vec<ImportId>,
    /// The ranges that this host serves, migrating or not.
    pub served: Vec<Held>,
}

impl Claims {
    pub(super) fn of(entries: &[Entry]) -> Claims {
        let mut claims = Claims::default();
        for entry in entries {
            let Entry { db, address: node, claim } = entry;
            let held = |range: &SlotRange| Held { db: db.clone(), node: node.clone(), range: *range };
            match claim {
                Claim::Stable(range) => claims.served.push(held(range)),
                Claim::Migrating { range, .. } => {
                    claims.served.push(held(range));
                    claims.leaving.extend(Move::of(entry));
                }
                Claim::Importing { from, range, pairing } => {
                    let (db, node, from) = (db.clone(), node.clone(), from.clone());
                    claims.coming.push(ImportId { db, node, from, range: *range, pairing: *pairing });
                }
            }
        }
        claims
    }

    /// Whether any slot of a range is served by the node or importing to it.
    pub(super) fn touches(&self, held: &Held) -> bool {
        let meets = |db: &ClusterName, node: &Address, range: SlotRange| {
            *db == held.db && *node == held.node && overlap(range, held.range)
        };
        self.served.iter().any(|it| meets(&it.db, &it.node, it.range))
            || self.coming.iter().any(|it| meets(&it.db, &it.node, it.range))
    }
}

/// Whether two ranges have a slot in common.
pub(super) fn overlap(one: SlotRange, other: SlotRange) -> bool {
    one.first() <= other.last() && other.first() <= one.last()
}

/// Whether a key belongs to a range.
#[inline]
pub(super) fn contains(range: SlotRange, key: &[u8]) -> bool {
    (range.first()..=range.last()).contains(&Slot::of(key).number())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u32, last: u32) -> SlotRange {
        SlotRange::new(first, last).unwrap()
    }

    #[test]
    fn claims_touch_what_they_overlap() {
        let (db, node): (ClusterName, Address) = ("demo".parse().unwrap(), "h:1".parse().unwrap());
        let entry = |claim| Entry { db: db.clone(), address: node.clone(), claim };
        let peer: Address = "h:2".parse().unwrap();
        let claims = Claims::of(&[
            entry(Claim::Stable(range(0, 9))),
            entry(Claim::Migrating { to: peer.clone(), range: range(10, 19), pairing: None }),
            entry(Claim::Importing { from: peer.clone(), range: range(30, 39), pairing: None }),
        ]);
        assert_eq!((claims.leaving.len(), claims.coming.len(), claims.served.len()), (1, 1, 2));
        for (first, last, touched) in
            [(0, 0, true), (19, 25, true), (20, 29, false), (29, 30, true), (40, 50, false)]
        {
            let held = Held { db: db.clone(), node: node.clone(), range: range(first, last) };
            assert_eq!(claims.touches(&held), touched, "{first}-{last}");
        }
        let elsewhere = Held { db: db.clone(), node: peer, range: range(0, 9) };
        assert!(!claims.touches(&elsewhere));
    }

    #[test]
    fn keys_are_in_the_range_of_their_slot() {
        assert!(contains(range(12182, 12182), b"{foo}x"));
        assert!(!contains(range(0, 12181), b"foo"));
    }
}
