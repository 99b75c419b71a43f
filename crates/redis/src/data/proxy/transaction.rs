//! How do `MULTI` and `EXEC` work through a shared connection?
//!
//! Commands of a transaction are checked and kept here, and go to the node in one piece, `MULTI` to `EXEC`: nothing of
//! another client can stand between them, because a link carries them in the order in which they are given to it. Only
//! `WATCH` needs a connection of its own, because the node remembers it there.

use bytes::Bytes;

use crate::slots::Slot;

use super::arena::Key;
use super::link::Remote;

/// A transaction that is being written down.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// The commands, as they came, one behind the other.
    pub(super) commands: Vec<u8>,
    /// How many.
    pub(super) count: usize,
    /// The slot of its keys, if it has keys.
    pub(super) slot: Option<Slot>,
    /// What it writes.
    pub(super) written: Vec<Bytes>,
    /// Whether its keys are in several slots: `EXEC` will say so, as in Redis.
    pub(super) crosses_slots: bool,
    /// Whether a command was refused: `EXEC` will be too.
    pub(super) refused: bool,
}

/// Keys that are watched, and where.
#[derive(Debug)]
pub(super) struct Watch {
    /// The connection on which the node watches.
    pub(super) link: Key,
    /// The node.
    pub(super) remote: Remote,
}

/// The transaction has as many commands as are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl Transaction {
    /// Takes down a command.
    pub(super) fn queue(
        &mut self,
        command: &[u8],
        slot: Option<Slot>,
        written: impl IntoIterator<Item = Bytes>,
        most: usize,
    ) -> Result<(), TooLong> {
        if self.count >= most {
            self.refused = true;
            return Err(TooLong);
        }
        self.crosses_slots |= self.slot.is_some_and(|known| slot.is_some_and(|slot| slot != known));
        self.slot = self.slot.or(slot);
        self.commands.extend_from_slice(command);
        self.count += 1;
        self.written.extend(written);
        Ok(())
    }

    /// All of it, as the node gets it.
    pub(super) fn script(&self) -> Vec<u8> {
        [b"*1\r\n$5\r\nMULTI\r\n", &self.commands[..], b"*1\r\n$4\r\nEXEC\r\n"].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_stays_in_one_slot() {
        let mut transaction = Transaction::default();
        let (a, b) = (Slot::new(1), Slot::new(2));
        assert_eq!(transaction.queue(b"x", None, [], 2), Ok(()));
        assert_eq!(transaction.queue(b"y", a, [Bytes::from_static(b"k")], 2), Ok(()));
        assert_eq!(transaction.script(), b"*1\r\n$5\r\nMULTI\r\nxy*1\r\n$4\r\nEXEC\r\n");
        assert_eq!(transaction.queue(b"z", a, [], 2), Err(TooLong));
        assert!(transaction.refused && !transaction.crosses_slots);
        assert_eq!(transaction.queue(b"z", b, [], 9), Ok(()));
        assert!(transaction.crosses_slots);
    }
}
