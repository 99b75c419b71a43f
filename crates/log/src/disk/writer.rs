//! The one writer of a directory: takes what is waiting from all logs, makes it durable in one go, then tells everyone.
//!
//! Appends are first written to the segments (so that a full disk is noticed while everything can still be taken back),
//! then to the journal, which is synced. Everything else changes files in a way that cannot be taken back, so it goes
//! into the journal first and alone. When the journal has grown enough, a second thread syncs the segments, writes a
//! checkpoint, and the journal's files are used again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::Options;
use super::change::{self, Change};
use super::checkpoint::Checkpoint;
use super::error::{DiskError, DiskResult};
use super::files::{Files, sync_dir};
use super::journal::{Group, Journal};
use super::record;
use super::shelf::{Before, Shelf};
use crate::entry::{Entry, History, Offset};
use crate::keys::LogName;

/// Appends in one group; a sync is worth more of them than any client count will bring.
const GROUP_APPENDS: usize = 4096;
/// Bytes after which a group is closed: about what a disk writes in the time of a sync.
const GROUP_BYTES: usize = 4 * 1024 * 1024;
/// How long a group waits for the next append: a fraction of a sync.
const GATHER: Duration = Duration::from_micros(50);
/// From so many files on, one sync of the file system is cheaper than one of each file.
const SYNC_ALL_FROM: usize = 32;

/// The journal may hold this many times what makes a checkpoint due.
const MAX_JOURNAL: u64 = 8;

/// Told when a change is durable, or why it is not.
pub type Done = Box<dyn FnOnce(DiskResult<()>) + Send>;

/// Told which log was made.
pub type Made = Box<dyn FnOnce(DiskResult<Arc<Shelf>>) + Send>;

/// What the writer can be asked.
pub enum Command {
    /// Entries at the end of a log.
    Append(u64, Vec<Entry>, Done),
    /// Forget a log's tail.
    Cut(u64, Offset, Done),
    /// Drop a log's beginning.
    Truncate(u64, Offset, Done),
    /// Begin a log anew, at the end of this history.
    Reset(u64, History, Done),
    /// Make a log, or find it.
    Create(LogName, Made),
    /// Delete a log.
    Remove(u64, Done),
    /// Write entries over damaged ones.
    Repair(u64, Vec<Entry>, Done),
    /// Make everything durable in its place and stop.
    Close(Done),
}

/// The logs of a directory; readers share it.
pub type Shelves = Arc<RwLock<BTreeMap<u64, Arc<Shelf>>>>;

/// What the writer owns.
pub struct Writer {
    pub(super) dir: PathBuf,
    pub(super) options: Options,
    pub(super) shelves: Shelves,
    pub(super) files: Arc<Files>,
    pub(super) journal: Journal,
    pub(super) next_log: u64,
    pub(super) key: u32,
    /// Logs that were changed since the last checkpoint began.
    pub(super) dirty: BTreeSet<u64>,
    /// Bytes in the journal since the last checkpoint began.
    pub(super) since_checkpoint: u64,
    pub(super) checkpointing: bool,
    /// Appends in the last group.
    pub(super) expected: usize,
    pub(super) failure: Option<DiskError>,
    pub(super) flusher: std::sync::mpsc::SyncSender<Flush>,
    /// What became of the checkpoint before a group.
    pub(super) flushed: std::sync::mpsc::Receiver<(u64, DiskResult<()>)>,
    /// Held for as long as anything is written.
    pub(super) _lock: std::fs::File,
}

/// A checkpoint to be made: what to sync, then what to write.
pub struct Flush {
    pub(super) checkpoint: Checkpoint,
    pub(super) paths: Vec<PathBuf>,
}

