//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`: what each does to a session.

use bytes::Bytes;

use crate::data::command::{Command, Handling};
use crate::data::gate::Ticket;
use crate::data::resp::{Request, write_request};
use crate::slots::Slot;

use super::dispatch::{CROSS_SLOT, unless_drained, wrote};
use super::link::Remote;
use super::route::Route;
use super::session::Session;
use super::transaction::{TooLong, Transaction, Watch};
use super::waiter::{Pass, Waiter, Wrote};
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

    /// Takes down a command of a transaction.
    pub(super) fn queue(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        if command.outside_transactions() || !may_be_queued(command) {
            return self.object(session, "ERR Command not allowed inside a transaction");
        }
        let slot = match self.slot_of(command, request) {
            Ok(slot) => slot,
            Err(error) => return self.object(session, error),
        };
        // As Redis does: a slot of another host is refused when the command is queued, not when it is executed.
        if let Some(slot) = slot
            && let Err(taken) = self.here(session, slot)
        {
            return taken;
        }
        let written = match wrote(command, request) {
            Wrote::Keys(keys) => keys,
            Wrote::Nothing | Wrote::Anything => Vec::<Bytes>::new(),
        };
        let most = self.shared.limits.queued;
        let Some(transaction) = &mut session.transaction else { return Taken::Yes };
        match transaction.queue(request.bytes(), slot, written, most) {
            Ok(()) => session.answer(|writer| writer.simple("QUEUED")),
            Err(TooLong) => session.refuse("ERR too many commands in one transaction"),
        }
        Taken::Yes
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
        if transaction.refused {
            session.refuse("EXECABORT Transaction discarded because of previous errors.");
            return self.discard_silently(session);
        }
        if transaction.crosses_slots {
            session.refuse(CROSS_SLOT);
            return self.discard_silently(session);
        }
        if transaction.count == 0 && session.watch.is_none() {
            session.transaction = None;
            session.answer(|writer| writer.array(0));
            return Taken::Yes;
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
            // The keys have moved to another node, where nobody watched them: they count as changed.
            if let Route::Node { ticket, .. } = route {
                ticket.into_iter().for_each(Ticket::read);
            }
            session.answer(|writer| writer.null_array());
            return self.discard_silently(session);
        }
        if let Some(transaction) = session.transaction.take() {
            self.execute(session, &transaction, route);
        }
        Taken::Yes
    }

    fn watched_elsewhere(&self, session: &Session, slot: Option<Slot>) -> bool {
        let (Some(watch), Some(slot)) = (&session.watch, slot) else { return false };
        self.place_of(session.standing, slot).as_ref() != Some(&watch.remote)
    }

    /// Sends a transaction in one piece; the client gets the last of its replies.
    fn execute(&mut self, session: &mut Session, transaction: &Transaction, route: Route) {
        let (mut link, ticket) = match route {
            Route::Node { link, ticket } => (link, ticket),
            Route::Peer { link } => (link, None),
        };
        if let Some(watch) = session.watch.take() {
            link = watch.link;
            session.borrowed.push(watch.link);
        }
        let pass = ticket.map(|ticket| Pass::new(ticket, Wrote::Keys(transaction.written.clone())));
        let script = transaction.script();
        // MULTI and every command have a reply of their own that nobody waits for.
        self.send(link, &script, Waiter::Nobody);
        for _ in 0..transaction.count {
            self.send(link, b"", Waiter::Nobody);
        }
        self.send_client(session, link, b"", pass);
    }

    /// For a transaction without keys.
    fn any_route(&mut self, session: &mut Session) -> Result<Route, Taken> {
        let first = self.everywhere(session, true).into_iter().next();
        let Some(remote) = first else { return Err(self.hold(session, super::route::Hold::Unserved)) };
        match self.pipeline(&remote, session.protocol) {
            Ok(link) => Ok(Route::Node { link, ticket: None }),
            Err(down) => Err(self.object(session, &down.error())),
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

    /// Forgets a transaction and what was watched for it.
    pub(super) fn discard_silently(&mut self, session: &mut Session) -> Taken {
        session.transaction = None;
        if let Some(watch) = session.watch.take() {
            self.drop_own_link(watch.link);
        }
        Taken::Yes
    }

    /// The node watches on a connection of its own, which later carries the transaction.
    fn watch(&mut self, session: &mut Session, command: &'static Command, request: Request<'_>) -> Taken {
        if session.transaction.is_some() {
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
                Err(no) => return self.object(session, &no.error()),
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
            self.send(watch.link, &request, Waiter::Nobody);
            session.borrowed.push(watch.link);
        }
        session.ok();
        Taken::Yes
    }
}

/// Whether a node can execute it inside of a transaction of ours. What the proxy answers itself cannot be part of one,
/// save what a node answers alike.
fn may_be_queued(command: &'static Command) -> bool {
    match command.handling() {
        Handling::Key | Handling::Split(_) | Handling::Blocking(_) | Handling::AnyNode | Handling::Wait => {
            true
        }
        Handling::Local => matches!(command.name(), "ping" | "echo" | "time"),
        Handling::PubSub => matches!(command.name(), "publish" | "spublish"),
        Handling::AllNodes(_) => command.name().starts_with("script|") || command.name() == "dbsize",
        Handling::Transaction | Handling::Admin | Handling::Refused(_) | Handling::Forbidden => false,
    }
}
