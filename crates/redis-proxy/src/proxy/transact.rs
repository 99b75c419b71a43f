//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`: what does each do to a session?

use crate::gate::Ticket;
use capstan_redis_protocol::command::{Command, Handling, Objection, find};
use capstan_redis_protocol::resp::{Request, RequestParser, Trust, View, write_request};
use capstan_redis_protocol::slots::Slot;

use super::dispatch::{CROSS_SLOT, unless_drained, wrote};
use super::gathering::Part;
use super::link::{Lane, Remote};
use super::merge::{Merge, merge};
use super::route::Route;
use super::session::{ReplyMode, Session};
use super::transaction::{Executed, Server, TooLong, Transaction, Watch};
use super::waiter::{Effect, Pass, Waiter, Wrote};
use super::worker::{Taken, Worker};

impl Worker {
    pub(super) fn transact(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        match command.name() {
            "multi" => self.multi(session),
            "exec" => self.exec(session),
            "discard" => self.discard(session),
            "watch" => self.watch(session, command, request),
            // `unwatch`, the last of them.
            _ => self.unwatch(session),
        }
    }

    fn multi(&mut self, session: &mut Session) -> Taken {
        if session.transaction.is_some() {
            session.refuse("ERR MULTI calls can not be nested");
            return Taken::Yes;
        }
        session.transaction = Some(Box::default());
        session.ok();
        Taken::Yes
    }

    /// Queues a command of a transaction.
    pub(super) fn queue(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        if command.handling() == Handling::Forbidden {
            return self.object(session, Objection::NoPermission(command.name()).line());
        }
        let slot = match self.slot_of(command, request) {
            Ok(slot) => slot,
            Err(error) => return self.object(session, error),
        };
        let server = server_of(command, request, self.is_alone(session));
        let Some(server) = server.filter(|_| !command.outside_transactions()) else {
            return self.object(session, "ERR Command not allowed inside a transaction");
        };
        // As in Redis: a slot of another host is refused when the command is queued, not when it is executed.
        if let Some(slot) = slot
            && let Err(taken) = self.here(session, slot)
        {
            return taken;
        }
        let most = self.shared.limits.queued;
        let Some(transaction) = &mut session.transaction else { return Taken::Yes };
        if transaction.queue(request.bytes(), server, slot, most) == Err(TooLong) {
            session.refuse("ERR too many commands in one transaction");
            return Taken::Yes;
        }
        if let Wrote::Keys(keys) = wrote(command, request) {
            transaction.written.extend(keys);
        }
        transaction.scripts |= command.runs_script();
        transaction.anything |= matches!(command.handling(), Handling::AllNodes(_)) && command.writes();
        session.answer(|writer| writer.simple("QUEUED"));
        Taken::Yes
    }

    /// Whether this proxy serves a single node.
    fn is_alone(&self, session: &Session) -> bool {
        let beyond = self.database(session).is_some_and(|database| database.is_single());
        self.everywhere(session, beyond).len() == 1
    }

    /// Whether a slot can be part of a transaction here: it is this host's, or forwarded.
    fn here(&mut self, session: &mut Session, slot: Slot) -> Result<(), Taken> {
        match self.route(session, slot, false)? {
            Route::Node { ticket, .. } => {
                ticket.into_iter().for_each(Ticket::read);
                Ok(())
            }
            Route::Peer { .. } => Ok(()),
        }
    }

    fn exec(&mut self, session: &mut Session) -> Taken {
        let Some(transaction) = &session.transaction else {
            session.refuse("ERR EXEC without MULTI");
            return Taken::Yes;
        };
        if transaction.crosses_slots {
            session.refuse(CROSS_SLOT);
            return self.discard_silently(session);
        }
        if transaction.refused {
            session.refuse("EXECABORT Transaction discarded because of previous errors.");
            return self.discard_silently(session);
        }
        if session.watch.is_none() && transaction.is_for_the_proxy() {
            return self.execute_here(session);
        }
        if session.watch.is_some()
            && let Err(taken) = unless_drained(session)
        {
            return taken;
        }
        let slot = transaction.slot;
        let route = match slot {
            Some(slot) => self.route(session, slot, false),
            None => self.any_route(session),
        };
        let route = match route {
            Ok(route) => route,
            Err(Taken::Yes) => return self.discard_silently(session),
            Err(waits) => return waits,
        };
        if self.watched_elsewhere(session, slot) {
            // The keys have moved to another node, where they were not watched: they count as changed.
            if let Route::Node { ticket, .. } = route {
                ticket.into_iter().for_each(Ticket::read);
            }
            session.answer(|writer| writer.null_array());
            return self.discard_silently(session);
        }
        let passes = match self.admit_transaction(session) {
            Ok(passes) => passes,
            Err(taken) => {
                if let Route::Node { ticket, .. } = route {
                    ticket.into_iter().for_each(Ticket::read);
                }
                return taken;
            }
        };
        if let Some(transaction) = session.transaction.take() {
            self.execute(session, &transaction, route, passes);
        }
        Taken::Yes
    }

