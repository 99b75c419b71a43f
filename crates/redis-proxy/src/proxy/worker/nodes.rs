//! How are connections to nodes opened, written, read and lost?

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::Interest;
use mio::event::Event;
use mio::net::TcpStream;
use tracing::{debug, warn};

use crate::nodes::{NodeAuth, NodeState};
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::resp::{ErrorCode, Form, Protocol, View, write_request};

use super::super::Shared;
use super::super::arena::Key;
use super::super::link::{Condition, Lane, Link, Purpose, Remote};
use super::super::names::{Lookup, Names};
use super::super::session::{Session, Stall};
use super::super::spread::scanned;
use super::super::waiter::{Effect, Pass, Waiter};
use super::ownership::{Delivery, outcome_unknown};
use super::{Worker, link_token};

/// First pause after a failed connection attempt; doubles up to the limit.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// A reply of this size without its end is streamed, if its client is next.
const STREAM_FROM: usize = 32 * 1024;
/// The capacity that an idle link keeps for a partial reply.
const KEEP_PARTIAL: usize = 16 * 1024;

/// A node that cannot be used now: nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Unreachable {
    address: Address,
    /// Its name is being looked up and may be available soon.
    looked_up: bool,
}

impl Unreachable {
    /// The client's error: cluster clients retry after it.
    pub(in super::super) fn error(&self) -> String {
        let code = ErrorCode::ClusterDown.word();
        format!("{code} The node {} is not reachable; the command was not executed", self.address)
    }

    /// Whether a short wait may help.
    pub(in super::super) fn is_looked_up(&self) -> bool {
        self.looked_up
    }

    fn at(address: Address) -> Unreachable {
        Unreachable { address, looked_up: false }
    }
}

impl Worker {
    /// The link that all clients of this worker share, opened if necessary.
    pub(in super::super) fn pipeline(
        &mut self,
        remote: &Remote,
        protocol: Protocol,
        lane: Lane,
    ) -> Result<Key, Unreachable> {
        let known = self.pipelines.get(&(remote.clone(), protocol, lane)).copied();
        let key = known.unwrap_or_else(|| {
            let key = self.new_link(remote.clone(), protocol, Purpose::Shared);
            self.pipelines.insert((remote.clone(), protocol, lane), key);
            key
        });
        self.usable(key)
    }

    pub(in super::super) fn new_link(&mut self, remote: Remote, protocol: Protocol, purpose: Purpose) -> Key {
        let now = self.now;
        self.links.insert_with(|key| Link::new(key, remote, protocol, purpose, now))
    }

    /// Makes sure that a link is open or being opened.
    #[inline]
    pub(in super::super) fn usable(&mut self, key: Key) -> Result<Key, Unreachable> {
        match self.links.get(key) {
            Some(Link { condition: Condition::Ready | Condition::Connecting { .. }, .. }) => Ok(key),
            Some(_) | None => self.open(key),
        }
    }

    fn open(&mut self, key: Key) -> Result<Key, Unreachable> {
        let Some(link) = self.links.get_mut(key) else {
            return Err(Unreachable::at(self.shared.address.clone()));
        };
        let address = link.remote.address().clone();
        if let Condition::Down { until } = link.condition
            && self.now < until
        {
            return Err(Unreachable::at(address));
        }
        let led = Names::lookup(&self.shared, address.host(), self.now);
        let connected = match (not_ready(&link.remote, &self.shared), led) {
            (Some(why), _) => Err(io::Error::new(ErrorKind::NotConnected, why)),
            (None, Lookup::Found(ip)) => TcpStream::connect(SocketAddr::new(ip, address.port())),
            (None, Lookup::Pending) => return Err(Unreachable { address, looked_up: true }),
            (None, Lookup::NotFound) => Err(io::Error::new(ErrorKind::NotFound, "host name not found")),
        };
        match connected {
            Ok(socket) => {
                self.begin(key, socket);
                Ok(key)
            }
            Err(error) => {
                let waiters = self.lose(key, &error);
                debug_assert!(waiters.is_empty(), "a link that is down has no waiters");
                Err(Unreachable::at(address))
            }
        }
    }

    /// Registers a new connection and queues its greeting.
    fn begin(&mut self, key: Key, mut socket: TcpStream) {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(&mut socket, link_token(key), interest);
        let until = self.now + self.shared.limits.connect;
        let shared = Arc::clone(&self.shared);
        let Some(link) = self.links.get_mut(key) else { return };
        if let Err(error) = registered {
            warn!(node = %link.remote.address(), %error, "cannot register a connection");
        }
        let _ = socket.set_nodelay(true);
        link.socket = Some(socket);
        link.condition = Condition::Connecting { until };
        greet(link, &shared);
        self.mark_link(key);
    }

