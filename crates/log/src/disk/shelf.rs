//! Where are the entries of one log? On its shelf: segments in order, and behind them the tail that is in memory.
//!
//! The writer changes a shelf, the filler moves its tail into segments, readers share it. A lock is held while places
//! are looked up, never while data is read.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::checkpoint::SavedLog;
use super::error::{DiskError, DiskResult};
use super::files::Files;
use super::record::Salt;
use super::segment::{self, Segment};
use super::tail::{Chunk, Tail};
use crate::entry::{History, Offset};
use crate::keys::LogName;

/// One log on disk.
#[derive(Debug)]
pub struct Shelf {
    /// Names it in this directory.
    pub id: u64,
    /// Names it in the cluster.
    pub name: LogName,
    pub(super) salt: Salt,
    pub(super) dir: PathBuf,
    content: RwLock<Content>,
}

#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) start: Offset,
    /// Everything that is durable, in segments or in the journal.
    pub(super) history: History,
    pub(super) segments: Vec<Segment>,
    /// The end of what the segments hold.
    pub(super) filled: Offset,
    /// What follows: from `filled` to the end of the history.
    pub(super) tail: Tail,
    /// Where the next append belongs: behind what is durable and what is on its way.
    placed: Offset,
    /// Entries that were acknowledged may be missing at the end: this copy must not count as complete.
    incomplete: bool,
    /// The log was removed; whoever still holds the shelf changes nothing any more.
    gone: bool,
}

impl Content {
    fn new(start: Offset, history: History, segments: Vec<Segment>) -> RwLock<Content> {
        let filled = history.end();
        RwLock::new(Content {
            start,
            history,
            segments,
            filled,
            tail: Tail::default(),
            placed: filled,
            incomplete: false,
            gone: false,
        })
    }

    /// The segment that is written to.
    pub(super) fn active(&self) -> &Segment {
        &self.segments[self.segments.len() - 1]
    }
}

impl Shelf {
    /// An empty log that begins at the end of this history.
    pub fn new(dir: &Path, id: u64, name: LogName, history: History) -> Shelf {
        let start = history.end();
        let segments = vec![Segment::new(dir, id, start, 0)];
        let content = Content::new(start, history, segments);
        Shelf { id, salt: Salt::of(name.as_ref()), name, dir: dir.to_owned(), content }
    }

    /// A log as it was saved, with the first offsets of the segments that were found.
    pub fn restore(dir: &Path, saved: &SavedLog, mut bases: Vec<Offset>) -> Shelf {
        bases.retain(|base| *base < saved.active);
        bases.sort();
        let len_of = |base: &Offset| {
            std::fs::metadata(dir.join(segment::file_name(saved.id, *base))).map_or(0, |meta| meta.len())
        };
        let mut segments: Vec<Segment> =
            bases.iter().map(|base| Segment::new(dir, saved.id, *base, len_of(base))).collect();
        segments.push(Segment::new(dir, saved.id, saved.active, saved.bytes));
        // A file that is shorter than it was lost its end to a change that the journal will repeat, or to damage. What
        // comes now must not be written behind a hole.
        if len_of(&saved.active) < saved.bytes {
            let end = saved.history.end();
            if end == saved.active {
                segments.pop();
            }
            segments.push(Segment::new(dir, saved.id, end, 0));
        }
        let mut content = Content::new(saved.start, saved.history.clone(), segments);
        content.get_mut().unwrap_or_else(PoisonError::into_inner).incomplete = saved.incomplete;
        let salt = Salt::of(saved.name.as_ref());
        Shelf { id: saved.id, name: saved.name.clone(), salt, dir: dir.to_owned(), content }
    }

