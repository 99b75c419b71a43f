//! What keeps stale processes from overwriting newer state? Epochs: numbers in records and messages that only grow.

use std::fmt;
use std::str::FromStr;

use capstan_meta::record::{Key, Stored};
use capstan_meta::{Compare, Put, Txn, text_records};
use serde::{Deserialize, Serialize};

/// The number of a decision. Zero means "never set".
///
/// Stored in values and never derived from the store's revision: revisions start over when a store is restored or
/// replaced, and hosts keep epochs on their own disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

text_records!(Epoch);

/// How a receiver treats a message, by its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// Newer than everything before: apply and store it.
    Newer,
    /// The known epoch: answer as if it had just been applied.
    Known,
    /// Stale: refuse it and report the known epoch.
    Refused {
        /// The receiver's epoch.
        known: Epoch,
    },
}

impl Epoch {
    /// Nothing was decided yet.
    pub const NEVER_TOLD: Epoch = Epoch(0);

    /// The epoch of the next decision.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }

    /// Whether anything was ever decided.
    #[must_use]
    pub fn is_told(self) -> bool {
        self != Epoch::NEVER_TOLD
    }

    /// How a receiver with this epoch treats a message of the offered epoch. Epoch zero is always refused.
    #[must_use]
    pub fn accept(self, offered: Epoch) -> Acceptance {
        if offered > self {
            Acceptance::Newer
        } else if offered == self && offered.is_told() {
            Acceptance::Known
        } else {
            Acceptance::Refused { known: self }
        }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Epoch {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Epoch, Self::Err> {
        text.parse().map(Epoch)
    }
}

/// The increment of an epoch key. It fails if the key has changed since it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bump {
    /// The new epoch.
    pub to: Epoch,
    /// Compares the epoch key with what was read.
    pub guard: Compare,
    /// Writes the new epoch.
    pub put: Put,
}

impl Bump {
    /// The next epoch of a key, from its read value (`None`: never set).
    pub fn of<K: Key<Record = Epoch>>(key: &K, seen: Option<&Stored<Epoch>>) -> Bump {
        let to = seen.map_or(Epoch::NEVER_TOLD, |seen| seen.record).next();
        Bump { to, guard: key.as_seen(seen), put: key.put(&to) }
    }

    /// The same increment, but this many epochs further.
    #[must_use]
    pub fn further<K: Key<Record = Epoch>>(self, key: &K, skip: u64) -> Bump {
        let to = Epoch(self.to.0.saturating_add(skip));
        Bump { to, put: key.put(&to), guard: self.guard }
    }

    /// Adds the increment to the transaction of the change that it belongs to.
    #[must_use]
    pub fn within(self, txn: Txn) -> Txn {
        txn.when(self.guard).then(self.put)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_refuses_the_past_and_answers_the_known_again() {
        let known = Epoch(5);
        assert_eq!(known.accept(Epoch(6)), Acceptance::Newer);
        assert_eq!(known.accept(Epoch(5)), Acceptance::Known);
        assert_eq!(known.accept(Epoch(4)), Acceptance::Refused { known });
        assert_eq!(Epoch::NEVER_TOLD.accept(Epoch(1)), Acceptance::Newer);
        assert_eq!(Epoch::NEVER_TOLD.accept(Epoch(0)), Acceptance::Refused { known: Epoch(0) });
    }

    #[test]
    fn the_highest_epoch_does_not_wrap() {
        assert_eq!(Epoch(u64::MAX).next(), Epoch(u64::MAX));
    }
}
