//! Which commands get a dedicated connection, and where does it come from? Blocking commands and transactions
//! with `WATCH`; a few idle connections to each node are kept for them.

use capstan_redis_protocol::resp::{Protocol, write_request};

use super::arena::Key;
use super::link::{Condition, Purpose, Remote};
use super::session::Session;
use super::waiter::Waiter;
use super::worker::{Unreachable, Worker};

/// No dedicated connection is available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoLink {
    /// The node cannot be reached.
    Unreachable(Unreachable),
    /// This worker has reached its limit.
    TooMany,
}

impl NoLink {
    /// The error line for the client.
    pub(super) fn error(&self) -> String {
        match self {
            NoLink::Unreachable(down) => down.error(),
            NoLink::TooMany => {
                "ERR too many blocked clients, transactions and subscribers on this proxy".to_owned()
            }
        }
    }
}

impl Worker {
    /// A connection for one session: an idle one, or a new one.
    pub(super) fn lend(&mut self, remote: &Remote, protocol: Protocol) -> Result<Key, NoLink> {
        let pool = self.idle.entry((remote.clone(), protocol)).or_default();
        while let Some(key) = pool.pop() {
            if self.links.get(key).is_some_and(|link| matches!(link.condition, Condition::Ready)) {
                return Ok(key);
            }
            self.links.release(key);
            self.own_links -= 1;
        }
        let key = self.own_link(remote, protocol, Purpose::Dedicated)?;
        // Its client id at the node, to unblock it when its slot moves.
        let mut request = Vec::new();
        write_request(&mut request, &["CLIENT", "ID"]);
        self.send(key, &request, Waiter::ClientId);
        Ok(key)
    }

    /// A new connection for one session.
    pub(super) fn own_link(
        &mut self,
        remote: &Remote,
        protocol: Protocol,
        purpose: Purpose,
    ) -> Result<Key, NoLink> {
        if self.own_links >= self.shared.limits.dedicated {
            return Err(NoLink::TooMany);
        }
        let key = self.new_link(remote.clone(), protocol, purpose);
        match self.usable(key) {
            Ok(key) => {
                self.own_links += 1;
                Ok(key)
            }
            Err(down) => {
                self.links.release(key);
                Err(NoLink::Unreachable(down))
            }
        }
    }

    /// Returns a session's connection. It is kept if nothing is in flight on it, else closed.
    pub(super) fn give_back(&mut self, key: Key) {
        let Some(link) = self.links.get(key) else { return };
        let clean = link.waiters.is_empty() && matches!(link.condition, Condition::Ready);
        let pool = self.idle.entry((link.remote.clone(), link.protocol)).or_default();
        if clean && pool.len() < self.shared.limits.idle_dedicated {
            pool.push(key);
        } else {
            self.drop_own_link(key);
        }
    }

    /// Closes a session's connection; the node drops its state.
    pub(super) fn drop_own_link(&mut self, key: Key) {
        let Some(mut link) = self.links.release(key) else { return };
        self.own_links -= 1;
        for waiter in link.disconnect() {
            self.fail_waiter(waiter, b"-ERR the connection was closed\r\n");
        }
    }

    /// Returns the connections that the session borrowed for one command.
    pub(super) fn return_borrowed(&mut self, session: &mut Session) {
        if !session.borrowed.is_empty() && session.replies.is_empty() {
            self.set_blocked(session, None);
            std::mem::take(&mut session.borrowed).into_iter().for_each(|link| self.give_back(link));
        }
    }
}
