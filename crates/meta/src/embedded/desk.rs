//! Who does the writer's work? Whoever hands something in while the writer rests.
//!
//! A lone caller makes its own write durable, on its own thread: no other thread has to wake up for it, which would
//! take longer than the disk does. Where several come at once, or the disk is slow, they only hand in, and one thread
//! serves what piled up, group after group, until nothing waits. So there is one writer at any time, but no thread of
//! its own.
//!
//! A store in memory is served by a task ([`serve_memory`]): what is handed in at one instant is one group, whichever of
//! the callers was woken first. A simulation stays repeatable that way.

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use super::Shared;
use super::compaction::Progress;
use super::durable::BaseJob;
use super::engine::Need;
use super::writer::{Alone, Command, Served, Writer};
use crate::error::MetaError;

/// Commands that may wait for the writer; who comes after them waits outside.
const QUEUE: usize = 4096;

/// A runtime's thread may wait for the disk this long. Where the last wait was longer, a thread made for it does.
const QUICK: Duration = Duration::from_millis(1);

/// Whether a group may keep its thread waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// It waits for the disk.
    Disk,
    /// It never waits.
    Memory,
}

/// Where commands are handed in.
pub struct Desk {
    medium: Medium,
    commands: mpsc::Sender<Command>,
    shared: Arc<Shared>,
    room: Mutex<Room>,
    /// The last group had one command and a quick disk: whoever comes next is probably alone too, and done at once.
    quiet: AtomicBool,
    /// A thread is serving, or on its way.
    attended: AtomicBool,
    /// Wakes the task of a store in memory.
    called: Arc<Notify>,
}

/// The writer with its queue: only one at a time may be in here.
struct Room {
    writer: Writer,
    queue: mpsc::Receiver<Command>,
}

/// The store has stopped and takes nothing more.
#[derive(Debug)]
pub struct Closed;

impl Desk {
    /// A desk for this writer.
    pub fn new(writer: Writer, medium: Medium) -> Desk {
        let (commands, queue) = mpsc::channel(QUEUE);
        let shared = writer.shared.clone();
        let room = Mutex::new(Room { writer, queue });
        let (quiet, attended) = (AtomicBool::new(true), AtomicBool::new(false));
        Desk { medium, commands, shared, room, quiet, attended, called: Arc::default() }
    }

    /// Hands a command in, and does the writer's work if nobody else is at it.
    pub async fn hand_in(self: &Arc<Desk>, command: Command) -> Result<(), Closed> {
        // Rewriting the whole state takes long: never on a thread of the runtime.
        let slow = matches!(command, Command::Alone(Alone::Defragment(_)));
        self.commands.send(command).await.map_err(|_| Closed)?;
        match self.medium {
            Medium::Memory => self.called.notify_one(),
            Medium::Disk => self.serve_or_call(slow),
        }
        Ok(())
    }

    fn serve_or_call(self: &Arc<Desk>, slow: bool) {
        // Pairs with the fences of those who leave: either they see the command, or this sees that they have left.
        fence(Ordering::SeqCst);
        if self.attended.load(Ordering::SeqCst) {
            return;
        }
        if self.quiet.load(Ordering::Relaxed) && !slow {
            // Whoever is at it looks again when done.
            let Some(mut room) = self.enter() else { return };
            self.serve_group(&mut room);
            drop(room);
            if !self.is_anyone_waiting() {
                return;
            }
        }
        if !self.attended.swap(true, Ordering::AcqRel) {
            let desk = self.clone();
            // Ends when nothing waits; every caller waits for its own answer only.
            tokio::task::spawn_blocking(move || desk.attend());
        }
    }

    /// Serves until nothing waits. Who hands something in after the last look sees that nobody attends any more.
    fn attend(&self) {
        loop {
            self.serve_all();
            self.attended.store(false, Ordering::SeqCst);
            if !self.is_anyone_waiting() || self.attended.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }

    /// Time has passed: ends leases, drops old history, and does what can wait as long as nobody comes.
    pub async fn tick(self: &Arc<Desk>) {
        match self.medium {
            Medium::Memory => drop(self.tick_now()),
            Medium::Disk => {
                let desk = self.clone();
                // It fails only when the runtime is shutting down, and the ticker with it.
                let job = tokio::task::spawn_blocking(move || desk.tick_now()).await.ok().flatten();
                if let Some(job) = job {
                    let desk = self.clone();
                    // Closing the store stops it and waits for it.
                    tokio::task::spawn_blocking(move || desk.write_base(job));
                }
            }
        }
    }

    /// Returns a base that is due.
    fn tick_now(&self) -> Option<BaseJob> {
        let mut room = self.wait_and_enter()?;
        room.writer.tick();
        while !self.is_anyone_waiting() && room.writer.tidy() == Progress::More {}
        let job = room.writer.begin_base(Need::WhenWorthIt);
        drop(room);
        self.serve_all();
        job
    }

    fn write_base(&self, job: BaseJob) {
        let outcome = job.run(&self.shared);
        if let Some(mut room) = self.wait_and_enter() {
            // What could not be done was logged, and stops the store if it must.
            room.writer.finish_base(outcome).ok();
            drop(room);
            self.serve_all();
        }
    }

    /// Serves until nothing waits or somebody else is at it, who will look again when done.
    fn serve_all(&self) {
        while self.is_anyone_waiting() {
            let Some(mut room) = self.enter() else { return };
            if self.serve_group(&mut room) == Attempt::Nothing {
                return;
            }
        }
    }

    /// The room, unless somebody is in it.
    fn enter(&self) -> Option<MutexGuard<'_, Room>> {
        match self.room.try_lock() {
            Ok(room) => Some(room),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(poisoned)) => self.give_up(poisoned),
        }
    }

    /// The room, as soon as it is free.
    fn wait_and_enter(&self) -> Option<MutexGuard<'_, Room>> {
        self.room.lock().map_or_else(|poisoned| self.give_up(poisoned), Some)
    }

    /// A thread panicked in the room: what it left in memory may be half of something. The store stops.
    fn give_up<'a>(&'a self, poisoned: PoisonError<MutexGuard<'a, Room>>) -> Option<MutexGuard<'a, Room>> {
        let mut room = poisoned.into_inner();
        if self.shared.failure().is_none() {
            tracing::error!("metadata store failed: a write panicked");
            self.shared.fail(MetaError::Storage("a write panicked".into()));
        }
        room.queue.close();
        // Their callers see the failure.
        while room.queue.try_recv().is_ok() {}
        None
    }

    fn serve_group(&self, room: &mut Room) -> Attempt {
        let Ok(first) = room.queue.try_recv() else { return Attempt::Nothing };
        let began = Instant::now();
        match room.writer.serve(first, &mut room.queue) {
            Served::Group { commands } => {
                let quiet = commands <= 1 && began.elapsed() < QUICK;
                self.quiet.store(quiet, Ordering::Relaxed);
            }
            Served::Closed => room.queue.close(),
        }
        Attempt::Served
    }

    fn is_anyone_waiting(&self) -> bool {
        fence(Ordering::SeqCst);
        self.commands.capacity() < QUEUE
    }
}

/// Serves a store in memory as long as it lives.
pub async fn serve_memory(desk: Weak<Desk>) {
    let Some(called) = desk.upgrade().map(|desk| desk.called.clone()) else { return };
    loop {
        called.notified().await;
        let Some(desk) = desk.upgrade() else { return };
        desk.serve_all();
    }
}

/// Whether there was something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Served,
    Nothing,
}
