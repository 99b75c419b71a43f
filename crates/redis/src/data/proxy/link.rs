//! How does a worker talk to a node, or to another proxy? Over a connection whose replies come in the order of the
//! requests, so that a queue of waiters is all it takes to know whom a reply is for.

use std::collections::VecDeque;
use std::io::Read;
use std::time::Instant;

use mio::net::TcpStream;

use crate::address::Address;
use crate::data::resp::{Protocol, ReplyScanner};
use crate::keys::ClusterName;

use super::arena::Key;
use super::outbox::Outbox;
use super::waiter::Waiter;

/// To whom a link leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Remote {
    /// A redis-server.
    Node(Address),
    /// Another proxy, and the database that is meant there.
    Peer(Address, ClusterName),
}

impl Remote {
    pub(super) fn address(&self) -> &Address {
        match self {
            Remote::Node(address) | Remote::Peer(address, _) => address,
        }
    }
}

/// Whose link it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Of all clients of this worker, pipelined.
    Shared,
    /// Of one session at a time: transactions with WATCH and blocking commands.
    Dedicated,
    /// Of one session: what it has subscribed to arrives unasked.
    Feed(Key),
}

/// What can be done with it now.
#[derive(Debug)]
pub(super) enum Condition {
    /// The connection is being opened; what is to be sent waits in the outbox.
    Connecting {
        /// When it is given up.
        until: Instant,
    },
    /// It carries commands.
    Ready,
    /// It was lost or refused.
    Down {
        /// Not tried again before.
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
    /// Who waits for the replies to come, in order.
    pub(super) waiters: VecDeque<Waiter>,
    pub(super) scanner: ReplyScanner,
    /// The part of a reply that has come, if it did not come whole.
    pub(super) partial: Vec<u8>,
    /// Whether a part of the reply was passed on to its client already.
    pub(super) streaming: bool,
    /// Attempts to connect that failed in a row.
    pub(super) failures: u32,
    /// Replies received, ever; with `waiters` it numbers the requests.
    pub(super) answered: u64,
    /// Whether it is in the worker's list of links to flush.
    pub(super) dirty: bool,
    /// The node's number for this connection (dedicated ones ask), so that it can be unblocked.
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

    /// The number of the last request that was given to it.
    pub(super) fn asked(&self) -> u64 {
        self.answered + self.waiters.len() as u64
    }

    /// Reads once; the number of bytes, zero at the end of the stream.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.socket {
            Some(socket) => socket.read(buffer),
            None => Ok(0),
        }
    }

    /// Forgets the connection and everything about its replies; the waiters are the caller's to answer.
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
