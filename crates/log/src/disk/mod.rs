//! How are the logs of one host kept on disk? Every append goes into one journal, whose sync makes the appends of all
//! logs durable at once. Later, in the background and in large pieces, it moves into its log's own segments, from which
//! it is read and with which it is dropped; until then it is read from memory.
//!
//! ```text
//! <dir>/checkpoint        what the segments durably hold, and from which group on the journal is to be replayed
//! <dir>/journal/*.journal groups of changes; filled once, then written over
//! <dir>/segments/*.seg    <log>-<first offset>.seg: the entries of one log
//! <dir>/lock              one process at a time
//! ```
//!
//! Why a journal and segments, and what else was considered, is in `docs/adr/log-0001-journal-and-segments.md`; why the
//! segments are filled later, in `docs/adr/log-0002-segments-filled-later.md`.

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
use files::Files;
use fill::Pen;
use journal::Journal;
use shelf::Shelf;
use upkeep::{Filler, Upkeep};
use writer::{Command, Shelves, Turns};

/// Commands that may wait for the writer; who comes after them waits outside.
const QUEUE: usize = 8192;

/// How a directory of logs behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Longest segment; also what `truncate_before` frees at a time.
    pub segment_bytes: u64,
    /// Length of one journal file.
    pub journal_file_bytes: u64,
    /// Bytes in the journal after which the segments are synced; bounds what is replayed after a crash.
    pub checkpoint_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        const MIB: u64 = 1024 * 1024;
        Options { segment_bytes: 64 * MIB, journal_file_bytes: 16 * MIB, checkpoint_bytes: 64 * MIB }
    }
}

/// What becomes of logs that lost entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Each leaves its in-sync set and learns from the other holders what it lacks.
    LearnAnew,
    /// There is no other holder: what is gone is gone.
    Accept,
}

fn segments_dir(dir: &Path) -> PathBuf {
    dir.join("segments")
}

fn journal_dir(dir: &Path) -> PathBuf {
    dir.join("journal")
}

/// A directory of logs that is open. Clones are the same directory.
#[derive(Clone)]
pub struct Disk {
    inner: Arc<Inner>,
}

struct Inner {
    commands: mpsc::Sender<Command>,
    shelves: Shelves,
    files: Arc<Files>,
    recovery: Recovery,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

/// One log on disk. Clones are the same log.
#[derive(Clone, Debug)]
pub struct DiskLog {
    disk: Disk,
    shelf: Arc<Shelf>,
}

impl Disk {
    /// Opens a directory, or makes one there. Everything that was durable is in it. Blocking.
    pub fn open(dir: &Path, options: Options) -> DiskResult<Disk> {
        let opened = recovery::open(dir, &options, Holes::Refuse)?;
        let recovery = opened.recovery.clone();
        if let Some(torn) = &opened.recovery.replayed.torn {
            tracing::warn!(torn, "cut a torn tail off the journal");
        }
        for log in &opened.recovery.damaged {
            tracing::error!(%log, "log is shorter than it was when it was synced");
        }
        let (commands, queue) = mpsc::channel(QUEUE);
        let (upkeep, mut threads) = start(dir, options, opened)?;
        let (shelves, files) = (Arc::clone(&upkeep.shelves), Arc::clone(&upkeep.files));
        let turns = Arc::new(Turns::new(queue, upkeep));
        for name in ["log-writer-a", "log-writer-b"] {
            let turns = Arc::clone(&turns);
            threads.push(named(name, move || turns.run())?);
        }
        let inner = Inner { commands, shelves, files, recovery, threads: Mutex::new(threads) };
        Ok(Disk { inner: Arc::new(inner) })
    }

