//! When is a write acknowledged? With `acks: replica`, when a replica has it, and every replica that may be promoted.
//!
//! The replies of a node are kept until the node reports that replicas have everything executed so far: `WAIT` on a
//! connection of its own, one batch in flight at a time, so that a pipeline costs one more round trip and not one per
//! command. `WAIT` covers the writes before the last command of its own connection: `PING`, or `ROLE`.
//!
//! `WAIT` counts any linked replica, also one that automation does not promote. So where coordinators have sent which
//! replicas may be promoted (`SETSYNC`), `ROLE` before and after it shows what each of them has: the first one the
//! node's own offset, the second one what its replicas have acknowledged (ADR redis-0005).
//!
//! Replies of reads are kept too: a client must not see a value that a failover could revert. Where a replica that may
//! be promoted does not respond, writes and reads get `-OUTCOMEUNKNOWN`; coordinators soon take it from the set. Where
//! no replica may be promoted and none responds, reads are answered: there is no failover that could revert them.

use std::net::IpAddr;
use std::time::Instant;

use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::resp::{Form, Protocol, View, write_request};

use super::arena::Key;
use super::link::{Lane, Link, Purpose, Remote};
use super::names::{Lookup, Names};
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
    /// It is sent again at the end of this turn, for more replicas.
    Again,
}

/// A part of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// `ROLE`: the offset of the node, which covers all that it has replied.
    Offset,
    /// `WAIT`: the number of replicas, if nothing else is asked.
    CountOnly,
    /// `WAIT`, before [`Part::Replicas`].
    Count,
    /// `ROLE`: the offsets of the replicas.
    Replicas,
}

/// A part of a query that was sent to a node.
#[derive(Debug)]
pub(super) struct Asked {
    node: Address,
    part: Part,
}

impl Asked {
    /// The queried node.
    pub(super) fn node(&self) -> &Address {
        &self.node
    }
}

/// What a replica has acknowledged, as listed by its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Acknowledged {
    host: String,
    port: u16,
    offset: u64,
}

/// The reply to `ROLE` of a primary: its offset, and its replicas.
fn role(reply: &[u8]) -> Option<(u64, Vec<Acknowledged>)> {
    let mut parts = View::of(reply)?.sequence()?;
    let kind = View::of(parts.next()?)?.bytes()?;
    let offset = View::of(parts.next()?)?.integer()?;
    let replicas = View::of(parts.next()?)?.sequence()?;
    let replicas = replicas.map(acknowledged).collect::<Option<_>>()?;
    (kind == b"master").then_some((u64::try_from(offset).ok()?, replicas))
}

/// One replica in it: host, port and offset as texts.
fn acknowledged(replica: &[u8]) -> Option<Acknowledged> {
    let mut parts = View::of(replica)?.sequence()?;
    let mut text = || std::str::from_utf8(View::of(parts.next()?)?.bytes()?).ok();
    Some(Acknowledged {
        host: text()?.to_owned(),
        port: text()?.parse().ok()?,
        offset: text()?.parse().ok()?,
    })
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
    /// When the query in flight was begun.
    since: Option<Instant>,
    /// What the replicas must have: the node's offset after it had replied all that the query covers.
    target: Option<u64>,
    /// The number of replicas to wait for, and that of the last result.
    wanted: i64,
    count: i64,
}

