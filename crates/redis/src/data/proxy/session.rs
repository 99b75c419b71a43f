//! What does a worker know of one client?

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::data::command::Timeout;
use crate::data::gate::Gate;
use crate::data::resp::{Protocol, RequestParser, Trust, Writer};
use crate::data::state::Login;
use crate::nmctl::{Import, Rights};
use crate::slots::Slot;

use super::arena::Key;
use super::monitor::Monitor;
use super::outbox::Outbox;
use super::replies::Replies;
use super::stream::Stream;
use super::subscriptions::Subscriptions;
use super::transaction::{Transaction, Watch};

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
    Held,
    /// Somebody wants all clients to wait (`CLIENT PAUSE`).
    Paused,
}

/// What a connection may do, as of one routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It uses this database of the worker's table.
    Uses(usize, Rights),
    /// It has to authenticate.
    MustAuthenticate,
    /// It has to say which database.
    MustName,
    /// There is nothing to use.
    Nothing,
}

/// Whether the client wants replies (`CLIENT REPLY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    On,
    Off,
    /// Not to the next command.
    SkipNext,
    /// Not to this command.
    SkipThis,
}

/// Who is on the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A client, as it logged in.
    Client(Option<Login>),
    /// Somebody who may steer this proxy.
    Admin,
    /// Another proxy that forwards commands of this database.
    Peer(Login),
}

/// A client's connection and what it has said about itself.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) key: Key,
    /// `CLIENT ID`
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) stream: Stream,
    pub(super) since: Instant,
    /// When it last sent something.
    pub(super) active: Instant,
    /// What was read and not taken; empty most of the time.
    pub(super) input: Vec<u8>,
    /// Where the parser stands in `input`, if a command has come in part.
    pub(super) parser: Option<Box<RequestParser>>,
    pub(super) out: Outbox,
    pub(super) replies: Replies,
    pub(super) protocol: Protocol,
    pub(super) role: Role,
    /// What that means now, and the routing table that "now" is.
    pub(super) standing: Standing,
    pub(super) standing_as_of: u64,
    pub(super) name: String,
    pub(super) last_command: &'static str,
    pub(super) wish: Wish,
    /// Whether replicas will do (`READONLY`).
    pub(super) content_with_replicas: bool,
    pub(super) transaction: Option<Box<Transaction>>,
    pub(super) watch: Option<Box<Watch>>,
    pub(super) subscriptions: Option<Box<Subscriptions>>,
    /// Whether it watches the commands of its database (`MONITOR`).
    pub(super) monitor: Option<Box<Monitor>>,
    /// Connections that work for this session alone, until the command under way is answered.
    pub(super) borrowed: Vec<Key>,
    /// The blocking command under way, if its range may move meanwhile.
    pub(super) blocked: Option<Box<Blocked>>,
    /// Its transaction is being executed: what the proxy answers for it must be known at once.
    pub(super) executing: bool,
    /// The command just taken must be answered before the next one is looked at.
    pub(super) draining: bool,
    /// The connection will bring keys; it is about to be handed over.
    pub(super) import: Option<Box<Import>>,
    pub(super) stall: Option<Stall>,
    /// Since when the next command is held.
    pub(super) held_since: Option<Instant>,
    /// The socket may have more to read; no event will say so again.
    pub(super) readable: bool,
    /// A part of a reply was sent before its end has come: nothing may be put between.
    pub(super) streaming: bool,
    /// An event has said that the client sends no more: what is read from now on ends with the end of the stream, of
    /// which no further event tells.
    pub(super) hung_up: bool,
    /// The client has sent all it will send.
    pub(super) ended: bool,
    /// To be closed when everything is sent.
    pub(super) closing: bool,
    /// Whether it is in the worker's list of sessions to flush.
    pub(super) dirty: bool,
}

/// A blocking command that waits in a node.
#[derive(Debug)]
pub(super) struct Blocked {
    /// The command, to be sent again elsewhere if its slot moves.
    pub(super) request: Vec<u8>,
    /// Where it says how long it waits, and since when it does.
    pub(super) timeout: Timeout,
    pub(super) since: Instant,
    /// The slot of its keys.
    pub(super) slot: Slot,
    /// The gate of that slot, if it moves.
    pub(super) gate: Option<Arc<Gate>>,
    /// Whether the node was asked to give it up.
    pub(super) called_back: bool,
}

impl Session {
    pub(super) fn new(key: Key, id: u64, peer: SocketAddr, stream: Stream, now: Instant) -> Session {
        Session {
            key,
            id,
            peer,
            stream,
            since: now,
            active: now,
            input: Vec::new(),
            parser: None,
            out: Outbox::default(),
            replies: Replies::default(),
            protocol: Protocol::Resp2,
            role: Role::Client(None),
            standing: Standing::Nothing,
            standing_as_of: 0,
            name: String::new(),
            last_command: "NULL",
            wish: Wish::On,
            content_with_replicas: false,
            transaction: None,
            watch: None,
            subscriptions: None,
            monitor: None,
            borrowed: Vec::new(),
            blocked: None,
            executing: false,
            draining: false,
            import: None,
            stall: None,
            held_since: None,
            readable: false,
            streaming: false,
            hung_up: false,
            ended: false,
            closing: false,
            dirty: false,
        }
    }

    /// Answers a command here and now; the reply still waits for earlier ones.
    pub(super) fn answer(&mut self, write: impl FnOnce(&mut Writer<'_, Vec<u8>>)) {
        if !self.wants_reply() {
            return;
        }
        if self.replies.is_empty() {
            return write(&mut Writer::new(self.out.bytes(), self.protocol));
        }
        let mut reply = Vec::new();
        write(&mut Writer::new(&mut reply, self.protocol));
        self.replies.owe_ready(reply);
    }

    /// Answers with an error of Redis's form: `CODE text`.
    pub(super) fn refuse(&mut self, error: impl AsRef<[u8]>) {
        self.answer(|writer| writer.error(error));
    }

    /// `+OK`
    pub(super) fn ok(&mut self) {
        self.answer(|writer| writer.ok());
    }

    pub(super) fn wants_reply(&self) -> bool {
        match self.wish {
            Wish::On | Wish::SkipNext => true,
            Wish::Off | Wish::SkipThis => false,
        }
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

    /// Whether its command under way is one that the client's leaving ends.
    pub(super) fn is_blocked(&self) -> bool {
        !self.borrowed.is_empty() && !self.replies.is_empty()
    }

    /// How much a client may send before it has said who it is.
    pub(super) fn trust(&self) -> Trust {
        match (&self.role, self.standing) {
            (Role::Client(None), Standing::MustAuthenticate | Standing::MustName) => Trust::Stranger,
            _ => Trust::Known,
        }
    }

    /// Whether commands for other proxies' slots are redirected even where the database forwards: a proxy that was
    /// forwarded to does not forward again, so nothing goes in circles.
    pub(super) fn is_peer(&self) -> bool {
        matches!(self.role, Role::Peer(_))
    }

    pub(super) fn user_name(&self) -> &str {
        match &self.role {
            Role::Client(Some(login)) | Role::Peer(login) => &login.user,
            Role::Client(None) => "default",
            Role::Admin => "admin",
        }
    }

    pub(super) fn database_name(&self) -> Option<&str> {
        match &self.role {
            Role::Client(Some(login)) | Role::Peer(login) => Some(login.database.as_str()),
            Role::Client(None) | Role::Admin => None,
        }
    }

    pub(super) fn protocol_number(&self) -> u8 {
        match self.protocol {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        }
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
