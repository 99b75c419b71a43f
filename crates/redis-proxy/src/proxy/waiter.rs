//! Where does a reply go, and what has to be done when it is received?

use std::time::Instant;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::gate::Ticket;
use capstan_redis_protocol::slots::Slot;

use super::arena::Key;
use super::confirm::Asked;
use super::link::Lane;
use super::replies::Sequence;
use super::slot_scan::SlotScan;
use super::transaction::Executed;

/// One request on a link, and the handling of its reply.
#[derive(Debug)]
pub(super) enum Waiter {
    /// A client gets it unchanged.
    Client {
        /// Which session.
        session: Key,
        /// Which of its requests.
        sequence: Sequence,
        /// Finished when the reply is received, if the range moves.
        pass: Option<Box<Pass>>,
        /// The effect of the command.
        effect: Effect,
    },
    /// It is one part of a gathering.
    Part {
        /// The gathering.
        gathering: Key,
        /// The index of the part.
        part: u32,
        /// As above.
        pass: Option<Box<Pass>>,
        /// As above.
        effect: Effect,
    },
    /// Its cursor is a node's; the client gets an encoded one.
    Scan {
        /// Which session.
        session: Key,
        /// Which of its requests.
        sequence: Sequence,
        /// The place that was scanned, and the number of places.
        place: u32,
        /// As above.
        places: u32,
    },
    /// The reply to a transaction that is partly executed elsewhere.
    Exec(Box<Executed>),
    /// A reply of another proxy, which may redirect because the slot has moved on.
    Peer(Box<Forwarded>),
    /// A batch of keys, some of which may be in a slot.
    SlotScan(Box<SlotScan>),
    /// A part of the answer to which replicas have what a node has executed.
    Confirm(Box<Asked>),
    /// The reply to the greeting; an error closes the connection.
    Greeting,
    /// The node's client id of this connection.
    ClientId,
    /// The reply is ignored.
    Ignored,
}

/// Whether a command may change data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Writes,
}

impl Waiter {
    /// The effect of its command.
    pub(super) fn effect(&self) -> Effect {
        match self {
            Waiter::Client { effect, .. } | Waiter::Part { effect, .. } => *effect,
            Waiter::Exec(_) | Waiter::Peer(_) => Effect::Writes,
            Waiter::Scan { .. }
            | Waiter::SlotScan(_)
            | Waiter::Confirm(_)
            | Waiter::Greeting
            | Waiter::ClientId
            | Waiter::Ignored => Effect::Reads,
        }
    }

    /// The pass to finish when the node has executed it.
    pub(super) fn take_pass(&mut self) -> Option<Box<Pass>> {
        match self {
            Waiter::Client { pass, .. } | Waiter::Part { pass, .. } => pass.take(),
            Waiter::Exec(executed) => executed.pass.take(),
            Waiter::Scan { .. }
            | Waiter::SlotScan(_)
            | Waiter::Peer(_)
            | Waiter::Confirm(_)
            | Waiter::Greeting
            | Waiter::ClientId
            | Waiter::Ignored => None,
        }
    }
}

/// A command forwarded to another proxy; kept so that it can follow the slot.
#[derive(Debug)]
pub(super) struct Forwarded {
    /// Which session.
    pub(super) session: Key,
    /// Which of its requests.
    pub(super) sequence: Sequence,
    /// The slot of its keys.
    pub(super) slot: Slot,
    /// The command.
    pub(super) request: Vec<u8>,
    /// The lane to the other proxy.
    pub(super) lane: Lane,
    /// When it was sent first.
    pub(super) since: Instant,
    /// How often it was sent.
    pub(super) hops: u8,
}

/// A command that a gate admitted.
#[derive(Debug)]
pub(super) struct Pass {
    tickets: SmallVec<[Ticket; 1]>,
    wrote: Wrote,
}

/// What a command may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    /// Nothing: it only reads.
    Nothing,
    /// These keys.
    Keys(Vec<Bytes>),
    /// Any key.
    Anything,
}

impl Pass {
    pub(super) fn new(ticket: Ticket, wrote: Wrote) -> Box<Pass> {
        Box::new(Pass { tickets: smallvec::smallvec![ticket], wrote })
    }

    /// Combines the passes of several gates for the same command.
    pub(super) fn all(passes: Vec<Pass>) -> Option<Box<Pass>> {
        let all = passes.into_iter().reduce(|mut all, one| {
            all.tickets.extend(one.tickets);
            all
        });
        all.map(Box::new)
    }

    /// The reply was received, or never will be: reports the written keys to the gate.
    pub(super) fn finish(self) {
        for ticket in self.tickets {
            match &self.wrote {
                Wrote::Nothing => ticket.read(),
                Wrote::Keys(keys) => ticket.wrote(keys),
                Wrote::Anything => ticket.wrote_anything(),
            }
        }
    }

    /// The command was not sent.
    pub(super) fn unsent(self) {
        self.tickets.into_iter().for_each(Ticket::read);
    }
}
