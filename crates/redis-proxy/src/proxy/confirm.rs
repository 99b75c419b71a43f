//! When is a write acknowledged? With `acks: replica`, when a replica has it.
//!
//! The replies of a node are kept until the node reports that a replica has everything executed so far:
//! `PING` and `WAIT 1` on a connection of their own, one batch in flight at a time, so that a pipeline costs
//! one more round trip and not one per command. `WAIT` covers the writes before the last command of its own
//! connection; the `PING` is that command.
//!
//! Replies of reads are kept too: a client must not see a value that a failover could revert. Where no
//! replica responds, writes get `-OUTCOMEUNKNOWN`, and reads are answered: without a replica there is no
//! failover that could revert them.

use std::time::Duration;

use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::resp::{Form, Protocol, write_request};

use super::link::{Lane, Link, Purpose, Remote};
use super::spread::scanned;
use super::waiter::{Effect, Waiter};
use super::worker::{Worker, outcome_unknown};

/// Bytes of read replies kept for one node; beyond it they are sent at once. Large replies come from reads.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// A reply that waits for a replica.
#[derive(Debug)]
struct Kept {
    waiter: Waiter,
    reply: Vec<u8>,
}

/// Whether a query to the node is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Question {
    #[default]
    None,
    /// It is sent at the end of this turn.
    Due,
    Asked,
}

/// The result of the last query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Replicas {
    #[default]
    Present,
    Missing,
}

/// The replies of one node that wait for a replica.
#[derive(Debug, Default)]
pub(super) struct Confirming {
    /// The replies that the query in flight covers.
    asked: Vec<Kept>,
    /// The replies received since.
    next: Vec<Kept>,
    bytes: usize,
    question: Question,
    replicas: Replicas,
}

impl Confirming {
    /// Whether a reply is sent without waiting.
    fn lets_pass(&self, waiter: &Waiter, reply: &[u8]) -> bool {
        match waiter.effect() {
            Effect::Writes => false,
            Effect::Reads => self.replicas == Replicas::Missing || self.bytes + reply.len() > MAX_KEPT_BYTES,
        }
    }
}

impl Worker {
    /// Handles a reply of a node with `acks: replica`: keeps it, unless there is nothing to wait for.
    pub(super) fn keep_until_replicated(
        &mut self,
        link: &mut Link,
        waiter: Waiter,
        reply: &[u8],
    ) -> std::io::Result<()> {
        let concerns_link = match &waiter {
            Waiter::Client { .. } | Waiter::Part { .. } | Waiter::Exec(_) | Waiter::Scan { .. } => false,
            Waiter::SlotScan(_)
            | Waiter::Peer(_)
            | Waiter::Confirm(_)
            | Waiter::Greeting
            | Waiter::ClientId
            | Waiter::Ignored => true,
        };
        // An error acknowledges nothing; the rest of a partly sent reply cannot wait.
        let is_error = Form::of(reply[0]).is_some_and(Form::is_error);
        if concerns_link || is_error || link.streaming {
            return self.deliver(link, waiter, reply);
        }
        let node = link.remote.address().clone();
        if self.confirming.entry(node.clone()).or_default().lets_pass(&waiter, reply) {
            return self.deliver(link, waiter, reply);
        }
        if let (Purpose::Dedicated, Waiter::Client { session, .. }) = (link.purpose, &waiter) {
            // The session is no longer blocked in the node.
            self.was_called_back(*session, reply);
        }
        let Some(confirming) = self.confirming.get_mut(&node) else { return Ok(()) };
        confirming.bytes += reply.len();
        confirming.next.push(Kept { waiter, reply: reply.to_vec() });
        self.question_due(node);
        Ok(())
    }

    fn question_due(&mut self, node: Address) {
        let Some(confirming) = self.confirming.get_mut(&node) else { return };
        if confirming.question == Question::None {
            confirming.question = Question::Due;
            self.unasked.push(node);
        }
    }

    /// Queries the nodes that replied in this turn whether a replica has everything.
    pub(super) fn ask_replicas(&mut self) {
        for node in std::mem::take(&mut self.unasked) {
            let remote = Remote::Node(node.clone());
            match self.pipeline(&remote, Protocol::Resp2, Lane::Confirm) {
                Ok(link) => {
                    let Some(confirming) = self.confirming.get_mut(&node) else { continue };
                    confirming.question = Question::Asked;
                    confirming.asked = std::mem::take(&mut confirming.next);
                    let request = question(self.shared.limits.replica_ack);
                    self.send(link, &request, Waiter::Ignored);
                    self.send(link, b"", Waiter::Confirm(Box::new(node)));
                }
                Err(_) => self.refute(&node, &outcome_unknown(&node, "its replicas cannot be queried")),
            }
        }
    }

    /// Handles the node's result: the number of replicas that have what was queried.
    pub(super) fn answered_by_replicas(&mut self, node: &Address, replicas: Option<i64>) {
        let Some(confirming) = self.confirming.get_mut(node) else { return };
        let kept = std::mem::take(&mut confirming.asked);
        confirming.question = Question::None;
        confirming.bytes = confirming.next.iter().map(|kept| kept.reply.len()).sum();
        let has_more = !confirming.next.is_empty();
        let confirmed = replicas.is_some_and(|replicas| replicas > 0);
        confirming.replicas = if confirmed { Replicas::Present } else { Replicas::Missing };
        let unconfirmed = outcome_unknown(node, "executed, but no replica acknowledged it in time");
        for Kept { waiter, reply } in kept {
            match waiter.effect() {
                Effect::Writes if !confirmed => self.fail_waiter(waiter, unconfirmed.as_bytes()),
                Effect::Writes | Effect::Reads => self.release(waiter, &reply),
            }
        }
        if has_more {
            self.question_due(node.clone());
        }
    }

    /// The query failed: nothing that waits is acknowledged.
    pub(super) fn refute(&mut self, node: &Address, text: &str) {
        let Some(confirming) = self.confirming.remove(node) else { return };
        self.unasked.retain(|unasked| unasked != node);
        for kept in confirming.asked.into_iter().chain(confirming.next) {
            self.fail_waiter(kept.waiter, text.as_bytes());
        }
    }

    fn release(&mut self, mut waiter: Waiter, reply: &[u8]) {
        // Only now: a move of the slot waits for commands that are not confirmed yet.
        if let Some(pass) = waiter.take_pass() {
            pass.finish();
        }
        match waiter {
            Waiter::Client { session, sequence, .. } => self.give(session, sequence, reply),
            Waiter::Part { gathering, part, .. } => self.give_part(gathering, part, reply),
            Waiter::Exec(executed) => self.executed(*executed, reply),
            Waiter::Scan { session, sequence, place, places } => {
                self.give(session, sequence, &scanned(reply, place, places));
            }
            // Never kept.
            Waiter::SlotScan(_)
            | Waiter::Peer(_)
            | Waiter::Confirm(_)
            | Waiter::Greeting
            | Waiter::ClientId
            | Waiter::Ignored => {}
        }
    }
}

/// `PING`, whose reply is ignored, and `WAIT`.
fn question(within: Duration) -> Vec<u8> {
    let mut request = Vec::new();
    write_request(&mut request, &["PING"]);
    write_request(&mut request, &["WAIT", "1", &within.as_millis().max(1).to_string()]);
    request
}