    /// Makes a directory with a hole in its journal one that can be opened: keeps what comes before the hole and forgets
    /// what comes after it. Every log in it may then lack entries that were acknowledged, so its copies take themselves
    /// out of the in-sync sets before they do anything else, unless the loss is accepted. Blocking.
    pub fn salvage(dir: &Path, options: Options, loss: Loss) -> DiskResult<Recovery> {
        if Checkpoint::load(dir)?.is_none() {
            let what = "there is no checkpoint: this is no directory of logs".to_owned();
            return Err(DiskError::Corrupt { dir: dir.display().to_string(), what });
        }
        let distrust = match loss {
            Loss::LearnAnew => true,
            Loss::Accept => false,
        };
        let opened = recovery::open(dir, &options, Holes::Salvage { distrust })?;
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

    /// The log with this name, made if there is none.
    pub async fn log(&self, name: &LogName) -> DiskResult<DiskLog> {
        let (made, answer) = oneshot::channel();
        let command = Command::Create(name.clone(), Box::new(|shelf| drop(made.send(shelf))));
        self.inner.commands.send(command).await.map_err(|_| DiskError::Closed)?;
        let shelf = answer.await.map_err(|_| DiskError::Closed)??;
        Ok(DiskLog { disk: self.clone(), shelf })
    }

    /// Stops: everything is in its place, and the next opening replays nothing.
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

    /// First offset that is still there.
    #[must_use]
    pub fn start(&self) -> Offset {
        self.shelf.start()
    }

    /// Everything that is durable.
    #[must_use]
    pub fn history(&self) -> History {
        self.shelf.history()
    }

    /// First offset and length in bytes of each segment; what is still in memory only is not counted.
    #[must_use]
    pub fn segments(&self) -> Vec<(Offset, u64)> {
        self.shelf.segments()
    }

    /// Queues entries for the end of the log; `done` is told when they are durable. Waits only for the queue.
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

    /// Queues a new beginning at the end of this history.
    pub async fn reset(&self, history: History, done: Done) -> DiskResult<()> {
        self.disk.send(Command::Reset(self.shelf.id, history, done)).await
    }

    /// Deletes the log.
    pub async fn remove(&self) -> DiskResult<()> {
        self.disk.ask(|done| Command::Remove(self.shelf.id, done)).await
    }

    /// Whether entries that were acknowledged may be missing at the end: the directory was salvaged.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.shelf.is_incomplete()
    }

    /// What may be missing at the end does not count any more, because the metadata says that others are complete.
    pub async fn trust(&self) -> DiskResult<()> {
        self.disk.ask(|done| Command::Trust(self.shelf.id, done)).await
    }

    /// Writes entries from another holder over damaged ones; the first must be the first damaged one.
    pub async fn repair(&self, entries: Vec<Entry>) -> DiskResult<()> {
        self.disk.ask(|done| Command::Repair(self.shelf.id, entries, done)).await
    }

    /// Durable entries from this offset on, each checked: at least one if there is one, and about so many bytes.
    /// Blocking, usually for as long as it takes to copy from the page cache.
    pub fn read(&self, from: Offset, max_bytes: usize) -> DiskResult<Vec<Entry>> {
        self.shelf.read(from, max_bytes, &self.disk.inner.files)
    }
}

fn named(name: &str, body: impl FnOnce() + Send + 'static) -> DiskResult<std::thread::JoinHandle<()>> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map_err(|error| DiskError::Failed(error.to_string()))
}

/// The threads behind the writers, and what the writers know of them.
fn start(
    dir: &Path,
    options: Options,
    opened: recovery::Opened,
) -> DiskResult<(Upkeep, Vec<std::thread::JoinHandle<()>>)> {
    let (wanted, wishes) = std::sync::mpsc::sync_channel(1);
    let (prepared, arrived) = std::sync::mpsc::sync_channel(1);
    let (fills, to_fill) = std::sync::mpsc::sync_channel(1);
    let (flushes, to_flush) = std::sync::mpsc::sync_channel(1);
    // One report of each thread at a time: neither ever waits for the writers.
    let (report, reports) = std::sync::mpsc::sync_channel(2);
    let (size, pen, place) =
        (options.journal_file_bytes, Pen::new(&opened.files, options.segment_bytes), dir.to_owned());
    let from_filler = report.clone();
    let threads = vec![
        named("log-preparer", move || journal::prepare(size, &wishes, &prepared))?,
        named("log-filler", move || fill::fill_all(pen, &to_fill, &from_filler))?,
        named("log-flusher", move || fill::flush_all(&place, &to_flush, &report))?,
    ];
    let journal = Journal::begin(
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
