//! Which nodes hold which shard, and which one is its primary?

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::error::PlacementError;
use crate::node::NodeName;
use crate::shard::{Shard, ShardCount};

/// The holders of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Placement {
    /// The holder that takes writes; `None` while the shard has no holder.
    pub primary: Option<NodeName>,
    /// Every node with a complete copy, including the primary, sorted by name.
    pub holders: Vec<NodeName>,
}

/// The holders of every shard: the value that services store and planners compare.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Entry>", into = "Vec<Entry>")]
pub struct Assignment {
    shards: Vec<Placement>,
}

/// One shard of an assignment in its serialised form.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    shard: u32,
    primary: Option<NodeName>,
    holders: Vec<NodeName>,
}

impl Assignment {
    /// An assignment without holders.
    pub fn empty(count: ShardCount) -> Self {
        Self { shards: vec![Placement::default(); count.get() as usize] }
    }

    /// One placement per shard, in order; rejects duplicate holders and a primary without a copy.
    pub fn new(placements: Vec<Placement>) -> Result<Self, PlacementError> {
        ShardCount::new(placements.len() as u64)?;
        let shards = placements
            .into_iter()
            .enumerate()
            .map(|(number, placement)| checked(number as u32, placement))
            .collect::<Result<_, _>>()?;
        Ok(Self { shards })
    }

    pub(crate) fn trusted(shards: Vec<Placement>) -> Self {
        Self { shards }
    }

    /// The number of shards.
    pub fn count(&self) -> u32 {
        self.shards.len() as u32
    }

    /// The placement of one shard; `None` beyond the last shard.
    pub fn get(&self, shard: Shard) -> Option<&Placement> {
        self.shards.get(shard.index())
    }

    /// Every shard with its placement, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Shard, &Placement)> {
        self.shards.iter().enumerate().map(|(number, placement)| (Shard::at(number), placement))
    }

    pub(crate) fn into_placements(self) -> Vec<Placement> {
        self.shards
    }

    pub(crate) fn placements(&self) -> &[Placement] {
        &self.shards
    }

    /// Copies and primaries of every node that holds something.
    pub fn tally(&self) -> BTreeMap<&NodeName, Tally> {
        // Hashed while counting, sorted once: names are long and copies are many.
        let mut tally: HashMap<&NodeName, Tally> = HashMap::new();
        for placement in &self.shards {
            for holder in &placement.holders {
                tally.entry(holder).or_default().copies += 1;
            }
            if let Some(primary) = &placement.primary {
                tally.entry(primary).or_default().primaries += 1;
            }
        }
        tally.into_iter().collect()
    }
}

/// The copies of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// Copies, including primaries.
    pub copies: u32,
    /// Shards that it is primary of.
    pub primaries: u32,
}

fn checked(shard: u32, mut placement: Placement) -> Result<Placement, PlacementError> {
    placement.holders.sort();
    if let Some(pair) = placement.holders.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(PlacementError::DuplicateHolder { shard, node: pair[0].to_string() });
    }
    match &placement.primary {
        Some(primary) if placement.holders.binary_search(primary).is_err() => {
            Err(PlacementError::PrimaryHoldsNothing { shard, node: primary.to_string() })
        }
        Some(_) | None => Ok(placement),
    }
}

impl TryFrom<Vec<Entry>> for Assignment {
    type Error = PlacementError;

    fn try_from(entries: Vec<Entry>) -> Result<Self, PlacementError> {
        for (expected, entry) in (0u32..).zip(&entries) {
            if entry.shard != expected {
                return Err(PlacementError::ShardOutOfOrder { expected, found: entry.shard });
            }
        }
        Self::new(entries.into_iter().map(|e| Placement { primary: e.primary, holders: e.holders }).collect())
    }
}

impl From<Assignment> for Vec<Entry> {
    fn from(assignment: Assignment) -> Vec<Entry> {
        (0u32..)
            .zip(assignment.shards)
            .map(|(shard, p)| Entry { shard, primary: p.primary, holders: p.holders })
            .collect()
    }
}
