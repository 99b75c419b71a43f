//! Which commands get a connection of their own, and where do those come from? Blocking commands and transactions with
//! `WATCH`; a few idle connections to each node are kept for them.

use crate::data::resp::{Protocol, write_request};

use super::arena::Key;
use super::link::{Condition, Purpose, Remote};
use super::session::Session;
use super::waiter::Waiter;
use super::worker::{Unreachable, Worker};

/// No connection of one's own can be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoLink {
    /// The node cannot be reached.
    Unreachable(Unreachable),
    /// This worker has as many as it may.
    TooMany,
}

impl NoLink {
    /// What the client is told.
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
        // Its number at the node, by which it can be unblocked when its slot moves.
        let mut request = Vec::new();
        write_request(&mut request, &["CLIENT", "ID"]);
        self.send(key, &request, Waiter::ClientId);
        Ok(key)
    }

    /// A new connection of one session.
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

    /// A session needs its connection no more. Kept if nothing is left on it; closed if the node still works for it.
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

    /// Closes a session's own connection; the node forgets what it did there.
    pub(super) fn drop_own_link(&mut self, key: Key) {
        let Some(mut link) = self.links.release(key) else { return };
        self.own_links -= 1;
        for waiter in link.disconnect() {
            self.disappoint(waiter, b"-ERR the connection was closed\r\n");
        }
    }

    /// The session goes on: what it borrowed for one command is returned.
    pub(super) fn return_borrowed(&mut self, session: &mut Session) {
        if !session.borrowed.is_empty() && session.replies.is_empty() {
            self.set_blocked(session, None);
            std::mem::take(&mut session.borrowed).into_iter().for_each(|link| self.give_back(link));
        }
    }
}
