//! What has a worker to do while slots move? Join the gates, call back who waits in a node, follow what was forwarded.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::data::gate::Gate;
use crate::data::state::Place;

use super::super::arena::Key;
use super::super::waiter::{Forwarded, Waiter};
use super::{Joining, Worker};

/// First pause before a forwarded command follows its slot; doubles.
const FIRST_HOP: Duration = Duration::from_millis(2);

impl Worker {
    /// Whether there is anything to do.
    pub(super) fn tends_moves(&self) -> bool {
        !(self.gated.is_empty() && self.joining.is_empty() && self.following.is_empty())
    }

    /// Gates of moving ranges, and whoever waits because of them.
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

    /// New gates wait until everything that was sent without them is answered.
    pub(in super::super) fn join_gates(&mut self) {
        self.joined.retain(|gate| gate.strong_count() > 0);
        let places = self.databases.iter().flat_map(|known| known.database.places());
        let gates = places.filter_map(|place| match place {
            Place::Own { gate, .. } => gate.clone(),
            Place::Nobody | Place::Peer { .. } => None,
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

    /// The reply of another proxy: the client's, unless it says that the slot is somewhere else by now.
    pub(super) fn take_forwarded(&mut self, mut forwarded: Box<Forwarded>, reply: &[u8]) {
        let elsewhere =
            reply.starts_with(b"-MOVED ") || reply.starts_with(b"-TRYAGAIN The slot is being moved");
        if !elsewhere || forwarded.hops >= self.shared.limits.hops {
            return self.give(forwarded.session, forwarded.sequence, reply);
        }
        // The news of a new owner is on its way: a little patience, more each time.
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

    fn follow_one(&mut self, forwarded: Box<Forwarded>) {
        let Some(session) = self.sessions.get(forwarded.session) else { return };
        let (role, protocol) = (session.role.clone(), session.protocol);
        let standing = self.standing(&role);
        let Some(remote) = self.place_of(standing, forwarded.slot) else {
            self.following.push((self.now + FIRST_HOP, forwarded));
            return;
        };
        match self.pipeline(&remote, protocol) {
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