    /// Queues a request on a link; the waiter gets the reply.
    #[inline]
    pub(in super::super) fn send(&mut self, key: Key, request: &[u8], waiter: Waiter) {
        let Some(link) = self.links.get_mut(key) else { return };
        link.out.push(request);
        link.waiters.push_back(waiter);
        if !link.dirty {
            link.dirty = true;
            self.dirty_links.push(key);
        }
    }

    /// Sends a request without a regular reply.
    pub(in super::super) fn send_unasked(&mut self, key: Key, request: &[u8]) {
        if let Some(link) = self.links.get_mut(key) {
            link.out.push(request);
            self.mark_link(key);
        }
    }

    /// Whether a link has too many queued bytes.
    pub(in super::super) fn is_choked(&self, key: Key) -> bool {
        self.links.get(key).is_some_and(|link| link.out.len() > self.shared.limits.node_backlog_bytes)
    }

    pub(super) fn mark_link(&mut self, key: Key) {
        if let Some(link) = self.links.get_mut(key)
            && !link.dirty
        {
            link.dirty = true;
            self.dirty_links.push(key);
        }
    }

    pub(super) fn flush_link(&mut self, key: Key) {
        let Some(link) = self.links.get_mut(key) else { return };
        link.dirty = false;
        if !matches!(link.condition, Condition::Ready) {
            return;
        }
        let Some(socket) = &mut link.socket else { return };
        if let Err(error) = link.out.flush(socket) {
            self.fail_link(key, &error);
        }
    }

    pub(super) fn link_event(&mut self, key: Key, event: &Event) {
        let Some(link) = self.links.get_mut(key) else { return };
        if matches!(link.condition, Condition::Connecting { .. })
            && (event.is_writable() || event.is_error())
            && let Err(error) = connected(link)
        {
            return self.fail_link(key, &error);
        }
        if event.is_writable() {
            self.mark_link(key);
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.read_link(key, event.is_read_closed() || event.is_error());
        }
    }

    /// Reads until the socket is empty. A short read has emptied it, unless the event reported the end of the
    /// stream too: no further event will.
    fn read_link(&mut self, key: Key, hung_up: bool) {
        if self.waits_for_lease(key) {
            return self.put_off(key);
        }
        let delivery = self.delivery(key);
        self.read_replies(key, hung_up, delivery);
    }

