//! How does a worker talk to a node, or to another proxy? Over a connection whose replies come in request
//! order, so that a queue of waiters is enough to match them.

use std::collections::VecDeque;
use std::io::Read;
use std::time::Instant;

use mio::net::TcpStream;

use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::resp::{Protocol, ReplyScanner};

use super::arena::Key;
use super::outbox::Outbox;
use super::waiter::Waiter;

/// The other end of a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Remote {
    /// A redis-server.
    Node(Address),
    /// Another proxy, and the database to use there.
    Peer(Address, ClusterName),
}

impl Remote {
    pub(super) fn address(&self) -> &Address {
        match self {
            Remote::Node(address) | Remote::Peer(address, _) => address,
        }
    }
}

/// Which of the connections to one remote a request uses. Replies come in request order within a connection,
/// so slow requests, and those that must get through meanwhile, have lanes of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Regular commands.
    #[default]
    Commands,
    /// Scripts and functions. While one runs, the node answers `-BUSY` on the other lanes.
    Scripts,
    /// Commands that a busy node still accepts: `SCRIPT KILL` and the like.
    Control,
    /// Queries whether a replica has the writes.
    Confirm,
}

impl Lane {
    /// The number of lanes.
    pub(super) const COUNT: usize = 4;
}

/// The user of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// All clients of this worker, pipelined.
    Shared,
    /// One session at a time: transactions with WATCH and blocking commands.
    Dedicated,
    /// One session: its subscriptions deliver messages without requests.
    Feed(Key),
}

/// The state of a link.
#[derive(Debug)]
pub(super) enum Condition {
    /// The connection is being opened; requests wait in the outbox.
    Connecting {
        /// When the attempt times out.
        until: Instant,
    },
    /// Connected.
    Ready,
    /// The connection was lost or refused.
    Down {
        /// No attempt before this time.
        until: Instant,
    },
}

/// One connection to a node or peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) key: Key,
    pub(super) remote: Remote,
    pub(super) protocol: Protocol,
    pub(super) purpose: Purpose,
    pub(super) condition: Condition,
    pub(super) socket: Option<TcpStream>,
    pub(super) out: Outbox,
    /// The waiters of outstanding replies, in order.
    pub(super) waiters: VecDeque<Waiter>,
    pub(super) scanner: ReplyScanner,
    /// The received part of an incomplete reply.
    pub(super) partial: Vec<u8>,
    /// Whether a part of the reply was already passed on to its client.
    pub(super) streaming: bool,
    /// Consecutive failed connection attempts.
    pub(super) failures: u32,
    /// Replies received since the start; with `waiters` it numbers the requests.
    pub(super) answered: u64,
    /// Whether it is in the worker's list of links to flush.
    pub(super) dirty: bool,
    /// The node's client id of this connection (queried on dedicated ones), so that it can be unblocked.
    pub(super) client_id: Option<i64>,
}

impl Link {
    pub(super) fn new(key: Key, remote: Remote, protocol: Protocol, purpose: Purpose, now: Instant) -> Link {
        Link {
            key,
            remote,
            protocol,
            purpose,
            condition: Condition::Down { until: now },
            socket: None,
            out: Outbox::default(),
            waiters: VecDeque::new(),
            scanner: ReplyScanner::default(),
            partial: Vec::new(),
            streaming: false,
            failures: 0,
            answered: 0,
            dirty: false,
            client_id: None,
        }
    }

    /// The number of the last request.
    pub(super) fn asked(&self) -> u64 {
        self.answered + self.waiters.len() as u64
    }

    /// Reads once; returns the number of bytes, zero at the end of the stream.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.socket {
            Some(socket) => socket.read(buffer),
            None => Ok(0),
        }
    }

    /// Drops the connection and the state of its replies; the caller answers the returned waiters.
    pub(super) fn disconnect(&mut self) -> VecDeque<Waiter> {
        self.socket = None;
        self.out.clear();
        self.scanner = ReplyScanner::default();
        self.partial = Vec::new();
        self.streaming = false;
        self.client_id = None;
        let waiters = std::mem::take(&mut self.waiters);
        self.answered += waiters.len() as u64;
        waiters
    }
}
