//! One thread of the proxy: its listener, its clients and its connections to nodes, in one loop.
//!
//! A turn of the loop handles everything that is ready, and writes each connection at most once at its end.
//! Throughput comes from this: under load one write carries the commands of many clients to a node.

mod clients;
mod moving;
mod nodes;
mod ownership;

pub(super) use clients::Taken;
pub(super) use nodes::Unreachable;
pub(super) use ownership::outcome_unknown;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token, Waker};

use crate::gate::Gate;
use crate::state::{Routing, Serving};
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::resp::{Protocol, RequestParser};

use super::arena::{Arena, Key};
use super::confirm::Confirming;
use super::gathering::Gathering;
use super::link::{Lane, Link, Remote};
use super::mailbox::{Letter, Mailbox};
use super::pause::Pause;
use super::route::Known;
use super::session::Session;
use super::waiter::Forwarded;
use super::{Lent, Shared};

/// Events handled per turn; more wait for the next.
const EVENTS: usize = 1024;
/// Bytes read from one socket at a time, so that one busy client cannot delay the others.
const READ: usize = 64 * 1024;
/// The interval of checks of idle sessions: timeouts, memory to release.
const SWEEP: Duration = Duration::from_millis(250);

/// The polling interval for conditions without an event.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

const LISTENER: Token = Token(0);
const WAKER: Token = Token(1);
/// The low bits of a token are the kind of key.
const SESSION: usize = 2;
const LINK: usize = 3;

/// The state of one thread.
pub(super) struct Worker {
    /// Its index among the proxy's workers.
    pub(super) number: usize,
    pub(super) shared: Arc<Shared>,
    poll: Poll,
    listener: TcpListener,
    /// The address that its clients connect to.
    pub(super) local: SocketAddr,
    pub(super) sessions: Arena<Session>,
    pub(super) links: Arena<Link>,
    pub(super) gatherings: Arena<Gathering>,
    /// Parts of gatherings that could not be sent.
    pub(super) failed_parts: Vec<(Key, u32, String)>,
    /// The pipelined links to each remote, by protocol and lane.
    pipelines: HashMap<(Remote, Protocol, Lane), Key>,
    /// Idle dedicated connections.
    pub(super) idle: HashMap<(Remote, Protocol), Vec<Key>>,
    /// The number of dedicated links, idle ones included.
    pub(super) own_links: usize,
    /// The routing table, and the number of its changes.
    pub(super) routing: Arc<Routing>,
    pub(super) table_version: u64,
    pub(super) databases: Vec<Known>,
    /// Nodes that have slots in this table.
    pub(super) owned: HashSet<Address>,
    /// Nodes with `acks: replica`, the replies that wait for a replica, and the nodes to query.
    pub(super) replicated: HashSet<Address>,
    pub(super) confirming: HashMap<Address, Confirming>,
    pub(super) unasked: Vec<Address>,
    /// Links whose replies wait for the lease, and since when.
    pub(super) late: Vec<(Key, Instant)>,
    /// Nodes that lost their slots and may still reply to earlier commands, each with the time of the loss.
    pub(super) leaving: Vec<(Address, Instant)>,
    /// Whether slots may be served, as of the beginning of this turn.
    pub(super) serving: Serving,
    lent: Lent,
    /// The pauses in force, as of the beginning of this turn.
    pub(super) pauses: Vec<Pause>,
    /// Whether there are `MONITOR` clients, as of the beginning of this turn.
    pub(super) is_monitored: bool,
    /// Gates that wait for commands sent before this worker had them.
    joining: Vec<Joining>,
    /// Gates that this worker has joined, or will.
    joined: Vec<Weak<Gate>>,
    /// The read buffer of sockets.
    scratch: Vec<u8>,
    /// Links and sessions with something to write at the end of this turn.
    pub(super) dirty_links: Vec<Key>,
    dirty_sessions: Vec<Key>,
    /// Sessions that can be resumed.
    pub(super) awake: Vec<Key>,
    /// Sessions that wait for room in a node's connection.
    choked: Vec<Key>,
    /// Sessions whose next command is held.
    pub(super) held: Vec<Key>,
    /// Sessions blocked in a node for a slot that is moving.
    pub(super) gated: Vec<Key>,
    /// Forwarded commands that follow their slot, and when.
    following: Vec<(Instant, Box<Forwarded>)>,
    /// A parser between two commands; a session has its own only while a command is incomplete.
    spare_parser: Option<Box<RequestParser>>,
    /// Commands and bytes of this turn, for the counters.
    tally: Tally,
    /// The time of this turn.
    pub(super) now: Instant,
    swept: Instant,
}