impl Writer {
    /// Works until it is closed or nobody can ask any more. Blocking: for a thread of its own.
    pub fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut group = Group::default();
        while let Some(first) = commands.blocking_recv() {
            let mut next = Some(first);
            while let Some(command) = next.take() {
                match command {
                    Command::Append(log, entries, done) => {
                        next = self.appends((log, entries, done), &mut commands, &mut group);
                    }
                    Command::Close(done) => {
                        done(self.close());
                        return;
                    }
                    other => self.alone(other, &mut group),
                }
            }
            self.checkpoint_if_due();
        }
        self.close().ok();
    }

    /// One group of appends. Answers with the command that ended it, if one did.
    fn appends(
        &mut self,
        first: (u64, Vec<Entry>, Done),
        commands: &mut mpsc::Receiver<Command>,
        group: &mut Group,
    ) -> Option<Command> {
        let mut marks: HashMap<u64, (Arc<Shelf>, Before)> = HashMap::new();
        let mut done: Vec<Done> = Vec::new();
        let mut outcome = self.failure.clone().map_or(Ok(()), Err);
        let mut append = Some(first);
        let mut other = None;
        group.clear();
        while let Some((log, entries, told)) = append.take() {
            match outcome.is_ok().then(|| self.stage(log, &entries, group, &mut marks)) {
                // One log's trouble is not the others'.
                Some(Err(error @ (DiskError::OutOfOrder { .. } | DiskError::NoSuchLog))) => told(Err(error)),
                staged => {
                    outcome = staged.unwrap_or(outcome);
                    done.push(told);
                }
            }
            if done.len() < GROUP_APPENDS && group.len() < GROUP_BYTES {
                match self.next_append(commands, done.len()) {
                    Some(Command::Append(log, entries, told)) => append = Some((log, entries, told)),
                    command => other = command,
                }
            }
        }
        self.expected = done.len();
        if outcome.is_ok() && !done.is_empty() {
            self.since_checkpoint += group.len() as u64;
            self.dirty.extend(marks.keys());
            outcome = self.journal.write(group);
        }
        if let Err(error) = &outcome {
            self.take_back(marks, error);
        }
        done.into_iter().for_each(|told| told(outcome.clone()));
        other
    }

    /// What is waiting; or what comes in a moment, while this group is smaller than the last one: the same appenders
    /// are about to come again, and a sync without them would have to be followed by one with them.
    fn next_append(&self, commands: &mut mpsc::Receiver<Command>, gathered: usize) -> Option<Command> {
        let begin = Instant::now();
        loop {
            match commands.try_recv() {
                Ok(command) => return Some(command),
                Err(_) if gathered < self.expected && begin.elapsed() < GATHER => std::thread::yield_now(),
                Err(_) => return None,
            }
        }
    }

    fn stage(
        &self,
        log: u64,
        entries: &[Entry],
        group: &mut Group,
        marks: &mut HashMap<u64, (Arc<Shelf>, Before)>,
    ) -> DiskResult<()> {
        let shelf = self.shelf(log)?;
        if entries.first().is_none_or(|first| first.offset != shelf.end()) {
            return Err(DiskError::OutOfOrder { log: shelf.name.clone(), end: shelf.end() });
        }
        marks.entry(log).or_insert_with(|| (Arc::clone(&shelf), shelf.mark()));
        let encode = |out: &mut Vec<u8>| entries.iter().for_each(|e| record::encode(out, shelf.salt(), e));
        let records = change::put_append(group.content(), log, encode);
        shelf.append(&group.content()[records], &self.files, self.options.segment_bytes)
    }

    /// The group did not become durable: it never was. After anything but a want of room nothing is believed any more.
    fn take_back(&mut self, marks: HashMap<u64, (Arc<Shelf>, Before)>, error: &DiskError) {
        let mut undone = Ok(());
        for (shelf, before) in marks.into_values() {
            undone = undone.and(shelf.back_to(before, &self.files));
        }
        let fatal = !matches!(error, DiskError::Full(_));
        if let Err(error) = if fatal { Err(error.clone()) } else { undone } {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: DiskError) {
        if self.failure.is_none() {
            tracing::error!(%error, dir = %self.dir.display(), "log directory failed");
            self.failure = Some(error);
        }
    }

    fn shelf(&self, log: u64) -> DiskResult<Arc<Shelf>> {
        let shelves = self.shelves.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        shelves.get(&log).cloned().ok_or(DiskError::NoSuchLog)
    }

    fn alone(&mut self, command: Command, group: &mut Group) {
        match command {
            Command::Cut(log, from, done) => done(self.change(log, &Change::Cut(from), group)),
            Command::Truncate(log, before, done) => done(self.change(log, &Change::Truncate(before), group)),
            Command::Reset(log, history, done) => done(self.change(log, &Change::Reset(history), group)),
            Command::Remove(log, done) => done(self.change(log, &Change::Remove, group)),
            Command::Create(name, made) => made(self.create(name, group)),
            Command::Repair(log, entries, done) => {
                done(self.shelf(log).and_then(|shelf| shelf.repair(&entries, &self.files)));
            }
            Command::Append(..) | Command::Close(_) => {}
        }
    }

    fn create(&mut self, name: LogName, group: &mut Group) -> DiskResult<Arc<Shelf>> {
        let present = {
            let shelves = self.shelves.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            shelves.values().find(|shelf| shelf.name == name).cloned()
        };
        if let Some(shelf) = present {
            return Ok(shelf);
        }
        let log = self.next_log;
        self.next_log += 1;
        self.change(log, &Change::Create(name), group)?;
        self.shelf(log)
    }

    /// Into the journal, then into the files.
    fn change(&mut self, log: u64, change: &Change<'_>, group: &mut Group) -> DiskResult<()> {
        self.failure.clone().map_or(Ok(()), Err)?;
        group.clear();
        change.encode(log, group.content());
        let written = self.journal.write(group).and_then(|()| {
            self.since_checkpoint += group.len() as u64;
            self.dirty.insert(log);
            apply(log, change, &self.dir, &self.shelves, &self.files, self.options.segment_bytes)
        });
        if let Err(error) = &written
            && !matches!(error, DiskError::Full(_) | DiskError::NoSuchLog)
        {
            self.fail(error.clone());
        }
        written
    }

    fn checkpoint_if_due(&mut self) {
        // A journal that outgrows its bound waits for the segments: that is how a slow disk slows appends down.
        let overdue = self.journal.live_bytes() > MAX_JOURNAL * self.options.checkpoint_bytes;
        let flushed = if overdue && self.checkpointing {
            self.flushed.recv().ok()
        } else {
            self.flushed.try_recv().ok()
        };
        if let Some((before, outcome)) = flushed {
            self.checkpointed(before, outcome);
        }
        let due = self.since_checkpoint >= self.options.checkpoint_bytes;
        if due && !self.checkpointing && self.failure.is_none() {
            self.since_checkpoint = 0;
            let flush = self.flush();
            self.checkpointing = self.flusher.send(flush).is_ok();
        }
    }

    /// What a checkpoint at this moment consists of.
    fn flush(&mut self) -> Flush {
        let dirty = std::mem::take(&mut self.dirty);
        let paths = dirty.iter().filter_map(|log| self.shelf(*log).ok()).flat_map(|shelf| shelf.paths());
        let paths = paths.collect();
        let shelves = self.shelves.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let logs = shelves.values().map(|shelf| shelf.saved()).collect();
        let checkpoint = Checkpoint::of(self.key, self.journal.next_group(), self.next_log, logs);
        Flush { checkpoint, paths }
    }

    fn checkpointed(&mut self, before: u64, outcome: DiskResult<()>) {
        self.checkpointing = false;
        match outcome {
            Ok(()) => self.journal.release(before),
            // The journal still has everything; the next checkpoint is tried when as much again was written.
            Err(DiskError::Full(why)) => {
                tracing::warn!(why, "no room for a checkpoint of the logs");
                self.dirty
                    .extend(self.shelves.read().unwrap_or_else(std::sync::PoisonError::into_inner).keys());
            }
            Err(error) => self.fail(error),
        }
    }

    fn close(&mut self) -> DiskResult<()> {
        self.failure.clone().map_or(Ok(()), Err)?;
        if self.checkpointing
            && let Ok((before, outcome)) = self.flushed.recv()
        {
            self.checkpointed(before, outcome);
        }
        self.flush().perform(&self.dir)
    }
}

