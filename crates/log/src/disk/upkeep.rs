//! What happens behind the appends? The journal grows, tails wait in memory; when enough has gathered the filler moves
//! tails into segments, the flusher makes a checkpoint, and the journal's files are used again.
//!
//! The bounds, from [`Options::checkpoint_bytes`] (c): tails are filled when c/4 bytes wait; appends wait while more
//! than c bytes of tails are in memory; a checkpoint is due after c bytes; appends wait while the journal is longer than
//! four times c, which is what a start after a crash may have to replay.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::Options;
use super::checkpoint::Checkpoint;
use super::error::{DiskError, DiskResult};
use super::files::Files;
use super::fill::{Fill, Filled, Flush, Pen, Report};
use super::group::Group;
use super::journal::{Journal, Write};
use super::shelf::Shelf;
use super::writer::{Shelves, find};

/// The share of a checkpoint's bytes that waits in memory before segments are filled.
const FILL_SHARE: u64 = 4;
/// The journal may hold this many times what makes a checkpoint due.
const MAX_JOURNAL: u64 = 4;
/// How long a filler that found the disk full waits before it tries again: long enough not to wear out anybody.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// The state of a directory that is open, beside its logs.
pub struct Upkeep {
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) key: u32,
    pub(super) shelves: Shelves,
    pub(super) files: Arc<Files>,
    pub(super) journal: Journal,
    /// A log that is made here may be one that was lost here.
    pub(super) salvaged: bool,
    /// The id for the next log.
    pub(super) next_log: u64,
    /// Logs that have a tail which nobody was told to fill.
    pub(super) unfilled: BTreeSet<u64>,
    /// Bytes of all tails.
    pub(super) tail_bytes: u64,
    pub(super) filler: Filler,
    /// Files that were changed since the last checkpoint began.
    pub(super) unsynced: BTreeSet<PathBuf>,
    /// Bytes in the journal since the last checkpoint began.
    pub(super) since_checkpoint: u64,
    pub(super) checkpointing: bool,
    pub(super) failure: Option<DiskError>,
    pub(super) fills: SyncSender<Fill>,
    pub(super) flushes: SyncSender<Flush>,
    pub(super) reports: Receiver<Report>,
    /// Held for as long as anything is written.
    pub(super) _lock: std::fs::File,
}

/// What the filler does.
#[derive(Clone, Debug)]
pub enum Filler {
    /// Nothing.
    Idle,
    /// Moves tails into segments.
    Busy,
    /// Found no room, at that time. Appends are refused until there is some.
    Full(DiskError, Instant),
}

impl Upkeep {
    /// Whether the directory can be changed at all.
    pub fn works(&self) -> DiskResult<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Whether there is room for more entries.
    pub fn may_append(&mut self) -> DiskResult<()> {
        self.works()?;
        self.tend();
        match &self.filler {
            Filler::Full(error, _) => Err(error.clone()),
            Filler::Idle | Filler::Busy => self.works(),
        }
    }

    /// Gives a group its place in the journal. After an error nothing has happened.
    pub fn place(&mut self, group: &mut Group) -> DiskResult<Write> {
        let placed = self.journal.place(group);
        match &placed {
            Ok(_) => self.since_checkpoint += group.len() as u64,
            Err(DiskError::Full(_)) => {}
            Err(error) => self.fail(error.clone()),
        }
        placed
    }

