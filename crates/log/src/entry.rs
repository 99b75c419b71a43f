//! The content of a log: entries with an epoch and an offset, and the short history that distinguishes two copies.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A position in a log, counted from 0 without gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Offset(pub u64);

impl Offset {
    /// The first offset of every log.
    pub const ZERO: Offset = Offset(0);

    /// The offset this many entries later.
    #[must_use]
    pub fn plus(self, entries: usize) -> Offset {
        Offset(self.0.saturating_add(entries as u64))
    }

    /// The number of entries between an earlier offset and this one.
    #[must_use]
    pub fn since(self, earlier: Offset) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number of a primary's term; it only grows. Zero: nothing was written yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LogEpoch(pub u64);

impl LogEpoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> LogEpoch {
        LogEpoch(self.0 + 1)
    }
}

impl fmt::Display for LogEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Data appended by the owner.
    Data,
    /// The first entry of an epoch: empty, and not visible to readers.
    Begin,
}

/// One entry.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The epoch in which it was written.
    pub epoch: LogEpoch,
    /// Its position.
    pub offset: Offset,
    /// Its kind.
    pub kind: EntryKind,
    /// When the primary accepted it: milliseconds since 1970; zero if unknown.
    pub time: Duration,
    /// The appended bytes.
    pub data: Bytes,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({}@{}, {} bytes)", self.kind, self.offset, self.epoch, self.data.len())
    }
}

/// The epochs of a log with their first offsets. An epoch has one writer, so two copies with the same entry (epoch,
/// offset) have the same entries before it. Comparing these few numbers compares whole logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Each epoch with its first offset, oldest first.
    epochs: Vec<(LogEpoch, Offset)>,
    /// The offset after the newest entry.
    end: Offset,
}

impl History {
    /// The history of an empty log that begins at this offset.
    #[must_use]
    pub fn starting_at(end: Offset) -> History {
        History { epochs: Vec::new(), end }
    }

    /// The offset after the newest entry.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Each epoch with its first offset, oldest first.
    #[must_use]
    pub fn epochs(&self) -> &[(LogEpoch, Offset)] {
        &self.epochs
    }

    /// The history with these epochs and this end.
    #[must_use]
    pub fn from_parts(epochs: Vec<(LogEpoch, Offset)>, end: Offset) -> History {
        History { epochs, end }
    }

    /// The epoch of the entry at this offset, if there is one.
    #[must_use]
    pub fn epoch_at(&self, offset: Offset) -> Option<LogEpoch> {
        if offset >= self.end {
            return None;
        }
        self.epochs.iter().rev().find(|(_, first)| *first <= offset).map(|(epoch, _)| *epoch)
    }

    /// Whether an entry of this epoch can be at this offset. Pruned epochs are unknown, so any is possible there.
    #[must_use]
    pub fn may_have(&self, offset: Offset, epoch: LogEpoch) -> bool {
        self.epoch_at(offset).is_none_or(|known| known == epoch)
    }

    /// The epoch of the entry before this offset; zero at the beginning.
    #[must_use]
    pub fn epoch_before(&self, offset: Offset) -> Option<LogEpoch> {
        match offset.0 {
            0 => Some(LogEpoch(0)),
            at => self.epoch_at(Offset(at - 1)),
        }
    }

    /// The epoch of the newest entry.
    #[must_use]
    pub fn newest(&self) -> LogEpoch {
        self.epochs.last().map_or(LogEpoch(0), |(epoch, _)| *epoch)
    }

    /// Adds entries of one epoch at the end.
    pub fn extend(&mut self, epoch: LogEpoch, entries: usize) {
        if entries > 0 && self.newest() != epoch {
            self.epochs.push((epoch, self.end));
        }
        self.end = self.end.plus(entries);
    }

    /// Drops epochs that ended before this offset; the epoch of the entry before it is kept.
    pub fn prune(&mut self, start: Offset) {
        let needed = self.epochs.partition_point(|(_, first)| first.0 < start.0).saturating_sub(1);
        self.epochs.drain(..needed);
    }

    /// Drops every entry from this offset on.
    pub fn cut(&mut self, from: Offset) {
        self.end = self.end.min(from);
        while self.epochs.last().is_some_and(|(_, first)| *first >= self.end) {
            self.epochs.pop();
        }
    }

    /// The offset up to which two logs are equal.
    #[must_use]
    pub fn agreement(&self, other: &History) -> Offset {
        let shared = self.epochs.iter().enumerate().rev().find_map(|(index, (epoch, _))| {
            let there = other.epochs.iter().position(|(theirs, _)| theirs == epoch)?;
            Some(self.epoch_end(index).min(other.epoch_end(there)))
        });
        shared.unwrap_or(Offset::ZERO)
    }

    fn epoch_end(&self, index: usize) -> Offset {
        self.epochs.get(index + 1).map_or(self.end, |(_, first)| *first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(runs: &[(u64, usize)]) -> History {
        let mut history = History::default();
        runs.iter().for_each(|(epoch, entries)| history.extend(LogEpoch(*epoch), *entries));
        history
    }

    #[test]
    fn two_copies_agree_up_to_their_last_common_entry() {
        let old_primary = history(&[(1, 5), (2, 4)]);
        let new_primary = history(&[(1, 5), (2, 2), (3, 6)]);
        assert_eq!(old_primary.agreement(&new_primary), Offset(7));
        assert_eq!(new_primary.agreement(&old_primary), Offset(7));
        assert_eq!(history(&[(1, 3)]).agreement(&history(&[(2, 3)])), Offset(0));
        assert_eq!(history(&[]).agreement(&new_primary), Offset(0));
        assert_eq!(history(&[(1, 3)]).agreement(&history(&[(1, 9)])), Offset(3));
    }

    #[test]
    fn epochs_before_the_beginning_are_forgotten_and_agreement_stays() {
        let mut log = history(&[(1, 5), (2, 4), (3, 6)]);
        log.prune(Offset(5));
        assert_eq!(log.epoch_before(Offset(5)), Some(LogEpoch(1)));
        log.prune(Offset(6));
        assert_eq!((log.epochs().len(), log.epoch_before(Offset(6))), (2, Some(LogEpoch(2))));
        log.prune(Offset(15));
        assert_eq!((log.epochs().len(), log.newest()), (1, LogEpoch(3)));
        assert_eq!(log.agreement(&history(&[(1, 5), (2, 4), (3, 2)])), Offset(11));
        let mut empty = History::starting_at(Offset(4));
        empty.prune(Offset(4));
        assert_eq!(empty.end(), Offset(4));
    }

    #[test]
    fn a_cut_forgets_epochs_that_have_no_entry_left() {
        let mut log = history(&[(1, 5), (2, 4)]);
        log.cut(Offset(5));
        assert_eq!((log.end(), log.newest(), log.epoch_at(Offset(5))), (Offset(5), LogEpoch(1), None));
        log.extend(LogEpoch(3), 1);
        assert_eq!(log.epoch_at(Offset(5)), Some(LogEpoch(3)));
        assert_eq!(log.epoch_before(Offset(5)), Some(LogEpoch(1)));
        assert_eq!(log.epoch_before(Offset(0)), Some(LogEpoch(0)));
    }
}
