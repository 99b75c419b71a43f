//! What is the frame format? `length u32 | kind u8 | name length u8 | name | incarnation u64 | body`, little-endian; a
//! hello has only a name.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::config::Incarnation;
use crate::disk::record::{self, Found, Salt};
use crate::entry::{Entry, History, LogEpoch, Offset};
use crate::keys::{HolderId, LogName};
use crate::replica::Message;

/// The maximum frame: the longest entry and some more.
pub const MAX_FRAME: usize = 2 * record::MAX_DATA;

const HELLO: u8 = 1;
const APPEND: u8 = 2;
const INSTALL: u8 = 3;
const ACK: u8 = 4;
const BEHIND: u8 = 5;
const FENCED: u8 = 6;
const FETCH: u8 = 7;
const FETCHED: u8 = 8;
const PIECE: u8 = 9;
const TAKEN: u8 = 10;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of a connection: the sender's id.
    Hello(HolderId),
    /// A packet of a log.
    About(LogName, Incarnation, Packet),
}

/// A piece of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The primary's epoch.
    pub epoch: LogEpoch,
    /// Distinguishes attempts.
    pub session: u64,
    /// The history up to the end of the snapshot.
    pub history: History,
    /// The number of the piece, from zero.
    pub number: u32,
    /// Whether this is the last piece.
    pub last: bool,
    /// Its part of the snapshot.
    pub bytes: Bytes,
}

/// The progress of a snapshot transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The attempt.
    pub session: u64,
    /// The first piece that was not taken.
    pub next: u32,
    /// Whether the whole snapshot was installed.
    pub installed: bool,
}

/// A packet of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A message between copies.
    Message(Message),
    /// Requests entries from this offset on, to repair damaged ones.
    Fetch(Offset),
    /// The requested entries.
    Fetched(Vec<Entry>),
    /// A piece of a snapshot.
    Piece(Piece),
    /// The progress of a snapshot transfer.
    Taken(Taken),
}

impl Packet {
    /// Bytes of its content, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of = |entries: &[Entry]| entries.iter().map(|entry| size_of::<Entry>() + entry.data.len()).sum();
        match self {
            Packet::Message(Message::Append { entries, .. }) | Packet::Fetched(entries) => of(entries),
            Packet::Message(Message::Install { snapshot, .. }) => snapshot.len(),
            Packet::Piece(piece) => piece.bytes.len(),
            Packet::Message(Message::Ack { .. } | Message::Behind { .. } | Message::Fenced { .. })
            | Packet::Fetch(_)
            | Packet::Taken(_) => 0,
        }
    }
}

impl Frame {
    /// The frame's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u32_le(0);
        match self {
            Frame::Hello(holder) => head(&mut out, HELLO, holder.as_ref()),
            Frame::About(log, incarnation, packet) => put_packet(&mut out, log, *incarnation, packet),
        }
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_le_bytes());
        out.freeze()
    }

    /// Decodes a frame (without its length); `None` if it is invalid.
    #[must_use]
    pub fn decode(mut bytes: Bytes) -> Option<Frame> {
        let (kind, length) = (bytes.try_get_u8().ok()?, usize::from(bytes.try_get_u8().ok()?));
        if bytes.len() < length {
            return None;
        }
        let name = bytes.split_to(length);
        let name = std::str::from_utf8(&name).ok()?;
        if kind == HELLO {
            return Some(Frame::Hello(name.parse().ok()?));
        }
        let (salt, incarnation) = (Salt::of(name), Incarnation(bytes.try_get_u64_le().ok()?));
        Some(Frame::About(name.parse().ok()?, incarnation, packet(kind, bytes, salt)?))
    }
}

fn head(out: &mut BytesMut, kind: u8, name: &str) {
    out.put_u8(kind);
    out.put_u8(name.len() as u8);
    out.put_slice(name.as_bytes());
}

