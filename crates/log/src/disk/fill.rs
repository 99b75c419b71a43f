//! How do entries get from the journal into the segments? In the background and in large writes: one per log, instead
//! of one per append.
//!
//! Two threads: the filler writes tails into segments, which frees memory; the flusher syncs the filled segments and
//! writes the checkpoint, which frees the journal.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use capstan_disk::DiskFileExt as _;

use super::checkpoint::Checkpoint;
use super::error::{DiskError, DiskResult};
use super::files::{Files, Fs, sync_dir};
use super::segment::{self, SEGMENT_HEADER, Segment};
use super::shelf::Shelf;
use super::tail::Chunk;
use crate::entry::Offset;

/// Bytes per write to a segment: large enough to be sequential, small enough to be copied together first.
const STRETCH_BYTES: usize = 4 * 1024 * 1024;

/// A report of a background thread.
#[derive(Debug)]
pub enum Report {
    /// The filler finished a fill, or failed in the middle of it.
    Filled(Filled),
    /// A checkpoint was written, or failed.
    Flushed(Flush, DiskResult<()>),
}

/// Tails to be moved into segments: everything in the journal before a group.
#[derive(Debug)]
pub struct Fill {
    /// The first group that is not included.
    pub before: u64,
    /// The logs, and the offset up to which each is filled.
    pub logs: Vec<(Arc<Shelf>, Offset)>,
}

/// The result of a fill.
#[derive(Debug)]
pub struct Filled {
    /// The first group that was not included.
    pub before: u64,
    /// Bytes written to segments.
    pub bytes: usize,
    /// The files that were written and not synced.
    pub touched: BTreeSet<PathBuf>,
    /// Logs that may have a tail left.
    pub unfinished: Vec<u64>,
    /// Whether the fill was completed.
    pub outcome: DiskResult<()>,
}

impl Filled {
    fn nothing_yet(before: u64) -> Filled {
        Filled { before, bytes: 0, touched: BTreeSet::new(), unfinished: Vec::new(), outcome: Ok(()) }
    }
}

/// A checkpoint to be made: the files to sync, then the checkpoint to write.
#[derive(Debug)]
pub struct Flush {
    pub(super) checkpoint: Checkpoint,
    pub(super) paths: BTreeSet<PathBuf>,
}

/// The state for writing into segments.
#[derive(Debug)]
pub struct Pen {
    files: Arc<Files>,
    segment_bytes: u64,
    /// Where chunks are copied together; reused.
    buffer: Vec<u8>,
}

impl Pen {
    /// A pen that writes to these files, in segments of this length.
    #[must_use]
    pub fn new(files: &Arc<Files>, segment_bytes: u64) -> Pen {
        Pen { files: Arc::clone(files), segment_bytes, buffer: Vec::new() }
    }
}

impl Fill {
    /// Writes until all is done or something fails.
    pub fn perform(&self, pen: &mut Pen) -> Filled {
        let mut filled = Filled::nothing_yet(self.before);
        for (number, (shelf, upto)) in self.logs.iter().enumerate() {
            filled.outcome = shelf.fill(*upto, pen, &mut filled);
            if filled.outcome.is_err() {
                filled.unfinished = self.logs[number..].iter().map(|(shelf, _)| shelf.id).collect();
                break;
            }
        }
        filled
    }
}

/// Consecutive chunks that go into one segment.
struct Stretch {
    path: PathBuf,
    base: Offset,
    /// The position in the segment; zero in a new one.
    at: u64,
    chunks: Vec<Chunk>,
}

impl Shelf {
    /// Moves the tail before this offset into the segments. Not durable there: the journal still has it.
    fn fill(&self, upto: Offset, pen: &mut Pen, filled: &mut Filled) -> DiskResult<()> {
        while let Some(stretch) = self.next_stretch(upto, pen.segment_bytes) {
            stretch.write(self.name.as_ref(), pen)?;
            filled.bytes += stretch.bytes();
            filled.touched.insert(stretch.path.clone());
            self.settle(stretch);
        }
        Ok(())
    }