/// The counts of one turn.
#[derive(Debug, Default)]
struct Tally {
    commands: u64,
    input: u64,
    output: u64,
}

/// A gate that this worker joins when these requests are answered.
struct Joining {
    gate: Arc<Gate>,
    /// Links, and the last request of each that was sent without the gate.
    behind: Vec<(Key, u64)>,
}

impl Worker {
    pub(super) fn new(
        number: usize,
        shared: Arc<Shared>,
        poll: Poll,
        listener: std::net::TcpListener,
    ) -> io::Result<Worker> {
        listener.set_nonblocking(true)?;
        let local = listener.local_addr()?;
        let mut listener = TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        let now = Instant::now();
        Ok(Worker {
            number,
            shared,
            poll,
            listener,
            local,
            sessions: Arena::new(),
            links: Arena::new(),
            gatherings: Arena::new(),
            failed_parts: Vec::new(),
            pipelines: HashMap::new(),
            idle: HashMap::new(),
            own_links: 0,
            routing: Arc::default(),
            table_version: 1,
            databases: Vec::new(),
            owned: HashSet::new(),
            replicated: HashSet::new(),
            confirming: HashMap::new(),
            unasked: Vec::new(),
            late: Vec::new(),
            leaving: Vec::new(),
            serving: Serving::NotNow,
            lent: Lent::NOTHING,
            pauses: Vec::new(),
            is_monitored: false,
            joining: Vec::new(),
            joined: Vec::new(),
            scratch: vec![0; READ],
            dirty_links: Vec::new(),
            dirty_sessions: Vec::new(),
            awake: Vec::new(),
            choked: Vec::new(),
            held: Vec::new(),
            gated: Vec::new(),
            following: Vec::new(),
            spare_parser: None,
            tally: Tally::default(),
            now,
            swept: now,
        })
    }

    /// A waker for the worker that polls this.
    pub(super) fn waker(poll: &Poll) -> io::Result<Waker> {
        Waker::new(poll.registry(), WAKER)
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
        self.look_around();
        for event in events {
            match event.token() {
                LISTENER => self.accept(),
                WAKER => self.read_letters(),
                Token(token) if token & 3 == SESSION => {
                    self.session_event(Key::from_number(token >> 2), event)
                }
                Token(token) => self.link_event(Key::from_number(token >> 2), event),
            }
        }
        self.tend_moves();
        self.tend_late();
        self.tend_leaving();
        self.resume();
        self.give_failed_parts();
        self.ask_replicas();
        self.flush();
        self.count();
        if self.now.duration_since(self.swept) >= SWEEP {
            self.swept = self.now;
            self.sweep();
        }
    }

    /// Reads what other threads may have changed since the last turn.
    fn look_around(&mut self) {
        // The number is read first: the table that is loaded then is at least as new.
        let published = self.shared.adoption.published();
        let routing = self.shared.routing.load();
        if !Arc::ptr_eq(&routing, &self.routing) {
            let routing = Arc::clone(&routing);
            self.adopt(routing);
        }
        self.shared.adoption.adopted(self.number, published);
        self.borrow(self.shared.lent());
        self.is_monitored = self.shared.monitors.load(Ordering::Acquire) > 0;
        self.look_at_pauses();
    }

    fn read_letters(&mut self) {
        let letters = self.shared.mailboxes.get(self.number).map(Mailbox::take).unwrap_or_default();
        for letter in letters {
            match letter {
                Letter::Give { session, sequence, reply } => self.give(session, sequence, &reply),
                Letter::Roll(roll) => self.answer_roll(&roll),
                Letter::Monitor { database, line } => self.show_to_monitors(&database, &line),
            }
        }
    }

    /// The poll timeout. Sessions that wait for a move or an owner are polled, because no event reports the
    /// end of that.
    fn patience(&self) -> Duration {
        if !self.awake.is_empty() {
            Duration::ZERO
        } else if self.held.is_empty()
            && self.choked.is_empty()
            && self.late.is_empty()
            && self.leaving.is_empty()
            && !self.tends_moves()
        {
            SWEEP
        } else {
            LOOK_AGAIN
        }
    }

    /// Adds this turn to the counters of all workers.
    fn count(&mut self) {
        let tally = std::mem::take(&mut self.tally);
        let counters = &self.shared.counters;
        for (counter, more) in [
            (&counters.commands, tally.commands),
            (&counters.input, tally.input),
            (&counters.output, tally.output),
        ] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// Resumes sessions that no longer have to wait.
    fn resume(&mut self) {
        self.awake.append(&mut self.choked);
        self.awake.append(&mut self.held);
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

    fn sweep(&mut self) {
        self.accept();
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

/// A listener that shares its port with the other workers; the kernel distributes the connections.
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
