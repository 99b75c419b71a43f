//! How do `MULTI` and `EXEC` work through a shared connection?
//!
//! Commands of a transaction are checked and queued here, and sent to the node in one piece, `MULTI` to
//! `EXEC`: no command of another client can come between them, because a link sends requests in the order in
//! which it gets them. Only `WATCH` needs a dedicated connection, because the node keeps the watched keys per
//! connection. Commands that the proxy answers itself are executed after the node has executed the rest, and
//! their replies are inserted.

use bytes::Bytes;

use capstan_redis_protocol::slots::Slot;

use super::arena::Key;
use super::link::Remote;
use super::replies::Sequence;
use super::waiter::Pass;

/// A transaction being queued.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The commands as received, concatenated.
    commands: Vec<u8>,
    /// The end of each command, and where it is executed.
    entries: Vec<(usize, Server)>,
    /// The slot of its keys, if it has keys.
    pub(super) slot: Option<Slot>,
    /// The keys that it writes.
    pub(super) written: Vec<Bytes>,
    /// Whether it may write any key (`FLUSHALL`).
    pub(super) anything: bool,
    /// Whether it runs scripts.
    pub(super) scripts: bool,
    /// Whether its keys are in several slots: `EXEC` reports it, as in Redis.
    pub(super) crosses_slots: bool,
    /// Whether a command was refused: `EXEC` will be too.
    pub(super) refused: bool,
}

/// Where a command of a transaction is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// The node that executes the transaction.
    Node,
    /// The node that owns the slot of a channel (`PUBLISH`): often another one.
    Channel(Slot),
    /// The proxy.
    Proxy,
}

/// A command of a transaction that is not sent to its node.
#[derive(Debug)]
pub(super) struct Aside {
    /// Its index in the transaction.
    pub(super) place: usize,
    /// The destination; `None`: the proxy.
    pub(super) to: Option<Remote>,
    pub(super) request: Vec<u8>,
}

/// A transaction in execution at a node, with commands that are executed elsewhere.
#[derive(Debug)]
pub(super) struct Executed {
    pub(super) session: Key,
    pub(super) sequence: Sequence,
    pub(super) pass: Option<Box<Pass>>,
    pub(super) asides: Vec<Aside>,
}

/// Watched keys and their connection.
#[derive(Debug)]
pub(super) struct Watch {
    /// The connection on which the node watches.
    pub(super) link: Key,
    /// The node.
    pub(super) remote: Remote,
}

/// The transaction has reached the limit of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Transaction {
    /// Whether no command is executed by a node.
    pub(super) fn is_for_the_proxy(&self) -> bool {
        self.entries.iter().all(|(_, server)| *server == Server::Proxy)
    }

    /// Whether it writes.
    pub(super) fn writes(&self) -> bool {
        self.anything || !self.written.is_empty()
    }

    /// How many commands it has.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of its commands.
    pub(super) fn bytes(&self) -> usize {
        self.commands.len()
    }

    /// Queues a command.
    pub(super) fn queue(
        &mut self,
        command: &[u8],
        server: Server,
        slot: Option<Slot>,
        most: usize,
    ) -> Result<(), TooLong> {
        // As in Redis: after a refusal nothing is queued, and slots are not checked.
        if self.refused {
            return Ok(());
        }
        if self.entries.len() >= most {
            self.refused = true;
            return Err(TooLong);
        }
        self.crosses_slots |= self.slot.is_some_and(|known| slot.is_some_and(|slot| slot != known));
        self.slot = self.slot.or(slot);
        self.commands.extend_from_slice(command);
        self.entries.push((self.commands.len(), server));
        Ok(())
    }

    /// The requests for the node and their number, and the commands executed elsewhere. `owner` returns the
    /// owner of a slot.
    pub(super) fn script(
        &self,
        node: Option<&Remote>,
        owner: impl Fn(Slot) -> Option<Remote>,
    ) -> (Vec<u8>, usize, Vec<Aside>) {
        let mut script = b"*1\r\n$5\r\nMULTI\r\n".to_vec();
        let (mut count, mut start, mut asides) = (0, 0, Vec::new());
        for (place, (end, server)) in self.entries.iter().enumerate() {
            let request = &self.commands[start..*end];
            start = *end;
            let to = match server {
                Server::Node => None,
                Server::Proxy => Some(None),
                // Without an owner the node executes it.
                Server::Channel(slot) => {
                    owner(*slot).filter(|owner| node.is_some_and(|node| node != owner)).map(Some)
                }
            };
            match to {
                Some(to) => asides.push(Aside { place, to, request: request.to_vec() }),
                None => {
                    script.extend_from_slice(request);
                    count += 1;
                }
            }
        }
        script.extend_from_slice(b"*1\r\n$4\r\nEXEC\r\n");
        (script, count, asides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(commands: &[(&[u8], Server, Option<Slot>)], most: usize) -> Result<Transaction, TooLong> {
        let mut transaction = Transaction::default();
        for (command, server, slot) in commands {
            transaction.queue(command, *server, *slot, most)?;
        }
        Ok(transaction)
    }

    #[test]
    fn a_transaction_stays_in_one_slot() {
        let (a, b) = (Slot::new(1), Slot::new(2));
        let two: [(&[u8], _, _); 2] = [(b"x", Server::Node, None), (b"y", Server::Node, a)];
        let transaction = queued(&two, 2).unwrap();
        let (script, count, asides) = transaction.script(None, |_| None);
        assert_eq!(script, b"*1\r\n$5\r\nMULTI\r\nxy*1\r\n$4\r\nEXEC\r\n");
        assert!(count == 2 && asides.is_empty() && !transaction.crosses_slots);
        assert_eq!(queued(&two, 1).err(), Some(TooLong));
        let apart = [two[1], (b"z", Server::Node, b)];
        assert!(queued(&apart, 9).unwrap().crosses_slots);
    }

    #[test]
    fn what_the_node_does_not_serve_is_set_aside() {
        let [one, other] =
            ["127.0.0.1:1", "127.0.0.1:2"].map(|address| Remote::Node(address.parse().unwrap()));
        let slot = |number| Slot::new(number).unwrap();
        let owner = |slot: Slot| Some(if slot.number() == 1 { one.clone() } else { other.clone() });
        let transaction = queued(
            &[
                (b"a", Server::Proxy, None),
                (b"b", Server::Node, Slot::new(1)),
                (b"c", Server::Channel(slot(1)), None),
                (b"d", Server::Channel(slot(2)), None),
            ],
            9,
        );
        let (script, count, asides) = transaction.unwrap().script(Some(&one), owner);
        assert_eq!(script, b"*1\r\n$5\r\nMULTI\r\nbc*1\r\n$4\r\nEXEC\r\n");
        assert_eq!(count, 2);
        let places: Vec<_> = asides.iter().map(|aside| (aside.place, aside.to.clone())).collect();
        assert_eq!(places, [(0, None), (3, Some(other.clone()))]);
    }
}