fn kind_of(packet: &Packet) -> u8 {
    match packet {
        Packet::Fetch(_) => FETCH,
        Packet::Fetched(_) => FETCHED,
        Packet::Piece(_) => PIECE,
        Packet::Taken(_) => TAKEN,
        Packet::Message(Message::Append { .. }) => APPEND,
        Packet::Message(Message::Install { .. }) => INSTALL,
        Packet::Message(Message::Ack { .. }) => ACK,
        Packet::Message(Message::Behind { .. }) => BEHIND,
        Packet::Message(Message::Fenced { .. }) => FENCED,
    }
}

fn put_packet(out: &mut BytesMut, log: &LogName, incarnation: Incarnation, packet: &Packet) {
    let name = log.as_ref();
    head(out, kind_of(packet), name);
    out.put_u64_le(incarnation.0);
    match packet {
        Packet::Message(message) => put_message(out, name, message),
        Packet::Fetch(from) => out.put_u64_le(from.0),
        Packet::Fetched(entries) => put_entries(out, name, entries),
        Packet::Piece(piece) => {
            out.put_u64_le(piece.epoch.0);
            out.put_u64_le(piece.session);
            out.put_u32_le(piece.number);
            out.put_u8(u8::from(piece.last));
            put_history(out, &piece.history);
            out.put_slice(&piece.bytes);
        }
        Packet::Taken(taken) => {
            out.put_u64_le(taken.session);
            out.put_u32_le(taken.next);
            out.put_u8(u8::from(taken.installed));
        }
    }
}

fn put_message(out: &mut BytesMut, name: &str, message: &Message) {
    out.put_u64_le(message.epoch().0);
    match message {
        Message::Append { epoch_before, from, entries, committed, .. } => {
            out.put_u64_le(epoch_before.0);
            out.put_u64_le(from.0);
            out.put_u64_le(committed.0);
            put_entries(out, name, entries);
        }
        Message::Install { history, snapshot, .. } => {
            put_history(out, history);
            out.put_slice(snapshot);
        }
        Message::Ack { life, durable, .. } => {
            out.put_u64_le(*life);
            out.put_u64_le(durable.0);
        }
        Message::Behind { life, history, .. } => {
            out.put_u64_le(*life);
            put_history(out, history);
        }
        Message::Fenced { .. } => {}
    }
}

fn put_entries(out: &mut BytesMut, name: &str, entries: &[Entry]) {
    let mut records = Vec::with_capacity(entries.iter().map(|e| e.data.len() + record::HEADER).sum());
    entries.iter().for_each(|entry| record::encode(&mut records, Salt::of(name), entry));
    out.put_u64_le(entries.first().map_or(0, |entry| entry.offset.0));
    out.put_slice(&records);
}

fn put_history(out: &mut BytesMut, history: &History) {
    out.put_u64_le(history.end().0);
    out.put_u32_le(history.epochs().len() as u32);
    for (epoch, first) in history.epochs() {
        out.put_u64_le(epoch.0);
        out.put_u64_le(first.0);
    }
}

fn packet(kind: u8, mut bytes: Bytes, salt: Salt) -> Option<Packet> {
    match kind {
        FETCH => return Some(Packet::Fetch(offset(&mut bytes)?)),
        FETCHED => return Some(Packet::Fetched(entries(bytes, salt)?)),
        PIECE => return piece(bytes).map(Packet::Piece),
        TAKEN => {
            let session = bytes.try_get_u64_le().ok()?;
            let next = bytes.try_get_u32_le().ok()?;
            return Some(Packet::Taken(Taken { session, next, installed: bytes.try_get_u8().ok()? == 1 }));
        }
        _ => {}
    }
    let epoch = LogEpoch(bytes.try_get_u64_le().ok()?);
    Some(Packet::Message(match kind {
        APPEND => Message::Append {
            epoch,
            epoch_before: LogEpoch(bytes.try_get_u64_le().ok()?),
            from: offset(&mut bytes)?,
            committed: offset(&mut bytes)?,
            entries: entries(bytes, salt)?,
        },
        INSTALL => Message::Install { epoch, history: history(&mut bytes)?, snapshot: bytes },
        ACK => Message::Ack { epoch, life: bytes.try_get_u64_le().ok()?, durable: offset(&mut bytes)? },
        BEHIND => {
            Message::Behind { epoch, life: bytes.try_get_u64_le().ok()?, history: history(&mut bytes)? }
        }
        FENCED => Message::Fenced { epoch },
        _ => return None,
    }))
}