impl Confirming {
    /// Whether a reply is sent without waiting.
    fn lets_pass(&self, waiter: &Waiter, reply: &[u8], members: &[Address]) -> bool {
        let irrevocable = self.replicas == Replicas::Missing && members.is_empty();
        match waiter.effect() {
            Effect::Writes => false,
            Effect::Reads => irrevocable || self.bytes + reply.len() > MAX_KEPT_BYTES,
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
        let members = self.routing.members(&node);
        if self.confirming.entry(node.clone()).or_default().lets_pass(&waiter, reply, members) {
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

    /// Queries the nodes that replied in this turn which replicas have everything.
    pub(super) fn ask_replicas(&mut self) {
        for node in std::mem::take(&mut self.unasked) {
            let Some(confirming) = self.confirming.get_mut(&node) else { continue };
            let before = std::mem::replace(&mut confirming.question, Question::Asked);
            if before == Question::Again {
                self.ask_again(&node);
                continue;
            }
            confirming.asked = std::mem::take(&mut confirming.next);
            confirming.since = Some(self.now);
            confirming.wanted = i64::try_from(self.routing.members(&node).len()).unwrap_or(i64::MAX).max(1);
            self.ask_about(&node);
        }
    }

    /// Sends a query about what is asked.
    fn ask_about(&mut self, node: &Address) {
        let remote = Remote::Node(node.clone());
        let Ok(link) = self.pipeline(&remote, Protocol::Resp2, Lane::Confirm) else {
            return self.refute(node, &outcome_unknown(node, "its replicas cannot be queried"));
        };
        let Some(confirming) = self.confirming.get_mut(node) else { return };
        confirming.target = None;
        let wanted = confirming.wanted;
        if self.routing.members(node).is_empty() {
            self.send(link, &request(&["PING"]), Waiter::Ignored);
            self.ask_count(link, node, wanted, Part::CountOnly);
        } else {
            self.ask_part(link, node, &["ROLE"], Part::Offset);
            self.ask_count(link, node, wanted, Part::Count);
            self.ask_part(link, node, &["ROLE"], Part::Replicas);
        }
    }

    fn ask_count(&mut self, link: Key, node: &Address, wanted: i64, part: Part) {
        let since = self.confirming.get(node).and_then(|confirming| confirming.since).unwrap_or(self.now);
        let left = self.shared.limits.replica_ack.saturating_sub(self.now.duration_since(since));
        // Zero would wait for ever.
        let left = left.as_millis().max(1).to_string();
        self.ask_part(link, node, &["WAIT", &wanted.to_string(), &left], part);
    }

    fn ask_part(&mut self, link: Key, node: &Address, words: &[&str], part: Part) {
        self.send(link, &request(words), Waiter::Confirm(Box::new(Asked { node: node.clone(), part })));
    }

    /// Handles a part of a node's answer.
    pub(super) fn answered_about_replicas(&mut self, asked: &Asked, reply: &[u8]) {
        let Asked { node, part } = asked;
        let Some(confirming) = self.confirming.get_mut(node) else { return };
        let number = View::of(reply).and_then(View::integer);
        match part {
            Part::Offset => confirming.target = role(reply).map(|(offset, _)| offset),
            Part::Count => confirming.count = number.unwrap_or(0),
            Part::CountOnly => {
                confirming.count = number.unwrap_or(0);
                // Replicas that may be promoted became known meanwhile.
                let covered = self.routing.members(node).is_empty();
                self.conclude(node, covered);
            }
            Part::Replicas => {
                let covered = self.covers(node, role(reply));
                self.conclude(node, covered);
            }
        }
    }

    /// Whether every replica that may be promoted has what was asked.
    fn covers(&self, node: &Address, role: Option<(u64, Vec<Acknowledged>)>) -> bool {
        let target = self.confirming.get(node).and_then(|confirming| confirming.target);
        let (Some(target), Some((_, replicas))) = (target, role) else { return false };
        self.routing.members(node).iter().all(|member| {
            replicas.iter().any(|replica| replica.offset >= target && self.is_at(replica, member))
        })
    }

    /// Whether a replica, as listed by its primary, is the node with this address.
    fn is_at(&self, replica: &Acknowledged, node: &Address) -> bool {
        let same_ip = |ip: IpAddr| replica.host.parse() == Ok(ip);
        let by_name = || match Names::lookup(&self.shared, node.host(), self.now) {
            Lookup::Found(ip) => same_ip(ip),
            Lookup::Pending | Lookup::NotFound => false,
        };
        replica.port == node.port() && (replica.host == node.host() || by_name())
    }

    /// Releases the replies that were asked for, or fails them, or asks again: more replicas than were waited for may
    /// have it, without all that may be promoted.
    fn conclude(&mut self, node: &Address, covered: bool) {
        let Some(confirming) = self.confirming.get_mut(node) else { return };
        let late = confirming.since.is_none_or(|since| since.elapsed() >= self.shared.limits.replica_ack);
        if !covered && !late && confirming.count >= confirming.wanted {
            confirming.wanted = confirming.count + 1;
            confirming.question = Question::Again;
            return self.unasked.push(node.clone());
        }
        let irrevocable = self.routing.members(node).is_empty();
        let confirmed = covered && (confirming.count > 0 || !irrevocable);
        let kept = std::mem::take(&mut confirming.asked);
        confirming.question = Question::None;
        confirming.bytes = confirming.next.iter().map(|kept| kept.reply.len()).sum();
        let has_more = !confirming.next.is_empty();
        confirming.replicas = if confirmed { Replicas::Present } else { Replicas::Missing };
        let why = if irrevocable { "no replica" } else { "not every replica in sync" };
        let unconfirmed = outcome_unknown(node, &format!("executed, but {why} acknowledged it in time"));
        for Kept { waiter, reply } in kept {
            let passes = confirmed || (irrevocable && waiter.effect() == Effect::Reads);
            if passes {
                self.release(waiter, &reply);
            } else {
                self.fail_waiter(waiter, unconfirmed.as_bytes());
            }
        }
        if has_more {
            self.question_due(node.clone());
        }
    }

    /// Asks again about the same replies, for more replicas.
    fn ask_again(&mut self, node: &Address) {
        let target = self.confirming.get(node).and_then(|confirming| confirming.target);
        if target.is_none() {
            return self.ask_about(node);
        }
        let remote = Remote::Node(node.clone());
        let Ok(link) = self.pipeline(&remote, Protocol::Resp2, Lane::Confirm) else {
            return self.refute(node, &outcome_unknown(node, "its replicas cannot be queried"));
        };
        let wanted = self.confirming.get(node).map_or(1, |confirming| confirming.wanted);
        self.ask_count(link, node, wanted, Part::Count);
        self.ask_part(link, node, &["ROLE"], Part::Replicas);
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

fn request(words: &[&str]) -> Vec<u8> {
    let mut request = Vec::new();
    write_request(&mut request, words);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_or_not_believed() {
        let acknowledged = |port, offset| Acknowledged { host: "10.0.0.1".to_owned(), port, offset };
        let replica = |port: &str, offset: &str| {
            format!("*3\r\n$8\r\n10.0.0.1\r\n${}\r\n{port}\r\n${}\r\n{offset}\r\n", port.len(), offset.len())
        };
        let primary = |replicas: &[String]| {
            format!("*3\r\n$6\r\nmaster\r\n:99\r\n*{}\r\n{}", replicas.len(), replicas.concat())
        };
        let two = primary(&[replica("7001", "99"), replica("7002", "5")]);
        assert_eq!(role(two.as_bytes()), Some((99, vec![acknowledged(7001, 99), acknowledged(7002, 5)])));
        assert_eq!(role(primary(&[]).as_bytes()), Some((99, Vec::new())));
        let wrong = [
            primary(&[replica("7001", "x")]),
            "-LOADING\r\n".to_owned(),
            "*5\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n$9\r\nconnected\r\n:7\r\n".to_owned(),
        ];
        for reply in wrong {
            assert_eq!(role(reply.as_bytes()), None, "{reply}");
        }
    }
}
