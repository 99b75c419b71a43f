//! How are clients accepted, read, answered and closed?

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::Ordering;

use mio::Interest;
use mio::event::Event;
use mio::net::TcpStream;
use tracing::debug;

use capstan_redis_protocol::resp::{Parsed, Request, RequestParser};

use super::super::arena::Key;
use super::super::session::{Role, Session, Stall};
use super::super::stream::Stream;
use super::{Worker, session_token};

/// Bytes read ahead from a stalled client; beyond it its socket is not read.
const READ_AHEAD: usize = 64 * 1024;

/// The client's connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Leave;

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Taken {
    /// It is answered, or in flight.
    Yes,
    /// It must wait, and everything behind it.
    Not(Stall),
    /// The connection closes after it.
    Last,
}

impl Worker {
    pub(super) fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((socket, peer)) => self.welcome(socket, peer),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // A connection that was aborted before it was accepted.
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                // Most likely out of file descriptors. No event reports when there is one again, so the sweep
                // retries.
                Err(error) => return debug!(%error, "cannot accept a client"),
            }
        }
    }

    fn welcome(&mut self, mut socket: TcpStream, peer: std::net::SocketAddr) {
        if self.shared.clients.fetch_add(1, Ordering::Relaxed) >= self.shared.limits.clients {
            self.shared.clients.fetch_sub(1, Ordering::Relaxed);
            self.shared.counters.rejected.fetch_add(1, Ordering::Relaxed);
            let _ = socket.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        let _ = socket.set_nodelay(true);
        self.shared.counters.connections.fetch_add(1, Ordering::Relaxed);
        let id = self.shared.next_client.fetch_add(1, Ordering::Relaxed);
        let stream = Stream::new(socket, self.shared.tls.as_ref().map(|tls| &tls.server));
        let now = self.now;
        let standing = self.standing(&Role::Client(None));
        let restrictions = self.restrictions(&Role::Client(None));
        let version = self.table_version;
        let key = self.sessions.insert_with(|key| Session::new(key, id, peer, stream, now));
        let Some(session) = self.sessions.get_mut(key) else { return };
        (session.standing, session.standing_as_of) = (standing, version);
        session.restrictions = restrictions;
        let interest = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(session.stream.socket(), session_token(key), interest).is_err() {
            self.close(key);
        }
    }

    pub(super) fn session_event(&mut self, key: Key, event: &Event) {
        if event.is_writable() && self.sessions.get(key).is_some_and(Session::has_output) {
            self.mark_session(key);
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            let hung_up = event.is_read_closed() || event.is_error();
            self.with_session(key, |worker, session| {
                session.readable = true;
                session.hung_up |= hung_up;
                worker.read_session(session)
            });
        }
    }

    /// Resumes a stalled session.
    pub(super) fn resume_session(&mut self, key: Key) {
        self.with_session(key, |worker, session| {
            session.stall = None;
            worker.return_borrowed(session);
            worker.take_input(session)?;
            worker.read_session(session)
        });
    }

    /// Works on a session outside of the arena, and puts it back or closes it.
    fn with_session(&mut self, key: Key, work: impl FnOnce(&mut Worker, &mut Session) -> Result<(), Leave>) {
        let Some(mut session) = self.sessions.take(key) else { return };
        let done = work(self, &mut session);
        if session.import.is_some() && session.stall.is_none() && done.is_ok() {
            return self.hand_over(*session);
        }
        let flush = session.has_output() && !session.dirty;
        session.dirty |= flush;
        self.sessions.put_back(key, session);
        if flush {
            self.dirty_sessions.push(key);
        }
        if done.is_err() {
            self.close(key);
        }
    }

    /// Reads and dispatches commands until the socket is empty, the session stalls, or its share of the turn
    /// is used. After a hang-up the socket is drained even while the session is stalled: the amount is
    /// bounded by the socket buffer, and a session that waits for nothing must be closed.
    fn read_session(&mut self, session: &mut Session) -> Result<(), Leave> {
        loop {
            self.read_once(session)?;
            let on = session.hung_up && session.stall.is_some() && session.readable && !session.closing;
            if !on {
                return Ok(());
            }
        }
    }

    fn read_once(&mut self, session: &mut Session) -> Result<(), Leave> {
        if !session.readable || session.closing {
            return Ok(());
        }
        if session.stall.is_some() && session.input.len() >= READ_AHEAD && !session.hung_up {
            return Ok(());
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let read = session.stream.read(&mut scratch);
        let done = match read {
            Ok(0) => {
                session.readable = false;
                self.end_of_input(session)
            }
            Ok(n) => {
                // A short read has emptied the socket, and further bytes will be a new event; the end of the
                // stream will not, if it was reported together with these bytes.
                session.readable = n == scratch.len() || session.hung_up || session.stream.is_tls();
                session.active = self.now;
                self.tally.input += n as u64;
                self.take_bytes(session, &scratch[..n])
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                session.readable = false;
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(_) => Err(Leave),
        };
        self.scratch = scratch;
        if session.readable && session.stall.is_none() && !session.closing {
            self.awake.push(session.key);
        }
        done
    }

    /// The client has sent all its data: it gets the outstanding replies, then the connection closes.
    fn end_of_input(&mut self, session: &mut Session) -> Result<(), Leave> {
        session.ended = true;
        if session.replies.is_empty() || session.is_blocked() {
            return Err(Leave);
        }
        session.closing = session.stall.is_none() || session.input.is_empty();
        Ok(())
    }

    fn take_bytes(&mut self, session: &mut Session, bytes: &[u8]) -> Result<(), Leave> {
        if !session.input.is_empty() || session.stall.is_some() {
            session.input.extend_from_slice(bytes);
            return self.take_input(session);
        }
        let used = self.take_commands(session, bytes)?;
        session.input.extend_from_slice(&bytes[used..]);
        Ok(())
    }

    fn take_input(&mut self, session: &mut Session) -> Result<(), Leave> {
        if session.stall.is_some() || session.input.is_empty() {
            return Ok(());
        }
        let mut input = std::mem::take(&mut session.input);
        let used = self.take_commands(session, &input)?;
        input.drain(..used);
        session.input = input;
        if session.ended && session.stall.is_none() {
            session.closing = true;
        }
        Ok(())
    }

    /// Dispatches complete commands, and returns the number of bytes used.
    fn take_commands(&mut self, session: &mut Session, bytes: &[u8]) -> Result<usize, Leave> {
        let mut parser = match session.parser.take() {
            Some(parser) => parser,
            None => self
                .spare_parser
                .take()
                .unwrap_or_else(|| Box::new(RequestParser::new(self.shared.limits.resp()))),
        };
        let mut used = 0;
        while used < bytes.len() && !session.closing && session.import.is_none() {
            if let Some(stall) = self.full(session) {
                self.stall(session, stall);
                break;
            }
            let rest = &bytes[used..];
            match parser.parse(rest, session.trust()) {
                Ok(Parsed::Complete(len)) => {
                    let request = Request::new(&rest[..len], parser.arguments());
                    if !self.take_command(session, request) {
                        break;
                    }
                    used += len;
                }
                Ok(Parsed::Inline { len, rewritten }) => {
                    let request = Request::new(&rewritten, parser.arguments());
                    if !self.take_command(session, request) {
                        break;
                    }
                    used += len;
                }
                Ok(Parsed::Incomplete { .. }) => {
                    session.parser = Some(parser);
                    return Ok(used);
                }
                Err(error) => {
                    session.refuse(format!("ERR {error}"));
                    session.closing = true;
                    // The parser is within an invalid request and cannot be reused.
                    return Ok(bytes.len());
                }
            }
        }
        if session.draining
            && let Some(stall) = self.full(session)
        {
            self.stall(session, stall);
        }
        self.spare_parser = Some(parser);
        Ok(used)
    }

    /// Whether a command was dispatched; if not, the session waits.
    fn take_command(&mut self, session: &mut Session, request: Request<'_>) -> bool {
        if request.len() == 0 {
            return true;
        }
        match self.dispatch(session, request) {
            Taken::Yes => {
                self.tally.commands += 1;
                session.held_since = None;
                true
            }
            Taken::Not(stall) => {
                self.stall(session, stall);
                false
            }
            Taken::Last => {
                session.closing = true;
                true
            }
        }
    }

    /// Why no command may be dispatched, whatever it is.
    fn full(&self, session: &mut Session) -> Option<Stall> {
        let limits = &self.shared.limits;
        if session.draining && !session.replies.is_empty() {
            return Some(Stall::Drain);
        }
        session.draining = false;
        if session.replies.len() >= limits.in_flight {
            Some(Stall::InFlight)
        } else if session.out.len() >= limits.output_pause_bytes {
            Some(Stall::Output)
        } else {
            None
        }
    }

    /// Stalls a session.
    fn stall(&mut self, session: &mut Session, stall: Stall) {
        session.stall = Some(stall);
        match stall {
            // Woken by the reply, or by the flush, that they wait for.
            Stall::Drain | Stall::InFlight | Stall::Output => {}
            Stall::Backlog | Stall::Paused => self.choked.push(session.key),
            Stall::Held => self.held.push(session.key),
        }
    }

    /// Adds a session to the flush list.
    pub(in super::super) fn mark_session(&mut self, key: Key) {
        if let Some(session) = self.sessions.get_mut(key)
            && !session.dirty
        {
            session.dirty = true;
            self.dirty_sessions.push(key);
        }
    }

    pub(super) fn flush_session(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.dirty = false;
        self.tally.output += session.out.len() as u64;
        match session.flush() {
            Ok(true) if session.closing && session.replies.is_empty() => self.close(key),
            Ok(true) if session.stall == Some(Stall::Output) => self.awake.push(key),
            Ok(true) => {}
            Ok(false) if session.out.len() > self.shared.limits.output_of(session) => {
                debug!(
                    client = session.id,
                    bytes = session.out.len(),
                    "disconnected a client that does not read"
                );
                self.close(key);
            }
            Ok(false) => {}
            Err(_) => self.close(key),
        }
    }

    /// Closes a session; later replies for it are dropped.
    pub(in super::super) fn close(&mut self, key: Key) {
        if let Some(session) = self.sessions.release(key) {
            self.shared.clients.fetch_sub(1, Ordering::Relaxed);
            self.leave(*session);
        }
    }

    /// Releases what the session owned.
    fn leave(&mut self, mut session: Session) {
        self.end_subscriptions(&mut session);
        self.end_monitor(&mut session);
        self.discard_silently(&mut session);
        self.set_blocked(&mut session, None);
        for link in session.borrowed {
            self.drop_own_link(link);
        }
    }

    /// Hands a connection, and what was read from it, over to the moves.
    fn hand_over(&mut self, session: Session) {
        self.sessions.release(session.key);
        self.shared.clients.fetch_sub(1, Ordering::Relaxed);
        let (Some(import), Some(moves)) = (session.import, &self.shared.moves) else { return };
        let Some(mut socket) = session.stream.into_plain() else {
            return debug!("import over TLS refused; proxies use plain connections");
        };
        if let Err(error) = self.poll.registry().deregister(&mut socket) {
            return debug!(%error, "cannot hand over a connection");
        }
        moves.take_import(std::os::fd::OwnedFd::from(socket).into(), &session.input, *import);
    }

    /// `CLIENT KILL`: a client that kills itself still gets the reply.
    pub(in super::super) fn kill_session(&mut self, key: Key) {
        match self.sessions.get_mut(key) {
            Some(session) if !session.replies.is_empty() && !session.is_blocked() => session.closing = true,
            Some(_) | None => self.close(key),
        }
    }

    pub(super) fn sweep_sessions(&mut self) {
        let (now, idle) = (self.now, self.shared.limits.idle);
        let mut gone = Vec::new();
        for session in self.sessions.iter_mut() {
            let quiet = now.duration_since(session.active);
            if quiet >= super::SWEEP {
                session.shrink();
            }
            if !idle.is_zero() && quiet >= idle && session.replies.is_empty() {
                gone.push(session.key);
            }
        }
        gone.into_iter().for_each(|key| self.close(key));
    }
}
