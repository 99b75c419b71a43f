//! How are the logs of one host stored on disk? Every append goes into one journal; one sync makes the appends of all
//! logs durable. Later, in the background and in large writes, entries are copied to their log's segments, from which
//! they are read and with which they are dropped; until then they are read from memory.
//!
//! ```text
//! <dir>/checkpoint        what the segments durably hold, and the first journal group to replay
//! <dir>/journal/*.journal groups of changes; files are filled once, then overwritten
//! <dir>/segments/*.seg    <log>-<first offset>.seg: the entries of one log
//! <dir>/lock              one process at a time
//! ```
//!
//! The reasons are in `docs/adr/log-0001-journal-and-segments.md` and `docs/adr/log-0002-segments-filled-later.md`.

mod change;
pub mod checkpoint;
mod draft;
pub mod error;
mod files;
mod fill;
mod group;
pub mod inspect;
mod journal;
mod read;
pub(crate) mod record;
mod recovery;
mod replay;
mod segment;
mod shelf;
mod tail;
mod upkeep;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::config::Incarnation;
use crate::entry::{Entry, History, Offset};
use crate::keys::LogName;
pub use error::{DiskError, DiskResult};
pub use record::MAX_DATA;
use recovery::Holes;
pub use recovery::Recovery;
pub use replay::{Lost, Replayed};
pub use writer::Done;

use checkpoint::Checkpoint;
use draft::Append;
use files::{Files, Fs};
use fill::Pen;
use journal::Journal;
use shelf::Shelf;
use upkeep::{Filler, Upkeep};
use writer::{Command, Shelves, Turns};

/// Commands that may wait for the writer; further callers wait for the queue.
const QUEUE: usize = 8192;

/// Options of a log directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The maximum length of a segment; also the unit that `truncate_before` frees.
    pub segment_bytes: u64,
    /// The length of one journal file.
    pub journal_file_bytes: u64,
    /// Bytes in the journal after which the segments are synced; bounds the replay after a crash.
    pub checkpoint_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        const MIB: u64 = 1024 * 1024;
        Options { segment_bytes: 64 * MIB, journal_file_bytes: 16 * MIB, checkpoint_bytes: 64 * MIB }
    }
}

/// What to do with logs that lost entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Each copy leaves its in-sync set and catches up from the other holders.
    LearnAnew,
    /// There is no other holder: accept the loss.
    Accept,
}

fn segments_dir(dir: &Path) -> PathBuf {
    dir.join("segments")
}

fn journal_dir(dir: &Path) -> PathBuf {
    dir.join("journal")
}

/// An open log directory. Clones share it.
#[derive(Clone)]
pub struct Disk {
    inner: Arc<Inner>,
}

struct Inner {
    commands: mpsc::Sender<Command>,
    shelves: Shelves,
    files: Arc<Files>,
    recovery: Recovery,
    id: String,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

/// One log on disk. Clones share it.
#[derive(Clone, Debug)]
pub struct DiskLog {
    disk: Disk,
    shelf: Arc<Shelf>,
}

impl Disk {
    /// Opens or creates a directory. Everything that was durable is in it. Blocking.
    pub fn open(dir: &Path, options: Options) -> DiskResult<Disk> {
        Disk::open_on(Arc::new(capstan_disk::Os), dir, options)
    }

    /// The same on this file system. Blocking.
    pub fn open_on(fs: Arc<dyn capstan_disk::Disk>, dir: &Path, options: Options) -> DiskResult<Disk> {
        let opened = recovery::open(&fs, dir, &options, Holes::Refuse)?;
        let (recovery, id) = (opened.recovery.clone(), opened.id.clone());
        if let Some(torn) = &opened.recovery.replayed.torn {
            tracing::warn!(torn, "torn journal tail removed");
        }
        for log in &opened.recovery.damaged {
            tracing::error!(%log, "log is shorter than when it was synced");
        }
        let (commands, queue) = mpsc::channel(QUEUE);
        let (upkeep, mut threads) = start(&fs, dir, options, opened)?;
        let (shelves, files) = (Arc::clone(&upkeep.shelves), Arc::clone(&upkeep.files));
        let turns = Arc::new(Turns::new(queue, upkeep));
        for name in ["log-writer-a", "log-writer-b"] {
            let turns = Arc::clone(&turns);
            threads.push(named(name, move || turns.run())?);
        }
        let inner = Inner { commands, shelves, files, recovery, id, threads: Mutex::new(threads) };
        Ok(Disk { inner: Arc::new(inner) })
    }

