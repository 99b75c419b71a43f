//! Who writes? Two threads that take turns: while one waits for the disk, the other gathers, encodes and sends the next
//! group. A group is acknowledged when it and every group before it is durable.
//!
//! What is made durable before anybody is told is one write to the journal and one sync, for all logs of the host. The
//! segments are filled afterwards, in the background ([`super::upkeep`]). Changes other than appends cannot be taken
//! back, so each goes into the journal alone and then happens to the files.

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
use crate::entry::{Entry, History, Offset};
use crate::keys::LogName;

/// Told when a change is durable, or why it is not.
pub type Done = Box<dyn FnOnce(DiskResult<()>) + Send>;

/// Told which log was made.
pub type Made = Box<dyn FnOnce(DiskResult<Arc<Shelf>>) + Send>;

/// What the writer can be asked.
pub enum Command {
    /// Entries at the end of a log.
    Append(Append),
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
    /// What may be missing at a log's end does not count any more.
    Trust(u64, Done),
    /// Write entries over damaged ones.
    Repair(u64, Vec<Entry>, Done),
    /// Make everything durable in its place and stop.
    Close(Done),
}

/// The logs of a directory; readers share it.
pub type Shelves = Arc<RwLock<BTreeMap<u64, Arc<Shelf>>>>;

/// What the writing threads share. Whoever has the intake takes the disk before it lets the other have the intake, so
/// groups get their places in the order in which they were gathered. Nobody holds either while the device works.
pub struct Turns {
    intake: Mutex<Intake>,
    disk: Mutex<Writer>,
    /// A group is durable, or has failed.
    completed: Condvar,
}

struct Intake {
    commands: mpsc::Receiver<Command>,
    /// The command that ended the last group.
    held: Option<Command>,
    closed: bool,
}

/// What is changed by one thread at a time.
pub struct Writer {
    upkeep: Upkeep,
}

/// Whether there may be more to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Go,
    Stop,
}

impl Turns {
    /// Commands come from there and are carried out by this writer.
    pub fn new(commands: mpsc::Receiver<Command>, upkeep: Upkeep) -> Turns {
        let intake = Intake { commands, held: None, closed: false };
        Turns { intake: Mutex::new(intake), disk: Mutex::new(Writer { upkeep }), completed: Condvar::new() }
    }

    /// Works until the directory is closed or nobody can ask any more. Blocking: for a thread of its own.
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

    /// The disk when nothing is on its way there.
    fn alone(&self) -> MutexGuard<'_, Writer> {
        let idle = self.completed.wait_while(lock(&self.disk), |writer| writer.upkeep.is_writing());
        idle.unwrap_or_else(PoisonError::into_inner)
    }

    /// One group of appends.
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

/// A group on its way to the disk.
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

    /// Adds the appends that are waiting, up to the first command that is none.
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
    /// Gives a group of appends its place. If there is nothing to write, answers whom to tell what.
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

    /// A group was written, or was not, and so were all before it. Answers whom to tell what.
    fn complete(&mut self, sent: Sent, outcome: DiskResult<()>) -> Vec<Told> {
        let Sent { write, group, appends, mut told } = sent;
        // A group behind one that failed is not found by a replay.
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
            Command::Create(name, made) => made(self.create(name)),
            Command::Repair(log, entries, done) => {
                let shelf = find(&self.upkeep.shelves, log);
                done(shelf.and_then(|shelf| shelf.repair(&entries, &self.upkeep.files)));
            }
            Command::Append(_) | Command::Close(_) => {}
        }
        self.upkeep.tend();
    }

    fn create(&mut self, name: LogName) -> DiskResult<Arc<Shelf>> {
        let present = {
            let shelves = self.upkeep.shelves.read().unwrap_or_else(PoisonError::into_inner);
            shelves.values().find(|shelf| shelf.name == name).cloned()
        };
        if let Some(shelf) = present {
            return Ok(shelf);
        }
        let log = self.upkeep.next_log;
        self.upkeep.next_log += 1;
        self.change(log, &Change::Create(name))?;
        let shelf = find(&self.upkeep.shelves, log)?;
        shelf.distrust(self.upkeep.salvaged);
        Ok(shelf)
    }

    /// Into the journal, then into the files; nobody fills those meanwhile.
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

/// Changes a log; the same when it happens and when it is replayed.
pub fn apply(
    log: u64,
    change: &Change<'_>,
    dir: &std::path::Path,
    shelves: &Shelves,
    files: &Files,
) -> DiskResult<()> {
    let mut all = shelves.write().unwrap_or_else(PoisonError::into_inner);
    if let Change::Create(name) = change {
        let shelf = Shelf::new(&super::segments_dir(dir), log, name.clone(), History::default());
        all.insert(log, Arc::new(shelf));
        return Ok(());
    }
    let shelf = all.get(&log).cloned().ok_or(DiskError::NoSuchLog)?;
    match change {
        // Appends are published with the memory of their group.
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
        Change::Create(_) => Ok(()),
    }
}