    pub(super) fn read_replies(&mut self, key: Key, hung_up: bool, delivery: Delivery) {
        let Some(mut link) = self.links.take(key) else { return };
        let mut scratch = std::mem::take(&mut self.scratch);
        let outcome = loop {
            match link.read(&mut scratch) {
                Ok(0) => break Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    let delivery = self.delivery_now(&link, delivery);
                    match self.take_replies(&mut link, &scratch[..n], delivery) {
                        Ok(()) if n < scratch.len() && !hung_up => break Ok(()),
                        Ok(()) => {}
                        Err(error) => break Err(error),
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.scratch = scratch;
        self.links.put_back(key, link);
        if let Err(error) = outcome {
            self.fail_link(key, &error);
        }
    }

    fn take_replies(&mut self, link: &mut Link, bytes: &[u8], delivery: Delivery) -> io::Result<()> {
        if link.partial.is_empty() {
            let used = self.take_whole_replies(link, bytes, delivery)?;
            link.partial.extend_from_slice(&bytes[used..]);
        } else {
            let mut partial = std::mem::take(&mut link.partial);
            partial.extend_from_slice(bytes);
            let used = self.take_whole_replies(link, &partial, delivery)?;
            partial.drain(..used);
            link.partial = partial;
        }
        let streams = match (delivery, link.waiters.front()) {
            (Delivery::Owned, _) => true,
            (Delivery::Replicated, Some(waiter)) => waiter.effect() == Effect::Reads,
            (Delivery::Replicated, None) | (Delivery::Lapsed, _) => false,
        };
        if streams && link.partial.len() >= STREAM_FROM {
            self.stream_partial(link);
        }
        Ok(())
    }

    /// Delivers every complete reply, and returns the number of bytes used.
    fn take_whole_replies(&mut self, link: &mut Link, bytes: &[u8], delivery: Delivery) -> io::Result<usize> {
        let mut used = 0;
        while used < bytes.len() {
            let scanned = link.scanner.scan(&bytes[used..]);
            let len = match scanned.map_err(|e| io::Error::new(ErrorKind::InvalidData, e))? {
                None => break,
                Some(len) => len,
            };
            let reply = &bytes[used..used + len];
            used += len;
            if Form::of(reply[0]) == Some(Form::Push) || matches!(link.purpose, Purpose::Feed(_)) {
                self.take_push(link, reply)?;
                continue;
            }
            let Some(waiter) = link.waiters.pop_front() else {
                return Err(io::Error::new(ErrorKind::InvalidData, "reply without a request"));
            };
            link.answered += 1;
            match delivery {
                Delivery::Owned => self.deliver(link, waiter, reply)?,
                Delivery::Replicated => self.keep_until_replicated(link, waiter, reply)?,
                Delivery::Lapsed => self.withhold(link, waiter, reply)?,
            }
        }
        Ok(used)
    }

    /// Streams a long reply before its end has arrived, so that it needs no memory here.
    fn stream_partial(&mut self, link: &mut Link) {
        let Some(Waiter::Client { session, sequence, .. }) = link.waiters.front() else { return };
        let Some(client) = self.sessions.get_mut(*session) else {
            return forget(link);
        };
        if !client.replies.is_next(*sequence) {
            return;
        }
        let known = link.scanner.known().min(link.partial.len());
        client.out.push(&link.partial[..known]);
        client.streaming = true;
        link.streaming = true;
        let session = *session;
        forget(link);
        self.mark_session(session);
    }

    pub(in super::super) fn deliver(
        &mut self,
        link: &mut Link,
        waiter: Waiter,
        reply: &[u8],
    ) -> io::Result<()> {
        match waiter {
            Waiter::Client { session, sequence, pass, .. } => {
                link.streaming = false;
                finish(pass);
                if link.purpose == Purpose::Dedicated && self.was_called_back(session, reply) {
                    return Ok(());
                }
                self.give(session, sequence, reply);
            }
            Waiter::Greeting if Form::of(reply[0]).is_some_and(Form::is_error) => {
                let text = String::from_utf8_lossy(reply.trim_ascii_end()).into_owned();
                return Err(io::Error::new(ErrorKind::PermissionDenied, text));
            }
            Waiter::Part { gathering, part, pass, .. } => {
                finish(pass);
                self.give_part(gathering, part, reply);
            }
            Waiter::Scan { session, sequence, place, places } => {
                self.give(session, sequence, &scanned(reply, place, places));
            }
            Waiter::Exec(mut executed) => {
                finish(executed.pass.take());
                self.executed(*executed, reply);
            }
            Waiter::SlotScan(scan) => self.slot_scanned(link, scan, reply),
            Waiter::Peer(forwarded) => self.take_forwarded(forwarded, reply),
            Waiter::ClientId => link.client_id = View::of(reply).and_then(View::integer),
            Waiter::Confirm(asked) => self.answered_about_replicas(&asked, reply),
            Waiter::Greeting | Waiter::Ignored => {}
        }
        Ok(())
    }

    /// Gives a session the reply of one of its requests.
    pub(in super::super) fn give(&mut self, key: Key, sequence: u32, reply: &[u8]) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        session.streaming = false;
        session.replies.give(sequence, reply, &mut session.out);
        if let Some(all) = &mut session.subscriptions
            && all.unconfirmed == 0
            && !all.deferred.is_empty()
        {
            session.out.push(&std::mem::take(&mut all.deferred));
        }
        if let Some(monitor) = &mut session.monitor
            && !monitor.deferred.is_empty()
        {
            session.out.push(&std::mem::take(&mut monitor.deferred));
        }
        let wake = match session.stall {
            Some(Stall::Drain) => session.replies.is_empty(),
            Some(Stall::InFlight) => session.replies.len() <= self.shared.limits.in_flight / 2,
            Some(Stall::Output | Stall::Backlog | Stall::Held | Stall::Paused) | None => false,
        };
        if wake {
            self.awake.push(key);
        }
        if !session.dirty {
            session.dirty = true;
            self.dirty_sessions.push(key);
        }
    }

    /// A link is lost: its waiters get an error, and it is not reconnected for a while.
    pub(super) fn fail_link(&mut self, key: Key, error: &io::Error) {
        let Some(link) = self.links.get(key) else { return };
        let connected = matches!(link.condition, Condition::Ready);
        let (address, streaming, purpose) = (link.remote.address().clone(), link.streaming, link.purpose);
        let waiters = self.lose(key, error);
        let text = if connected {
            outcome_unknown(&address, "the connection was lost")
        } else {
            format!("-{}\r\n", Unreachable::at(address).error())
        };
        self.break_off(waiters, streaming, &text);
        match purpose {
            Purpose::Shared => {}
            Purpose::Feed(session) => self.feed_lost(session, key),
            Purpose::Dedicated => self.dedicated_lost(key),
        }
    }

    /// Fails all waiters of a link.
    pub(super) fn break_off(&mut self, mut waiters: VecDeque<Waiter>, streaming: bool, text: &str) {
        if streaming && let Some(Waiter::Client { session, pass, .. }) = waiters.pop_front() {
            finish(pass);
            // Its reply is partly sent; closing is the only way to report the failure.
            self.close(session);
        }
        for waiter in waiters {
            self.fail_waiter(waiter, text.as_bytes());
        }
    }

    /// A session that watches keys on a lost connection cannot tell any more whether they have changed.
    fn dedicated_lost(&mut self, key: Key) {
        let watches = |session: &&mut Session| session.watch.as_ref().is_some_and(|watch| watch.link == key);
        let watcher = self.sessions.iter_mut().find(watches).map(|session| session.key);
        if let Some(session) = watcher {
            self.close(session);
        }
    }

    /// Fails a request that will not be answered by its node.
    pub(in super::super) fn fail_waiter(&mut self, waiter: Waiter, error: &[u8]) {
        match waiter {
            Waiter::Client { session, sequence, pass, .. } => {
                finish(pass);
                self.give(session, sequence, error);
            }
            Waiter::Part { gathering, part, pass, .. } => {
                finish(pass);
                self.give_part(gathering, part, error);
            }
            Waiter::Scan { session, sequence, .. } => self.give(session, sequence, error),
            Waiter::Exec(executed) => {
                finish(executed.pass);
                self.give(executed.session, executed.sequence, error);
            }
            Waiter::SlotScan(scan) => {
                let (session, sequence) = scan.whose();
                self.give(session, sequence, error);
            }
            Waiter::Peer(forwarded) => self.give(forwarded.session, forwarded.sequence, error),
            Waiter::Confirm(asked) => self.refute(asked.node(), &String::from_utf8_lossy(error)),
            Waiter::Greeting | Waiter::ClientId | Waiter::Ignored => {}
        }
    }

    /// Takes the connection from a link, and returns its waiters.
    fn lose(&mut self, key: Key, error: &io::Error) -> VecDeque<Waiter> {
        let Some(link) = self.links.get_mut(key) else { return VecDeque::new() };
        let pause = FIRST_PAUSE.saturating_mul(1 << link.failures.min(16)).min(self.shared.limits.reconnect);
        // A node that is still starting is not worth a warning; one that stays away is.
        if matches!(link.condition, Condition::Ready) || link.failures > 0 {
            warn!(node = %link.remote.address(), %error, ?pause, "connection to node lost");
        } else {
            debug!(node = %link.remote.address(), %error, ?pause, "cannot connect to node yet");
        }
        link.failures += 1;
        link.condition = Condition::Down { until: self.now + pause };
        link.disconnect()
    }

    pub(super) fn sweep_links(&mut self) {
        let now = self.now;
        let mut late = Vec::new();
        for link in self.links.iter_mut() {
            link.out.shrink();
            if link.partial.is_empty() && link.partial.capacity() > KEEP_PARTIAL {
                link.partial = Vec::new();
            }
            if let Condition::Connecting { until } = link.condition
                && now >= until
            {
                late.push(link.key);
            }
        }
        for key in late {
            self.fail_link(key, &ErrorKind::TimedOut.into());
        }
    }
}

/// Reports a finished command to the gate of a moving range.
fn finish(pass: Option<Box<Pass>>) {
    if let Some(pass) = pass {
        pass.finish();
    }
}

/// Drops the delivered part of a reply.
fn forget(link: &mut Link) {
    let known = link.scanner.known().min(link.partial.len());
    link.partial.drain(..known);
    link.scanner.forget(known);
}

/// Queues the first requests of a new connection.
fn greet(link: &mut Link, shared: &Shared) {
    let mut say = |words: &[&str]| {
        write_request(link.out.bytes(), words);
        link.waiters.push_back(Waiter::Greeting);
    };
    match &link.remote {
        Remote::Node(node) => {
            if let NodeState::Ready { auth: Some(NodeAuth { password }), .. } = shared.nodes.state(node) {
                say(&["AUTH", &password]);
            }
        }
        Remote::Peer(_, database) => {
            if let Some(password) = &shared.admin_password {
                say(&["AUTH", "admin", password]);
            }
            say(&["NMCTL", "PEER", database.as_str()]);
        }
    }
    match link.protocol {
        Protocol::Resp2 => {}
        Protocol::Resp3 => say(&["HELLO", "3"]),
    }
}

/// Why a node cannot be used. Its password is known once it is ready: a connection opened before (right after
/// a restart of this process, for example) could never authenticate, and would be kept.
fn not_ready(remote: &Remote, shared: &Shared) -> Option<String> {
    let Remote::Node(node) = remote else { return None };
    match shared.nodes.state(node) {
        NodeState::Ready { .. } => None,
        NodeState::NotReady { why } => Some(why.to_string()),
    }
}

/// Whether the connection attempt has succeeded.
fn connected(link: &mut Link) -> io::Result<()> {
    let Some(socket) = &mut link.socket else { return Ok(()) };
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    match socket.peer_addr() {
        Ok(_) => {
            debug!(node = %link.remote.address(), "connected to node");
            link.condition = Condition::Ready;
            link.failures = 0;
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::NotConnected => Ok(()),
        Err(e) => Err(e),
    }
}
