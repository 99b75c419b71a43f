//! Which history may go, and when? Compaction forbids reading old revisions at once; memory follows little by little,
//! and the disk when it is worth a new base.

use super::history::History;
use super::{Options, Shared};
use crate::error::{MetaError, Result};
use crate::kv::Revision;

/// Events trimmed from memory in one go: about a millisecond under the lock.
const TRIM_EVENTS: usize = 1000;

/// What has been compacted, and how much history stays.
pub struct Compaction {
    compacted: Revision,
    /// Revisions kept when the store compacts by itself; zero: any number.
    keep_revisions: u64,
    /// Bytes kept when the store compacts by itself; zero: any number.
    keep_bytes: u64,
}

impl Compaction {
    /// Goes on from what was found on disk.
    pub fn new(compacted: Revision, options: &Options) -> Compaction {
        let keep_bytes = match (options.history_bytes, options.quota_bytes / QUOTA_FOR_HISTORY) {
            (wanted, 0) => wanted,
            (0, most) => most,
            (wanted, most) => wanted.min(most),
        };
        Compaction { compacted, keep_revisions: options.history, keep_bytes }
    }

    /// History before this may not be read.
    pub fn compacted(&self) -> Revision {
        self.compacted
    }

    /// The revision to compact at by itself, if there is clearly more history than wanted.
    pub fn due(&self, visible: Revision, history: &History) -> Option<Revision> {
        let kept = i64::try_from(self.keep_revisions).unwrap_or(i64::MAX);
        let by_count = (kept > 0).then(|| Revision(visible.0.saturating_sub(kept)));
        let by_count =
            by_count.filter(|target| target.0 > self.compacted.0.max(1).saturating_add(kept / SLACK));
        by_count.max(self.due_by_bytes(history)).filter(|target| *target > self.compacted)
    }

    /// The same for bytes alone: looked at before every group, because a few writes can fill the memory.
    pub fn due_by_bytes(&self, history: &History) -> Option<Revision> {
        let keep = self.keep_bytes;
        let excess = keep > 0 && history.bytes() > keep + keep / SLACK as u64;
        let target = excess.then(|| history.newest(keep)).flatten();
        target.filter(|target| *target > self.compacted)
    }

    /// Forbids reading before a revision; returns what was forbidden before.
    pub fn begin(&mut self, revision: Revision, visible: Revision) -> Result<Revision> {
        if revision <= self.compacted || revision.0 <= 0 {
            return Err(MetaError::Compacted { oldest: self.compacted });
        }
        if revision > visible {
            return Err(MetaError::FutureRevision);
        }
        Ok(std::mem::replace(&mut self.compacted, revision))
    }

    /// A compaction did not become durable.
    pub fn take_back(&mut self, before: Revision) {
        self.compacted = before;
    }

    /// Drops some of what may go from memory. The compacted revision itself stays: a watch may begin there.
    pub fn trim(&mut self, shared: &Shared) -> Progress {
        let Ok(mut state) = shared.state_mut() else { return Progress::Done };
        let mut trimmed = 0;
        while trimmed < TRIM_EVENTS {
            let Some(events) = state.trim_one() else { return Progress::Done };
            trimmed += events;
        }
        Progress::More
    }
}

/// The share of the quota that history may take: a quarter.
const QUOTA_FOR_HISTORY: u64 = 4;

/// History may exceed what is kept by a tenth before it is compacted.
const SLACK: i64 = 10;

/// Whether there is more of the same to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Call again.
    More,
    /// Nothing is left.
    Done,
}
