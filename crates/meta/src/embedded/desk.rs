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
use super::writer::{Command, Reply, Served, Writer};
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
    /// The last group had one command and a quick disk: the next caller is probably alone too, and done at once.
    quiet: AtomicBool,
    /// A thread is serving, or on its way.
    attended: AtomicBool,
    /// A caller handed something in while the room was taken, and left it to the caller that has the room.
    left: AtomicBool,
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
        let (quiet, attended, left) = (AtomicBool::new(true), AtomicBool::new(false), AtomicBool::new(false));
        Desk { medium, commands, shared, room, quiet, attended, left, called: Arc::default() }
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
        // Pairs with the fences of those who leave: either they see the command, or this sees that they have left.
        fence(Ordering::SeqCst);
        if self.attended.load(Ordering::SeqCst) {
            return;
        }
        if self.quiet.load(Ordering::Relaxed) {
            let Some(mut room) = self.enter_or_leave() else { return };
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
    fn attend(self: &Arc<Desk>) {
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
                    tokio::task::spawn_blocking(move || desk.write_base(job, None));
                }
            }
        }
    }

    /// Returns a base that is due.
    fn tick_now(self: &Arc<Desk>) -> Option<BaseJob> {
        let mut room = self.wait_and_enter()?;
        room.writer.tick();
        while !self.is_anyone_waiting() && room.writer.tidy() == Progress::More {}
        let job = room.writer.begin_base(Need::WhenWorthIt);
        drop(room);
        self.serve_all();
        job
    }

    /// Writes a base, and answers a caller that waits for it.
    fn write_base(self: &Arc<Desk>, job: BaseJob, reply: Option<Reply<()>>) {
        let outcome = job.run(&self.shared);
        // What could not be done was logged, and stops the store if it must.
        let finished = self.wait_and_enter().map(|mut room| room.writer.finish_base(job, outcome));
        if let Some(reply) = reply {
            let finished = self.shared.failure().map_or(finished.unwrap_or(Err(MetaError::Stopped)), Err);
            // A caller that has gone away does not want to know.
            reply.send(finished).ok();
        }
        self.serve_all();
    }

    /// Serves until nothing waits or somebody else is at it, who will look again when done.
    fn serve_all(self: &Arc<Desk>) {
        while self.is_anyone_waiting() {
            let Some(mut room) = self.enter() else { return };
            let attempt = self.serve_group(&mut room);
            drop(room);
            if !self.looks_again(attempt) {
                return;
            }
        }
    }

    /// Whether there may be more after an attempt, now that the room is free. A caller that has its place in the queue and
    /// has not handed in yet comes by itself, unless it came while the room was still taken.
    fn looks_again(&self, attempt: Attempt) -> bool {
        fence(Ordering::SeqCst);
        self.left.swap(false, Ordering::SeqCst) || attempt == Attempt::Served
    }

    /// The room, or the certainty that the caller that has it looks again.
    fn enter_or_leave(&self) -> Option<MutexGuard<'_, Room>> {
        self.enter().or_else(|| {
            self.left.store(true, Ordering::SeqCst);
            // Pairs with the one of those who leave: either they see this, or this sees that they have left.
            fence(Ordering::SeqCst);
            self.enter()
        })
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

    fn serve_group(self: &Arc<Desk>, room: &mut Room) -> Attempt {
        let Ok(first) = room.queue.try_recv() else { return Attempt::Nothing };
        let began = Instant::now();
        match room.writer.serve(first, &mut room.queue) {
            Served::Group { commands } => {
                let quiet = commands <= 1 && began.elapsed() < QUICK;
                self.quiet.store(quiet, Ordering::Relaxed);
            }
            Served::Base { job, reply } => {
                let desk = self.clone();
                // Closing the store stops it and waits for it. It takes long: never on a thread of the runtime.
                tokio::task::spawn_blocking(move || desk.write_base(job, Some(reply)));
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::thread;

    use capstan_testkit::disk::SimDisk;
    use tokio::sync::oneshot;

    use super::super::engine::Memory;
    use super::super::recovery::{self, Recovered};
    use super::super::writer::Alone;
    use super::super::{Options, writer};
    use super::*;
    use crate::kv::{KeyRange, Revision};
    use crate::request::{Op, Put};

    async fn asked<T>(desk: &Arc<Desk>, command: impl FnOnce(writer::Reply<T>) -> Command) -> T {
        let (reply, answer) = oneshot::channel();
        desk.hand_in(command(reply)).await.unwrap();
        answer.await.unwrap().unwrap()
    }

    fn put(n: u8) -> Op {
        Op::Put(Put::new(vec![b'k', n % 7], vec![n; 900]))
    }

    /// A data directory with enough history for a base.
    async fn on_disk(disk: &SimDisk) -> Arc<Desk> {
        let options = Options { log_file_bytes: 4096, ..Options::default() };
        let (writer, _) = recovery::open(Arc::new(disk.clone()), Path::new("/data"), &options).unwrap();
        let desk = Arc::new(Desk::new(writer, Medium::Disk));
        for n in 0..50 {
            asked(&desk, |reply| Command::Write(put(n), reply)).await;
        }
        asked(&desk, |reply| Command::Compact(Revision(40), reply)).await;
        desk
    }

    /// A base that is written and not yet finished has the number that the next one would get: if another were begun now,
    /// the one that is finished last would remove its own file as that of its predecessor.
    #[tokio::test]
    async fn no_base_is_begun_before_the_last_one_is_finished() {
        let disk = SimDisk::new();
        let desk = on_disk(&disk).await;
        {
            let mut room = desk.wait_and_enter().unwrap();
            let job = room.writer.begin_base(Need::Now).unwrap();
            let outcome = job.run(&desk.shared);
            assert!(room.writer.begin_base(Need::Now).is_none(), "two bases at a time");
            room.writer.finish_base(job, outcome).unwrap();
        }
        asked(&desk, |reply| Command::Write(put(51), reply)).await;
        let (writer, _) =
            recovery::open(Arc::new(disk.crash()), Path::new("/data"), &Options::default()).unwrap();
        assert_eq!(writer.head, Revision(52));
    }

    /// While a base is written, history goes on to be dropped from memory: writing within the quota is never refused, and
    /// the base has what lived when it was begun.
    #[tokio::test]
    async fn a_slow_base_does_not_fill_the_quota() {
        let disk = SimDisk::new();
        let quota_bytes = 200_000;
        let options = Options { log_file_bytes: 4096, quota_bytes, ..Options::default() };
        let open = |disk: SimDisk| recovery::open(Arc::new(disk), Path::new("/data"), &options).unwrap().0;
        let desk = Arc::new(Desk::new(open(disk.clone()), Medium::Disk));
        for n in 0..50 {
            asked(&desk, |reply| Command::Write(put(n), reply)).await;
        }
        asked(&desk, |reply| Command::Compact(Revision(40), reply)).await;
        let job = desk.wait_and_enter().unwrap().writer.begin_base(Need::Now).unwrap();
        for n in 0..2000 {
            asked(&desk, |reply| Command::Write(put((n % 250) as u8), reply)).await;
        }
        let outcome = job.run(&desk.shared);
        desk.wait_and_enter().unwrap().writer.finish_base(job, outcome).unwrap();
        asked(&desk, |reply| Command::Write(put(7), reply)).await;
        let newest = |writer: &Writer| {
            let mut found = Vec::new();
            let state = writer.shared.state().unwrap();
            state.tree.visit(&KeyRange::all(), writer.head, |kv| found.push(kv.clone()));
            assert!(state.tree.bytes() <= quota_bytes, "{} bytes", state.tree.bytes());
            found
        };
        let before = newest(&desk.wait_and_enter().unwrap().writer);
        let again = open(disk.crash());
        assert_eq!((again.head, newest(&again)), (Revision(2052), before));
    }

    /// S19: what takes long is not done on a thread of the runtime, also if such a thread finds it in the queue.
    #[tokio::test]
    async fn a_base_is_not_written_on_a_thread_of_the_runtime() {
        let (disk, here) = (SimDisk::new(), thread::current().id());
        let desk = on_disk(&disk).await;
        let threads = Arc::new(Mutex::new(Vec::new()));
        let seen = threads.clone();
        disk.break_calls(move |call| {
            if call.path.to_string_lossy().contains("base-") {
                seen.lock().unwrap().push(thread::current().id());
            }
            None
        });
        let (reply, answer) = oneshot::channel();
        desk.commands.send(Command::Alone(Alone::Defragment(reply))).await.unwrap();
        // The next caller finds it in the queue, and serves it on its own thread.
        desk.quiet.store(true, Ordering::SeqCst);
        asked(&desk, |reply| Command::Write(put(50), reply)).await;
        answer.await.unwrap().unwrap();
        let threads = threads.lock().unwrap();
        assert!(!threads.is_empty(), "no base was written");
        assert!(!threads.contains(&here), "a base was written on the thread of the runtime");
    }

    /// S19: a caller that comes between the last look at the queue and the end of the stay in the room is not forgotten.
    #[tokio::test]
    async fn a_caller_that_comes_at_the_last_moment_is_served() {
        let writer = Recovered::empty().writer(Box::new(Memory), &Options::default());
        let desk = Arc::new(Desk::new(writer, Medium::Disk));
        let (reply, mut answer) = oneshot::channel();
        // It has its place in the queue, and nothing is in there yet.
        let place = desk.commands.reserve().await.unwrap();
        let mut room = desk.enter().unwrap();
        assert!(desk.is_anyone_waiting());
        let attempt = desk.serve_group(&mut room);
        assert_eq!(attempt, Attempt::Nothing);
        place.send(Command::Write(Op::Put(Put::new("k", "v")), reply));
        desk.serve_or_call();
        assert!(answer.try_recv().is_err(), "the room was taken");
        drop(room);
        assert!(desk.looks_again(attempt), "nobody serves what was handed in");
        desk.serve_all();
        assert!(answer.try_recv().unwrap().is_ok());
        assert!(!desk.looks_again(Attempt::Nothing));
    }
}
