//! How is a command executed? By the handling that the command table specifies.

use capstan_redis_protocol::command::{Command, Handling, Merge as Merging, Objection, find};
use capstan_redis_protocol::resp::{Protocol, Request};
use capstan_redis_protocol::slots::Slot;

use super::link::Lane;
use super::merge::Merge;
use super::permissions::denial;
use super::route::Route;
use super::session::{ReplyMode, Role, Session, Stall, Standing};
use super::tls::{PlainClients, SPEAK_TLS};
use super::waiter::{Effect, Forwarded, Pass, Waiter, Wrote};
use super::worker::{Taken, Worker};

impl Worker {
    /// Dispatches a command: answers it, sends it on, or lets it wait.
    pub(super) fn dispatch(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        let command = match find(request) {
            Ok(command) => command,
            Err(Objection::WrongArity("exec")) => {
                return self.abort(session, &Objection::WrongArity("exec").line());
            }
            Err(objection) => return self.object(session, objection.line()),
        };
        session.last_command = command.name();
        // Disabled commands are refused before any other check.
        if let Handling::Refused(error) = command.handling()
            && command.is_switched_off()
        {
            return self.object(session, error);
        }
        if session.standing_as_of != self.table_version {
            self.refresh_standing(session);
        }
        if let Some(objection) = objection(session, command) {
            return self.object(session, objection);
        }
        if let Some(rules) = &session.restrictions
            && let Some(denied) = denial(session, rules, command, request)
        {
            return match command.name() {
                "exec" => self.abort(session, denied.line().as_bytes()),
                _ => self.object(session, denied.line()),
            };
        }
        if self.must_encrypt(session, command) {
            return self.object(session, SPEAK_TLS);
        }
        if !self.pauses.is_empty() && self.is_paused(session, command) {
            return Taken::Not(Stall::Paused);
        }
        if let Some(objection) = out_of_context(session, command) {
            return match command.name() {
                "exec" => self.abort(session, objection.as_bytes()),
                // Redis checks the slots first.
                _ if self.crosses_slots(session, command, request) => self.object(session, CROSS_SLOT),
                _ => self.object(session, objection),
            };
        }
        session.effect = effect_of(session, command);
        if let Err(stall) = session.enter(lane_of(session, command)) {
            return Taken::Not(stall);
        }
        if self.is_monitored {
            self.send_to_monitors(session, command, request);
        }
        if session.transaction.is_some() && !ends_transaction(command) {
            return self.queue(session, command, request);
        }
        if let Some(refused) = command.refuses(request) {
            return self.object(session, refused.line());
        }
        let taken = match command.handling() {
            Handling::Key => self.keyed(session, command, request),
            Handling::Split(how) => self.split(session, command, request, how),
            Handling::AllNodes(Merging::Scan) => self.scan(session, request),
            Handling::AllNodes(Merging::Newest) => self.slowlog(session, command, request),
            Handling::AllNodes(how) => self.all_nodes(session, command, request, merge_of(how)),
            Handling::AnyNode => self.any_node(session, request),
            Handling::Blocking(_) if command.blocks(request) => self.block(session, command, request),
            Handling::Blocking(_) => self.keyed(session, command, request),
            Handling::Wait => self.wait(session, command, request),
            Handling::PubSub => self.pubsub(session, command, request),
            Handling::Transaction => self.transact(session, command, request),
            Handling::Local => self.local(session, command, request),
            Handling::Admin => self.admin(session, request),
            Handling::Refused(error) => self.object(session, error),
            Handling::Forbidden => self.object(session, Objection::NoPermission(command.name()).line()),
        };
        if session.reply_mode != ReplyMode::On && taken == Taken::Yes {
            advance_reply_mode(session, command);
        }
        taken
    }

    /// Answers with an error; a transaction being queued is marked as failed.
    pub(super) fn object(&mut self, session: &mut Session, error: impl AsRef<[u8]>) -> Taken {
        if let Some(transaction) = &mut session.transaction {
            transaction.refused = true;
        }
        session.refuse(error);
        Taken::Yes
    }

    /// Whether a client must reconnect with TLS. `AUTH` and `HELLO` are exempt, for admin connections.
    fn must_encrypt(&self, session: &Session, command: &'static Command) -> bool {
        let Some(tls) = &self.shared.tls else { return false };
        tls.plain == PlainClients::Refused
            && !session.stream.is_tls()
            && matches!(session.role, Role::Client(_))
            && !command.before_auth()
            && command.handling() != Handling::Admin
    }

    /// A refused `EXEC` discards the transaction.
    fn abort(&mut self, session: &mut Session, why: &[u8]) -> Taken {
        let why = why.strip_prefix(b"ERR ").unwrap_or(why);
        session.refuse([b"EXECABORT Transaction discarded because of: ", why].concat());
        self.discard_silently(session)
    }

