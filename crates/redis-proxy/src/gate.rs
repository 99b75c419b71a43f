//! May a command for a moving range pass? The gate between the data path and a move.
//!
//! There is one gate for each migrating claim. Workers ask it before they send a command ([`Gate::admit`])
//! and report afterwards what the command may have written ([`Ticket::wrote`]); the move takes the written
//! keys from it, closes it for the last pass and then opens it again or keeps it closed. Keys are marked when
//! the reply is received, never when the command is sent: a mark made on sending could be consumed by a copy
//! that overtakes the write on another connection.
//!
//! The gate does not count commands that were in flight before a worker saw it. So each worker
//! [joins](Gate::join) once all of them are done, and the move reads its first key only when all workers have
//! joined ([`Gate::joined`]).
//!
//! Deliberately absent: which commands write (see the command table), and how long a session may wait.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, watch};

use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::slots::SlotRange;

/// Most bytes of written keys that are tracked individually. Beyond it, copying everything again is cheaper
/// than tracking more, and memory stays bounded whatever clients write.
const MAX_DIRTY_BYTES: usize = 64 << 20;
/// The overhead of a tracked key beside its bytes, roughly: the handle and its table entry.
const KEY_OVERHEAD: usize = 64;

/// The phase of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Commands pass; the keys they write are recorded.
    Recording,
    /// No new command passes; commands in flight are waited for.
    Holding,
    /// The source has released the range: nothing passes until its new owner is pushed.
    Released,
    /// The move was cancelled: commands pass, and nothing is recorded.
    Open,
    /// The target owns the range.
    Gone,
}

impl Phase {
    const ALL: [Phase; 5] = [Phase::Recording, Phase::Holding, Phase::Released, Phase::Open, Phase::Gone];

    /// Whether this transition is valid. Open and Gone are final: a new move has a new gate.
    #[must_use]
    pub fn may_become(self, next: Phase) -> bool {
        match self {
            Phase::Recording => matches!(next, Phase::Holding | Phase::Open | Phase::Gone),
            Phase::Holding => next != Phase::Holding,
            Phase::Released => matches!(next, Phase::Open | Phase::Gone),
            Phase::Open | Phase::Gone => false,
        }
    }

    /// Whether commands have to wait.
    #[must_use]
    pub fn holds(self) -> bool {
        match self {
            Phase::Holding | Phase::Released => true,
            Phase::Recording | Phase::Open | Phase::Gone => false,
        }
    }
}

/// The gate's decision about a command.
#[derive(Debug)]
pub enum Admission {
    /// Send it; finish the ticket when its reply is received or its connection breaks.
    Pass(Ticket),
    /// Hold it and everything behind it, wait ([`Gate::passable`]), then route again.
    Hold,
    /// The same, but the target will most likely own the range afterwards.
    Released,
    /// Send it: the move is over.
    Open,
    /// The target owns the range ([`Gate::target`]): route again.
    Gone,
}

/// One command in flight. Dropped unfinished, it counts as a command that may have written any key.
#[derive(Debug)]
pub struct Ticket {
    gate: Option<Arc<Gate>>,
}

impl Ticket {
    /// The gate that issued it.
    #[must_use]
    pub fn gate(&self) -> Option<Arc<Gate>> {
        self.gate.clone()
    }

    /// The command is done and wrote nothing.
    pub fn read(mut self) {
        if let Some(gate) = self.gate.take() {
            gate.leave();
        }
    }

    /// The command is done (or its outcome is unknown), and these keys may have changed.
    pub fn wrote<K: AsRef<[u8]>>(mut self, keys: impl IntoIterator<Item = K>) {
        if let Some(gate) = self.gate.take() {
            gate.note(keys);
            gate.leave();
        }
    }

    /// The command is done, and any key may have changed: `FLUSHALL`, or a command with unknown keys.
    pub fn wrote_anything(mut self) {
        if let Some(gate) = self.gate.take() {
            gate.note_all();
            gate.leave();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.note_all();
            gate.leave();
        }
    }
}

/// The keys written since the last call.
#[derive(Debug, PartialEq, Eq)]
pub enum Dirty {
    /// These keys.
    Keys(HashSet<Bytes>),
    /// Too many to track: the copy starts over.
    Everything,
}

/// Written keys and their total size.
#[derive(Debug, Default)]
struct Notes {
    keys: HashSet<Bytes>,
    bytes: usize,
    everything: bool,
}

/// The gate of one migrating range. Workers and the move share it.
#[derive(Debug)]
pub struct Gate {
    range: SlotRange,
    target: Address,
    /// Phase and number of commands in flight, in one word so that no command passes while the phase changes.
    word: AtomicU64,
    /// A copy of the phase, for waiting.
    phase: watch::Sender<Phase>,
    notes: Mutex<Notes>,
    /// Workers that may have commands in flight that this gate does not count.
    strangers: watch::Sender<usize>,
    drained: Notify,
}

const PHASE_SHIFT: u32 = 56;

fn pack(phase: Phase, under_way: u64) -> u64 {
    (phase as u64) << PHASE_SHIFT | under_way
}

fn unpack(word: u64) -> (Phase, u64) {
    let phase = Phase::ALL.get((word >> PHASE_SHIFT) as usize).copied().unwrap_or(Phase::Released);
    (phase, word & ((1 << PHASE_SHIFT) - 1))
}

impl Gate {
    /// A gate for a range that starts to migrate. `workers` have to join before the copy begins.
    #[must_use]
    pub fn new(range: SlotRange, target: Address, workers: usize) -> Arc<Gate> {
        Gate::in_phase(Phase::Recording, range, target, workers)
    }