fn piece(mut bytes: Bytes) -> Option<Piece> {
    let epoch = LogEpoch(bytes.try_get_u64_le().ok()?);
    let session = bytes.try_get_u64_le().ok()?;
    let number = bytes.try_get_u32_le().ok()?;
    let last = bytes.try_get_u8().ok()? == 1;
    Some(Piece { epoch, session, number, last, history: history(&mut bytes)?, bytes })
}

fn offset(bytes: &mut Bytes) -> Option<Offset> {
    bytes.try_get_u64_le().ok().map(Offset)
}

fn entries(mut bytes: Bytes, salt: Salt) -> Option<Vec<Entry>> {
    let mut expected = offset(&mut bytes)?;
    let mut entries = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let Found::Entry(entry, next) = record::decode(&bytes, at, salt, expected) else { return None };
        entries.push(entry);
        (at, expected) = (next, expected.plus(1));
    }
    Some(entries)
}

fn history(bytes: &mut Bytes) -> Option<History> {
    let end = offset(bytes)?;
    let count = bytes.try_get_u32_le().ok()? as usize;
    if bytes.len() < count.checked_mul(16)? {
        return None;
    }
    let epochs = (0..count).map(|_| (LogEpoch(bytes.get_u64_le()), Offset(bytes.get_u64_le()))).collect();
    Some(History::from_parts(epochs, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::EntryKind;
    use std::time::Duration;

    fn samples() -> Vec<Frame> {
        let log: LogName = "orders".parse().unwrap();
        let data = Bytes::from_static(b"hello");
        let entry = Entry {
            epoch: LogEpoch(3),
            offset: Offset(7),
            kind: EntryKind::Data,
            time: Duration::ZERO,
            data,
        };
        let mut history = History::default();
        history.extend(LogEpoch(1), 4);
        history.extend(LogEpoch(3), 3);
        let epoch = LogEpoch(3);
        let messages = vec![
            Message::Append {
                epoch,
                epoch_before: LogEpoch(2),
                from: Offset(7),
                entries: vec![entry.clone()],
                committed: Offset(5),
            },
            Message::Append {
                epoch,
                epoch_before: LogEpoch(2),
                from: Offset(7),
                entries: vec![],
                committed: Offset(5),
            },
            Message::Install { epoch, history: history.clone(), snapshot: Bytes::from_static(b"state") },
            Message::Ack { epoch, life: 5, durable: Offset(9) },
            Message::Behind { epoch, life: 6, history: history.clone() },
            Message::Fenced { epoch },
        ];
        let packets = messages.into_iter().map(Packet::Message);
        let bytes = Bytes::from_static(b"piece");
        let piece = Piece { epoch, session: 7, history, number: 3, last: true, bytes };
        let taken = Taken { session: 7, next: 3, installed: true };
        let others = [
            Packet::Fetch(Offset(3)),
            Packet::Fetched(vec![entry]),
            Packet::Piece(piece),
            Packet::Taken(taken),
        ];
        let about = |packet| Frame::About(log.clone(), Incarnation(4), packet);
        let mut frames: Vec<Frame> = packets.chain(others).map(about).collect();
        frames.push(Frame::Hello("a".parse().unwrap()));
        frames
    }

    #[test]
    fn frames_survive_the_wire_and_nonsense_does_not_panic() {
        for frame in samples() {
            let bytes = frame.encode().slice(4..);
            assert_eq!(Frame::decode(bytes.clone()), Some(frame));
            for end in 0..bytes.len() {
                let _ = Frame::decode(bytes.slice(..end));
                let mut flipped = bytes.to_vec();
                flipped[end] ^= 0x11;
                let _ = Frame::decode(flipped.into());
            }
        }
    }
}
