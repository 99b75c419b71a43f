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

/// Why a command cannot be part of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// Its keys are in another slot than those before.
    CrossSlot,
    /// The transaction has as many commands as are allowed.
    TooLong,
}

impl Transaction {
    /// Takes down a command.
    pub(super) fn queue(
        &mut self,
        command: &[u8],
        slot: Option<Slot>,
        written: impl IntoIterator<Item = Bytes>,
        most: usize,
    ) -> Result<(), Misfit> {
        let misfit = match (self.slot, slot) {
            (Some(known), Some(slot)) if known != slot => Some(Misfit::CrossSlot),
            _ if self.count >= most => Some(Misfit::TooLong),
            _ => None,
        };
        if let Some(misfit) = misfit {
            self.refused = true;
            return Err(misfit);
        }
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
        assert_eq!(transaction.queue(b"z", a, [], 2), Err(Misfit::TooLong));
        assert_eq!(transaction.queue(b"z", b, [], 9), Err(Misfit::CrossSlot));
        assert!(transaction.refused);
        assert_eq!(transaction.script(), b"*1\r\n$5\r\nMULTI\r\nxy*1\r\n$4\r\nEXEC\r\n");
    }
}
