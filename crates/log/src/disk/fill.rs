//! How do entries get from the journal into the segments? In the background and in large pieces: one write for all that
//! a log has gathered, where an append of its own would have cost one each.
//!
//! Two threads: the filler writes tails into segments, which frees memory; the flusher syncs what was filled and writes
//! the checkpoint, which frees the journal.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use super::checkpoint::Checkpoint;
use super::error::{DiskError, DiskResult};
use super::files::{Files, sync_dir};
use super::segment::{self, SEGMENT_HEADER, Segment};
use super::shelf::Shelf;
use super::tail::Chunk;
use crate::entry::Offset;

/// Bytes written to a segment at once: enough to be sequential, little enough to be copied together first.
const STRETCH_BYTES: usize = 4 * 1024 * 1024;
/// From so many files on, one sync of the file system is cheaper than one of each file.
const SYNC_ALL_FROM: usize = 32;

/// What the background threads have to say.
#[derive(Debug)]
pub enum Report {
    /// The filler is done with what it was given, or stopped in the middle.
    Filled(Filled),
    /// A checkpoint was made, or not.
    Flushed(Flush, DiskResult<()>),
}

/// Tails to be moved into segments: everything that the journal has before a group.
#[derive(Debug)]
pub struct Fill {
    /// The first group that is not part of it.
    pub before: u64,
    /// The logs, and up to where.
    pub logs: Vec<(Arc<Shelf>, Offset)>,
}

/// What became of it.
#[derive(Debug)]
pub struct Filled {
    /// The first group that was not part of it.
    pub before: u64,
    /// Bytes that are in segments now.
    pub bytes: usize,
    /// The files that were written to and are not synced.
    pub touched: BTreeSet<PathBuf>,
    /// Logs that may have a tail left.
    pub unfinished: Vec<u64>,
    /// Whether all of it was done.
    pub outcome: DiskResult<()>,
}

impl Filled {
    fn nothing_yet(before: u64) -> Filled {
        Filled { before, bytes: 0, touched: BTreeSet::new(), unfinished: Vec::new(), outcome: Ok(()) }
    }
}

/// A checkpoint to be made: what to sync, then what to write.
#[derive(Debug)]
pub struct Flush {
    pub(super) checkpoint: Checkpoint,
    pub(super) paths: BTreeSet<PathBuf>,
}

/// What writing into segments takes.
#[derive(Debug)]
pub struct Pen {
    files: Arc<Files>,
    segment_bytes: u64,
    /// Where chunks are copied together; kept for the next time.
    buffer: Vec<u8>,
}

impl Pen {
    /// Writes to these files, into segments of this length.
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

/// Chunks that go into one segment, one behind the other.
struct Stretch {
    path: PathBuf,
    base: Offset,
    /// Where they go; zero in a segment that does not exist yet.
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

    fn next_stretch(&self, upto: Offset, segment_bytes: u64) -> Option<Stretch> {
        let content = self.content();
        let active = content.active();
        let first = content.tail.upto(upto).next()?;
        let full = active.len + first.records.len() as u64 > segment_bytes && active.len > SEGMENT_HEADER;
        let (path, base, at) = if full {
            (self.dir.join(segment::file_name(self.id, first.first)), first.first, 0)
        } else {
            (active.path.clone(), active.base, active.len)
        };
        let mut len = at.max(SEGMENT_HEADER);
        let most = segment_bytes.min(len + STRETCH_BYTES as u64);
        let fits = |chunk: &&Chunk| {
            len += chunk.records.len() as u64;
            len <= most || chunk.first == first.first
        };
        let chunks = content.tail.upto(upto).take_while(fits).cloned().collect();
        Some(Stretch { path, base, at, chunks })
    }

    /// What was written is read from the segment from now on.
    fn settle(&self, stretch: Stretch) {
        let mut content = self.content_mut();
        if content.active().base != stretch.base {
            content.segments.push(Segment::new(&self.dir, self.id, stretch.base, 0));
        }
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
        let file = pen.files.get(&self.path)?;
        file.write_all_at(&pen.buffer, self.at).map_err(|error| {
            // What was written of it does not count; the room it takes is given back.
            file.set_len(self.at).ok();
            DiskError::io(&self.path, &error)
        })
    }
}

impl Flush {
    /// Syncs the files, then writes the checkpoint.
    pub fn perform(&self, dir: &Path) -> DiskResult<()> {
        let segments = super::segments_dir(dir);
        if self.paths.len() >= SYNC_ALL_FROM {
            let opened = std::fs::File::open(&segments).map_err(|error| DiskError::io(&segments, &error))?;
            nix::unistd::syncfs(&opened).map_err(|error| DiskError::io(&segments, &error.into()))?;
        } else {
            self.paths.iter().try_for_each(|path| sync_file(path))?;
        }
        sync_dir(&segments)?;
        self.checkpoint.save(dir)
    }
}

/// A file that was dropped in the meantime needs no sync.
fn sync_file(path: &Path) -> DiskResult<()> {
    match std::fs::File::options().write(true).open(path).and_then(|file| file.sync_data()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(DiskError::io(path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Fills segments until the writer has gone. Blocking: for a thread of its own.
pub fn fill_all(mut pen: Pen, fills: &Receiver<Fill>, reports: &SyncSender<Report>) {
    while let Ok(fill) = fills.recv() {
        let filled = fill.perform(&mut pen);
        if reports.send(Report::Filled(filled)).is_err() {
            return;
        }
    }
}

/// Makes checkpoints until the writer has gone. Blocking: for a thread of its own.
pub fn flush_all(dir: &Path, flushes: &Receiver<Flush>, reports: &SyncSender<Report>) {
    while let Ok(flush) = flushes.recv() {
        let outcome = flush.perform(dir);
        if reports.send(Report::Flushed(flush, outcome)).is_err() {
            return;
        }
    }
}