    /// Whether a group is on its way to the disk.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.failure.is_none() && self.journal.pending() > 0
    }

    /// Whether a group before this one is.
    #[must_use]
    pub fn is_waiting_before(&self, write: &Write) -> bool {
        self.failure.is_none() && self.journal.first_pending() < write.number
    }

    /// Notes what became of a group; the groups before it are durable. After a failure nothing is believed any more.
    pub fn written(&mut self, write: &Write, outcome: &DiskResult<()>) {
        match outcome {
            Ok(()) => self.journal.completed(write.number),
            Err(error) => self.fail(error.clone()),
        }
    }

    /// Notes that tails have grown.
    pub fn published(&mut self, bytes: usize, logs: impl Iterator<Item = u64>) {
        self.tail_bytes += bytes as u64;
        self.unfilled.extend(logs);
    }

    /// Notes a change that was applied to a log's files, or could not be.
    pub fn changed(&mut self, log: u64, applied: &DiskResult<()>) {
        if let Ok(shelf) = find(&self.shelves, log) {
            self.unsynced.insert(shelf.active_path());
        }
        self.count_tails();
        match applied {
            Ok(()) | Err(DiskError::NoSuchLog) => {}
            // The journal says that it happened.
            Err(error) => self.fail(error.clone()),
        }
        // A change may have made room.
        if let Filler::Full(..) = self.filler {
            self.filler = Filler::Idle;
        }
    }

    /// Changes other than appends are rare, and may have dropped any part of a tail.
    fn count_tails(&mut self) {
        let shelves = self.unfilled.iter().filter_map(|log| find(&self.shelves, *log).ok());
        self.tail_bytes = shelves.map(|shelf| shelf.tail_bytes() as u64).sum();
    }

    fn fail(&mut self, error: DiskError) {
        if self.failure.is_none() {
            tracing::error!(%error, dir = %self.dir.display(), "log directory failed");
            self.failure = Some(error);
        }
    }

    /// Hears what the background threads have done and gives them what is due. Waits only while a bound is exceeded:
    /// that is how a slow disk slows appends down.
    pub fn tend(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            self.heard(report);
        }
        self.fill_if_due();
        while self.is_over_bounds() {
            let Ok(report) = self.reports.recv() else { return };
            self.heard(report);
            self.fill_if_due();
        }
    }

    fn is_over_bounds(&self) -> bool {
        let bound = self.options.checkpoint_bytes;
        let busy = matches!(self.filler, Filler::Busy);
        let much = self.tail_bytes > bound && busy;
        let long = self.journal.live_bytes() > MAX_JOURNAL * bound && (busy || self.checkpointing);
        self.failure.is_none() && (much || long)
    }

    /// Waits until nobody writes to segments.
    pub fn await_filler(&mut self) {
        while matches!(self.filler, Filler::Busy) {
            let Ok(report) = self.reports.recv() else { return };
            self.heard(report);
        }
    }

    fn heard(&mut self, report: Report) {
        match report {
            Report::Filled(filled) => self.filled(filled),
            Report::Flushed(flush, outcome) => self.flushed(flush, outcome),
        }
    }

    fn fill_if_due(&mut self) {
        let due = match &self.filler {
            Filler::Idle => {
                self.tail_bytes >= self.options.checkpoint_bytes / FILL_SHARE
                    || (self.since_checkpoint >= self.options.checkpoint_bytes && !self.checkpointing)
            }
            Filler::Busy => false,
            Filler::Full(_, when) => when.elapsed() >= TRY_AGAIN,
        };
        if due && self.failure.is_none() {
            let fill = self.fill();
            if self.fills.send(fill).is_ok() {
                self.filler = Filler::Busy;
            }
        }
    }

    /// Everything that is in memory at this moment.
    fn fill(&mut self) -> Fill {
        let logs = std::mem::take(&mut self.unfilled).into_iter();
        let shelves = logs.filter_map(|log| find(&self.shelves, log).ok());
        let upto = |shelf: Arc<Shelf>| {
            let end = shelf.end();
            (shelf, end)
        };
        Fill { before: self.journal.first_pending(), logs: shelves.map(upto).collect() }
    }

    /// Nothing but appends has happened since the fill was begun (everything else waits for it), so the segments are
    /// just what the journal says before its group: the moment for a checkpoint.
    fn filled(&mut self, filled: Filled) {
        self.tail_bytes = self.tail_bytes.saturating_sub(filled.bytes as u64);
        self.unsynced.extend(filled.touched);
        match filled.outcome {
            Ok(()) => {
                self.filler = Filler::Idle;
                self.checkpoint_if_due(filled.before);
            }
            Err(error @ DiskError::Full(_)) => {
                tracing::warn!(%error, "no room for entries that the journal has; appends are refused");
                self.unfilled.extend(filled.unfinished);
                self.filler = Filler::Full(error, Instant::now());
            }
            Err(error) => {
                self.filler = Filler::Idle;
                self.fail(error);
            }
        }
    }

    fn checkpoint_if_due(&mut self, before: u64) {
        let due = self.since_checkpoint >= self.options.checkpoint_bytes;
        if due && !self.checkpointing && self.failure.is_none() {
            self.since_checkpoint = 0;
            let flush = self.flush(before);
            self.checkpointing = self.flushes.send(flush).is_ok();
        }
    }

    /// A checkpoint of what the segments hold now: everything before this group.
    fn flush(&mut self, before: u64) -> Flush {
        let shelves = self.shelves.read().unwrap_or_else(PoisonError::into_inner);
        let logs = shelves.values().map(|shelf| shelf.saved()).collect();
        let checkpoint = Checkpoint::of(self.key, before, self.next_log, logs);
        let checkpoint = Checkpoint { salvaged: self.salvaged, ..checkpoint };
        Flush { checkpoint, paths: std::mem::take(&mut self.unsynced) }
    }

    fn flushed(&mut self, flush: Flush, outcome: DiskResult<()>) {
        self.checkpointing = false;
        match outcome {
            Ok(()) => self.journal.release(flush.checkpoint.next_group),
            // The journal still has everything; the next checkpoint is tried when as much again was written.
            Err(DiskError::Full(why)) => {
                tracing::warn!(why, "no room for a checkpoint of the logs");
                self.unsynced.extend(flush.paths);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Brings everything into its place. What does not fit there stays in the journal, and the error says so.
    pub fn close(&mut self) -> DiskResult<()> {
        self.works()?;
        self.await_filler();
        while self.checkpointing
            && let Ok(report) = self.reports.recv()
        {
            self.heard(report);
        }
        self.works()?;
        let fill = self.fill();
        let mut pen = Pen::new(&self.files, self.options.segment_bytes);
        let filled = fill.perform(&mut pen);
        self.unsynced.extend(filled.touched);
        filled.outcome?;
        self.flush(fill.before).perform(&self.dir)
    }
}
