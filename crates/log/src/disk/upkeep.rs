//! What happens after the appends? The journal grows and tails accumulate in memory; the filler moves tails into
//! segments, the flusher writes a checkpoint, and the journal's files are reused.
//!
//! The bounds, from [`Options::checkpoint_bytes`] (c): tails are filled at c/4 bytes; appends wait while tails exceed c
//! bytes; a checkpoint is due after c bytes; appends wait while the journal is longer than four times c, which bounds
//! the replay after a crash.

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

/// The share of a checkpoint's bytes that accumulates in memory before segments are filled.
const FILL_SHARE: u64 = 4;
/// The maximum length of the journal, in multiples of the checkpoint interval.
const MAX_JOURNAL: u64 = 4;
/// The pause before a filler that found the disk full retries.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// The state of an open directory, besides its logs.
pub struct Upkeep {
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) id: String,
    pub(super) key: u32,
    pub(super) shelves: Shelves,
    pub(super) files: Arc<Files>,
    pub(super) journal: Journal,
    /// A log created here may be one that was lost here.
    pub(super) salvaged: bool,
    /// The id for the next log.
    pub(super) next_log: u64,
    /// Logs with a tail that is not part of a running fill.
    pub(super) unfilled: BTreeSet<u64>,
    /// Bytes of all tails.
    pub(super) tail_bytes: u64,
    pub(super) filler: Filler,
    /// Files changed since the last checkpoint began.
    pub(super) unsynced: BTreeSet<PathBuf>,
    /// Bytes in the journal since the last checkpoint began.
    pub(super) since_checkpoint: u64,
    pub(super) checkpointing: bool,
    pub(super) failure: Option<DiskError>,
    pub(super) fills: SyncSender<Fill>,
    pub(super) flushes: SyncSender<Flush>,
    pub(super) reports: Receiver<Report>,
    /// Held as long as anything is written.
    pub(super) _lock: Box<dyn capstan_disk::Lock>,
}

/// The state of the filler.
#[derive(Clone, Debug)]
pub enum Filler {
    /// It is idle.
    Idle,
    /// It moves tails into segments.
    Busy,
    /// It found the disk full at that time. Appends are refused until there is space.
    Full(DiskError, Instant),
}

impl Upkeep {
    /// Whether the directory can be changed at all.
    pub fn works(&self) -> DiskResult<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Whether there is space for more entries.
    pub fn may_append(&mut self) -> DiskResult<()> {
        self.works()?;
        self.tend();
        match &self.filler {
            Filler::Full(error, _) => Err(error.clone()),
            Filler::Idle | Filler::Busy => self.works(),
        }
    }

    /// Assigns a group its position in the journal. After an error nothing has changed.
    pub fn place(&mut self, group: &mut Group) -> DiskResult<Write> {
        let placed = self.journal.place(group);
        match &placed {
            Ok(_) => self.since_checkpoint += group.len() as u64,
            Err(DiskError::Full(_)) => {}
            Err(error) => self.fail(error.clone()),
        }
        placed
    }

