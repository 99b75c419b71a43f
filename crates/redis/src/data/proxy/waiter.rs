//! Whom is a reply for, and what has to be told when it is in?

use bytes::Bytes;

use crate::data::gate::Ticket;

use super::arena::Key;
use super::replies::Sequence;

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
    /// It opens the connection; an error closes it again.
    Greeting,
    /// Nobody asked for it.
    Nobody,
}

/// A command that a gate let pass.
#[derive(Debug)]
pub(super) struct Pass {
    ticket: Ticket,
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
        Box::new(Pass { ticket, wrote })
    }

    /// The reply is in, or will never come: what was written counts from now on.
    pub(super) fn finish(self) {
        match self.wrote {
            Wrote::Nothing => self.ticket.read(),
            Wrote::Keys(keys) => self.ticket.wrote(keys),
            Wrote::Anything => self.ticket.wrote_anything(),
        }
    }
}
