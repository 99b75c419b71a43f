//! Whose replies are valid? Those of nodes that this proxy owned without a gap between the command and its
//! reply.
//!
//! A node may freeze, be replaced, and reply later: its `+OK` is about a write that its successor does not
//! have. So the links of a node that lost its slots are closed when the routing table without it is adopted,
//! and their waiters get `-OUTCOMEUNKNOWN`. Only in a planned handover, where the successor gets everything that
//! the node has executed, a few last replies are delivered. A proxy whose lease has expired may have been replaced
//! without a push: its replies wait until the lease is renewed, for as long as commands would, and are then
//! discarded. The lease is checked after a reply was read, because the process may be frozen at any point: a reply
//! in hand under a valid lease is one of an owned node, and a valid lease before reading says nothing.
//!
//! A coordinator gets its `+OK` for a new table when every worker has adopted it (see `Adoption`).

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::Acks;
use capstan_redis_protocol::resp::ErrorCode;

use crate::state::Place;

use super::super::arena::Key;
use super::super::link::{Link, Purpose, Remote};
use super::super::route::Known;
use super::super::waiter::Waiter;
use super::{Lent, Worker};

/// Whether the replies of a link are acknowledgments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The node is owned.
    Owned,
    /// The node is owned, with `acks: replica`.
    Replicated,
    /// The lease has expired since: the node may have been replaced.
    Lapsed,
}

/// How long a node that handed its slots over may reply to earlier commands: the successor waits until there are
/// no more writes. A planned handover becomes a forced one after `Timing::take_over` at the earliest, which is
/// longer than this and the longest lease together.
const LAST_REPLIES: Duration = Duration::from_millis(200);

/// The error of a command that was sent and has no valid reply.
pub(in super::super) fn outcome_unknown(node: &Address, why: &str) -> String {
    let code = ErrorCode::OutcomeUnknown.word();
    format!("-{code} node {node}: {why}; the command may or may not have been executed\r\n")
}

/// The nodes that have slots in these databases.
fn owned_nodes(databases: &[Known]) -> HashSet<Address> {
    databases.iter().flat_map(|known| known.database.places()).filter_map(own_node).collect()
}

fn own_node(place: &Place) -> Option<Address> {
    match place {
        Place::Own { node, .. } => Some(node.clone()),
        Place::Unowned | Place::Peer { .. } => None,
    }
}

/// The nodes with `acks: replica`.
fn replicated_nodes(databases: &[Known]) -> HashSet<Address> {
    let strict = databases.iter().filter(|known| known.database.settings().acks == Acks::Replica);
    let places = strict.flat_map(|known| known.database.places());
    places.filter_map(own_node).collect()
}

impl Worker {
    /// How the replies of a link are delivered under a valid lease.
    #[inline]
    pub(super) fn delivery(&self, key: Key) -> Delivery {
        if self.replicated.is_empty() {
            return Delivery::Owned;
        }
        match self.links.get(key).map(|link| (&link.remote, link.purpose)) {
            Some((Remote::Node(node), Purpose::Shared | Purpose::Dedicated))
                if self.replicated.contains(node) =>
            {
                Delivery::Replicated
            }
            Some(_) | None => Delivery::Owned,
        }
    }

    /// Closes the links of nodes that had slots and have none in the table that was just adopted. A range
    /// that moved away regularly has no command in flight by then: its gate has waited for them.
    pub(in super::super) fn drop_lost_nodes(&mut self) {
        self.replicated = replicated_nodes(&self.databases);
        let owned = owned_nodes(&self.databases);
        let before = std::mem::replace(&mut self.owned, owned);
        // As known before this table: a lease that ended may have been renewed for the new one.
        let continuous = self.lent.serving().is_current(Instant::now());
        for node in before.difference(&self.owned).cloned().collect::<Vec<_>>() {
            if continuous && self.routing.was_handed_over(&node) {
                self.leaving.push((node, self.now));
            } else {
                self.leaving.retain(|(leaving, _)| *leaving != node);
                self.drop_node(&node);
            }
        }
        self.tend_leaving();
    }

    /// Drops nodes that handed their slots over: at once if nothing is in flight or the lease has ended, otherwise
    /// after [`LAST_REPLIES`].
    pub(super) fn tend_leaving(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        let continuous = !self.has_lapsed();
        for (node, since) in std::mem::take(&mut self.leaving) {
            if self.owned.contains(&node) {
                continue;
            }
            let is_busy = self.links.iter().any(|link| {
                matches!(&link.remote, Remote::Node(of) if *of == node) && !link.waiters.is_empty()
            });
            if is_busy && continuous && self.now.duration_since(since) < LAST_REPLIES {
                self.leaving.push((node, since));
            } else {
                self.drop_node(&node);
            }
        }
    }

