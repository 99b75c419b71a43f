//! What is in a log: entries with an epoch and an offset, and the short history that tells two copies apart.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A place in a log, counted from 0 without gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Offset(pub u64);

impl Offset {
    /// Where every log begins.
    pub const ZERO: Offset = Offset(0);

    /// The offset so many entries further on.
    #[must_use]
    pub fn plus(self, entries: usize) -> Offset {
        Offset(self.0.saturating_add(entries as u64))
    }

    /// How many entries lie between an earlier offset and this one.
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

/// Numbers the primaries of a log; it only grows. Zero: nobody has written yet.
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

/// What an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// What somebody appended.
    Data,
    /// The first entry of an epoch: empty, and no reader is shown it.
    Begin,
}

/// One entry.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// In which epoch it was written.
    pub epoch: LogEpoch,
    /// Where it stands.
    pub offset: Offset,
    /// What it is for.
    pub kind: EntryKind,
    /// What was appended.
    pub data: Bytes,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({}@{}, {} bytes)", self.kind, self.offset, self.epoch, self.data.len())
    }
}

/// The epochs of a log and where each began. Two copies that have the same entry (epoch, offset) have the same
/// entries before it, because an epoch has one writer; so comparing these few numbers compares whole logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Each epoch with its first offset, oldest first.
    epochs: Vec<(LogEpoch, Offset)>,
    /// First offset behind the newest entry.
    end: Offset,
}

impl History {
    /// The history of a log that has no entries yet and begins at this offset.
    #[must_use]
    pub fn starting_at(end: Offset) -> History {
        History { epochs: Vec::new(), end }
    }

    /// First offset behind the newest entry.
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

    /// The epoch of the entry at this offset; nothing where there is no entry.
    #[must_use]
    pub fn epoch_at(&self, offset: Offset) -> Option<LogEpoch> {
        if offset >= self.end {
            return None;
        }
        self.epochs.iter().rev().find(|(_, first)| *first <= offset).map(|(epoch, _)| *epoch)
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

    /// Forgets every entry from this offset on.
    pub fn cut(&mut self, from: Offset) {
        self.end = self.end.min(from);
        while self.epochs.last().is_some_and(|(_, first)| *first >= self.end) {
            self.epochs.pop();
        }
    }

    /// Up to where two logs are the same.
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