    /// Whether a command's keys are in several slots, and it cannot be split.
    pub(super) fn crosses_slots(
        &self,
        session: &Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> bool {
        let parts = matches!(command.handling(), Handling::Split(_))
            && self.database(session).is_some_and(|database| database.settings().split);
        !parts && self.slot_of(command, request).is_err()
    }

    /// Serves a command whose keys are in one slot.
    #[inline]
    fn keyed(&mut self, session: &mut Session, command: &'static Command, request: Request<'_>) -> Taken {
        let slot = match self.slot_of(command, request) {
            Ok(Some(slot)) => slot,
            Ok(None) => return self.any_node(session, request),
            Err(error) => return self.object(session, error),
        };
        self.send_keyed(session, command, request, slot)
    }

    pub(super) fn send_keyed(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
        slot: Slot,
    ) -> Taken {
        let route = match self.route(session, slot, command.reads_only()) {
            Ok(route) => route,
            Err(taken) => return taken,
        };
        match route {
            Route::Node { link, ticket } => {
                let pass = ticket.map(|ticket| Pass::new(ticket, wrote(command, request)));
                self.send_client(session, link, request.bytes(), pass);
            }
            Route::Peer { link } => {
                let sequence = session.replies.owe(session.wants_reply());
                let forwarded = Forwarded {
                    session: session.key,
                    sequence,
                    slot,
                    request: request.bytes().to_vec(),
                    lane: session.lane,
                    since: self.now,
                    hops: 1,
                };
                self.send(link, request.bytes(), Waiter::Peer(Box::new(forwarded)));
            }
        }
        Taken::Yes
    }

    /// Sends a command whose reply the client gets unchanged.
    #[inline]
    pub(super) fn send_client(
        &mut self,
        session: &mut Session,
        link: super::arena::Key,
        request: &[u8],
        pass: Option<Box<Pass>>,
    ) {
        let sequence = session.replies.owe(session.wants_reply());
        let effect = session.effect;
        self.send(link, request, Waiter::Client { session: session.key, sequence, pass, effect });
    }

    /// The slot of a command's keys; `None` if it has none.
    #[inline]
    pub(super) fn slot_of(
        &self,
        command: &'static Command,
        request: Request<'_>,
    ) -> Result<Option<Slot>, &'static str> {
        if let Some(only) = command.only_key() {
            return Ok(Some(Slot::of(request.argument(only))));
        }
        let Ok(keys) = command.keys(request) else { return Ok(None) };
        let mut slots = keys.iter().map(|key| Slot::of(request.argument(key.index())));
        let Some(first) = slots.next() else { return Ok(None) };
        if slots.all(|slot| slot == first) { Ok(Some(first)) } else { Err(CROSS_SLOT) }
    }
}

/// The error for keys in several slots.
pub(super) const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// Checks that apply to every command.
fn objection(session: &Session, command: &'static Command) -> Option<Vec<u8>> {
    match session.standing {
        Standing::Uses(_) | Standing::Nothing => {}
        Standing::MustAuthenticate | Standing::MustName if command.before_auth() => {}
        Standing::MustAuthenticate | Standing::MustName if session.role == Role::Admin => {}
        Standing::MustAuthenticate => return Some(b"NOAUTH Authentication required.".to_vec()),
        Standing::MustName => {
            return Some(
                b"NOAUTH Authentication required: this proxy serves several databases; AUTH <database> [password]"
                    .to_vec(),
            );
        }
    }
    None
}

/// Refuses commands in subscribed RESP2 sessions, where the client could not tell the reply from a message.
fn out_of_context(session: &Session, command: &'static Command) -> Option<String> {
    let subscriber = session.subscriptions.is_some() && session.protocol == Protocol::Resp2;
    (subscriber && !command.while_subscribed()).then(|| {
        format!(
            "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
             context",
            command.name()
        )
    })
}

/// The lane of a command. A command queued for a transaction has none yet.
#[inline]
fn lane_of(session: &Session, command: &'static Command) -> Lane {
    match &session.transaction {
        Some(_) if !ends_transaction(command) => session.lane,
        Some(transaction) if transaction.scripts => Lane::Scripts,
        _ if command.runs_script() => Lane::Scripts,
        _ if command.concerns_running_script() => Lane::Control,
        _ => Lane::Commands,
    }
}

/// Whether a command may change data. `PUBLISH` is replicated too, but stores nothing.
#[inline]
fn effect_of(session: &Session, command: &'static Command) -> Effect {
    let is_transaction = session.transaction.is_some();
    if command.writes() || is_transaction { Effect::Writes } else { Effect::Reads }
}

/// Commands that are not queued.
pub(super) fn ends_transaction(command: &'static Command) -> bool {
    matches!(command.name(), "exec" | "discard" | "multi" | "watch" | "quit" | "reset")
}

/// What a command may change, for the gate of a moving range.
pub(super) fn wrote(command: &'static Command, request: Request<'_>) -> Wrote {
    if !command.writes() {
        return Wrote::Nothing;
    }
    match command.keys(request) {
        Ok(keys) => {
            let bytes = |index| bytes::Bytes::copy_from_slice(request.argument(index));
            Wrote::Keys(keys.iter().map(|key| bytes(key.index())).collect())
        }
        Err(_) => Wrote::Anything,
    }
}

fn merge_of(how: Merging) -> Merge {
    match how {
        Merging::Sum => Merge::Sum,
        Merging::AllOk => Merge::Same,
        Merging::Concatenation | Merging::Values | Merging::Scan => Merge::Concat,
        Merging::Any => Merge::FirstGood,
        Merging::Every => Merge::Every,
        Merging::Newest => Merge::Newest(usize::MAX),
        Merging::Histograms => Merge::Histograms,
    }
}

/// Applies `CLIENT REPLY SKIP`, which covers only the next command.
fn advance_reply_mode(session: &mut Session, command: &'static Command) {
    session.reply_mode = match session.reply_mode {
        ReplyMode::SkipNext if command.name() != "client|reply" => ReplyMode::On,
        ReplyMode::SkipNext => ReplyMode::SkipThis,
        ReplyMode::SkipThis => ReplyMode::On,
        wish @ (ReplyMode::On | ReplyMode::Off) => wish,
    };
}

/// Stalls a session until all earlier replies are received.
pub(super) fn unless_drained(session: &Session) -> Result<(), Taken> {
    if session.replies.is_empty() { Ok(()) } else { Err(Taken::Not(Stall::Drain)) }
}
