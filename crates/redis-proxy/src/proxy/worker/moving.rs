//! What does a worker do while slots move? It joins the gates, unblocks clients, and lets forwarded commands
//! follow.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::gate::Gate;
use crate::state::Place;
use capstan_redis_protocol::resp::ErrorCode;

use super::super::arena::Key;
use super::super::route::Hold;
use super::super::waiter::{Forwarded, Waiter};
use super::{Joining, Worker};

/// First pause before a forwarded command follows its slot; doubles.
const FIRST_HOP: Duration = Duration::from_millis(2);

impl Worker {
    /// Whether there is anything to do.
    pub(super) fn tends_moves(&self) -> bool {
        !(self.gated.is_empty() && self.joining.is_empty() && self.following.is_empty())
    }

    /// Handles the gates of moving ranges, and the sessions that wait because of them.
    pub(super) fn tend_moves(&mut self) {
        if !self.gated.is_empty() {
            self.call_back_gated();
        }
        if !self.joining.is_empty() {
            self.join_those_behind();
        }
        if !self.following.is_empty() {
            self.follow();
        }
    }

    /// Joins new gates once everything sent without them is answered.
    pub(in super::super) fn join_gates(&mut self) {
        self.joined.retain(|gate| gate.strong_count() > 0);
        let places = self.databases.iter().flat_map(|known| known.database.places());
        let gates = places.filter_map(|place| match place {
            Place::Own { gate, .. } => gate.clone(),
            Place::Unowned | Place::Peer { .. } => None,
        });
        for gate in gates.collect::<Vec<Arc<Gate>>>() {
            if self.joined.iter().any(|joined| Weak::as_ptr(joined) == Arc::as_ptr(&gate)) {
                continue;
            }
            self.joined.push(Arc::downgrade(&gate));
            let busy = self.links.iter().filter(|link| !link.waiters.is_empty());
            let behind = busy.map(|link| (link.key, link.asked())).collect();
            self.call_back_from(gate.range());
            self.joining.push(Joining { gate, behind });
        }
        self.join_those_behind();
    }

    fn join_those_behind(&mut self) {
        let links = &self.links;
        let waits = |(link, asked): &(Key, u64)| links.get(*link).is_some_and(|link| link.answered < *asked);
        self.joining.retain_mut(|joining| {
            joining.behind.retain(waits);
            let done = joining.behind.is_empty();
            if done {
                joining.gate.join();
            }
            !done
        });
    }

    /// Handles a reply of another proxy: passed to the client, unless it redirects because the slot has moved
    /// on.
    pub(super) fn take_forwarded(&mut self, mut forwarded: Box<Forwarded>, reply: &[u8]) {
        let elsewhere = matches!(ErrorCode::of(reply), Some(ErrorCode::Moved | ErrorCode::TryAgain));
        if !elsewhere || forwarded.hops >= self.shared.limits.hops {
            return self.give(forwarded.session, forwarded.sequence, reply);
        }
        // The push with the new owner is on its way: the pause grows with each attempt.
        let pause = FIRST_HOP.saturating_mul(1 << forwarded.hops.min(16));
        forwarded.hops += 1;
        self.following.push((self.now + pause, forwarded));
    }

    /// Sends forwarded commands after their slots.
    fn follow(&mut self) {
        for (when, forwarded) in std::mem::take(&mut self.following) {
            if self.now < when {
                self.following.push((when, forwarded));
            } else {
                self.follow_one(forwarded);
            }
        }
    }

    /// The slot has no owner at the moment. The command waits as long as one that was not sent yet.
    fn follow_later(&mut self, forwarded: Box<Forwarded>) {
        if self.now.duration_since(forwarded.since) < self.shared.limits.hold {
            return self.following.push((self.now + FIRST_HOP, forwarded));
        }
        let reply = format!("-{}\r\n", Hold::Unserved.error());
        self.give(forwarded.session, forwarded.sequence, reply.as_bytes());
    }

    fn follow_one(&mut self, forwarded: Box<Forwarded>) {
        let Some(session) = self.sessions.get(forwarded.session) else { return };
        let (role, protocol) = (session.role.clone(), session.protocol);
        let standing = self.standing(&role);
        let Some(remote) = self.place_of(standing, forwarded.slot) else {
            return self.follow_later(forwarded);
        };
        match self.pipeline(&remote, protocol, forwarded.lane) {
            Ok(link) => {
                let request = forwarded.request.clone();
                self.send(link, &request, Waiter::Peer(forwarded));
            }
            Err(down) => {
                let reply = format!("-{}\r\n", down.error());
                self.give(forwarded.session, forwarded.sequence, reply.as_bytes());
            }
        }
    }
}
