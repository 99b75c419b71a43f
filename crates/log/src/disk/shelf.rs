//! Where are the entries of one log? On its shelf: segments in order, followed by the tail in memory.
//!
//! The writer changes a shelf, the filler moves its tail into segments, readers share it. The lock is held while
//! positions are looked up, never while data is read.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::checkpoint::SavedLog;
use super::error::{DiskError, DiskResult};
use super::files::Files;
use super::record::Salt;
use super::segment::{self, Segment};
use super::tail::{Chunk, Tail};
use crate::config::Incarnation;
use crate::entry::{History, Offset};
use crate::keys::LogName;

/// One log on disk.
#[derive(Debug)]
pub struct Shelf {
    /// Its id in this directory.
    pub id: u64,
    /// Its name in the cluster.
    pub name: LogName,
    /// Distinguishes it from earlier logs of that name.
    pub incarnation: Incarnation,
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
    /// The entries from `filled` to the end of the history.
    pub(super) tail: Tail,
    /// The offset of the next append: after everything durable and in flight.
    placed: Offset,
    /// Whether acknowledged entries may be missing at the end: this copy must not count as complete.
    incomplete: bool,
    /// Whether the log was removed; then remaining references must not change anything.
    gone: bool,
    /// Everything before this offset is committed, and how much of that is in the journal.
    committed: Offset,
    journaled: Offset,
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
            committed: Offset::ZERO,
            journaled: Offset::ZERO,
        })
    }

    /// The segment that is written.
    pub(super) fn active(&self) -> &Segment {
        &self.segments[self.segments.len() - 1]
    }
}

impl Shelf {
    /// An empty log.
    pub fn new(dir: &Path, id: u64, name: LogName, incarnation: Incarnation) -> Shelf {
        let segments = vec![Segment::new(dir, id, Offset::ZERO, 0)];
        let content = Content::new(Offset::ZERO, History::default(), segments);
        Shelf { id, salt: Salt::of(name.as_ref()), name, incarnation, dir: dir.to_owned(), content }
    }

    /// A log as saved in the checkpoint, with the first offsets of the segments found.
    pub fn restore(dir: &Path, saved: &SavedLog, mut bases: Vec<Offset>, files: &Files) -> DiskResult<Shelf> {
        bases.retain(|base| *base < saved.active);
        bases.sort();
        let len_of = |base: &Offset| files.size(&dir.join(segment::file_name(saved.id, *base)));
        let mut segments = Vec::with_capacity(bases.len() + 1);
        for base in &bases {
            segments.push(Segment::new(dir, saved.id, *base, len_of(base)?));
        }
        segments.push(Segment::new(dir, saved.id, saved.active, saved.bytes));
        // A file that is shorter than recorded lost its end to a change that the journal will repeat, or to damage. New
        // records must not follow a hole.
        if len_of(&saved.active)? < saved.bytes {
            let end = saved.history.end();
            if end == saved.active {
                segments.pop();
            }
            segments.push(Segment::new(dir, saved.id, end, 0));
        }
        let mut content = Content::new(saved.start, saved.history.clone(), segments);
        let restored = content.get_mut().unwrap_or_else(PoisonError::into_inner);
        restored.incomplete = saved.incomplete;
        (restored.committed, restored.journaled) = (saved.committed, saved.committed);
        let (salt, incarnation) = (Salt::of(saved.name.as_ref()), saved.incarnation);
        let (id, name, dir) = (saved.id, saved.name.clone(), dir.to_owned());
        Ok(Shelf { id, name, incarnation, salt, dir, content })
    }