    pub(super) fn content(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn content_mut(&self) -> RwLockWriteGuard<'_, Content> {
        self.content.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the checksums of this log are mixed with.
    pub fn salt(&self) -> Salt {
        self.salt
    }

    /// First offset that is still there.
    pub fn start(&self) -> Offset {
        self.content().start
    }

    /// First offset behind what is durable.
    pub fn end(&self) -> Offset {
        self.content().history.end()
    }

    /// Everything that is durable.
    pub fn history(&self) -> History {
        self.content().history.clone()
    }

    /// What the checkpoint says about this log: what its segments hold.
    pub fn saved(&self) -> SavedLog {
        let content = self.content();
        let active = content.active();
        let mut history = content.history.clone();
        history.cut(content.filled);
        SavedLog {
            id: self.id,
            name: self.name.clone(),
            start: content.start,
            active: active.base,
            bytes: active.len,
            history,
            incomplete: content.incomplete,
        }
    }

    /// Whether entries that were acknowledged may be missing at the end.
    pub fn is_incomplete(&self) -> bool {
        self.content().incomplete
    }

    /// Says whether entries that were acknowledged may be missing at the end.
    pub fn distrust(&self, incomplete: bool) {
        self.content_mut().incomplete = incomplete;
    }

    /// The file that is written to.
    pub fn active_path(&self) -> PathBuf {
        self.content().active().path.clone()
    }

    /// Bytes in memory that are not in the segments.
    pub fn tail_bytes(&self) -> usize {
        self.content().tail.bytes()
    }

    /// Lets an append have these offsets, if it follows on everything that is there or on its way.
    pub fn place(&self, offsets: &std::ops::Range<Offset>) -> DiskResult<()> {
        let mut content = self.content_mut();
        if content.gone {
            return Err(DiskError::NoSuchLog);
        }
        if offsets.start != content.placed || offsets.is_empty() {
            return Err(self.out_of_order(content.placed));
        }
        content.placed = offsets.end;
        Ok(())
    }

    /// What was placed from this offset on will not come.
    pub fn take_back(&self, from: Offset) {
        let mut content = self.content_mut();
        content.placed = content.placed.min(from);
    }

    /// Entries that belong somewhere else.
    fn out_of_order(&self, end: Offset) -> DiskError {
        DiskError::OutOfOrder { log: self.name.clone(), end }
    }

    /// Adds records that the journal has; from now on they are read.
    pub fn publish(&self, chunk: Chunk) -> DiskResult<()> {
        let mut content = self.content_mut();
        let end = content.history.end();
        if chunk.first != end {
            return Err(self.out_of_order(end));
        }
        for (_, epoch, _) in chunk.entries() {
            content.history.extend(epoch, 1);
        }
        content.placed = content.placed.max(chunk.end);
        content.tail.push(chunk);
        Ok(())
    }

    /// Forgets everything from this offset on.
    pub fn cut(&self, from: Offset, files: &Files) -> DiskResult<()> {
        let mut content = self.content_mut();
        content.tail.cut(from);
        content.history.cut(from);
        content.placed = content.history.end();
        if from >= content.filled {
            return Ok(());
        }
        content.filled = from;
        while content.segments.len() > 1 && content.active().base >= from {
            if let Some(gone) = content.segments.pop() {
                files.remove(&gone.path)?;
            }
        }
        let last = content.segments.len() - 1;
        let active = &mut content.segments[last];
        let file = files.get(&active.path)?;
        let located = active.locate(&file, self.salt, from)?;
        if active.len > 0 {
            active.len = located.at;
        }
        active.forget(from);
        file.set_len(active.len).map_err(|error| DiskError::io(&active.path, &error))
    }

    /// Drops whole segments before this offset; the rest of the first one that is kept is only hidden.
    pub fn truncate(&self, before: Offset, files: &Files) -> DiskResult<()> {
        let mut content = self.content_mut();
        content.start = content.start.max(before.min(content.history.end()));
        while content.segments.len() > 1 && content.segments[1].base <= content.start {
            let gone = content.segments.remove(0);
            files.remove(&gone.path)?;
        }
        Ok(())
    }

    /// Forgets everything and begins at the end of this history.
    pub fn reset(&self, history: History, files: &Files) -> DiskResult<()> {
        let mut content = self.content_mut();
        for segment in content.segments.drain(..) {
            files.remove(&segment.path)?;
        }
        let start = history.end();
        content.start = start;
        content.filled = start;
        content.placed = start;
        content.tail = Tail::default();
        content.segments.push(Segment::new(&self.dir, self.id, start, 0));
        content.history = history;
        Ok(())
    }

    /// Removes its files.
    pub fn remove(&self, files: &Files) -> DiskResult<()> {
        let mut content = self.content_mut();
        content.gone = true;
        content.tail = Tail::default();
        content.segments.iter().try_for_each(|segment| files.remove(&segment.path))
    }

    /// Makes the last file as long as it counts: what is behind it was never acknowledged. Answers how many bytes were
    /// missing there or in the file before, which is damage.
    pub fn trim(&self, files: &Files) -> DiskResult<u64> {
        let content = self.content();
        let active = content.active();
        let there = |segment: &Segment| std::fs::metadata(&segment.path).map_or(0, |meta| meta.len());
        if there(active) > active.len {
            let file = files.get(&active.path)?;
            file.set_len(active.len).map_err(|error| DiskError::io(&active.path, &error))?;
        }
        let last = content.segments.iter().rev().take(2);
        Ok(last.map(|segment| segment.len.saturating_sub(there(segment))).sum())
    }

    /// Where each segment begins and how many bytes of it count.
    pub fn segments(&self) -> Vec<(Offset, u64)> {
        self.content().segments.iter().map(|segment| (segment.base, segment.len)).collect()
    }
}
