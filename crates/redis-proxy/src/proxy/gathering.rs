//! How is one command sent to several nodes and answered with one reply?

use capstan_redis_protocol::resp::Protocol;

use super::arena::Key;
use super::merge::{Merge, merge};
use super::replies::Sequence;
use super::waiter::{Effect, Pass, Waiter};
use super::worker::Worker;

/// The parts of one command that are in flight.
#[derive(Debug)]
pub(super) struct Gathering {
    session: Key,
    sequence: Sequence,
    protocol: Protocol,
    how: Merge,
    parts: Vec<Vec<u8>>,
    missing: usize,
}

/// One part: a request and its destination.
#[derive(Debug)]
pub(super) struct Part {
    /// The link, or the error that replaces its reply.
    pub(super) link: Result<Key, String>,
    pub(super) request: Vec<u8>,
    pub(super) pass: Option<Box<Pass>>,
}

impl Worker {
    /// Sends the parts of a command; the session gets the merged reply.
    pub(super) fn gather(
        &mut self,
        session: Key,
        sequence: Sequence,
        protocol: Protocol,
        how: Merge,
        parts: Vec<Part>,
        effect: Effect,
    ) {
        let count = parts.len();
        let key = self.gatherings.insert_with(|_| Gathering {
            session,
            sequence,
            protocol,
            how,
            parts: vec![Vec::new(); count],
            missing: count,
        });
        let mut failed = Vec::new();
        for (number, part) in parts.into_iter().enumerate() {
            let number = number as u32;
            match part.link {
                Ok(link) => {
                    let waiter = Waiter::Part { gathering: key, part: number, pass: part.pass, effect };
                    self.send(link, &part.request, waiter);
                }
                Err(error) => {
                    if let Some(pass) = part.pass {
                        pass.finish();
                    }
                    failed.push((number, error));
                }
            }
        }
        // Deferred: the session is out of the arena while its command is dispatched.
        self.failed_parts.extend(failed.into_iter().map(|(number, error)| (key, number, error)));
    }

    /// Answers the parts that could not be sent, at the end of the turn.
    pub(super) fn give_failed_parts(&mut self) {
        for (gathering, part, error) in std::mem::take(&mut self.failed_parts) {
            self.give_part(gathering, part, error.as_bytes());
        }
    }

    /// Stores the reply of one part.
    pub(super) fn give_part(&mut self, key: Key, part: u32, reply: &[u8]) {
        let Some(gathering) = self.gatherings.get_mut(key) else { return };
        gathering.parts[part as usize] = reply.to_vec();
        gathering.missing -= 1;
        if gathering.missing == 0
            && let Some(done) = self.gatherings.release(key)
        {
            let reply = merge(&done.how, &done.parts, done.protocol);
            self.give(done.session, done.sequence, &reply);
        }
    }
}
