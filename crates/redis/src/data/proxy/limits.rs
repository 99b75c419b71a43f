//! How much may one client, or all of them, use? Every bound of the data path, with its default and its reason.

use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit};
use tracing::warn;

use crate::data::resp;

use super::session::Session;

/// The bounds of a proxy. All are settings; the defaults are Redis's own where Redis has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients of the whole proxy; one more is told `-ERR max number of clients reached` and closed (`maxclients`).
    pub clients: usize,
    /// Longest argument of a command (`proto-max-bulk-len`).
    pub argument_bytes: usize,
    /// Most arguments of a command (Redis: 1024 * 1024).
    pub arguments: usize,
    /// Bytes of commands that a client may have sent and that were not taken yet (`client-query-buffer-limit`).
    pub query_bytes: usize,
    /// Replies that a client may leave unread; beyond it he is cut off, so that one slow reader cannot fill the memory
    /// that all share.
    pub output_bytes: usize,
    /// The same for a client with subscriptions, which gets messages that it did not ask for one by one
    /// (`client-output-buffer-limit pubsub`).
    pub subscriber_output_bytes: usize,
    /// Replies left unread from which on no further command of this client is taken.
    pub output_pause_bytes: usize,
    /// Commands of one client under way; more wait in his query buffer.
    pub in_flight: usize,
    /// A client that sends nothing for so long is closed; zero means never (`timeout`).
    pub idle: Duration,
    /// How long a command is held while its slot has no owner, is being handed over, or the lease is being renewed.
    pub hold: Duration,
    /// Clients that may be held at once, in one worker; one more gets the error at once.
    pub held: usize,
    /// Bytes waiting for one node connection, from which on clients of that node are not read.
    pub node_backlog_bytes: usize,
    /// How long a connection to a node or to another proxy may take to open.
    pub connect: Duration,
    /// Longest pause between two attempts to reach a node.
    pub reconnect: Duration,
    /// Connections that one worker keeps for transactions and blocking commands, idle, to each node.
    pub idle_dedicated: usize,
    /// Connections that one worker may have open to one node for single clients (transactions with WATCH, blocking
    /// commands, subscriptions): below the node's own `maxclients`, so that the shared connections always have a place.
    pub dedicated: usize,
    /// Commands in one transaction.
    pub queued: usize,
    /// Times that a command follows an owner to another proxy before it is given up (`single` mode).
    pub hops: u8,
    /// Keys a second that slots which move away from here take with them, over all moves; zero: as many as possible.
    pub move_rate: u64,
}

/// Open files that are no clients: connections to nodes, files, whatever else the process does.
const OTHER_FILES: usize = 512;

impl Limits {
    /// No more clients than the process may have open files: one more than that would wait and never hear why.
    pub(super) fn allowed(self) -> Limits {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
        let most = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(OTHER_FILES).max(1);
        if most < self.clients {
            warn!(wanted = self.clients, allowed = most, "fewer clients: the limit of open files is low");
        }
        Limits { clients: self.clients.min(most), ..self }
    }

    /// What this client may leave unread.
    pub(super) fn output_of(&self, session: &Session) -> usize {
        if session.subscriptions.is_some() || session.monitor.is_some() {
            self.subscriber_output_bytes
        } else {
            self.output_bytes
        }
    }

    /// What the parser of commands must know.
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
            reconnect: Duration::from_secs(1),
            idle_dedicated: 16,
            dedicated: 4_000,
            queued: 100_000,
            hops: 5,
            move_rate: 0,
        }
    }
}