    /// Repairs a directory with a hole in its journal so that it can be opened: keeps everything before the hole and
    /// drops everything after it. Every log may then lack acknowledged entries, so its copies first leave their in-sync
    /// sets, unless the loss is accepted. Blocking.
    pub fn salvage(dir: &Path, options: Options, loss: Loss) -> DiskResult<Recovery> {
        let fs: Fs = Arc::new(capstan_disk::Os);
        if Checkpoint::load(&fs, dir)?.is_none() {
            let what = "no checkpoint found: not a log directory".to_owned();
            return Err(DiskError::Corrupt { dir: dir.display().to_string(), what });
        }
        let distrust = match loss {
            Loss::LearnAnew => true,
            Loss::Accept => false,
        };
        let opened = recovery::open(&fs, dir, &options, Holes::Salvage { distrust })?;
        opened.full.map_or(Ok(opened.recovery), Err)
    }

    /// What opening found.
    #[must_use]
    pub fn recovery(&self) -> &Recovery {
        &self.inner.recovery
    }

    /// Every log, by name.
    #[must_use]
    pub fn logs(&self) -> Vec<DiskLog> {
        let shelves = self.inner.shelves.read().unwrap_or_else(PoisonError::into_inner);
        shelves.values().map(|shelf| DiskLog { disk: self.clone(), shelf: Arc::clone(shelf) }).collect()
    }

    /// The unique id of this directory.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// The log with this name, if there is one.
    #[must_use]
    pub fn find(&self, name: &LogName) -> Option<DiskLog> {
        let shelves = self.inner.shelves.read().unwrap_or_else(PoisonError::into_inner);
        let shelf = shelves.values().find(|shelf| shelf.name == *name)?;
        Some(DiskLog { disk: self.clone(), shelf: Arc::clone(shelf) })
    }

    /// The log with this name, created if missing.
    pub async fn log(&self, name: &LogName) -> DiskResult<DiskLog> {
        self.create(name, Incarnation::default()).await
    }

    /// The log with this name, created in this incarnation if missing.
    pub async fn create(&self, name: &LogName, incarnation: Incarnation) -> DiskResult<DiskLog> {
        let (made, answer) = oneshot::channel();
        let made = Box::new(|shelf| drop(made.send(shelf)));
        let command = Command::Create(name.clone(), incarnation, made);
        self.inner.commands.send(command).await.map_err(|_| DiskError::Closed)?;
        let shelf = answer.await.map_err(|_| DiskError::Closed)??;
        Ok(DiskLog { disk: self.clone(), shelf })
    }

    /// Marks every log in this directory, and every one created later, as possibly lacking acknowledged entries: the
    /// holder had another directory before. Durable when this returns.
    pub async fn distrust(&self) -> DiskResult<()> {
        self.ask(Command::Distrust).await
    }

    /// Stops cleanly: everything is in segments, and the next open replays nothing.
    pub async fn close(&self) -> DiskResult<()> {
        let closed = self.ask(Command::Close).await;
        let threads = std::mem::take(&mut *self.inner.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let joined =
            tokio::task::spawn_blocking(move || threads.into_iter().for_each(|t| drop(t.join()))).await;
        closed.and(joined.map_err(|error| DiskError::Failed(error.to_string())))
    }

    async fn ask(&self, command: impl FnOnce(Done) -> Command) -> DiskResult<()> {
        let (done, answer) = oneshot::channel();
        let command = command(Box::new(|outcome| drop(done.send(outcome))));
        self.inner.commands.send(command).await.map_err(|_| DiskError::Closed)?;
        answer.await.map_err(|_| DiskError::Closed)?
    }

    async fn send(&self, command: Command) -> DiskResult<()> {
        self.inner.commands.send(command).await.map_err(|_| DiskError::Closed)
    }
}

impl DiskLog {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &LogName {
        &self.shelf.name
    }

    /// Distinguishes it from earlier logs of the same name.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.shelf.incarnation
    }

    /// A lower bound of the committed offset, as of the last time it was written.
    #[must_use]
    pub fn committed(&self) -> Offset {
        self.shelf.committed()
    }

    /// Records that everything before this offset is committed. Durable with the next append, checkpoint or close.
    pub fn commit(&self, upto: Offset) {
        self.shelf.commit(upto);
    }

    /// The first offset that is still present.
    #[must_use]
    pub fn start(&self) -> Offset {
        self.shelf.start()
    }

    /// Everything that is durable.
    #[must_use]
    pub fn history(&self) -> History {
        self.shelf.history()
    }

    /// First offset and length in bytes of each segment, without entries that are only in memory.
    #[must_use]
    pub fn segments(&self) -> Vec<(Offset, u64)> {
        self.shelf.segments()
    }

