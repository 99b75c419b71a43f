//! How is a key copied? `DUMP` and its time of expiry from the source's node, `RESTORE` through the target's
//! proxy.
//!
//! A lane is one connection to each side. A batch is read, converted and sent on in few system calls; several
//! lanes at once keep both servers busy. Keys that no longer exist are deleted at the target.

use bytes::Bytes;

use crate::conversation::{Conversation, TalkError};
use capstan_redis_protocol::resp::{ReplyScanner, View, write_request};

/// Keys per batch. A larger batch is hardly faster, and the node's clients wait behind it.
pub(super) const BATCH_KEYS: usize = 128;
/// Bytes of values per batch, by the node's own estimate: what a lane and the node's output buffer hold. A
/// larger key is copied alone.
const BATCH_BYTES: u64 = 1 << 20;

/// How a node reports a key's time of expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clock {
    /// `PEXPIRETIME`, since Redis 7.
    Absolute,
    /// `PTTL`, added to the node's own time.
    Relative,
}

/// The result of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copied {
    pub keys: u64,
    pub bytes: u64,
}

/// A connection to the source's node and one to the target.
#[derive(Debug)]
pub(super) struct Lane {
    source: Conversation,
    target: Conversation,
    clock: Clock,
}

/// A key's time of expiry, as reported by the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    Never,
    /// In milliseconds since 1970.
    At(i64),
    /// The key does not exist, or has expired.
    Gone,
}

impl Clock {
    /// Interprets a reply at the node's time. Less than a millisecond left counts as gone: `RESTORE` takes 0
    /// for "never".
    fn read(self, reply: i64, node_now: i64) -> Expiry {
        match (self, reply) {
            (_, -1) => Expiry::Never,
            (Clock::Absolute, at) if at > 0 => Expiry::At(at),
            (Clock::Relative, left) if left > 0 => Expiry::At(node_now.saturating_add(left)),
            (Clock::Absolute | Clock::Relative, _) => Expiry::Gone,
        }
    }

    /// Determines which one the node supports.
    pub(super) async fn of(source: &mut Conversation) -> Result<Clock, TalkError> {
        match source.ask(&["PEXPIRETIME", ""]).await {
            Ok(_) => Ok(Clock::Absolute),
            Err(TalkError::Refused { .. }) => Ok(Clock::Relative),
            Err(other) => Err(other),
        }
    }
}

impl Lane {
    pub(super) fn new(source: Conversation, target: Conversation, clock: Clock) -> Lane {
        Lane { source, target, clock }
    }

    /// Updates the target's copies of these keys. They have arrived when this returns.
    pub(super) async fn copy(&mut self, keys: &[Bytes]) -> Result<Copied, TalkError> {
        let sizes = self.sizes(keys).await?;
        let mut copied = Copied::default();
        let mut rest = keys;
        for count in batches(&sizes) {
            let (batch, later) = rest.split_at(count);
            rest = later;
            copied.bytes += self.copy_batch(batch).await?;
            copied.keys += batch.len() as u64;
        }
        Ok(copied)
    }

    /// Checks that both connections are still the original ones. The connections of a session live as long as
    /// the target's node: if this succeeds, everything sent since the beginning is still there.
    pub(super) async fn confirm(&mut self) -> Result<(), TalkError> {
        self.target.ask(&["PING"]).await?;
        self.source.ask(&["PING"]).await?;
        Ok(())
    }

    /// The approximate sizes of the values in the node.
    async fn sizes(&mut self, keys: &[Bytes]) -> Result<Vec<u64>, TalkError> {
        for key in keys {
            self.source.push(&[&b"MEMORY"[..], b"USAGE", key]);
        }
        self.source.flush().await?;
        let replies = self.source.frames(keys.len()).await?;
        let mut frames = Frames(&replies);
        let sizes = keys.iter().map(|_| match frames.next_view() {
            Some(View::Integer(size)) => Ok(u64::try_from(size).unwrap_or(0)),
            Some(View::Null) => Ok(0),
            Some(View::Error(text)) => Err(self.source.refused(text)),
            Some(View::Text(_) | View::Bulk(_) | View::Sequence(_)) | None => {
                Err(self.source.unexpected("MEMORY USAGE"))
            }
        });
        sizes.collect()
    }

