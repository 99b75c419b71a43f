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

/// The changes since the last compaction, without a gap.
#[derive(Debug)]
pub struct History {
    /// Revision of the first change held, or of the next one if none is.
    first: Revision,
    changes: VecDeque<Arc<Change>>,
}

impl History {
    /// An empty history that goes on with this revision.
    pub fn starting_at(first: Revision) -> History {
        History { first, changes: VecDeque::new() }
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
        self.changes.push_back(change);
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
        self.changes.pop_front()
    }
}
