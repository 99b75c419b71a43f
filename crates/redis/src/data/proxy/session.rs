//! What does a worker know of one client?

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Instant;

use crate::data::resp::{Protocol, RequestParser, Writer};

use super::arena::Key;
use super::outbox::Outbox;
use super::replies::Replies;
use super::stream::Stream;

/// Why no further command of a client is taken for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stall {
    /// Every earlier reply must be in first: the next command must not overtake them on another connection.
    Drain,
    /// As many commands are under way as one client may have.
    InFlight,
    /// The client does not read its replies.
    Output,
    /// The connection to a node is full.
    Backlog,
    /// Nobody serves the slot just now.
    Held {
        /// Since when it waits.
        since: Instant,
    },
}

/// A client's connection and what it has said about itself.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) key: Key,
    /// `CLIENT ID`
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) stream: Stream,
    /// What was read and not taken; empty most of the time.
    pub(super) input: Vec<u8>,
    /// Where the parser stands in `input`, if a command has come in part.
    pub(super) parser: Option<Box<RequestParser>>,
    pub(super) out: Outbox,
    pub(super) replies: Replies,
    pub(super) protocol: Protocol,
    pub(super) stall: Option<Stall>,
    /// The socket may have more to read; no event will say so again.
    pub(super) readable: bool,
    /// A part of a reply was sent before its end has come: nothing may be put between.
    pub(super) streaming: bool,
    /// The client has sent all it will send.
    pub(super) ended: bool,
    /// To be closed when everything is sent.
    pub(super) closing: bool,
    /// Whether it is in the worker's list of sessions to flush.
    pub(super) dirty: bool,
    /// When it last sent something.
    pub(super) active: Instant,
}

impl Session {
    pub(super) fn new(key: Key, id: u64, peer: SocketAddr, stream: Stream, now: Instant) -> Session {
        Session {
            key,
            id,
            peer,
            stream,
            input: Vec::new(),
            parser: None,
            out: Outbox::default(),
            replies: Replies::default(),
            protocol: Protocol::Resp2,
            stall: None,
            readable: false,
            streaming: false,
            ended: false,
            closing: false,
            dirty: false,
            active: now,
        }
    }

    /// Answers a command here and now; the reply still waits for earlier ones.
    pub(super) fn answer(&mut self, write: impl FnOnce(&mut Writer<'_, Vec<u8>>)) {
        if self.replies.is_empty() {
            return write(&mut Writer::new(self.out.bytes(), self.protocol));
        }
        let mut reply = Vec::new();
        write(&mut Writer::new(&mut reply, self.protocol));
        self.replies.owe_ready(reply);
    }

    /// Answers with an error of Redis's form: `CODE text`.
    pub(super) fn refuse(&mut self, error: &str) {
        self.answer(|writer| writer.error(error));
    }

    /// Whether there is something to write.
    pub(super) fn has_output(&self) -> bool {
        !self.out.is_empty() || self.stream.wants_write() || self.closing
    }

    /// Writes what the socket takes; `Ok(true)` when nothing is left.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let done = self.out.flush(&mut self.stream)?;
        self.stream.flush()?;
        Ok(done && !self.stream.wants_write())
    }

    /// Whether its command under way is one that only the client's leaving may end.
    pub(super) fn waits_for_itself(&self) -> bool {
        false
    }

    /// Gives memory back that a burst needed.
    pub(super) fn shrink(&mut self) {
        if self.input.is_empty() && self.input.capacity() > 0 {
            self.input = Vec::new();
        }
        self.out.shrink();
        self.replies.shrink();
    }
}