    async fn copy_batch(&mut self, keys: &[Bytes]) -> Result<u64, TalkError> {
        self.source.push(&["TIME"]);
        let expiry: &[u8] = match self.clock {
            Clock::Absolute => b"PEXPIRETIME",
            Clock::Relative => b"PTTL",
        };
        for key in keys {
            self.source.push(&[b"DUMP", &key[..]]);
            self.source.push(&[expiry, key]);
        }
        self.source.flush().await?;
        let replies = self.source.frames(1 + 2 * keys.len()).await?;
        self.turn_around(keys, &replies)?;
        let sent = self.target.outbox().len() as u64;
        self.target.flush().await?;
        for _ in keys {
            self.target.answer().await?;
        }
        Ok(sent)
    }

    /// Converts the source's replies into requests to the target.
    fn turn_around(&mut self, keys: &[Bytes], replies: &[u8]) -> Result<(), TalkError> {
        let mut frames = Frames(replies);
        let now = frames.next_view().and_then(milliseconds).ok_or_else(|| self.source.unexpected("TIME"))?;
        for key in keys {
            let (dump, expiry) = (frames.next_view(), frames.next_view());
            let expiry = expiry.and_then(View::integer).map(|reply| self.clock.read(reply, now));
            let out = self.target.outbox();
            match (dump, expiry) {
                (Some(View::Bulk(value)), Some(Expiry::Never)) => restore(out, key, 0, value),
                (Some(View::Bulk(value)), Some(Expiry::At(at))) => restore(out, key, at, value),
                (Some(View::Null), Some(_)) | (Some(View::Bulk(_)), Some(Expiry::Gone)) => {
                    write_request(out, &[b"DEL", &key[..]]);
                }
                (Some(View::Error(text)), _) => return Err(self.source.refused(text)),
                _ => return Err(self.source.unexpected("DUMP")),
            }
        }
        Ok(())
    }
}

fn restore(out: &mut Vec<u8>, key: &[u8], at: i64, value: &[u8]) {
    let at = at.to_string();
    write_request(out, &[b"RESTORE", key, at.as_bytes(), value, b"REPLACE", b"ABSTTL"]);
}

/// The reply to `TIME`, in milliseconds.
fn milliseconds(time: View<'_>) -> Option<i64> {
    let number = |view: View<'_>| std::str::from_utf8(view.bytes()?).ok()?.parse::<i64>().ok();
    let mut parts = time.sequence()?.views();
    let (seconds, microseconds) = (number(parts.next()?)?, number(parts.next()?)?);
    Some(seconds * 1000 + microseconds / 1000)
}

/// The numbers of keys per batch, so that none exceeds the limits of keys and bytes, unless it is a single
/// key.
fn batches(sizes: &[u64]) -> Vec<usize> {
    let mut counts = Vec::new();
    let (mut count, mut bytes) = (0, 0);
    for &size in sizes {
        if count > 0 && (count == BATCH_KEYS || bytes + size > BATCH_BYTES) {
            counts.push(count);
            (count, bytes) = (0, 0);
        }
        (count, bytes) = (count + 1, bytes + size);
    }
    if count > 0 {
        counts.push(count);
    }
    counts
}

/// Consecutive replies.
struct Frames<'a>(&'a [u8]);

impl<'a> Frames<'a> {
    fn next_view(&mut self) -> Option<View<'a>> {
        let len = ReplyScanner::default().scan(self.0).ok()??;
        let (frame, rest) = self.0.split_at(len);
        self.0 = rest;
        View::of(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_about_to_expire_never_become_eternal() {
        let cases = [
            (Clock::Absolute, -1, Expiry::Never),
            (Clock::Absolute, -2, Expiry::Gone),
            (Clock::Absolute, 5000, Expiry::At(5000)),
            (Clock::Absolute, 0, Expiry::Gone),
            (Clock::Relative, -1, Expiry::Never),
            (Clock::Relative, -2, Expiry::Gone),
            (Clock::Relative, 0, Expiry::Gone),
            (Clock::Relative, 5, Expiry::At(1005)),
        ];
        for (clock, reply, expected) in cases {
            assert_eq!(clock.read(reply, 1000), expected, "{clock:?} {reply}");
        }
    }

    #[test]
    fn batches_are_bounded_and_large_keys_travel_alone() {
        assert_eq!(batches(&[]), Vec::<usize>::new());
        assert_eq!(batches(&[10; 300]), [128, 128, 44]);
        assert_eq!(batches(&[1, 2 << 20, 1, 1]), [1, 1, 2]);
        assert_eq!(batches(&[600 << 10, 600 << 10, 300 << 10]), [1, 2]);
    }

    #[test]
    fn time_is_read_in_milliseconds() {
        let view = View::of(b"*2\r\n$10\r\n1700000000\r\n$6\r\n123456\r\n").unwrap();
        assert_eq!(milliseconds(view), Some(1_700_000_000_123));
    }
}
