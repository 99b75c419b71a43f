//! Numbers of shards and copies.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::PlacementError;

/// One shard of a keyspace: a token of the document store, a slot of a Redis cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shard(u32);

impl Shard {
    /// The shard with this number, if it is below `count`.
    pub fn new(number: u64, count: ShardCount) -> Result<Self, PlacementError> {
        match u32::try_from(number) {
            Ok(n) if n < count.get() => Ok(Self(n)),
            Ok(_) | Err(_) => Err(PlacementError::NoSuchShard { shard: number, last: count.get() - 1 }),
        }
    }

    pub(crate) fn at(index: usize) -> Self {
        Self(index as u32)
    }

    /// Number of the shard, from 0.
    pub fn get(self) -> u32 {
        self.0
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many shards a keyspace has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct ShardCount(u32);

impl ShardCount {
    /// Four hexadecimal digits of token; plans take less than three seconds up to here.
    pub const MAX: u32 = 65_536;

    /// A count in `1..=ShardCount::MAX`.
    pub fn new(shards: u64) -> Result<Self, PlacementError> {
        match u32::try_from(shards) {
            Ok(n) if (1..=Self::MAX).contains(&n) => Ok(Self(n)),
            Ok(_) | Err(_) => Err(PlacementError::BadShardCount { shards, max: Self::MAX }),
        }
    }

    /// The count as a number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// All shards in order.
    pub fn shards(self) -> impl Iterator<Item = Shard> {
        (0..self.0).map(Shard)
    }
}

impl TryFrom<u64> for ShardCount {
    type Error = PlacementError;
    fn try_from(shards: u64) -> Result<Self, PlacementError> {
        Self::new(shards)
    }
}

impl From<ShardCount> for u64 {
    fn from(count: ShardCount) -> u64 {
        u64::from(count.0)
    }
}

/// The number of copies of each shard, including the primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Copies(u8);

impl Copies {
    /// The maximum; a larger number is a typing error.
    pub const MAX: u8 = 16;

    /// A number of copies in `1..=Copies::MAX`.
    pub fn new(copies: u64) -> Result<Self, PlacementError> {
        match u8::try_from(copies) {
            Ok(n) if (1..=Self::MAX).contains(&n) => Ok(Self(n)),
            Ok(_) | Err(_) => Err(PlacementError::BadCopies { copies, max: Self::MAX }),
        }
    }

    /// The number of copies.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<u64> for Copies {
    type Error = PlacementError;
    fn try_from(copies: u64) -> Result<Self, PlacementError> {
        Self::new(copies)
    }
}

impl From<Copies> for u64 {
    fn from(copies: Copies) -> u64 {
        u64::from(copies.0)
    }
}
