//! In which order does a client get its replies? In the order of its requests, whichever node replies first.

use std::collections::VecDeque;

use super::outbox::Outbox;

/// The number of a request within its session; wraps.
pub(super) type Sequence = u32;

/// The outstanding replies of a session, oldest first.
#[derive(Debug, Default)]
pub(super) struct Replies {
    first: Sequence,
    owed: VecDeque<Owed>,
}

/// One outstanding reply.
#[derive(Debug)]
enum Owed {
    /// Not received yet.
    Waiting,
    /// Received before an earlier one.
    Ready(Vec<u8>),
    /// Not received yet, and the client does not want it (`CLIENT REPLY OFF`).
    Unwanted,
}

impl Replies {
    /// The number of outstanding replies.
    pub(super) fn len(&self) -> usize {
        self.owed.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.owed.is_empty()
    }

    /// Registers a forwarded request; its reply is [given](Self::give) with this number.
    pub(super) fn owe(&mut self, wanted: bool) -> Sequence {
        let sequence = self.first.wrapping_add(self.owed.len() as u32);
        self.owed.push_back(if wanted { Owed::Waiting } else { Owed::Unwanted });
        sequence
    }

    /// Registers a request that the proxy answered itself; its reply waits for the earlier ones.
    pub(super) fn owe_ready(&mut self, reply: Vec<u8>) {
        self.owed.push_back(Owed::Ready(reply));
    }

    /// Whether this reply is the next to be sent.
    pub(super) fn is_next(&self, sequence: Sequence) -> bool {
        sequence == self.first && matches!(self.owed.front(), Some(Owed::Waiting))
    }

    /// Adds the reply of a request: sent if it is next, else kept until it is.
    #[inline]
    pub(super) fn give(&mut self, sequence: Sequence, reply: &[u8], out: &mut Outbox) {
        let place = sequence.wrapping_sub(self.first) as usize;
        let Some(owed) = self.owed.get_mut(place) else { return };
        let wanted = matches!(owed, Owed::Waiting);
        if place > 0 {
            *owed = Owed::Ready(if wanted { reply.to_vec() } else { Vec::new() });
            return;
        }
        if wanted {
            out.push(reply);
        }
        self.pop();
        while let Some(Owed::Ready(reply)) = self.owed.front() {
            out.push(reply);
            self.pop();
        }
    }

    /// Drops the only outstanding reply; its request is dispatched again.
    pub(super) fn forget(&mut self) {
        self.pop();
    }

    /// Releases memory after a burst.
    pub(super) fn shrink(&mut self) {
        if self.owed.is_empty() && self.owed.capacity() > 64 {
            self.owed = VecDeque::new();
        }
    }

    fn pop(&mut self) {
        self.owed.pop_front();
        self.first = self.first.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_leave_in_the_order_of_requests() {
        let (mut replies, mut out) = (Replies::default(), Outbox::default());
        replies.first = u32::MAX - 1;
        let numbers: Vec<_> = (0..4).map(|n| replies.owe(n != 2)).collect();
        replies.owe_ready(b"5".to_vec());
        replies.give(numbers[3], b"4", &mut out);
        replies.give(numbers[1], b"2", &mut out);
        assert!(out.is_empty());
        assert!(replies.is_next(numbers[0]));
        replies.give(numbers[0], b"1", &mut out);
        assert_eq!(out.bytes(), b"12");
        replies.give(numbers[2], b"3 is not wanted", &mut out);
        assert_eq!(out.bytes(), b"1245");
        assert!(replies.is_empty());
    }
}
