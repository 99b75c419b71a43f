//! How does a client block in a node without affecting other clients? On a dedicated connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::gate::{Phase, Ticket};
use capstan_redis_protocol::command::{Command, Handling, Timeout};
use capstan_redis_protocol::resp::{ErrorCode, Limits, Request, RequestParser, Trust, write_request};
use capstan_redis_protocol::slots::{Slot, SlotRange};

use super::arena::Key;
use super::dispatch::{unless_drained, wrote};
use super::link::{Lane, Remote};
use super::route::Route;
use super::session::{Blocked, Session};
use super::waiter::{Pass, Waiter};
use super::worker::{Taken, Worker};

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
            // Invalid arguments; the node reports the error.
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
                return self.object(session, no.error());
            }
        };
        let gate = ticket.as_ref().and_then(|ticket| ticket.gate());
        let pass = ticket.map(|ticket| Pass::new(ticket, wrote(command, request)));
        session.borrowed.push(link);
        let Handling::Blocking(timeout) = command.handling() else { return Taken::Yes };
        // The time while it was held counts.
        let since = session.held_since.unwrap_or(self.now);
        let request_bytes = request.bytes().to_vec();
        let blocked = Blocked { request: request_bytes, timeout, since, slot, gate, called_back: false };
        self.set_blocked(session, Some(Box::new(blocked)));
        if session.blocked.as_ref().is_some_and(|blocked| blocked.gate.is_some()) {
            self.gated.push(session.key);
        }
        self.send_client(session, link, request.bytes(), pass);
        session.draining = true;
        Taken::Yes
    }

    /// Sets or clears the blocking command of a session.
    pub(super) fn set_blocked(&self, session: &mut Session, blocked: Option<Box<Blocked>>) {
        let counter = &self.shared.counters.blocked;
        match (&session.blocked, &blocked) {
            (None, Some(_)) => drop(counter.fetch_add(1, Ordering::Relaxed)),
            (Some(_), None) => drop(counter.fetch_sub(1, Ordering::Relaxed)),
            (None, None) | (Some(_), Some(_)) => {}
        }
        session.blocked = blocked;
    }

    /// Interrupts clients blocked in a range that is being released: they continue at its next owner.
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

    /// Interrupts clients that blocked in a range before it had a gate, so that they wait behind the gate.
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

    /// Unblocks the client that waits on one of our connections.
    pub(super) fn unblock(&mut self, link: Key, how: &str) {
        let Some(waiting) = self.links.get(link) else { return };
        let Some(id) = waiting.client_id else { return };
        let (remote, protocol) = (waiting.remote.clone(), waiting.protocol);
        if let (Remote::Node(_), Ok(pipeline)) = (&remote, self.pipeline(&remote, protocol, Lane::Commands)) {
            let mut request = Vec::new();
            write_request(&mut request, &["CLIENT", "UNBLOCK", &id.to_string(), how]);
            self.send(pipeline, &request, Waiter::Ignored);
        }
    }

    /// Whether this reply is the result of our own interruption; then the command is dispatched again.
    pub(super) fn was_called_back(&mut self, key: Key, reply: &[u8]) -> bool {
        let Some(session) = self.sessions.get_mut(key) else { return false };
        let Some(blocked) = session.blocked.take_if(|_| session.replies.len() == 1) else { return false };
        self.shared.counters.blocked.fetch_sub(1, Ordering::Relaxed);
        if !blocked.called_back || ErrorCode::of(reply) != Some(ErrorCode::Unblocked) {
            return false;
        }
        session.replies.forget();
        session.parser = None;
        let rest = std::mem::take(&mut session.input);
        let waited = self.now.duration_since(blocked.since);
        session.input = with_remaining_timeout(&blocked.request, blocked.timeout, waited);
        session.input.extend_from_slice(&rest);
        self.awake.push(key);
        true
    }
}

/// The same command with its remaining time; an infinite or invalid timeout is kept.
fn with_remaining_timeout(request: &[u8], timeout: Timeout, waited: Duration) -> Vec<u8> {
    let mut parser = RequestParser::new(Limits::default());
    if parser.parse(request, Trust::Authenticated).is_err() {
        return request.to_vec();
    }
    let parsed = Request::new(request, parser.arguments());
    let (place, unit) = match timeout {
        Timeout::Last => (parsed.len().saturating_sub(1), 1.0),
        Timeout::First => (1, 1.0),
        Timeout::Option => {
            let option = (1..parsed.len()).find(|index| parsed.is(*index, "BLOCK"));
            (option.map_or(0, |index| index + 1), 1000.0)
        }
    };
    let asked = std::str::from_utf8(parsed.argument(place)).ok().and_then(|text| text.parse::<f64>().ok());
    let Some(asked) = asked.filter(|asked| asked.is_finite() && *asked > 0.0) else {
        return request.to_vec();
    };
    // Zero would mean infinite, so use a millisecond.
    let left = (asked / unit - waited.as_secs_f64()).max(0.001) * unit;
    let left = match timeout {
        Timeout::Last | Timeout::First => format!("{left:.3}"),
        Timeout::Option => format!("{left:.0}"),
    };
    let mut words: Vec<&[u8]> = parsed.from(0).collect();
    words[place] = left.as_bytes();
    let mut rewritten = Vec::new();
    write_request(&mut rewritten, &words);
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_called_back_waits_for_the_rest_of_his_time() {
        for (line, timeout, expected) in [
            ("BLPOP a b 10", Timeout::Last, "BLPOP a b 8.500"),
            ("BLPOP a 0", Timeout::Last, "BLPOP a 0"),
            ("BLPOP a 1", Timeout::Last, "BLPOP a 0.001"),
            ("BLPOP a x", Timeout::Last, "BLPOP a x"),
            ("BLMPOP 2.5 1 a LEFT", Timeout::First, "BLMPOP 1.000 1 a LEFT"),
            ("XREAD COUNT 1 BLOCK 2000 STREAMS a 0", Timeout::Option, "XREAD COUNT 1 BLOCK 500 STREAMS a 0"),
            ("XREAD BLOCK 5 STREAMS a 0", Timeout::Option, "XREAD BLOCK 1 STREAMS a 0"),
        ] {
            let bytes = |line: &str| {
                let mut bytes = Vec::new();
                write_request(&mut bytes, &line.split(' ').collect::<Vec<_>>());
                bytes
            };
            let left = with_remaining_timeout(&bytes(line), timeout, Duration::from_millis(1500));
            assert_eq!(String::from_utf8(left), String::from_utf8(bytes(expected)), "{line}");
        }
    }
}
