//! How are groups written? By two threads that alternate: while one waits for the disk, the other collects, encodes and
//! submits the next group. A group is acknowledged when it and every earlier group are durable.
//!
//! An acknowledgment needs one write to the journal and one sync, for all logs of the host. The segments are filled
//! later, in the background ([`super::upkeep`]). Changes other than appends cannot be undone, so each is journaled
//! alone and then applied to the files.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::sync::mpsc;

use super::change::Change;
use super::draft::{Append, Draft, Staged, Told};
use super::error::{DiskError, DiskResult};
use super::files::Files;
use super::group::Group;
use super::journal::Write;
use super::shelf::Shelf;
use super::upkeep::Upkeep;
use crate::config::Incarnation;
use crate::entry::{Entry, History, Offset};
use crate::keys::LogName;

/// Called when a change is durable, or with the error.
pub type Done = Box<dyn FnOnce(DiskResult<()>) + Send>;

/// Called with the created log.
pub type Made = Box<dyn FnOnce(DiskResult<Arc<Shelf>>) + Send>;

/// A request to the writer.
pub enum Command {
    /// Append entries to a log.
    Append(Append),
    /// Drop a log's tail.
    Cut(u64, Offset, Done),
    /// Drop a log's prefix.
    Truncate(u64, Offset, Done),
    /// Reset a log to the end of this history.
    Reset(u64, History, Done),
    /// Create or find a log.
    Create(LogName, Incarnation, Made),
    /// Delete a log.
    Remove(u64, Done),
    /// Clear the mark that entries may be missing at a log's end.
    Trust(u64, Done),
    /// Mark every log as possibly lacking acknowledged entries.
    Distrust(Done),
    /// Overwrite damaged entries.
    Repair(u64, Vec<Entry>, Done),
    /// Check whether appends to this log would succeed.
    Probe(u64, Done),
    /// Move everything into segments and stop.
    Close(Done),
}

/// The logs of a directory; readers share it.
pub type Shelves = Arc<RwLock<BTreeMap<u64, Arc<Shelf>>>>;

/// The state shared by the writer threads. A thread locks the disk before it releases the intake, so groups get their
/// positions in the order in which they were collected. Neither lock is held during device I/O.
pub struct Turns {
    intake: Mutex<Intake>,
    disk: Mutex<Writer>,
    /// Signalled when a group is durable or has failed.
    completed: Condvar,
}

struct Intake {
    commands: mpsc::Receiver<Command>,
    /// The command that ended the last group.
    held: Option<Command>,
    closed: bool,
}

/// The state that one thread at a time changes.
pub struct Writer {
    upkeep: Upkeep,
}

/// Whether to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Go,
    Stop,
}

impl Turns {
    /// A writer for commands from this queue.
    pub fn new(commands: mpsc::Receiver<Command>, upkeep: Upkeep) -> Turns {
        let intake = Intake { commands, held: None, closed: false };
        Turns { intake: Mutex::new(intake), disk: Mutex::new(Writer { upkeep }), completed: Condvar::new() }
    }

    /// Runs until the directory is closed or all senders are gone. Blocking: runs on its own thread.
    pub fn run(&self) {
        while self.turn() == Flow::Go {}
    }

    fn turn(&self) -> Flow {
        let mut intake = lock(&self.intake);
        if intake.closed {
            return Flow::Stop;
        }
        match intake.next() {
            None => {
                intake.closed = true;
                self.alone().upkeep.close().ok();
                return Flow::Stop;
            }
            Some(Command::Append(append)) => self.appends(append, intake),
            Some(Command::Close(done)) => {
                intake.closed = true;
                done(self.alone().upkeep.close());
                return Flow::Stop;
            }
            Some(other) => self.alone().perform(other),
        }
        Flow::Go
    }

    /// Locks the disk once nothing is in flight.
    fn alone(&self) -> MutexGuard<'_, Writer> {
        let idle = self.completed.wait_while(lock(&self.disk), |writer| writer.upkeep.is_writing());
        idle.unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes one group of appends.
    fn appends(&self, first: Append, mut intake: MutexGuard<'_, Intake>) {
        let mut draft = Draft::default();
        draft.add(first);
        intake.gather(&mut draft);
        let (group, appends, told) = draft.stage();
        let placed = lock(&self.disk).place(group, appends, told);
        drop(intake);
        match placed {
            Ok(sent) => self.send(sent),
            Err(told) => tell(told),
        }
    }

    fn send(&self, sent: Sent) {
        let outcome = sent.write.perform(&sent.group);
        let before = |writer: &mut Writer| writer.upkeep.is_waiting_before(&sent.write);
        let writer = self.completed.wait_while(lock(&self.disk), before);
        let told = writer.unwrap_or_else(PoisonError::into_inner).complete(sent, outcome);
        self.completed.notify_all();
        tell(told);
    }
}

fn tell(told: Vec<Told>) {
    told.into_iter().for_each(|(done, outcome)| done(outcome));
}

/// A group in flight.
struct Sent {
    write: Write,
    group: Group,
    appends: Vec<Staged>,
    told: Vec<Told>,
}

impl Intake {
    fn next(&mut self) -> Option<Command> {
        self.held.take().or_else(|| self.commands.blocking_recv())
    }

    /// Adds the waiting appends, up to the first other command.
    fn gather(&mut self, draft: &mut Draft) {
        while self.held.is_none() && !draft.is_full() {
            match self.commands.try_recv() {
                Ok(Command::Append(append)) => draft.add(append),
                Ok(other) => self.held = Some(other),
                Err(_) => return,
            }
        }
    }
}