    fn drop_node(&mut self, node: &Address) {
        let remote = Remote::Node(node.clone());
        let text = outcome_unknown(node, "another node has its slots now");
        self.refute(node, &text);
        self.pipelines.retain(|(of, ..), _| *of != remote);
        let pools = self.idle.iter_mut().filter(|((of, _), _)| *of == remote);
        let idle: Vec<Key> = pools.flat_map(|(_, pool)| std::mem::take(pool)).collect();
        idle.into_iter().for_each(|key| self.drop_own_link(key));
        // A watching connection without a command stays: EXEC finds that the keys are elsewhere.
        // Subscriptions follow the table by themselves.
        let concerned = |link: &&Link| match link.purpose {
            Purpose::Shared => link.remote == remote,
            Purpose::Dedicated => link.remote == remote && !link.waiters.is_empty(),
            Purpose::Feed(_) => false,
        };
        let keys: Vec<Key> = self.links.iter().filter(concerned).map(|link| link.key).collect();
        for key in keys {
            self.drop_link(key, &text);
        }
    }

    fn drop_link(&mut self, key: Key, text: &str) {
        let Some(mut link) = self.links.release(key) else { return };
        match link.purpose {
            Purpose::Dedicated => self.own_links -= 1,
            Purpose::Shared | Purpose::Feed(_) => {}
        }
        let streaming = link.streaming;
        let waiters = link.disconnect();
        self.break_off(waiters, streaming, text);
    }

    /// Whether the replies of a link must not be read yet: they come from an own node, and the lease has
    /// expired.
    #[inline]
    pub(super) fn waits_for_lease(&mut self, key: Key) -> bool {
        self.serving.is_under_lease()
            && self.has_lapsed()
            && self.links.get(key).is_some_and(|link| self.serves(link))
    }

    /// How replies that were just read are delivered: the lease may have expired since the link was found readable.
    #[inline]
    pub(super) fn delivery_now(&mut self, link: &Link, meant: Delivery) -> Delivery {
        let lapsed = self.serving.is_under_lease() && self.has_lapsed() && self.serves(link);
        if lapsed { Delivery::Lapsed } else { meant }
    }

    /// Whether the lease has expired at this moment; the turn may have begun before its end, or before its
    /// renewal. A renewal for a table that is not adopted yet does not count.
    fn has_lapsed(&mut self) -> bool {
        let now = Instant::now();
        if self.lent.serving().is_current(now) {
            return false;
        }
        // In this order: the table is at least as new as the lease.
        let lent = self.shared.lent();
        if Arc::ptr_eq(&self.shared.routing.load(), &self.routing) {
            self.borrow(lent);
        }
        !self.lent.serving().is_current(now)
    }

    pub(super) fn borrow(&mut self, lent: Lent) {
        self.lent = lent;
        self.serving = lent.serving();
    }

    /// Whether a link leads to a node that serves slots of this proxy, or did until a moment ago, and not to a
    /// replica or another proxy.
    fn serves(&self, link: &Link) -> bool {
        match (&link.remote, link.purpose) {
            (Remote::Node(node), Purpose::Shared | Purpose::Dedicated) => {
                self.owned.contains(node) || self.leaving.iter().any(|(leaving, _)| leaving == node)
            }
            (Remote::Node(_), Purpose::Feed(_)) | (Remote::Peer(..), _) => false,
        }
    }

    /// Defers reading a link until the lease is renewed, or the wait times out.
    pub(super) fn put_off(&mut self, key: Key) {
        if self.late.iter().all(|(late, _)| *late != key) {
            self.late.push((key, self.now));
        }
    }

    /// Reads the deferred links: no further event reports what their sockets hold.
    pub(super) fn tend_late(&mut self) {
        if self.late.is_empty() {
            return;
        }
        let lapsed = self.has_lapsed();
        for (key, since) in std::mem::take(&mut self.late) {
            if !lapsed {
                let delivery = self.delivery(key);
                self.read_replies(key, true, delivery);
            } else if self.now.duration_since(since) >= self.shared.limits.hold {
                self.read_replies(key, true, Delivery::Lapsed);
            } else {
                self.late.push((key, since));
            }
        }
    }

    /// Discards an invalid reply: its waiter gets the error instead. Replies that concern only the link are
    /// handled.
    pub(super) fn withhold(&mut self, link: &mut Link, waiter: Waiter, reply: &[u8]) -> io::Result<()> {
        match waiter {
            // The rest of a partly sent reply.
            waiter @ Waiter::Client { .. } if link.streaming => self.deliver(link, waiter, reply),
            waiter @ (Waiter::Greeting | Waiter::ClientId | Waiter::Ignored) => {
                self.deliver(link, waiter, reply)
            }
            waiter @ (Waiter::Client { .. }
            | Waiter::Part { .. }
            | Waiter::Scan { .. }
            | Waiter::Exec(_)
            | Waiter::SlotScan(_)
            | Waiter::Confirm(_)
            | Waiter::Peer(_)) => {
                let node = link.remote.address().clone();
                let text = outcome_unknown(&node, "the proxy's lease ended before the reply");
                self.fail_waiter(waiter, text.as_bytes());
                Ok(())
            }
        }
    }
}