    /// A transaction that may write any key must be admitted by every gate.
    fn admit_transaction(&mut self, session: &mut Session) -> Result<Vec<Pass>, Taken> {
        match &session.transaction {
            Some(transaction) if transaction.anything => self.admit_everywhere(session, &Wrote::Anything),
            Some(_) | None => Ok(Vec::new()),
        }
    }

    fn watched_elsewhere(&self, session: &Session, slot: Option<Slot>) -> bool {
        let (Some(watch), Some(slot)) = (&session.watch, slot) else { return false };
        self.place_of(session.standing, slot).as_ref() != Some(&watch.remote)
    }

    /// Sends a transaction in one piece; the client gets the last of its replies.
    fn execute(&mut self, session: &mut Session, transaction: &Transaction, route: Route, passes: Vec<Pass>) {
        let (mut link, ticket) = match route {
            Route::Node { link, ticket } => (link, ticket),
            Route::Peer { link } => (link, None),
        };
        if let Some(watch) = session.watch.take() {
            link = watch.link;
            session.borrowed.push(watch.link);
        }
        let pass = ticket.map(|ticket| Pass::new(ticket, Wrote::Keys(transaction.written.clone())));
        let pass = Pass::all(passes.into_iter().chain(pass.map(|pass| *pass)).collect());
        let standing = session.standing;
        let node = self.links.get(link).map(|link| link.remote.clone());
        let (script, count, asides) = transaction.script(node.as_ref(), |slot| self.place_of(standing, slot));
        // MULTI and every command have a reply of their own, which is ignored.
        self.send(link, &script, Waiter::Ignored);
        for _ in 0..count {
            self.send(link, b"", Waiter::Ignored);
        }
        if asides.is_empty() {
            return self.send_client(session, link, b"", pass);
        }
        let sequence = session.replies.owe(session.wants_reply());
        let executed = Executed { session: session.key, sequence, pass, asides };
        // The proxy's own commands in it must be executed before the next command is parsed.
        session.draining = true;
        self.send(link, b"", Waiter::Exec(Box::new(executed)));
    }

    /// Handles the node's reply to its part of a transaction: the rest follows, unless the node has refused.
    pub(super) fn executed(&mut self, executed: Executed, reply: &[u8]) {
        let Executed { session: key, sequence, asides, .. } = executed;
        let Some(View::Sequence(replies)) = View::of(reply) else { return self.give(key, sequence, reply) };
        let Some(mut session) = self.sessions.take(key) else { return };
        let protocol = session.protocol;
        let mut pieces: Vec<Option<Vec<u8>>> = replies.map(|reply| Some(reply.to_vec())).collect();
        let mut parts = Vec::new();
        for aside in asides {
            let piece = match aside.to {
                None => Some(self.answer_here(&mut session, &aside.request)),
                Some(remote) => {
                    let link = self.pipeline(&remote, protocol, Lane::Commands);
                    let link = link.map_err(|down| format!("-{}\r\n", down.error()));
                    parts.push(Part { link, request: aside.request, pass: None });
                    None
                }
            };
            pieces.insert(aside.place.min(pieces.len()), piece);
        }
        self.sessions.put_back(key, session);
        let how = Merge::Fill(pieces);
        if parts.is_empty() {
            return self.give(key, sequence, &merge(&how, &[], protocol));
        }
        self.gather(key, sequence, protocol, how, parts, Effect::Writes);
    }

    /// A transaction without commands for a node.
    fn execute_here(&mut self, session: &mut Session) -> Taken {
        if let Err(taken) = unless_drained(session) {
            return taken;
        }
        let Some(transaction) = session.transaction.take() else { return Taken::Yes };
        let (_, _, asides) = transaction.script(None, |_| None);
        let replies = asides.iter().map(|aside| Some(self.answer_here(session, &aside.request))).collect();
        let reply = merge(&Merge::Fill(replies), &[], session.protocol);
        session.answer(|writer| writer.raw(&reply));
        Taken::Yes
    }

    /// The proxy's own reply to a command of a transaction.
    fn answer_here(&mut self, session: &mut Session, request: &[u8]) -> Vec<u8> {
        let mut parser = RequestParser::new(self.shared.limits.resp());
        let known = parser.parse(request, Trust::Authenticated).is_ok();
        let request = Request::new(request, parser.arguments());
        let Some(command) = find(request).ok().filter(|_| known) else { return Vec::new() };
        // Its reply is a part of another one: it must not be sent, and does not wait for others.
        let out = std::mem::take(&mut session.out);
        let replies = std::mem::take(&mut session.replies);
        let wish = std::mem::replace(&mut session.reply_mode, ReplyMode::On);
        session.executing = true;
        match (command.handling(), command.refuses(request)) {
            (_, Some(refused)) => session.refuse(refused.line()),
            (Handling::Refused(error), None) => session.refuse(error),
            (_, None) => drop(self.local(session, command, request)),
        }
        session.executing = false;
        session.reply_mode = wish;
        session.replies = replies;
        std::mem::take(std::mem::replace(&mut session.out, out).bytes())
    }