impl Writer {
    /// Assigns a group of appends its position. If nothing is to be written, returns the results for the callers.
    fn place(
        &mut self,
        mut group: Group,
        appends: Vec<Staged>,
        mut told: Vec<Told>,
    ) -> Result<Sent, Vec<Told>> {
        if appends.is_empty() {
            return Err(told);
        }
        let placed = self.upkeep.may_append().and_then(|()| self.upkeep.place(&mut group));
        match placed {
            Ok(write) => Ok(Sent { write, group, appends, told }),
            Err(error) => {
                appends.iter().rev().for_each(Staged::take_back);
                told.extend(appends.into_iter().map(|append| (append.done, Err(error.clone()))));
                Err(told)
            }
        }
    }

    /// Completes a group after all earlier ones. Returns the results for the callers.
    fn complete(&mut self, sent: Sent, outcome: DiskResult<()>) -> Vec<Told> {
        let Sent { write, group, appends, mut told } = sent;
        // A replay does not find a group after a failed one.
        let mut outcome = self.upkeep.works().and(outcome);
        self.upkeep.written(&write, &outcome);
        if outcome.is_ok() {
            let bytes = appends.iter().map(Staged::bytes).sum();
            let group = group.freeze();
            outcome = appends.iter().try_for_each(|append| append.publish(&group));
            self.upkeep.published(bytes, appends.iter().map(Staged::log));
        }
        told.extend(appends.into_iter().map(|append| (append.done, outcome.clone())));
        told
    }

    fn perform(&mut self, command: Command) {
        match command {
            Command::Cut(log, from, done) => done(self.change(log, &Change::Cut(from))),
            Command::Truncate(log, before, done) => done(self.change(log, &Change::Truncate(before))),
            Command::Reset(log, history, done) => done(self.change(log, &Change::Reset(history))),
            Command::Remove(log, done) => done(self.change(log, &Change::Remove)),
            Command::Trust(log, done) => done(self.change(log, &Change::Trust)),
            Command::Create(name, incarnation, made) => made(self.create(name, incarnation)),
            Command::Repair(log, entries, done) => {
                let shelf = find(&self.upkeep.shelves, log);
                done(shelf.and_then(|shelf| shelf.repair(&entries, &self.upkeep.files)));
            }
            Command::Distrust(done) => done(self.upkeep.distrust()),
            Command::Probe(log, done) => done(self.probe(log)),
            Command::Append(_) | Command::Close(_) => {}
        }
        self.upkeep.tend();
    }

    fn create(&mut self, name: LogName, incarnation: Incarnation) -> DiskResult<Arc<Shelf>> {
        let present = {
            let shelves = self.upkeep.shelves.read().unwrap_or_else(PoisonError::into_inner);
            shelves.values().find(|shelf| shelf.name == name).cloned()
        };
        if let Some(shelf) = present {
            return Ok(shelf);
        }
        let log = self.upkeep.next_log;
        self.upkeep.next_log += 1;
        self.change(log, &Change::Create(name, incarnation))?;
        let shelf = find(&self.upkeep.shelves, log)?;
        shelf.distrust(self.upkeep.salvaged);
        Ok(shelf)
    }

    /// Checks for space and a working journal: fills waiting tails, and journals the committed offset.
    fn probe(&mut self, log: u64) -> DiskResult<()> {
        self.upkeep.works()?;
        self.upkeep.tend();
        self.upkeep.await_filler();
        self.upkeep.may_append()?;
        let committed = find(&self.upkeep.shelves, log)?.committed();
        self.change(log, &Change::Committed(committed))
    }

    /// Journals a change, then applies it to the files while the filler is idle.
    fn change(&mut self, log: u64, change: &Change<'_>) -> DiskResult<()> {
        self.upkeep.await_filler();
        self.upkeep.works()?;
        let mut group = Group::default();
        change.encode(log, group.content());
        let write = self.upkeep.place(&mut group)?;
        let written = write.perform(&group);
        self.upkeep.written(&write, &written);
        written?;
        let applied = apply(log, change, &self.upkeep.dir, &self.upkeep.shelves, &self.upkeep.files);
        self.upkeep.changed(log, &applied);
        applied
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log with this id.
pub fn find(shelves: &Shelves, log: u64) -> DiskResult<Arc<Shelf>> {
    let shelves = shelves.read().unwrap_or_else(PoisonError::into_inner);
    shelves.get(&log).cloned().ok_or(DiskError::NoSuchLog)
}

/// Applies a change to a log, for the first time or during a replay.
pub fn apply(
    log: u64,
    change: &Change<'_>,
    dir: &std::path::Path,
    shelves: &Shelves,
    files: &Files,
) -> DiskResult<()> {
    let mut all = shelves.write().unwrap_or_else(PoisonError::into_inner);
    if let Change::Create(name, incarnation) = change {
        let shelf = Shelf::new(&super::segments_dir(dir), log, name.clone(), *incarnation);
        all.insert(log, Arc::new(shelf));
        return Ok(());
    }
    let shelf = all.get(&log).cloned().ok_or(DiskError::NoSuchLog)?;
    match change {
        // Appends are published from the memory of their group.
        Change::Append(_) => Ok(()),
        Change::Cut(from) => shelf.cut(*from, files),
        Change::Truncate(before) => shelf.truncate(*before, files),
        Change::Reset(history) => shelf.reset(history.clone(), files),
        Change::Remove => {
            all.remove(&log);
            shelf.remove(files)
        }
        Change::Trust => {
            shelf.distrust(false);
            Ok(())
        }
        Change::Committed(upto) => {
            shelf.commit(*upto);
            Ok(())
        }
        Change::Create(..) => Ok(()),
    }
}
