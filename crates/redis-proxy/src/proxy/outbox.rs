//! What is still to be written to a socket? Bytes gathered during a turn of the loop and sent in one write.

use std::io::{self, Write};

/// The capacity that an idle outbox keeps: one page holds the replies of a usual pipeline.
const KEEP: usize = 4 * 1024;

/// Bytes to send, from `sent` on.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// The number of unsent bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer to append to.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Drops everything unsent.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
    }

    /// Writes as much as the socket accepts; `Ok(true)` when nothing is left.
    pub(super) fn flush(&mut self, socket: &mut impl Write) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            match socket.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.forget_sent();
                    return Ok(false);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.clear();
        Ok(true)
    }

    /// Releases memory after a burst.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() && self.bytes.capacity() > KEEP {
            self.bytes = Vec::new();
            self.sent = 0;
        }
    }

    /// Moves the rest to the front once most of the buffer is sent, so that a slow reader costs only its
    /// unread bytes.
    fn forget_sent(&mut self) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts a few bytes at a time, then blocks.
    struct Narrow(Vec<u8>, usize);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.1);
            if n == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.1 -= n;
            self.0.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_socket_did_not_take_stays_in_order() {
        let mut outbox = Outbox::default();
        let mut socket = Narrow(Vec::new(), 5);
        outbox.push(b"0123456");
        assert!(!outbox.flush(&mut socket).unwrap());
        outbox.push(b"789");
        assert_eq!(outbox.len(), 5);
        socket.1 = 100;
        assert!(outbox.flush(&mut socket).unwrap());
        assert_eq!(socket.0, b"0123456789");
        assert!(outbox.is_empty());
    }
}
