//! How much may one client, or all of them, use? Every bound of the data path, with its default and its
//! reason.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tracing::warn;

use capstan_redis_protocol::resp;

use super::session::Session;

/// The bounds of a proxy. All are settings; the defaults are Redis's own where Redis has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients of the whole proxy; one more gets `-ERR max number of clients reached` and is closed
    /// (`maxclients`).
    pub clients: usize,
    /// Longest argument of a command (`proto-max-bulk-len`).
    pub argument_bytes: usize,
    /// Most arguments of a command (Redis: 1024 * 1024).
    pub arguments: usize,
    /// Bytes of commands that a client has sent and that are not dispatched yet
    /// (`client-query-buffer-limit`).
    pub query_bytes: usize,
    /// Unread replies of a client; beyond it the client is disconnected, so that one slow reader cannot fill
    /// the shared memory.
    pub output_bytes: usize,
    /// The same for a client with subscriptions, which receives messages without requests
    /// (`client-output-buffer-limit pubsub`).
    pub subscriber_output_bytes: usize,
    /// Unread replies beyond which no further command of this client is read.
    pub output_pause_bytes: usize,
    /// Commands of one client in flight; more wait in its query buffer.
    pub in_flight: usize,
    /// Idle time after which a client is closed; zero means never (`timeout`).
    pub idle: Duration,
    /// How long a command is held while its slot has no owner, is being handed over, or the lease is being
    /// renewed.
    pub hold: Duration,
    /// Clients that may be held at once per worker; one more gets the error at once.
    pub held: usize,
    /// Bytes queued for one node connection beyond which clients of that node are not read.
    pub node_backlog_bytes: usize,
    /// Connect timeout to a node or another proxy.
    pub connect: Duration,
    /// How long a replica may take to acknowledge a write, with `acks: replica`.
    pub replica_ack: Duration,
    /// Longest pause between two connection attempts to a node.
    pub reconnect: Duration,
    /// Idle connections to each node that one worker keeps for transactions and blocking commands.
    pub idle_dedicated: usize,
    /// Dedicated connections that one worker may have open to one node (transactions with WATCH, blocking
    /// commands, subscriptions): below the node's own `maxclients`, so that the shared connections always
    /// have room.
    pub dedicated: usize,
    /// Commands in one transaction.
    pub queued: usize,
    /// Redirections that a forwarded command follows before it fails (`single` mode).
    pub hops: u8,
    /// Keys per second that are copied by all moves from this host; zero: unlimited.
    pub move_rate: u64,
}

/// Open files other than clients: connections to nodes, files of the process.
const OTHER_FILES: usize = 512;

impl Limits {
    /// Limits the clients by the open file limit: a client beyond it would wait without an error.
    pub(super) fn allowed(self) -> Limits {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        let most = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(OTHER_FILES).max(1);
        if most < self.clients {
            warn!(wanted = self.clients, allowed = most, "client limit reduced to fit the open file limit");
        }
        Limits { clients: self.clients.min(most), ..self }
    }

    /// The limit of unread replies for this client.
    pub(super) fn output_of(&self, session: &Session) -> usize {
        if session.subscriptions.is_some() || session.monitor.is_some() {
            self.subscriber_output_bytes
        } else {
            self.output_bytes
        }
    }

    /// The limits of the request parser.
    pub(super) fn resp(&self) -> resp::Limits {
        let narrow = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        resp::Limits {
            arguments: narrow(self.arguments),
            bulk: narrow(self.argument_bytes),
            frame: narrow(self.query_bytes),
            ..resp::Limits::default()
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            clients: 10_000,
            argument_bytes: 512 * 1024 * 1024,
            arguments: 1024 * 1024,
            query_bytes: 1024 * 1024 * 1024,
            output_bytes: 256 * 1024 * 1024,
            subscriber_output_bytes: 32 * 1024 * 1024,
            output_pause_bytes: 1024 * 1024,
            in_flight: 4096,
            idle: Duration::ZERO,
            hold: Duration::from_secs(2),
            held: 10_000,
            node_backlog_bytes: 16 * 1024 * 1024,
            connect: Duration::from_secs(2),
            replica_ack: Duration::from_secs(1),
            reconnect: Duration::from_secs(1),
            idle_dedicated: 16,
            dedicated: 4_000,
            queued: 100_000,
            hops: 5,
            move_rate: 0,
        }
    }
}