    /// Whether a group is in flight.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        self.failure.is_none() && self.journal.pending() > 0
    }

    /// Whether an earlier group than this one is in flight.
    #[must_use]
    pub fn is_waiting_before(&self, write: &Write) -> bool {
        self.failure.is_none() && self.journal.first_pending() < write.number
    }

    /// Records the outcome of a group; earlier groups are durable. After a failure nothing is trusted any more.
    pub fn written(&mut self, write: &Write, outcome: &DiskResult<()>) {
        match outcome {
            Ok(()) => self.journal.completed(write.number),
            Err(error) => self.fail(error.clone()),
        }
    }

    /// Records that tails have grown.
    pub fn published(&mut self, bytes: usize, logs: impl Iterator<Item = u64>) {
        self.tail_bytes += bytes as u64;
        self.unfilled.extend(logs);
    }

    /// Records a change that was applied to a log's files, or failed.
    pub fn changed(&mut self, log: u64, applied: &DiskResult<()>) {
        if let Ok(shelf) = find(&self.shelves, log) {
            self.unsynced.insert(shelf.active_path());
        }
        self.count_tails();
        match applied {
            Ok(()) | Err(DiskError::NoSuchLog) => {}
            // The journal has it.
            Err(error) => self.fail(error.clone()),
        }
        // A change may have freed space.
        if let Filler::Full(..) = self.filler {
            self.filler = Filler::Idle;
        }
    }

    /// Counts all tails again: changes other than appends are rare, and may have dropped any part of a tail.
    fn count_tails(&mut self) {
        let shelves = self.unfilled.iter().filter_map(|log| find(&self.shelves, *log).ok());
        self.tail_bytes = shelves.map(|shelf| shelf.tail_bytes() as u64).sum();
    }

    fn fail(&mut self, error: DiskError) {
        if self.failure.is_none() {
            let error = error.lasting();
            tracing::error!(%error, dir = %self.dir.display(), "log directory failed");
            self.failure = Some(error);
        }
    }

    /// Processes the reports of the background threads and starts due work. Waits only while a bound is exceeded: this
    /// is the backpressure of a slow disk.
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

    /// Waits until the filler is idle.
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

    /// A fill of everything in memory now.
    fn fill(&mut self) -> Fill {
        let logs = std::mem::take(&mut self.unfilled).into_iter();
        let shelves = logs.filter_map(|log| find(&self.shelves, log).ok());
        let upto = |shelf: Arc<Shelf>| {
            let end = shelf.end();
            (shelf, end)
        };
        Fill { before: self.journal.first_pending(), logs: shelves.map(upto).collect() }
    }

    /// Since the fill began only appends have happened (other changes wait for it), so the segments match the journal
    /// before its group: the moment for a checkpoint.
    fn filled(&mut self, filled: Filled) {
        self.tail_bytes = self.tail_bytes.saturating_sub(filled.bytes as u64);
        self.unsynced.extend(filled.touched);
        match filled.outcome {
            Ok(()) => {
                self.filler = Filler::Idle;
                self.checkpoint_if_due(filled.before);
            }
            Err(error @ DiskError::Full(_)) => {
                tracing::warn!(%error, "disk full, segments not filled, appends refused");
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

    /// A checkpoint of the present segments: everything before this group.
    fn flush(&mut self, before: u64) -> Flush {
        let shelves = self.shelves.read().unwrap_or_else(PoisonError::into_inner);
        let logs = shelves.values().map(|shelf| shelf.saved()).collect();
        let checkpoint = Checkpoint {
            id: self.id.clone(),
            key: self.key,
            next_group: before,
            next_log: self.next_log,
            salvaged: self.salvaged,
            logs,
            ..Checkpoint::empty()
        };
        Flush { checkpoint, paths: std::mem::take(&mut self.unsynced) }
    }

    fn flushed(&mut self, flush: Flush, outcome: DiskResult<()>) {
        self.checkpointing = false;
        match outcome {
            Ok(()) => self.journal.release(flush.checkpoint.next_group),
            // The segments are synced and the journal still has everything; the next checkpoint is tried after as many
            // bytes again.
            Err(DiskError::Full(why)) => {
                tracing::warn!(why, "disk full, checkpoint not written");
                self.unsynced.extend(flush.paths);
            }
            Err(error) => self.fail(error),
        }
    }

    /// Marks every log, and every later one, as possibly lacking entries. A checkpoint makes it durable.
    pub fn distrust(&mut self) -> DiskResult<()> {
        self.salvaged = true;
        {
            let shelves = self.shelves.read().unwrap_or_else(PoisonError::into_inner);
            shelves.values().for_each(|shelf| shelf.distrust(true));
        }
        self.settle()
    }

    /// Fills all segments and writes a checkpoint. On an error the rest stays in the journal.
    pub fn close(&mut self) -> DiskResult<()> {
        self.settle()
    }

    fn settle(&mut self) -> DiskResult<()> {
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
        self.tail_bytes = self.tail_bytes.saturating_sub(filled.bytes as u64);
        self.unfilled.extend(filled.unfinished);
        match filled.outcome {
            Ok(()) => {}
            Err(error @ DiskError::Full(_)) => return Err(error),
            Err(error) => {
                self.fail(error);
                return self.works();
            }
        }
        let flush = self.flush(fill.before);
        let outcome = flush.perform(self.files.fs(), &self.dir);
        if outcome.is_ok() {
            self.since_checkpoint = 0;
        }
        self.flushed(flush, outcome.clone());
        outcome
    }
}
