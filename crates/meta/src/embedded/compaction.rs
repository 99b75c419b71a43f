//! Which history may go, and when? Compaction forbids reading old revisions at once; memory and disk follow little by
//! little, when nobody is waiting.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Shared;
use super::engine::Fold;
use super::history::Change;
use crate::error::{MetaError, Result};
use crate::kv::Revision;

/// Changes trimmed from memory in one go: about a millisecond under the lock.
const TRIM_CHANGES: usize = 1000;

/// Changes folded on disk in one go when idle.
const FOLD_IDLE: usize = 2000;

/// Changes folded along with a group when the disk has fallen far behind.
const FOLD_BUSY: usize = 512;

/// Trimmed but unfolded changes that make folding urgent.
const FOLD_OVERDUE: usize = 100_000;

/// What has been compacted, and how far memory and disk have followed.
pub struct Compaction {
    compacted: Revision,
    /// Revisions kept when the store compacts by itself; zero: it does not.
    keep: u64,
    /// Changes gone from memory whose rows are still in the log on disk.
    unfolded: VecDeque<Arc<Change>>,
    /// How many of them the fold under way covers.
    folding: usize,
}

impl Compaction {
    /// Goes on from what was found on disk.
    pub fn new(compacted: Revision, keep: u64) -> Compaction {
        Compaction { compacted, keep, unfolded: VecDeque::new(), folding: 0 }
    }

    /// History before this may not be read.
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    /// The revision to compact at by itself, if there is clearly more history than wanted.
    pub fn due(&self, visible: Revision) -> Option<Revision> {
        let target = visible.0.saturating_sub(i64::try_from(self.keep).unwrap_or(i64::MAX));
        let slack = i64::try_from(self.keep / 10).unwrap_or(i64::MAX);
        (self.keep > 0 && target > self.compacted.0.max(1).saturating_add(slack)).then_some(Revision(target))
    }

    /// Forbids reading before a revision from now on.
    pub fn begin(&mut self, revision: Revision, visible: Revision) -> Result<()> {
        if revision <= self.compacted || revision.0 <= 0 {
            return Err(MetaError::Compacted { oldest: self.compacted });
        }
        if revision > visible {
            return Err(MetaError::FutureRevision);
        }
        self.compacted = revision;
        Ok(())
    }

    /// Drops some of what may go from memory. The compacted revision itself stays: a watch may begin there.
    pub fn trim(&mut self, shared: &Shared) -> Progress {
        let Ok(mut state) = shared.state_mut() else { return Progress::Done };
        let mut trimmed = 0;
        while trimmed < TRIM_CHANGES {
            let Some(change) = state.history.pop_before(self.compacted) else { return Progress::Done };
            change.events.iter().for_each(|event| state.tree.compact(&event.kv.key, self.compacted));
            trimmed += change.events.len();
            self.unfolded.push_back(change);
        }
        Progress::More
    }

    /// What to fold along with the next group, because it has waited too long.
    pub fn fold_if_overdue(&mut self) -> Option<Fold<'_>> {
        if self.unfolded.len() < FOLD_OVERDUE { None } else { self.fold(FOLD_BUSY) }
    }

    /// What to fold now that nobody waits.
    pub fn fold_when_idle(&mut self) -> Option<Fold<'_>> {
        self.fold(FOLD_IDLE)
    }

    fn fold(&mut self, at_most: usize) -> Option<Fold<'_>> {
        self.folding = self.unfolded.len().min(at_most);
        if self.folding == 0 {
            return None;
        }
        let changes = &self.unfolded.make_contiguous()[..self.folding];
        Some(Fold { changes })
    }

    /// The fold is on disk.
    pub fn folded(&mut self) {
        self.unfolded.drain(..self.folding);
        self.folding = 0;
    }
}

/// Whether there is more of the same to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Call again.
    More,
    /// Nothing is left.
    Done,
}
