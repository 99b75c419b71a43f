//! One thread of the proxy: its listener, its clients and its connections to nodes, in one loop.
//!
//! A turn of the loop takes everything that is ready, and writes each connection at most once at its end. That is where
//! the speed comes from: under load one write carries the commands of many clients to a node.

mod clients;
mod nodes;

pub(super) use clients::Taken;
pub(super) use nodes::unreachable_reply;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::address::Address;
use crate::data::resp::{Protocol, RequestParser};

use super::Shared;
use super::arena::{Arena, Key};
use super::link::{Link, Remote};
use super::session::Session;

/// Events taken in one turn; more wait for the next.
const EVENTS: usize = 1024;
/// What is read from one socket at a time, so that one busy client cannot keep the others waiting.
const READ: usize = 64 * 1024;
/// How often idle things are looked at: timeouts, memory to give back.
const SWEEP: Duration = Duration::from_millis(250);

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// The low bits of a token say whose key the rest is.
const SESSION: usize = 2;
const LINK: usize = 3;

/// A thread's whole world.
pub(super) struct Worker {
    shared: Arc<Shared>,
    poll: Poll,
    listener: TcpListener,
    sessions: Arena<Session>,
    links: Arena<Link>,
    /// The pipelined link to each remote, by protocol.
    pipelines: HashMap<(Remote, Protocol), Key>,
    /// Where sockets are read into.
    scratch: Vec<u8>,
    /// Links and sessions with something to write at the end of this turn.
    dirty_links: Vec<Key>,
    dirty_sessions: Vec<Key>,
    /// Sessions whose reason to wait is gone.
    awake: Vec<Key>,
    /// Sessions that wait for room in a node's connection.
    choked: Vec<Key>,
    /// Sessions whose next command nobody serves just now.
    held: Vec<Key>,
    /// A parser between two commands; a session has its own only while a command has come in part.
    spare_parser: Option<Box<RequestParser>>,
    /// The time of this turn.
    now: Instant,
    swept: Instant,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, listener: std::net::TcpListener) -> io::Result<(Worker, Waker)> {
        let poll = Poll::new()?;
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let now = Instant::now();
        let worker = Worker {
            shared,
            poll,
            listener,
            sessions: Arena::new(),
            links: Arena::new(),
            pipelines: HashMap::new(),
            scratch: vec![0; READ],
            dirty_links: Vec::new(),
            dirty_sessions: Vec::new(),
            awake: Vec::new(),
            choked: Vec::new(),
            held: Vec::new(),
            spare_parser: None,
            now,
            swept: now,
        };
        Ok((worker, waker))
    }

    /// Serves until the proxy stops.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        while !self.shared.stopping.load(Ordering::Acquire) {
            match self.poll.poll(&mut events, Some(self.patience())) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                done => done?,
            }
            self.turn(&events);
        }
        Ok(())
    }

    fn turn(&mut self, events: &Events) {
        self.now = Instant::now();
        for event in events {
            match event.token() {
                LISTENER => self.accept(),
                WAKER => {}
                Token(token) if token & 3 == SESSION => {
                    self.session_event(Key::from_number(token >> 2), event)
                }
                Token(token) => self.link_event(Key::from_number(token >> 2), event),
            }
        }
        self.resume();
        self.flush();
        if self.now.duration_since(self.swept) >= SWEEP {
            self.swept = self.now;
            self.sweep();
        }
    }

    /// How long to wait for events.
    fn patience(&self) -> Duration {
        if self.awake.is_empty() { SWEEP } else { Duration::ZERO }
    }

    /// Goes on with sessions whose reason to wait is gone.
    fn resume(&mut self) {
        let mut choked = std::mem::take(&mut self.choked);
        self.awake.append(&mut choked);
        for key in std::mem::take(&mut self.awake) {
            self.resume_session(key);
        }
    }

    /// Writes what this turn has gathered: nodes first, so that they work while clients are answered.
    fn flush(&mut self) {
        let mut links = std::mem::take(&mut self.dirty_links);
        for key in links.drain(..) {
            self.flush_link(key);
        }
        self.dirty_links = links;
        let mut sessions = std::mem::take(&mut self.dirty_sessions);
        for key in sessions.drain(..) {
            self.flush_session(key);
        }
        self.dirty_sessions = sessions;
    }

    pub(super) fn node(&self) -> Option<Address> {
        self.shared.node.clone()
    }

    fn sweep(&mut self) {
        self.sweep_sessions();
        self.sweep_links();
    }
}

fn session_token(key: Key) -> Token {
    Token(key.number() << 2 | SESSION)
}

fn link_token(key: Key) -> Token {
    Token(key.number() << 2 | LINK)
}

/// A listener that shares its port with the other workers'; the kernel spreads the connections.
pub(super) fn listen(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    /// Connections that wait to be accepted (`tcp-backlog`; the kernel's own bound is below it).
    const BACKLOG: i32 = 4096;
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