impl Flush {
    /// Syncs the files, then writes the checkpoint.
    pub fn perform(&self, dir: &std::path::Path) -> DiskResult<()> {
        let segments = super::segments_dir(dir);
        if self.paths.len() >= SYNC_ALL_FROM {
            let opened = std::fs::File::open(&segments).map_err(|error| DiskError::io(&segments, &error))?;
            nix::unistd::syncfs(&opened).map_err(|error| DiskError::io(&segments, &error.into()))?;
        } else {
            for path in &self.paths {
                sync_file(path)?;
            }
        }
        sync_dir(&segments)?;
        self.checkpoint.save(dir)
    }
}

/// A file that was dropped in the meantime needs no sync.
fn sync_file(path: &std::path::Path) -> DiskResult<()> {
    match std::fs::File::options().write(true).open(path).and_then(|file| file.sync_data()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(DiskError::io(path, &error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Changes the files of a log; the same when it happens and when it is replayed.
pub fn apply(
    log: u64,
    change: &Change<'_>,
    dir: &std::path::Path,
    shelves: &Shelves,
    files: &Files,
    segment_bytes: u64,
) -> DiskResult<()> {
    let mut all = shelves.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Change::Create(name) = change {
        let shelf = Shelf::new(&super::segments_dir(dir), log, name.clone(), History::default());
        all.insert(log, Arc::new(shelf));
        return Ok(());
    }
    let shelf = all.get(&log).cloned().ok_or(DiskError::NoSuchLog)?;
    match change {
        Change::Append(records) => shelf.append(records, files, segment_bytes),
        Change::Cut(from) => shelf.cut(*from, files),
        Change::Truncate(before) => shelf.truncate(*before, files),
        Change::Reset(history) => shelf.reset(history.clone(), files),
        Change::Remove => {
            all.remove(&log);
            shelf.remove(files)
        }
        Change::Create(_) => Ok(()),
    }
}
