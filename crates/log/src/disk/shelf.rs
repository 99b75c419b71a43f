//! Where are the entries of one log? On its shelf: segments in order, with what is in them.
//!
//! The writer changes a shelf; readers share it. A lock is held while places are looked up, never while data is read.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::BytesMut;

use super::checkpoint::SavedLog;
use super::error::{DiskError, DiskResult};
use super::files::Files;
use super::record::{self, Found, Header, Salt};
use super::segment::{self, SEGMENT_HEADER, Segment};
use crate::entry::{Entry, History, Offset};
use crate::keys::LogName;

/// Bytes beyond what was asked for that a read brings, so that it rarely ends inside of its first entry.
const READ_AHEAD: u64 = 64 * 1024;

/// One log on disk.
#[derive(Debug)]
pub struct Shelf {
    /// Names it in this directory.
    pub id: u64,
    /// Names it in the cluster.
    pub name: LogName,
    salt: Salt,
    dir: PathBuf,
    content: RwLock<Content>,
}

#[derive(Clone, Debug)]
struct Content {
    start: Offset,
    history: History,
    segments: Vec<Segment>,
}

/// A shelf as it was before a group, to go back to.
#[derive(Debug)]
pub struct Before {
    segments: usize,
    len: u64,
    history: History,
}

impl Shelf {
    /// An empty log that begins at the end of this history.
    pub fn new(dir: &Path, id: u64, name: LogName, history: History) -> Shelf {
        let start = history.end();
        let segments = vec![Segment::new(dir, id, start, 0)];
        let content = RwLock::new(Content { start, history, segments });
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
        let content = Content { start: saved.start, history: saved.history.clone(), segments };
        let salt = Salt::of(saved.name.as_ref());
        let content = RwLock::new(content);
        Shelf { id: saved.id, name: saved.name.clone(), salt, dir: dir.to_owned(), content }
    }

    fn content(&self) -> RwLockReadGuard<'_, Content> {
        self.content.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn content_mut(&self) -> RwLockWriteGuard<'_, Content> {
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

    /// First offset behind what was written.
    pub fn end(&self) -> Offset {
        self.content().history.end()
    }

    /// Everything that was written.
    pub fn history(&self) -> History {
        self.content().history.clone()
    }

    /// What the checkpoint says about this log.
    pub fn saved(&self) -> SavedLog {
        let content = self.content();
        let active = &content.segments[content.segments.len() - 1];
        SavedLog {
            id: self.id,
            name: self.name.clone(),
            start: content.start,
            active: active.base,
            bytes: active.len,
            history: content.history.clone(),
        }
    }

