//! How are entries of a log read, and damaged ones overwritten? From the tail in memory or from a segment; each is
//! verified.

use bytes::BytesMut;
use capstan_disk::DiskFileExt as _;

use super::error::{DiskError, DiskResult};
use super::files::{File, Files};
use super::record::{self, Found};
use super::segment::{self, Segment};
use super::shelf::Shelf;
use super::tail::Chunk;
use crate::entry::{Entry, History, Offset};

/// Extra bytes per read, so that a read rarely ends inside its first entry.
const READ_AHEAD: u64 = 64 * 1024;

/// The location of the entries from an offset on.
enum Place {
    Nowhere,
    Memory(Vec<Chunk>),
    /// The segment, its number, the first offset after it, and the epochs of its entries.
    File(Segment, usize, Offset, History),
}

/// A part of a segment that is read at once.
struct Window {
    file: File,
    segment: Segment,
    history: History,
    at: u64,
    bytes: u64,
}

impl Shelf {
    /// Entries from this offset on, verified: at least one if there is one, and about this many bytes.
    pub fn read(&self, from: Offset, max_bytes: usize, files: &Files) -> DiskResult<Vec<Entry>> {
        match self.whereabouts(from, max_bytes)? {
            Place::Nowhere => Ok(Vec::new()),
            Place::Memory(chunks) => self.read_memory(&chunks, from, max_bytes),
            Place::File(segment, number, end, history) => {
                let read = self.read_file(segment, (number, history), from..end, max_bytes, files);
                // Truncated in between: the file is gone, which is not an error.
                read.or_else(|error| self.whereabouts(from, max_bytes).and(Err(error)))
            }
        }
    }

    fn whereabouts(&self, from: Offset, max_bytes: usize) -> DiskResult<Place> {
        let content = self.content();
        if from < content.start {
            return Err(DiskError::Truncated { log: self.name.clone(), start: content.start });
        }
        if from >= content.history.end() {
            return Ok(Place::Nowhere);
        }
        if from >= content.filled {
            return Ok(Place::Memory(content.tail.from(from, max_bytes)));
        }
        let after = content.segments.partition_point(|segment| segment.base <= from);
        let number = after.saturating_sub(1);
        let next = content.segments.get(after).map_or(content.filled, |segment| segment.base);
        Ok(Place::File(content.segments[number].around(from), number, next, content.history.clone()))
    }

    fn read_memory(&self, chunks: &[Chunk], from: Offset, max_bytes: usize) -> DiskResult<Vec<Entry>> {
        let mut entries = Vec::new();
        let (mut offset, mut bytes) = (from, 0);
        for chunk in chunks {
            let mut at = chunk.position(offset);
            while offset < chunk.end && (entries.is_empty() || bytes < max_bytes) {
                let Found::Entry(entry, next) = record::decode(&chunk.records, at, self.salt, offset) else {
                    return Err(self.damaged(offset, "it changed in memory"));
                };
                bytes += next - at;
                (at, offset) = (next, offset.plus(1));
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    fn read_file(
        &self,
        segment: Segment,
        (number, history): (usize, History),
        offsets: std::ops::Range<Offset>,
        max_bytes: usize,
        files: &Files,
    ) -> DiskResult<Vec<Entry>> {
        let file = files.get(&segment.path)?;
        let place = segment.locate(&*file, self.salt, offsets.start, &history)?;
        if !place.learned.is_empty() {
            self.teach(number, segment.base, place.learned);
        }
        if place.offset < offsets.start {
            return Err(self.damaged(place.offset, "the entries after it cannot be found"));
        }
        let left = segment.len.saturating_sub(place.at);
        let bytes = (max_bytes as u64 + READ_AHEAD).min(left);
        let mut window = Window { file, segment, history, at: place.at, bytes };
        let entries = self.decode(&window, &offsets, max_bytes)?;
        if !entries.is_empty() {
            return Ok(entries);
        }
        // One entry that is longer than the requested bytes. Its header says how long, and is verified with it.
        window.bytes = self.first_record(&window)?.min((record::MAX_DATA + record::HEADER) as u64).min(left);
        let entries = self.decode(&window, &offsets, 1)?;
        if entries.is_empty() {
            return Err(self.damaged(offsets.start, "the file ends inside it"));
        }
        Ok(entries)
    }

    /// The length of the record that a window begins with.
    fn first_record(&self, window: &Window) -> DiskResult<u64> {
        let mut header = [0; record::HEADER];
        segment::read_at(&*window.file, &window.segment.path, &mut header, window.at)?;
        Ok(record::Header::read(&header).map_or(0, |header| header.record_len() as u64))
    }

    fn decode(
        &self,
        window: &Window,
        offsets: &std::ops::Range<Offset>,
        max_bytes: usize,
    ) -> DiskResult<Vec<Entry>> {
        let mut buffer = BytesMut::zeroed(window.bytes as usize);
        segment::read_at(&*window.file, &window.segment.path, &mut buffer, window.at)?;
        let buffer = buffer.freeze();
        let mut entries = Vec::with_capacity(buffer.len() / 1024 + 1);
        let (mut next, mut offset) = (0, offsets.start);
        while offset < offsets.end && (entries.is_empty() || next < max_bytes) {
            match record::decode(&buffer, next, self.salt, offset) {
                Found::Entry(entry, behind) if window.history.may_have(offset, entry.epoch) => {
                    entries.push(entry);
                    (next, offset) = (behind, offset.plus(1));
                }
                Found::Entry(..) if !entries.is_empty() => break,
                Found::Entry(..) => return Err(self.damaged(offset, "its epoch was cut off")),
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

    /// Overwrites damaged entries in place; the bytes of an entry are the same on every holder. Entries that are not in
    /// a segment yet cannot be damaged there and are left alone.
    pub fn repair(&self, entries: &[Entry], files: &Files) -> DiskResult<()> {
        let content = self.content();
        let mut touched = std::collections::BTreeSet::new();
        for entry in entries.iter().take_while(|entry| entry.offset < content.filled) {
            if content.history.epoch_at(entry.offset) != Some(entry.epoch) || entry.offset < content.start {
                return Err(self.damaged(entry.offset, "another holder has a different entry"));
            }
            let after = content.segments.partition_point(|segment| segment.base <= entry.offset);
            let segment = &content.segments[after.saturating_sub(1)];
            let file = files.get(&segment.path)?;
            let place = segment.locate(&*file, self.salt, entry.offset, &content.history)?;
            let mut bytes = Vec::new();
            record::encode(&mut bytes, self.salt, entry);
            if place.offset != entry.offset || place.at + bytes.len() as u64 > segment.len {
                return Err(self.damaged(place.offset, "repair the entries before it first"));
            }
            file.write_all_at(&bytes, place.at).map_err(|error| DiskError::io(&segment.path, &error))?;
            touched.insert(segment.path.clone());
        }
        for path in touched {
            files.get(&path)?.sync().map_err(|error| DiskError::sync(&path, &error))?;
        }
        Ok(())
    }
}
