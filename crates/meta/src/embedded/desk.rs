//! Who does the writer's work? Whoever hands something in while the writer rests.
//!
//! A lone caller makes its own write durable, on its own thread: no other thread has to wake up for it, which would
//! take longer than the disk does. Where several come at once, they only hand in, and one thread serves what piled up,
//! group after group, until nothing waits. So there is one writer at any time, but no thread of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::mpsc;

use super::compaction::Progress;
use super::writer::{Command, Served, Writer};

/// Commands that may wait for the writer; who comes after them waits outside.
const QUEUE: usize = 4096;

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
    /// The last group had one command: whoever comes next is probably alone, too.
    quiet: AtomicBool,
    /// A thread is serving, or on its way.
    attended: AtomicBool,
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
        Desk { medium, commands, room, quiet: AtomicBool::new(true), attended: AtomicBool::new(false) }
    }

    /// Hands a command in, and does the writer's work if nobody else is at it.
    pub async fn hand_in(self: &Arc<Desk>, command: Command) -> Result<(), Closed> {
        self.commands.send(command).await.map_err(|_| Closed)?;
        match self.medium {
            Medium::Memory => self.serve_all(),
            Medium::Disk => self.serve_or_call(),
        }
        Ok(())
    }

    fn serve_or_call(self: &Arc<Desk>) {
        if self.attended.load(Ordering::Acquire) {
            return;
        }
        let alone = self.quiet.load(Ordering::Relaxed);
        if alone && (blocking(|| self.serve_group()) == Attempt::Nothing || !self.is_anyone_waiting()) {
            return;
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
        while self.is_anyone_waiting() && self.serve_group() == Attempt::Served {}
    }

    fn serve_group(&self) -> Attempt {
        let mut room = match self.room.try_lock() {
            Ok(room) => room,
            Err(TryLockError::WouldBlock) => return Attempt::Nothing,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        let Room { writer, queue } = &mut *room;
        let Ok(first) = queue.try_recv() else { return Attempt::Nothing };
        match writer.serve(first, queue) {
            Served::Group { commands } => self.quiet.store(commands <= 1, Ordering::Relaxed),
            Served::Closed => queue.close(),
        }
        Attempt::Served
    }

    fn is_anyone_waiting(&self) -> bool {
        self.commands.capacity() < QUEUE
    }
}

/// Whether there was something to do, and nobody else at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Served,
    Nothing,
}

/// Waits for the disk on this thread, and lets the runtime's other tasks move to another one where there are others.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}