    /// The route of a transaction without keys.
    fn any_route(&mut self, session: &mut Session) -> Result<Route, Taken> {
        let first = self.everywhere(session, true).into_iter().next();
        let Some(remote) = first else { return Err(self.hold(session, super::route::Hold::Unserved)) };
        match self.pipeline(&remote, session.protocol, session.lane) {
            Ok(link) => Ok(Route::Node { link, ticket: None }),
            Err(down) => Err(self.object(session, down.error())),
        }
    }

    fn discard(&mut self, session: &mut Session) -> Taken {
        if session.transaction.is_none() {
            session.refuse("ERR DISCARD without MULTI");
            return Taken::Yes;
        }
        session.ok();
        self.discard_silently(session)
    }

    /// Drops a transaction and its watched keys.
    pub(super) fn discard_silently(&mut self, session: &mut Session) -> Taken {
        session.transaction = None;
        if let Some(watch) = session.watch.take() {
            self.drop_own_link(watch.link);
        }
        Taken::Yes
    }

    /// Watches on a dedicated connection, which later carries the transaction.
    fn watch(&mut self, session: &mut Session, command: &'static Command, request: Request<'_>) -> Taken {
        if session.transaction.is_some() {
            if self.crosses_slots(session, command, request) {
                return self.object(session, CROSS_SLOT);
            }
            session.refuse("ERR WATCH inside MULTI is not allowed");
            return Taken::Yes;
        }
        if let Err(taken) = unless_drained(session) {
            return taken;
        }
        let slot = match self.slot_of(command, request) {
            Ok(Some(slot)) => slot,
            Ok(None) => Slot::of(request.argument(1)),
            Err(error) => return self.object(session, error),
        };
        let ticket = match self.route(session, slot, false) {
            Ok(Route::Node { ticket, .. }) => ticket,
            Ok(Route::Peer { .. }) => None,
            Err(taken) => return taken,
        };
        let owner = self.owner(session, slot);
        let taken = match owner {
            Ok(remote) => self.watch_at(session, remote, request),
            Err(taken) => taken,
        };
        ticket.into_iter().for_each(Ticket::read);
        taken
    }

    fn watch_at(&mut self, session: &mut Session, remote: Remote, request: Request<'_>) -> Taken {
        let link = match &session.watch {
            Some(watch) if watch.remote == remote => watch.link,
            Some(_) => return self.object(session, CROSS_SLOT),
            None => match self.lend(&remote, session.protocol) {
                Ok(link) => {
                    session.watch = Some(Box::new(Watch { link, remote }));
                    link
                }
                Err(no) => return self.object(session, no.error()),
            },
        };
        self.send_client(session, link, request.bytes(), None);
        // What follows on the shared connection must come after the watch.
        session.draining = true;
        Taken::Yes
    }

    fn unwatch(&mut self, session: &mut Session) -> Taken {
        if session.watch.is_some()
            && let Err(taken) = unless_drained(session)
        {
            return taken;
        }
        if let Some(watch) = session.watch.take() {
            let mut request = Vec::new();
            write_request(&mut request, &["UNWATCH"]);
            self.send(watch.link, &request, Waiter::Ignored);
            session.borrowed.push(watch.link);
        }
        session.ok();
        Taken::Yes
    }
}

/// Where a command of a transaction is executed; `None` if other nodes would have to be queried first.
fn server_of(command: &'static Command, request: Request<'_>, alone: bool) -> Option<Server> {
    let apart =
        ["cluster|countkeysinslot", "cluster|getkeysinslot", "client|list", "client|kill", "client|unblock"];
    match command.handling() {
        _ if command.refuses(request).is_some() => Some(Server::Proxy),
        Handling::Key | Handling::Split(_) | Handling::Blocking(_) | Handling::AnyNode | Handling::Wait => {
            Some(Server::Node)
        }
        Handling::Local => (!apart.contains(&command.name())).then_some(Server::Proxy),
        Handling::PubSub => match command.name() {
            "publish" => Some(Server::Channel(Slot::of(request.argument(1)))),
            "spublish" => Some(Server::Node),
            _ => None,
        },
        // With several nodes concerned, the reply of one is not enough.
        Handling::AllNodes(_) => {
            let known_everywhere = command.name().starts_with("script|") || command.name() == "dbsize";
            (alone || known_everywhere).then_some(Server::Node)
        }
        Handling::Refused(_) => Some(Server::Proxy),
        // The node drops its watches with the transaction anyway.
        Handling::Transaction => (command.name() == "unwatch").then_some(Server::Node),
        Handling::Admin | Handling::Forbidden => None,
    }
}