    /// Queues entries to append; `done` is called when they are durable. Waits only for the queue.
    pub async fn append(&self, entries: Vec<Entry>, done: Done) -> DiskResult<()> {
        self.disk.send(Command::Append(Append { shelf: Arc::clone(&self.shelf), entries, done })).await
    }

    /// Queues a cut of everything from this offset on.
    pub async fn cut(&self, from: Offset, done: Done) -> DiskResult<()> {
        self.disk.send(Command::Cut(self.shelf.id, from, done)).await
    }

    /// Drops whole segments before this offset.
    pub async fn truncate(&self, before: Offset) -> DiskResult<()> {
        self.disk.ask(|done| Command::Truncate(self.shelf.id, before, done)).await
    }

    /// Queues a reset to the end of this history.
    pub async fn reset(&self, history: History, done: Done) -> DiskResult<()> {
        self.disk.send(Command::Reset(self.shelf.id, history, done)).await
    }

    /// Whether appends would succeed now: the disk works and has space.
    pub async fn probe(&self) -> DiskResult<()> {
        self.disk.ask(|done| Command::Probe(self.shelf.id, done)).await
    }

    /// Deletes the log.
    pub async fn remove(&self) -> DiskResult<()> {
        self.disk.ask(|done| Command::Remove(self.shelf.id, done)).await
    }

    /// Whether acknowledged entries may be missing at the end.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.shelf.is_incomplete()
    }

    /// Clears the mark that entries may be missing, because the metadata confirms that other copies are complete.
    pub async fn trust(&self) -> DiskResult<()> {
        self.disk.ask(|done| Command::Trust(self.shelf.id, done)).await
    }

    /// Overwrites damaged entries with those of another holder; the first must be the first damaged one.
    pub async fn repair(&self, entries: Vec<Entry>) -> DiskResult<()> {
        self.disk.ask(|done| Command::Repair(self.shelf.id, entries, done)).await
    }

    /// Durable entries from this offset on, each verified: at least one if there is one, and about this many bytes.
    /// Blocking, usually only to copy from the page cache.
    pub fn read(&self, from: Offset, max_bytes: usize) -> DiskResult<Vec<Entry>> {
        self.shelf.read(from, max_bytes, &self.disk.inner.files)
    }
}

fn named(name: &str, body: impl FnOnce() + Send + 'static) -> DiskResult<std::thread::JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map_err(|error| DiskError::Failed(error.to_string()))
}

/// The background threads and the channels to them.
fn start(
    fs: &Fs,
    dir: &Path,
    options: Options,
    opened: recovery::Opened,
) -> DiskResult<(Upkeep, Vec<std::thread::JoinHandle<()>>)> {
    let (wanted, wishes) = std::sync::mpsc::sync_channel(1);
    let (prepared, arrived) = std::sync::mpsc::sync_channel(1);
    let (fills, to_fill) = std::sync::mpsc::sync_channel(1);
    let (flushes, to_flush) = std::sync::mpsc::sync_channel(1);
    // At most one report per thread at a time: neither ever waits for the writers.
    let (report, reports) = std::sync::mpsc::sync_channel(2);
    let (size, pen, place) =
        (options.journal_file_bytes, Pen::new(&opened.files, options.segment_bytes), dir.to_owned());
    let from_filler = report.clone();
    let (for_preparer, for_flusher) = (Arc::clone(fs), Arc::clone(fs));
    let threads = vec![
        named("log-preparer", move || journal::prepare(&for_preparer, size, &wishes, &prepared))?,
        named("log-filler", move || fill::fill_all(pen, &to_fill, &from_filler))?,
        named("log-flusher", move || fill::flush_all(&for_flusher, &place, &to_flush, &report))?,
    ];
    let journal = Journal::begin(
        fs,
        &journal_dir(dir),
        opened.key,
        size,
        opened.next_group,
        &opened.needed,
        (wanted, arrived),
    )?;
    let upkeep = Upkeep {
        dir: dir.to_owned(),
        options,
        id: opened.id,
        key: opened.key,
        shelves: opened.shelves,
        files: opened.files,
        journal,
        next_log: opened.next_log,
        salvaged: opened.salvaged,
        unfilled: opened.unfilled,
        tail_bytes: opened.tail_bytes,
        filler: opened.full.map_or(Filler::Idle, |error| Filler::Full(error, std::time::Instant::now())),
        unsynced: opened.unsynced,
        since_checkpoint: opened.replayed_bytes,
        checkpointing: false,
        failure: None,
        fills,
        flushes,
        reports,
        _lock: opened.lock,
    };
    Ok((upkeep, threads))
}