    /// The files that hold it.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.content().segments.iter().map(|segment| segment.path.clone()).collect()
    }

    /// What to go back to if what comes next does not become durable.
    pub fn mark(&self) -> Before {
        let content = self.content();
        let len = content.segments[content.segments.len() - 1].len;
        Before { segments: content.segments.len(), len, history: content.history.clone() }
    }

    /// Takes back what was appended since.
    pub fn back_to(&self, before: Before, files: &Files) -> DiskResult<()> {
        let mut content = self.content_mut();
        for extra in content.segments.drain(before.segments..) {
            files.remove(&extra.path)?;
        }
        let end = before.history.end();
        content.history = before.history;
        let last = content.segments.len() - 1;
        let active = &mut content.segments[last];
        active.len = before.len;
        active.forget(end);
        let file = files.get(&active.path)?;
        file.set_len(active.len).map_err(|error| DiskError::io(&active.path, &error))
    }

    /// Writes encoded records at the end, into a new segment if they would make the last one too long. Not durable.
    pub fn append(&self, records: &[u8], files: &Files, segment_bytes: u64) -> DiskResult<()> {
        let mut content = self.content_mut();
        let end = content.history.end();
        if Header::read(records).is_none_or(|first| first.offset != end) {
            return Err(DiskError::OutOfOrder { log: self.name.clone(), end });
        }
        let last = content.segments.len() - 1;
        let full = content.segments[last].len + records.len() as u64 > segment_bytes;
        if full && content.segments[last].len > SEGMENT_HEADER {
            content.segments.push(Segment::new(&self.dir, self.id, end, 0));
        }
        let last = content.segments.len() - 1;
        let Content { history, segments, .. } = &mut *content;
        let active = &mut segments[last];
        let file = files.get(&active.path)?;
        let broken = |error: std::io::Error| DiskError::io(&active.path, &error);
        if active.len == 0 {
            file.write_all_at(&segment::header(self.name.as_ref(), active.base), 0).map_err(broken)?;
            active.len = SEGMENT_HEADER;
        }
        file.write_all_at(records, active.len).map_err(|error| DiskError::io(&active.path, &error))?;
        let mut at = 0;
        while let Some(header) = Header::read(&records[at..]) {
            active.note(header.offset, active.len + at as u64);
            history.extend(header.epoch, 1);
            at += header.record_len();
        }
        active.len += records.len() as u64;
        Ok(())
    }

    /// Forgets everything from this offset on.
    pub fn cut(&self, from: Offset, files: &Files) -> DiskResult<()> {
        let mut content = self.content_mut();
        while content.segments.len() > 1 && content.segments[content.segments.len() - 1].base >= from {
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
        file.set_len(active.len).map_err(|error| DiskError::io(&active.path, &error))?;
        content.history.cut(from);
        Ok(())
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
        content.segments.push(Segment::new(&self.dir, self.id, start, 0));
        content.history = history;
        Ok(())
    }

    /// Removes its files.
    pub fn remove(&self, files: &Files) -> DiskResult<()> {
        self.paths().iter().try_for_each(|path| files.remove(path))
    }

    /// Makes the last file as long as it counts: what is behind it was never acknowledged. Answers how many bytes were
    /// missing, which is damage.
    pub fn trim(&self, files: &Files) -> DiskResult<u64> {
        let content = self.content();
        let active = &content.segments[content.segments.len() - 1];
        let there = std::fs::metadata(&active.path).map_or(0, |meta| meta.len());
        if there > active.len {
            let file = files.get(&active.path)?;
            file.set_len(active.len).map_err(|error| DiskError::io(&active.path, &error))?;
        }
        Ok(active.len.saturating_sub(there))
    }

    /// Entries from this offset on, checked: at least one if there is one, and about this many bytes.
    pub fn read(&self, from: Offset, max_bytes: usize, files: &Files) -> DiskResult<Vec<Entry>> {
        let (found, end, located, len) = {
            let content = self.content();
            if from < content.start {
                return Err(DiskError::Truncated { log: self.name.clone(), start: content.start });
            }
            if from >= content.history.end() {
                return Ok(Vec::new());
            }
            let after = content.segments.partition_point(|segment| segment.base <= from);
            let found = content.segments[after.saturating_sub(1)].around(from);
            let next = content.segments.get(after).map(|segment| segment.base);
            let len = found.len;
            (found, next.unwrap_or(content.history.end()), after.saturating_sub(1), len)
        };
        let file = files.get(&found.path)?;
        let place = found.locate(&file, self.salt, from)?;
        if !place.learned.is_empty() {
            self.teach(located, found.base, place.learned);
        }
        if place.offset < from {
            return Err(self.damaged(place.offset, "the entries behind it cannot be found"));
        }
        let wanted = (max_bytes as u64 + READ_AHEAD).min(len.saturating_sub(place.at));
        let entries = self.decode(&file, &found.path, place.at, wanted as usize, from, end, max_bytes)?;
        if !entries.is_empty() {
            return Ok(entries);
        }
        // One entry that is longer than what was asked for.
        let longest = (record::MAX_DATA + record::HEADER) as u64;
        let wanted = longest.min(len.saturating_sub(place.at)) as usize;
        let entries = self.decode(&file, &found.path, place.at, wanted, from, end, 1)?;
        if entries.is_empty() { Err(self.damaged(from, "the file ends inside of it")) } else { Ok(entries) }
    }

    #[expect(clippy::too_many_arguments, reason = "one read, described once")]
    fn decode(
        &self,
        file: &std::fs::File,
        path: &Path,
        at: u64,
        wanted: usize,
        from: Offset,
        end: Offset,
        max_bytes: usize,
    ) -> DiskResult<Vec<Entry>> {
        let mut buffer = BytesMut::zeroed(wanted);
        segment::read_at(file, path, &mut buffer, at)?;
        let buffer = buffer.freeze();
        let mut entries = Vec::with_capacity(wanted / 1024 + 1);
        let (mut next, mut offset) = (0, from);
        while offset < end && (entries.is_empty() || next < max_bytes) {
            match record::decode(&buffer, next, self.salt, offset) {
                Found::Entry(entry, behind) => {
                    entries.push(entry);
                    (next, offset) = (behind, offset.plus(1));
                }
                Found::Cut => break,
                Found::Damage(_) if !entries.is_empty() => break,
                Found::Damage(what) => return Err(self.damaged(offset, what)),
            }
        }
        Ok(entries)
    }

    fn damaged(&self, offset: Offset, what: &str) -> DiskError {
        DiskError::Damaged { log: self.name.clone(), offset, what: what.to_owned() }
    }

    fn teach(&self, index: usize, base: Offset, learned: Vec<(Offset, u64)>) {
        let mut content = self.content_mut();
        if let Some(segment) = content.segments.get_mut(index).filter(|segment| segment.base == base) {
            segment.learn(learned);
        }
    }

    /// Writes entries over the damaged ones in their place; the bytes of an entry are the same on every holder.
    pub fn repair(&self, entries: &[Entry], files: &Files) -> DiskResult<()> {
        let content = self.content();
        let mut touched = std::collections::BTreeSet::new();
        for entry in entries {
            if content.history.epoch_at(entry.offset) != Some(entry.epoch) || entry.offset < content.start {
                return Err(self.damaged(entry.offset, "what another holder has is a different entry"));
            }
            let after = content.segments.partition_point(|segment| segment.base <= entry.offset);
            let segment = &content.segments[after.saturating_sub(1)];
            let file = files.get(&segment.path)?;
            let place = segment.locate(&file, self.salt, entry.offset)?;
            let mut bytes = Vec::new();
            record::encode(&mut bytes, self.salt, entry);
            if place.offset != entry.offset || place.at + bytes.len() as u64 > segment.len {
                return Err(self.damaged(place.offset, "repair the entries before it first"));
            }
            file.write_all_at(&bytes, place.at).map_err(|error| DiskError::io(&segment.path, &error))?;
            touched.insert(segment.path.clone());
        }
        for path in touched {
            files.get(&path)?.sync_data().map_err(|error| DiskError::io(&path, &error))?;
        }
        Ok(())
    }

    /// Where each segment begins and how many bytes of it count.
    pub fn segments(&self) -> Vec<(Offset, u64)> {
        self.content().segments.iter().map(|segment| (segment.base, segment.len)).collect()
    }
}