    pub(super) fn content(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn content_mut(&self) -> RwLockWriteGuard<'_, Content> {
        self.content.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The seed of this log's checksums.
    pub fn salt(&self) -> Salt {
        self.salt
    }

    /// The first offset that is still present.
    pub fn start(&self) -> Offset {
        self.content().start
    }

    /// The offset after the last durable entry.
    pub fn end(&self) -> Offset {
        self.content().history.end()
    }

    /// Everything that is durable.
    pub fn history(&self) -> History {
        self.content().history.clone()
    }

    /// This log's part of the checkpoint: what its segments hold.
    pub fn saved(&self) -> SavedLog {
        let content = self.content();
        let active = content.active();
        let mut history = content.history.clone();
        history.cut(content.filled);
        SavedLog {
            id: self.id,
            name: self.name.clone(),
            incarnation: self.incarnation,
            start: content.start,
            active: active.base,
            bytes: active.len,
            committed: content.committed.min(history.end()),
            history,
            incomplete: content.incomplete,
        }
    }

    /// The committed offset, as far as this disk has the entries.
    pub fn committed(&self) -> Offset {
        let content = self.content();
        content.committed.min(content.history.end())
    }

    /// Records that everything before this offset is committed; journaled with the next append.
    pub fn commit(&self, upto: Offset) {
        let mut content = self.content_mut();
        content.committed = content.committed.max(upto);
    }

    /// A committed offset that is not in the journal yet. Returned once.
    pub fn unjournaled(&self) -> Option<Offset> {
        let mut content = self.content_mut();
        let news = content.committed > content.journaled;
        content.journaled = content.committed;
        news.then_some(content.committed)
    }

    /// Whether acknowledged entries may be missing at the end.
    pub fn is_incomplete(&self) -> bool {
        self.content().incomplete
    }

    /// Sets whether acknowledged entries may be missing at the end.
    pub fn distrust(&self, incomplete: bool) {
        self.content_mut().incomplete = incomplete;
    }

    /// The file that is written.
    pub fn active_path(&self) -> PathBuf {
        self.content().active().path.clone()
    }

    /// Bytes in memory that are not in the segments.
    pub fn tail_bytes(&self) -> usize {
        self.content().tail.bytes()
    }

    /// Reserves these offsets for an append, if it continues everything durable and in flight.
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

    /// Cancels the reservations from this offset on.
    pub fn take_back(&self, from: Offset) {
        let mut content = self.content_mut();
        content.placed = content.placed.min(from);
    }

    /// The error for entries that do not continue the log.
    fn out_of_order(&self, end: Offset) -> DiskError {
        DiskError::OutOfOrder { log: self.name.clone(), end }
    }

    /// Adds journaled records; readers see them from now on.
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

    /// Drops everything from this offset on.
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
        let Content { segments, history, .. } = &mut *content;
        let Some(active) = segments.last_mut() else { return Ok(()) };
        let file = files.get_or_make(&active.path)?;
        let located = active.locate(&*file, self.salt, from, history)?;
        if active.len > 0 {
            active.len = located.at;
        }
        active.forget(from);
        file.set_size(active.len).map_err(|error| DiskError::io(&active.path, &error))
    }

    /// Drops whole segments before this offset; the beginning of the first one kept is only hidden.
    pub fn truncate(&self, before: Offset, files: &Files) -> DiskResult<()> {
        let mut content = self.content_mut();
        content.start = content.start.max(before.min(content.history.end()));
        let start = content.start;
        content.history.prune(start);
        while content.segments.len() > 1 && content.segments[1].base <= content.start {
            let gone = content.segments.remove(0);
            files.remove(&gone.path)?;
        }
        Ok(())
    }

    /// Drops everything and begins at the end of this history.
    pub fn reset(&self, history: History, files: &Files) -> DiskResult<()> {
        let mut content = self.content_mut();
        // In memory first: there is always a segment, even if a file cannot be removed.
        let start = history.end();
        let fresh = vec![Segment::new(&self.dir, self.id, start, 0)];
        let gone = std::mem::replace(&mut content.segments, fresh);
        content.start = start;
        content.committed = start;
        content.filled = start;
        content.placed = start;
        content.tail = Tail::default();
        content.history = history;
        gone.iter().try_for_each(|segment| files.remove(&segment.path))
    }

    /// Removes its files.
    pub fn remove(&self, files: &Files) -> DiskResult<()> {
        let mut content = self.content_mut();
        content.gone = true;
        content.tail = Tail::default();
        content.segments.iter().try_for_each(|segment| files.remove(&segment.path))
    }

    /// Cuts the last file to its valid length; the rest was never acknowledged. Returns how many bytes are missing
    /// there or in the file before, which is damage.
    pub fn trim(&self, files: &Files) -> DiskResult<u64> {
        let content = self.content();
        let active = content.active();
        let there = |segment: &Segment| files.size(&segment.path);
        if there(active)? > active.len {
            let file = files.get(&active.path)?;
            file.set_size(active.len).map_err(|error| DiskError::io(&active.path, &error))?;
        }
        let mut missing = 0;
        for segment in content.segments.iter().rev().take(2) {
            missing += segment.len.saturating_sub(there(segment)?);
        }
        Ok(missing)
    }

    /// The first offset and valid bytes of each segment.
    pub fn segments(&self) -> Vec<(Offset, u64)> {
        self.content().segments.iter().map(|segment| (segment.base, segment.len)).collect()
    }
}
