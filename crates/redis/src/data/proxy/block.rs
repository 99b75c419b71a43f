//! How does a client wait in a node without anybody else noticing? On a connection of its own.

use crate::data::command::Command;
use crate::data::gate::{Phase, Ticket};
use crate::data::resp::{Request, write_request};
use crate::slots::{Slot, SlotRange};

use super::arena::Key;
use super::dispatch::{unless_drained, wrote};
use super::link::Remote;
use super::route::Route;
use super::session::{Blocked, Session};
use super::waiter::{Pass, Waiter};
use super::worker::{Taken, Worker};

/// What a node says when it was asked to let a client go.
const UNBLOCKED: &[u8] = b"-UNBLOCKED";

impl Worker {
    /// `BLPOP` and the like.
    pub(super) fn block(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        if let Err(taken) = unless_drained(session) {
            return taken;
        }
        let slot = match self.slot_of(command, request) {
            Ok(Some(slot)) => slot,
            // Its arguments make no sense; the node says so.
            Ok(None) => return self.any_node(session, request),
            Err(error) => return self.object(session, error),
        };
        let ticket = match self.route(session, slot, command.reads_only()) {
            Ok(Route::Node { ticket, .. }) => ticket,
            Ok(Route::Peer { .. }) => None,
            Err(taken) => return taken,
        };
        let lent = match self.owner(session, slot) {
            Ok(remote) => self.lend(&remote, session.protocol),
            Err(taken) => {
                ticket.into_iter().for_each(Ticket::read);
                return taken;
            }
        };
        let link = match lent {
            Ok(link) => link,
            Err(no) => {
                ticket.into_iter().for_each(Ticket::read);
                return self.object(session, &no.error());
            }
        };
        let gate = ticket.as_ref().and_then(|ticket| ticket.gate());
        let pass = ticket.map(|ticket| Pass::new(ticket, wrote(command, request)));
        session.borrowed.push(link);
        session.blocked =
            Some(Box::new(Blocked { request: request.bytes().to_vec(), slot, gate, called_back: false }));
        if session.blocked.as_ref().is_some_and(|blocked| blocked.gate.is_some()) {
            self.gated.push(session.key);
        }
        self.send_client(session, link, request.bytes(), pass);
        session.draining = true;
        Taken::Yes
    }

    /// Clients that wait in a node for a range that is being let go are called back: they wait on at its next owner.
    pub(super) fn call_back_gated(&mut self) {
        for key in std::mem::take(&mut self.gated) {
            let blocked = self.sessions.get(key).and_then(|session| session.blocked.as_ref());
            let Some(blocked) = blocked.filter(|blocked| !blocked.called_back) else { continue };
            if blocked.gate.as_ref().is_some_and(|gate| gate.phase() == Phase::Recording) {
                self.gated.push(key);
            } else {
                self.call_back(key);
            }
        }
    }

    /// Clients that began to wait in a range before it had a gate are called back, to wait behind the gate.
    pub(super) fn call_back_from(&mut self, range: SlotRange) {
        let within = |slot: Slot| (range.first()..=range.last()).contains(&slot.number());
        let waits = |session: &&Session| {
            session.blocked.as_ref().is_some_and(|blocked| blocked.gate.is_none() && within(blocked.slot))
        };
        let keys: Vec<Key> = self.sessions.iter().filter(waits).map(|session| session.key).collect();
        keys.into_iter().for_each(|key| self.call_back(key));
    }

    fn call_back(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let (Some(blocked), Some(link)) = (&mut session.blocked, session.borrowed.first().copied()) else {
            return;
        };
        if self.links.get(link).is_some_and(|link| link.client_id.is_some()) {
            blocked.called_back = true;
            self.unblock(link, "ERROR");
        } else {
            // Its connection is still being opened.
            self.gated.push(key);
        }
    }

    /// Asks a node to let go of the client that waits on one of our connections.
    pub(super) fn unblock(&mut self, link: Key, how: &str) {
        let Some(waiting) = self.links.get(link) else { return };
        let Some(id) = waiting.client_id else { return };
        let (remote, protocol) = (waiting.remote.clone(), waiting.protocol);
        if let (Remote::Node(_), Ok(pipeline)) = (&remote, self.pipeline(&remote, protocol)) {
            let mut request = Vec::new();
            write_request(&mut request, &["CLIENT", "UNBLOCK", &id.to_string(), how]);
            self.send(pipeline, &request, Waiter::Nobody);
        }
    }

    /// Whether this reply only says that we have called the client back; then its command is taken again.
    pub(super) fn was_called_back(&mut self, key: Key, reply: &[u8]) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let Some(blocked) = session.blocked.take_if(|_| session.replies.len() == 1) else { return false };
        if !blocked.called_back || !reply.starts_with(UNBLOCKED) {
            return false;
        }
        session.replies.forget();
        session.parser = None;
        let rest = std::mem::take(&mut session.input);
        session.input = blocked.request;
        session.input.extend_from_slice(&rest);
        self.awake.push(key);
        true
    }
}