    /// A gate for a range that was released before this process started.
    #[must_use]
    pub fn released(range: SlotRange, target: Address) -> Arc<Gate> {
        Gate::in_phase(Phase::Released, range, target, 0)
    }

    fn in_phase(phase: Phase, range: SlotRange, target: Address, workers: usize) -> Arc<Gate> {
        Arc::new(Gate {
            range,
            target,
            word: AtomicU64::new(pack(phase, 0)),
            phase: watch::Sender::new(phase),
            notes: Mutex::default(),
            strangers: watch::Sender::new(workers),
            drained: Notify::new(),
        })
    }

    /// The slots that it guards.
    #[must_use]
    pub fn range(&self) -> SlotRange {
        self.range
    }

    /// The proxy that the range goes to.
    #[must_use]
    pub fn target(&self) -> &Address {
        &self.target
    }

    /// The current phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        unpack(self.word.load(Ordering::Acquire)).0
    }

    /// The number of commands in flight.
    #[must_use]
    pub fn under_way(&self) -> u64 {
        unpack(self.word.load(Ordering::Acquire)).1
    }

    /// Decides whether a command may be sent.
    #[must_use]
    pub fn admit(self: &Arc<Gate>) -> Admission {
        let entered = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            (unpack(word).0 == Phase::Recording).then_some(word + 1)
        });
        match entered.map_err(|word| unpack(word).0) {
            Ok(_) | Err(Phase::Recording) => Admission::Pass(Ticket { gate: Some(self.clone()) }),
            Err(Phase::Holding) => Admission::Hold,
            Err(Phase::Released) => Admission::Released,
            Err(Phase::Open) => Admission::Open,
            Err(Phase::Gone) => Admission::Gone,
        }
    }

    /// Waits until commands no longer have to wait, and returns the phase.
    pub async fn passable(&self) -> Phase {
        // The sender lives as long as `self`, so the wait cannot fail.
        self.phase.subscribe().wait_for(|phase| !phase.holds()).await.map_or(Phase::Gone, |phase| *phase)
    }

    /// Waits until the gate closes or its move ends, and returns the phase: blocking commands must be
    /// interrupted then.
    pub async fn closing(&self) -> Phase {
        let closed = |phase: &Phase| *phase != Phase::Recording;
        self.phase.subscribe().wait_for(closed).await.map_or(Phase::Gone, |phase| *phase)
    }

    /// Waits until the range is released, or its move is over.
    pub async fn decided(&self) -> Phase {
        let decided = |phase: &Phase| match phase {
            Phase::Released | Phase::Open | Phase::Gone => true,
            Phase::Recording | Phase::Holding => false,
        };
        self.phase.subscribe().wait_for(decided).await.map_or(Phase::Gone, |phase| *phase)
    }

    /// Records that a worker uses the gate, and that all commands it sent before are done.
    pub fn join(&self) {
        self.strangers.send_modify(|workers| *workers = workers.saturating_sub(1));
    }

    /// Waits until all workers have joined.
    pub async fn joined(&self) {
        self.strangers.subscribe().wait_for(|workers| *workers == 0).await.ok();
    }

    /// Records written keys without a ticket: for commands in flight before their worker joined.
    pub fn note<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) {
        let mut notes = self.notes();
        for key in keys {
            notes.add(key.as_ref());
        }
    }

    /// Records that any key may have changed.
    pub fn note_all(&self) {
        self.notes().give_up();
    }

    /// Takes the keys written since the last call.
    #[must_use]
    pub fn take_dirty(&self) -> Dirty {
        let notes = std::mem::take(&mut *self.notes());
        if notes.everything { Dirty::Everything } else { Dirty::Keys(notes.keys) }
    }

    /// The number of written keys not yet copied; `usize::MAX` if any key may be.
    #[must_use]
    pub fn dirty_keys(&self) -> usize {
        let notes = self.notes();
        if notes.everything { usize::MAX } else { notes.keys.len() }
    }

    /// Changes the phase. Returns false, and does nothing, if the transition is not valid.
    pub fn become_phase(&self, next: Phase) -> bool {
        let changed = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            let (phase, under_way) = unpack(word);
            phase.may_become(next).then_some(pack(next, under_way))
        });
        if changed.is_ok() {
            self.phase.send_replace(next);
        }
        changed.is_ok()
    }

    /// Waits until no command is in flight. Only useful while the gate holds.
    pub async fn drained(&self) {
        loop {
            let left = self.drained.notified();
            if self.under_way() == 0 {
                return;
            }
            left.await;
        }
    }

    fn leave(&self) {
        let (phase, before) = unpack(self.word.fetch_sub(1, Ordering::AcqRel));
        if phase != Phase::Recording && before == 1 {
            self.drained.notify_waiters();
        }
    }

    /// The recorded keys are consistent between any two operations, so a poisoned lock is usable.
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notes {
    fn add(&mut self, key: &[u8]) {
        if self.everything || self.keys.contains(key) {
            return;
        }
        self.bytes += key.len() + KEY_OVERHEAD;
        if self.bytes > MAX_DIRTY_BYTES {
            return self.give_up();
        }
        self.keys.insert(Bytes::copy_from_slice(key));
    }

    fn give_up(&mut self) {
        *self = Notes { everything: true, ..Notes::default() };
    }
}

#[cfg(test)]
#[path = "gate_tests.rs"]
mod tests;
