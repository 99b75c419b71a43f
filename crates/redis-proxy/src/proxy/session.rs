//! What is the state of one client?

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::gate::Gate;
use crate::state::Login;
use capstan_redis_protocol::acl::Rules;
use capstan_redis_protocol::command::Timeout;
use capstan_redis_protocol::nmctl::Import;
use capstan_redis_protocol::resp::{Protocol, RequestParser, Trust, Writer};
use capstan_redis_protocol::slots::Slot;

use super::arena::Key;
use super::link::Lane;
use super::monitor::Monitor;
use super::outbox::Outbox;
use super::replies::Replies;
use super::stream::Stream;
use super::subscriptions::Subscriptions;
use super::transaction::{Transaction, Watch};
use super::waiter::Effect;

/// Why no further command of a client is dispatched for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stall {
    /// Every earlier reply must be received first: the next command must not overtake them on another
    /// connection.
    Drain,
    /// The client has reached its limit of commands in flight.
    InFlight,
    /// The client does not read its replies.
    Output,
    /// The connection to a node has too many queued bytes.
    Backlog,
    /// The slot is not served at the moment.
    Held,
    /// `CLIENT PAUSE` is in force.
    Paused,
}

/// What a connection may do, as of one routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It uses this database of the worker's table.
    Uses(usize),
    /// It has to authenticate.
    MustAuthenticate,
    /// It has to select a database.
    MustName,
    /// There is no database.
    Nothing,
}

/// Whether the client wants replies (`CLIENT REPLY`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyMode {
    On,
    Off,
    /// Not to the next command.
    SkipNext,
    /// Not to this command.
    SkipThis,
}

/// Which viewers see a connection in `CLIENT LIST`, and may kill it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Audience {
    /// Clients of its database.
    #[default]
    Clients,
    /// Admins: it belongs to a coordinator, another proxy or an operator.
    Admins,
}

/// The role of the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A client, as it logged in.
    Client(Option<Login>),
    /// An admin: it may send `NMCTL`.
    Admin,
    /// Another proxy that forwards commands of this database.
    Peer(Login),
}

