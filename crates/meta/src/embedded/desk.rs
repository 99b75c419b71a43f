//! Who does the writer's work? Whoever hands something in while the writer rests.
//!
//! A lone caller makes its own write durable, on its own thread: no other thread has to wake up for it, which would
//! take longer than the disk does. Where several come at once, or the disk is slow, they only hand in, and one thread
//! serves what piled up, group after group, until nothing waits. So there is one writer at any time, but no thread of
//! its own.
//!
//! A store in memory is served by a task ([`serve_memory`]): what is handed in at one instant is one group, whichever of
//! the callers was woken first. A simulation stays repeatable that way.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

use super::compaction::Progress;
use super::writer::{Command, Served, Writer};

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
        let room = Mutex::new(Room { writer, queue });
        let (quiet, attended) = (AtomicBool::new(true), AtomicBool::new(false));
        Desk { medium, commands, room, quiet, attended, called: Arc::default() }
    }

    /// Hands a command in, and does the writer's work if nobody else is at it.
    pub async fn hand_in(self: &Arc<Desk>, command: Command) -> Result<(), Closed> {
        self.commands.send(command).await.map_err(|_| Closed)?;
        match self.medium {
            Medium::Memory => self.called.notify_one(),
            Medium::Disk => self.serve_or_call(),
        }
        Ok(())
    }

    fn serve_or_call(self: &Arc<Desk>) {
        if self.attended.load(Ordering::Acquire) {
            return;
        }
        if self.quiet.load(Ordering::Relaxed) {
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
            self.attended.store(false, Ordering::Release);
            if !self.is_anyone_waiting() || self.attended.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }

    /// Time has passed: ends leases, drops old history, and does what can wait as long as nobody comes.
    pub async fn tick(self: &Arc<Desk>) {
        match self.medium {
            Medium::Memory => self.tick_now(),
            Medium::Disk => {
                let desk = self.clone();
                // It fails only when the runtime is shutting down, and the ticker with it.
                tokio::task::spawn_blocking(move || desk.tick_now()).await.ok();
            }
        }
    }

    fn tick_now(&self) {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        room.writer.tick();
        while !self.is_anyone_waiting() && room.writer.tidy() == Progress::More {}
        drop(room);
        self.serve_all();
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
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        }
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
