//! Whom is a reply for, and what has to be told when it is in?

use bytes::Bytes;
use smallvec::SmallVec;

use crate::data::gate::Ticket;
use crate::slots::Slot;

use super::arena::Key;
use super::replies::Sequence;
use super::slot_scan::SlotScan;
use super::transaction::Executed;

/// One request that a link has been given, and what becomes of its reply.
#[derive(Debug)]
pub(super) enum Waiter {
    /// A client gets it as it is.
    Client {
        /// Which session.
        session: Key,
        /// Which of its requests.
        sequence: Sequence,
        /// What the gate of a moving range is told then.
        pass: Option<Box<Pass>>,
    },
    /// It is one of several that become one.
    Part {
        /// The gathering.
        gathering: Key,
        /// Which of its parts.
        part: u32,
        /// As above.
        pass: Option<Box<Pass>>,
    },
    /// The cursor in it is a node's; the client gets one of ours.
    Scan {
        /// Which session.
        session: Key,
        /// Which of its requests.
        sequence: Sequence,
        /// Which of the database's places was asked, and how many there are.
        place: u32,
        /// As above.
        places: u32,
    },
    /// It answers a transaction of which others serve a part.
    Exec(Box<Executed>),
    /// A reply of another proxy, which may say that the slot has moved on.
    Peer(Box<Forwarded>),
    /// A batch of keys, of which some may be of a slot.
    SlotScan(Box<SlotScan>),
    /// It opens the connection; an error closes it again.
    Greeting,
    /// The node's number for this connection.
    ClientId,
    /// Nobody asked for it.
    Nobody,
}

/// A command that went to another proxy; kept so that it can follow the slot.
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
    /// How often it was sent.
    pub(super) hops: u8,
}

/// A command that a gate let pass.
#[derive(Debug)]
pub(super) struct Pass {
    tickets: SmallVec<[Ticket; 1]>,
    wrote: Wrote,
}

/// What a command may have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    /// Nothing: it reads.
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

    /// Several gates that all let the same command pass.
    pub(super) fn all(passes: Vec<Pass>) -> Option<Box<Pass>> {
        let all = passes.into_iter().reduce(|mut all, one| {
            all.tickets.extend(one.tickets);
            all
        });
        all.map(Box::new)
    }

    /// The reply is in, or will never come: what was written counts from now on.
    pub(super) fn finish(self) {
        for ticket in self.tickets {
            match &self.wrote {
                Wrote::Nothing => ticket.read(),
                Wrote::Keys(keys) => ticket.wrote(keys),
                Wrote::Anything => ticket.wrote_anything(),
            }
        }
    }

    /// The command was not sent after all.
    pub(super) fn unsent(self) {
        self.tickets.into_iter().for_each(Ticket::read);
    }
}