/// A client's connection and its state.
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
    /// Bytes read and not dispatched; empty most of the time.
    pub(super) input: Vec<u8>,
    /// The parser's state in `input`, if a command is incomplete.
    pub(super) parser: Option<Box<RequestParser>>,
    pub(super) out: Outbox,
    pub(super) replies: Replies,
    pub(super) protocol: Protocol,
    pub(super) role: Role,
    /// Its permissions, as of the routing table with this number.
    pub(super) standing: Standing,
    pub(super) standing_as_of: u64,
    /// The rules that its commands must pass; `None` if its user may do everything.
    pub(super) restrictions: Option<Arc<Rules>>,
    pub(super) name: String,
    pub(super) last_command: &'static str,
    pub(super) reply_mode: ReplyMode,
    /// The lane of its commands in flight.
    pub(super) lane: Lane,
    /// The effect of the command being dispatched.
    pub(super) effect: Effect,
    /// Which viewers see it in `CLIENT LIST`.
    pub(super) visible_to: Audience,
    /// Whether replicas may serve its reads (`READONLY`).
    pub(super) content_with_replicas: bool,
    pub(super) transaction: Option<Box<Transaction>>,
    pub(super) watch: Option<Box<Watch>>,
    pub(super) subscriptions: Option<Box<Subscriptions>>,
    /// Set while it monitors its database (`MONITOR`).
    pub(super) monitor: Option<Box<Monitor>>,
    /// Dedicated connections of this session, until the command in flight is answered.
    pub(super) borrowed: Vec<Key>,
    /// The blocking command in flight, if its range may move meanwhile.
    pub(super) blocked: Option<Box<Blocked>>,
    /// Its transaction is being executed: the proxy's own replies for it must be produced at once.
    pub(super) executing: bool,
    /// The current command must be answered before the next one is parsed.
    pub(super) draining: bool,
    /// The connection is an import and is about to be handed over.
    pub(super) import: Option<Box<Import>>,
    pub(super) stall: Option<Stall>,
    /// Since when the next command is held.
    pub(super) held_since: Option<Instant>,
    /// The socket may have more to read; no further event will report it.
    pub(super) readable: bool,
    /// A reply was partly sent: nothing may be inserted.
    pub(super) streaming: bool,
    /// An event reported that the client has closed its side: reads continue to the end of the stream, for
    /// which no further event arrives.
    pub(super) hung_up: bool,
    /// The client has sent all its data.
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
    /// The position of its timeout, and since when it waits.
    pub(super) timeout: Timeout,
    pub(super) since: Instant,
    /// The slot of its keys.
    pub(super) slot: Slot,
    /// The gate of that slot, if it moves.
    pub(super) gate: Option<Arc<Gate>>,
    /// Whether the node was asked to unblock it.
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
            restrictions: None,
            name: String::new(),
            last_command: "NULL",
            reply_mode: ReplyMode::On,
            lane: Lane::Commands,
            effect: Effect::Reads,
            visible_to: Audience::Clients,
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

    /// Changes to another lane. The commands on the former one must be answered first: the next command must
    /// not overtake them.
    #[inline]
    pub(super) fn enter(&mut self, lane: Lane) -> Result<(), Stall> {
        if self.lane == lane {
            return Ok(());
        }
        if !self.replies.is_empty() {
            return Err(Stall::Drain);
        }
        self.lane = lane;
        Ok(())
    }

    /// Answers a command; the reply still waits for earlier ones.
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

    /// Answers with an error in Redis's form: `CODE text`.
    pub(super) fn refuse(&mut self, error: impl AsRef<[u8]>) {
        self.answer(|writer| writer.error(error));
    }

    /// `+OK`
    pub(super) fn ok(&mut self) {
        self.answer(|writer| writer.ok());
    }

    pub(super) fn wants_reply(&self) -> bool {
        match self.reply_mode {
            ReplyMode::On | ReplyMode::SkipNext => true,
            ReplyMode::Off | ReplyMode::SkipThis => false,
        }
    }

    /// Whether there is something to write.
    pub(super) fn has_output(&self) -> bool {
        !self.out.is_empty() || self.stream.wants_write() || self.closing
    }

    /// Writes as much as the socket accepts; `Ok(true)` when nothing is left.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let done = self.out.flush(&mut self.stream)?;
        self.stream.flush()?;
        Ok(done && !self.stream.wants_write())
    }

    /// Whether its command in flight ends when the client disconnects.
    pub(super) fn is_blocked(&self) -> bool {
        !self.borrowed.is_empty() && !self.replies.is_empty()
    }

    /// The parser's trust level: lower before authentication.
    pub(super) fn trust(&self) -> Trust {
        match (&self.role, self.standing) {
            (Role::Client(None), Standing::MustAuthenticate | Standing::MustName) => Trust::Unauthenticated,
            _ => Trust::Authenticated,
        }
    }

    /// Whether commands for other proxies' slots are redirected even if the database forwards: a forwarded
    /// command is not forwarded again, so there are no loops.
    pub(super) fn is_peer(&self) -> bool {
        matches!(self.role, Role::Peer(_))
    }

    /// Which connections it may see.
    pub(super) fn audience(&self) -> Audience {
        match (&self.role, self.visible_to) {
            (Role::Admin, _) | (_, Audience::Admins) => Audience::Admins,
            (Role::Client(_) | Role::Peer(_), Audience::Clients) => Audience::Clients,
        }
    }

    /// Whether a viewer sees this connection.
    pub(super) fn is_visible_to(&self, audience: Audience) -> bool {
        audience == Audience::Admins || self.audience() == Audience::Clients
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

    /// Releases memory after a burst.
    pub(super) fn shrink(&mut self) {
        if self.input.is_empty() && self.input.capacity() > 0 {
            self.input = Vec::new();
        }
        self.out.shrink();
        self.replies.shrink();
    }
}
