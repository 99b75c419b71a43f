//! Which consumer gets the next message? The consumers of a subscription, what each of them has, and whose turn it is.

use std::collections::BTreeSet;

use super::keyring::{self, Keyring};
use crate::spec::SubscriptionKind;

/// Messages that one consumer has and has not acknowledged: the size of its stream's buffer.
pub(crate) const CONSUMER_WINDOW: usize = 256;
/// Bytes that one consumer has and has not acknowledged; one message always passes.
const CONSUMER_BYTES: usize = 16 << 20;

/// A consumer.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) id: u64,
    pub(crate) name: String,
    /// Patterns of the keys that it takes; none: all.
    pub(crate) filters: Vec<String>,
    /// Its number among the consumers of now, from which its keys follow.
    place: u32,
    /// It has a stream.
    pub(crate) attached: bool,
    in_flight: usize,
    bytes: usize,
    /// Its stream took no more; it is tried again when the consumer has read from it.
    full: bool,
}

impl Seat {
    pub(crate) fn new(id: u64, name: String, filters: Vec<String>) -> Seat {
        Seat { id, name, filters, place: 0, attached: false, in_flight: 0, bytes: 0, full: false }
    }

    fn takes(&self, key: &[u8]) -> bool {
        let text = || String::from_utf8_lossy(key).into_owned();
        self.filters.is_empty() || self.filters.iter().any(|filter| keyring::matches(filter, &text()))
    }

    fn has_room(&self) -> bool {
        let room = self.in_flight < CONSUMER_WINDOW && (self.bytes < CONSUMER_BYTES || self.in_flight == 0);
        self.attached && !self.full && room
    }
}

/// The consumers of one subscription, in the order in which they joined.
#[derive(Debug, Default)]
pub(super) struct Seats {
    all: Vec<Seat>,
    ring: Keyring,
    /// Where the next turn begins.
    turn: usize,
}

impl Seats {
    pub(super) fn all(&self) -> &[Seat] {
        &self.all
    }

    /// Adds a consumer, or changes what a known one takes.
    pub(super) fn join(&mut self, seat: Seat) {
        match self.get(seat.id) {
            Some(known) => known.filters = seat.filters,
            None => {
                let place = self.free_place();
                self.all.push(Seat { place, ..seat });
            }
        }
    }

    /// The first place that no consumer has: one that comes back gets the keys of one that left.
    fn free_place(&self) -> u32 {
        let taken: BTreeSet<u32> = self.all.iter().map(|seat| seat.place).collect();
        (0..u32::MAX).find(|place| !taken.contains(place)).unwrap_or_default()
    }

    /// A consumer has a stream from now on.
    pub(super) fn attach(&mut self, id: u64) {
        if let Some(seat) = self.get(id) {
            (seat.attached, seat.full) = (true, false);
        }
        self.spread();
    }

    pub(super) fn leave(&mut self, id: u64) {
        self.all.retain(|seat| seat.id != id);
        self.spread();
    }

    fn spread(&mut self) {
        let attached = self.all.iter().filter(|seat| seat.attached);
        self.ring = Keyring::of(attached.map(|seat| (seat.place, seat.id)));
    }

    fn get(&mut self, id: u64) -> Option<&mut Seat> {
        self.all.iter_mut().find(|seat| seat.id == id)
    }

    pub(super) fn any_attached(&self) -> bool {
        self.all.iter().any(|seat| seat.attached)
    }

    /// Forgets what consumers have.
    pub(super) fn reset(&mut self) {
        for seat in &mut self.all {
            (seat.in_flight, seat.bytes, seat.full) = (0, 0, false);
        }
    }

    /// A consumer got a message of this size.
    pub(super) fn give(&mut self, id: u64, size: usize) {
        if let Some(seat) = self.get(id) {
            seat.in_flight += 1;
            seat.bytes += size;
        }
    }

    /// A consumer has a message of this size no more.
    pub(super) fn take(&mut self, id: u64, size: usize) {
        if let Some(seat) = self.get(id) {
            seat.in_flight -= 1;
            seat.bytes -= size;
        }
    }

    /// A consumer's stream takes no more.
    pub(super) fn filled(&mut self, id: u64) {
        if let Some(seat) = self.get(id) {
            seat.full = true;
        }
    }

    /// A consumer has read from a stream that was full.
    pub(super) fn made_room(&mut self, id: u64) {
        if let Some(seat) = self.get(id) {
            seat.full = false;
        }
    }

    /// The consumer that gets the next message, whatever its key.
    pub(super) fn ready(&self, kind: SubscriptionKind) -> Option<u64> {
        match kind {
            SubscriptionKind::Shared => {
                let (before, behind) = self.all.split_at(self.turn.min(self.all.len()));
                behind.iter().chain(before).find(|seat| seat.has_room()).map(|seat| seat.id)
            }
            // The first with a stream is the active one.
            SubscriptionKind::Exclusive | SubscriptionKind::Failover | SubscriptionKind::KeyShared => {
                let active = self.all.iter().find(|seat| seat.attached)?;
                active.has_room().then_some(active.id)
            }
        }
    }

    /// The next turn begins behind this consumer. Only a delivery ends a turn: a look at an empty queue does not.
    pub(super) fn end_turn(&mut self, id: u64) {
        if let Some(at) = self.all.iter().position(|seat| seat.id == id) {
            self.turn = (at + 1) % self.all.len();
        }
    }

    /// The consumer of a key, if it has room.
    pub(super) fn owner(&self, key: &[u8]) -> Option<u64> {
        let find = |id: u64| self.all.iter().find(|seat| seat.id == id);
        let owner = self.ring.owner(key, |id| find(id).is_some_and(|seat| seat.takes(key)))?;
        find(owner).filter(|seat| seat.has_room()).map(|seat| seat.id)
    }
}
