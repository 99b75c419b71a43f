//! What changed in which revision, in order, since the last compaction: what a watch replays.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::kv::Revision;
use crate::request::Event;

/// All changes of one revision, each with the version before it.
#[derive(Debug)]
pub struct Change {
    /// The revision.
    pub revision: Revision,
    /// What it changed, in order.
    pub events: Box<[Event]>,
}

impl Change {
    /// About how much memory it keeps.
    pub fn cost(&self) -> u64 {
        self.events.iter().map(|event| event.kv.cost()).sum()
    }
}

/// The changes since the last compaction, without a gap.
#[derive(Debug)]
pub struct History {
    /// Revision of the first change held, or of the next one if none is.
    first: Revision,
    changes: VecDeque<Arc<Change>>,
    /// What all of them keep.
    bytes: u64,
}

impl History {
    /// An empty history that goes on with this revision.
    pub fn starting_at(first: Revision) -> History {
        History { first, changes: VecDeque::new(), bytes: 0 }
    }

    /// The oldest revision held, or the next one if none is.
    pub fn first(&self) -> Revision {
        self.first
    }

    /// Adds the next revision. Revisions are consecutive; the caller made this one from the last.
    pub fn push(&mut self, change: Arc<Change>) {
        debug_assert_eq!(
            change.revision.0,
            self.first.0 + self.changes.len() as i64,
            "revisions are consecutive"
        );
        self.bytes += change.cost();
        self.changes.push_back(change);
    }

    /// About how much memory it keeps.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The oldest revision from which on the history keeps no more than this.
    pub fn newest(&self, bytes: u64) -> Option<Revision> {
        let mut excess = self.bytes.saturating_sub(bytes);
        let kept = self.changes.iter().find(|change| {
            let goes = excess > 0;
            excess = excess.saturating_sub(change.cost());
            !goes
        });
        kept.or(self.changes.back()).map(|change| change.revision)
    }

    /// The changes from a revision on, at most so many.
    pub fn from(&self, revision: Revision, at_most: usize) -> impl Iterator<Item = &Arc<Change>> {
        let skip = usize::try_from(revision.0 - self.first.0).unwrap_or(0);
        self.changes.range(skip.min(self.changes.len())..).take(at_most)
    }

    /// Drops the oldest change if it is before this revision, and hands it out.
    pub fn pop_before(&mut self, revision: Revision) -> Option<Arc<Change>> {
        if self.changes.front()?.revision >= revision {
            return None;
        }
        self.first = self.first.next();
        let oldest = self.changes.pop_front()?;
        self.bytes -= oldest.cost();
        Some(oldest)
    }
}
