//! What keeps the past from overwriting the present? Epochs: numbers in records and messages that only grow.

use std::fmt;
use std::str::FromStr;

use capstan_meta::record::{Key, Stored};
use capstan_meta::{Compare, Put, Txn, text_records};
use serde::{Deserialize, Serialize};

/// How often something was decided anew. Zero is "never told".
///
/// Kept inside values and never taken from the store's revision: revisions start over when a store is restored from a
/// backup or replaced, and hosts remember epochs on their own disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

text_records!(Epoch);

/// What a receiver does with a message, by its epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// Newer than everything before: obey and remember it.
    Newer,
    /// What is known already: answer as if it had just been obeyed.
    Known,
    /// From the past: refuse it, and say what is known.
    Refused {
        /// The epoch that the receiver has.
        known: Epoch,
    },
}

impl Epoch {
    /// Nobody has decided anything yet.
    pub const NEVER_TOLD: Epoch = Epoch(0);

    /// The epoch of the next decision.
    #[must_use]
    pub fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }

    /// Whether anybody has ever been told.
    #[must_use]
    pub fn is_told(self) -> bool {
        self != Epoch::NEVER_TOLD
    }

    /// What a receiver that has this epoch does with a message of that epoch. A message that was "never told" is
    /// always refused.
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

/// A step of an epoch key from what was read to the next one. It only happens if nobody else stepped in between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bump {
    /// The epoch after it.
    pub to: Epoch,
    /// The epoch key is still as it was read.
    pub guard: Compare,
    /// Writes the new epoch.
    pub put: Put,
}

impl Bump {
    /// The next epoch of a key, from what was read there (nothing: it has never been told).
    pub fn of<K: Key<Record = Epoch>>(key: &K, seen: Option<&Stored<Epoch>>) -> Bump {
        let to = seen.map_or(Epoch::NEVER_TOLD, |seen| seen.record).next();
        Bump { to, guard: key.as_seen(seen), put: key.put(&to) }
    }

    /// Puts the step into the transaction with the change that it belongs to.
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