    /// The next chunks to write, in the active segment or in a new one. A new segment is on the shelf before its file is
    /// written: what a failed write leaves behind is then written again or dropped like any segment. A file that is not
    /// on the shelf would be taken for a segment when the directory is opened again.
    fn next_stretch(&self, upto: Offset, segment_bytes: u64) -> Option<Stretch> {
        let mut content = self.content_mut();
        let first = content.tail.upto(upto).next()?.clone();
        let (len, bytes) = (content.active().len, first.records.len() as u64);
        if len > SEGMENT_HEADER && len + bytes > segment_bytes {
            content.segments.push(Segment::new(&self.dir, self.id, first.first, 0));
        }
        let active = content.active();
        let (path, base, at) = (active.path.clone(), active.base, active.len);
        let mut len = at.max(SEGMENT_HEADER);
        let most = segment_bytes.min(len + STRETCH_BYTES as u64);
        let fits = |chunk: &&Chunk| {
            len += chunk.records.len() as u64;
            len <= most || chunk.first == first.first
        };
        let chunks = content.tail.upto(upto).take_while(fits).cloned().collect();
        Some(Stretch { path, base, at, chunks })
    }

    /// Makes readers use the segment for the written stretch.
    fn settle(&self, stretch: Stretch) {
        let mut content = self.content_mut();
        let last = content.segments.len() - 1;
        let active = &mut content.segments[last];
        active.len = active.len.max(SEGMENT_HEADER);
        for chunk in &stretch.chunks {
            for (offset, _, at) in chunk.entries() {
                active.note(offset, active.len + at as u64);
            }
            active.len += chunk.records.len() as u64;
        }
        if let Some(last) = stretch.chunks.last() {
            content.filled = last.end;
            content.tail.release(last.end);
        }
    }
}

impl Stretch {
    fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.records.len()).sum()
    }

    fn write(&self, name: &str, pen: &mut Pen) -> DiskResult<()> {
        pen.buffer.clear();
        if self.at == 0 {
            pen.buffer.extend_from_slice(&segment::header(name, self.base));
        }
        self.chunks.iter().for_each(|chunk| pen.buffer.extend_from_slice(&chunk.records));
        let file = pen.files.get_or_make(&self.path)?;
        file.write_all_at(&pen.buffer, self.at).map_err(|error| {
            // A partial write does not count; its space is freed.
            file.set_size(self.at).ok();
            DiskError::io(&self.path, &error)
        })
    }
}

impl Flush {
    /// Syncs the files, then writes the checkpoint. A full disk can only prevent the checkpoint: the files are complete,
    /// and it can be tried again.
    pub fn perform(&self, fs: &Fs, dir: &Path) -> DiskResult<()> {
        let segments = super::segments_dir(dir);
        let paths: Vec<&Path> = self.paths.iter().map(PathBuf::as_path).collect();
        fs.sync_files(&segments, &paths).map_err(|error| DiskError::sync(&segments, &error))?;
        sync_dir(fs, &segments)?;
        self.checkpoint.save(fs, dir)
    }
}

/// Fills segments until the writer is gone. Blocking: runs on its own thread.
pub fn fill_all(mut pen: Pen, fills: &Receiver<Fill>, reports: &SyncSender<Report>) {
    while let Ok(fill) = fills.recv() {
        let filled = fill.perform(&mut pen);
        if reports.send(Report::Filled(filled)).is_err() {
            return;
        }
    }
}

/// Writes checkpoints until the writer is gone. Blocking: runs on its own thread.
pub fn flush_all(fs: &Fs, dir: &Path, flushes: &Receiver<Flush>, reports: &SyncSender<Report>) {
    while let Ok(flush) = flushes.recv() {
        let outcome = flush.perform(fs, dir);
        if reports.send(Report::Flushed(flush, outcome)).is_err() {
            return;
        }
    }
}
