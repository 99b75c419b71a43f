//! Which node owns which slot ranges?

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::SlotMove;
use super::cuts::Run;
use crate::cluster::Cluster;
use crate::error::PlacementError;
use crate::node::NodeName;

/// Slots of a Redis cluster.
pub const SLOTS: u16 = 16_384;

/// Consecutive slots, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Ends", into = "Ends")]
pub struct SlotRange {
    first: u16,
    last: u16,
}

#[derive(Serialize, Deserialize)]
struct Ends {
    first: u32,
    last: u32,
}

impl SlotRange {
    /// A range within the slots of a cluster, in ascending order.
    pub fn new(first: u32, last: u32) -> Result<Self, PlacementError> {
        if first > last || last >= u32::from(SLOTS) {
            return Err(PlacementError::BadSlotRange { first, last });
        }
        Ok(Self::trusted(first, last))
    }

    pub(super) fn trusted(first: u32, last: u32) -> Self {
        Self { first: first as u16, last: last as u16 }
    }

    /// First slot.
    pub fn first(self) -> u16 {
        self.first
    }

    /// Last slot.
    pub fn last(self) -> u16 {
        self.last
    }

    /// Number of slots: at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(self) -> u32 {
        u32::from(self.last) - u32::from(self.first) + 1
    }
}

impl fmt::Display for SlotRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

impl TryFrom<Ends> for SlotRange {
    type Error = PlacementError;
    fn try_from(ends: Ends) -> Result<Self, PlacementError> {
        Self::new(ends.first, ends.last)
    }
}

impl From<SlotRange> for Ends {
    fn from(range: SlotRange) -> Ends {
        Ends { first: range.first.into(), last: range.last.into() }
    }
}

/// Owned ranges in slot order, as long as possible; slots may have no owner.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<Owned>", into = "Vec<Owned>")]
pub struct SlotMap {
    ranges: Vec<(SlotRange, NodeName)>,
}

#[derive(Serialize, Deserialize)]
struct Owned {
    first: u32,
    last: u32,
    node: NodeName,
}

impl SlotMap {
    /// Sorts and joins the ranges; rejects a slot with two owners.
    pub fn new(ranges: impl IntoIterator<Item = (SlotRange, NodeName)>) -> Result<Self, PlacementError> {
        let mut ranges: Vec<_> = ranges.into_iter().collect();
        ranges.sort();
        for pair in ranges.windows(2) {
            if pair[1].0.first <= pair[0].0.last {
                let (one, other) = (pair[0].1.to_string(), pair[1].1.to_string());
                return Err(PlacementError::SlotOwnedTwice { slot: pair[1].0.first, one, other });
            }
        }
        Ok(Self::trusted(ranges))
    }

    pub(super) fn trusted(ranges: Vec<(SlotRange, NodeName)>) -> Self {
        let mut joined: Vec<(SlotRange, NodeName)> = Vec::with_capacity(ranges.len());
        for (range, owner) in ranges {
            match joined.last_mut() {
                Some((last, same))
                    if *same == owner && u32::from(last.last) + 1 == u32::from(range.first) =>
                {
                    last.last = range.last;
                }
                Some(_) | None => joined.push((range, owner)),
            }
        }
        Self { ranges: joined }
    }

    /// The ranges and their owners, in order of slot.
    pub fn ranges(&self) -> &[(SlotRange, NodeName)] {
        &self.ranges
    }

    /// Slots and ranges of each owner.
    pub(super) fn tally(&self) -> BTreeMap<&NodeName, (u32, u32)> {
        let mut tally: BTreeMap<&NodeName, (u32, u32)> = BTreeMap::new();
        for (range, owner) in &self.ranges {
            let entry = tally.entry(owner).or_default();
            *entry = (entry.0 + range.len(), entry.1 + 1);
        }
        tally
    }

    pub(super) fn check_owners(&self, cluster: &Cluster) -> Result<(), PlacementError> {
        match self.ranges.iter().find(|(_, owner)| cluster.node(owner).is_none()) {
            None => Ok(()),
            Some((range, owner)) => Err(PlacementError::UnknownSlotOwner {
                first: range.first,
                last: range.last,
                node: owner.to_string(),
            }),
        }
    }

    /// All slots as runs of one owner; an owner without a position counts as none.
    pub(super) fn runs(&self, position: impl Fn(&NodeName) -> Option<u32>) -> Vec<Run> {
        let mut runs = Vec::with_capacity(2 * self.ranges.len() + 1);
        let mut next = 0;
        let mut push = |len: u32, owner: Option<u32>| match runs.last_mut() {
            Some(Run { len: before, owner: same }) if *same == owner => *before += len,
            Some(_) | None if len > 0 => runs.push(Run { len, owner }),
            Some(_) | None => {}
        };
        for (range, owner) in &self.ranges {
            push(u32::from(range.first) - next, None);
            push(range.len(), position(owner));
            next = u32::from(range.last) + 1;
        }
        push(u32::from(SLOTS) - next, None);
        runs
    }

    fn owners(&self) -> Vec<Option<&NodeName>> {
        let mut owners = vec![None; usize::from(SLOTS)];
        for (range, owner) in &self.ranges {
            owners[usize::from(range.first)..=usize::from(range.last)].fill(Some(owner));
        }
        owners
    }

    pub(super) fn moves_to(&self, after: &SlotMap) -> Vec<SlotMove> {
        let (was, will) = (self.owners(), after.owners());
        let mut moves: Vec<SlotMove> = Vec::new();
        for (slot, (from, to)) in was.into_iter().zip(will).enumerate() {
            let Some(to) = to.filter(|_| from != to) else { continue };
            match moves.last_mut() {
                Some(last)
                    if usize::from(last.slots.last) + 1 == slot
                        && last.from.as_ref() == from
                        && last.to == *to =>
                {
                    last.slots.last += 1;
                }
                Some(_) | None => moves.push(SlotMove {
                    slots: SlotRange::trusted(slot as u32, slot as u32),
                    from: from.cloned(),
                    to: to.clone(),
                }),
            }
        }
        moves
    }
}

impl TryFrom<Vec<Owned>> for SlotMap {
    type Error = PlacementError;
    fn try_from(owned: Vec<Owned>) -> Result<Self, PlacementError> {
        let ranges = owned.into_iter().map(|o| Ok((SlotRange::new(o.first, o.last)?, o.node)));
        Self::new(ranges.collect::<Result<Vec<_>, PlacementError>>()?)
    }
}

impl From<SlotMap> for Vec<Owned> {
    fn from(map: SlotMap) -> Vec<Owned> {
        let owned = |(range, node): (SlotRange, NodeName)| Owned {
            first: range.first.into(),
            last: range.last.into(),
            node,
        };
        map.ranges.into_iter().map(owned).collect()
    }
}
