//! How is an entry encoded? A header of 32 bytes and the data, the same bytes in the journal and in a segment.
//!
//! ```text
//! crc32c u32 | length u32 | epoch u64 | offset u64 | kind u8 | milliseconds since 1970 u56 | data
//! ```
//!
//! The checksum covers everything after it and is seeded with the log's salt, so that an entry in another log's file, at
//! another offset or of another epoch fails it.

use std::time::Duration;

use bytes::Bytes;
use crc_fast::CrcAlgorithm;

use crate::entry::{Entry, EntryKind, LogEpoch, Offset};

/// Bytes before the data.
pub const HEADER: usize = 32;
/// The maximum data of one entry: an entry fits into one frame between hosts and into one group.
pub const MAX_DATA: usize = 4 * 1024 * 1024;

const KIND_DATA: u8 = 1;
const KIND_BEGIN: u8 = 2;

/// Makes the checksums of one log differ from those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Salt(pub u32);

impl Salt {
    /// The salt of the log with this name.
    #[must_use]
    pub fn of(name: &str) -> Salt {
        Salt(crc32c(name.as_bytes()))
    }
}

/// CRC-32C.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Bytes of an entry's record.
pub fn size(entry: &Entry) -> usize {
    HEADER + entry.data.len()
}

/// Adds an entry to a buffer.
pub fn encode(out: &mut Vec<u8>, salt: Salt, entry: &Entry) {
    let begin = out.len();
    let kind = match entry.kind {
        EntryKind::Data => KIND_DATA,
        EntryKind::Begin => KIND_BEGIN,
    };
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(entry.data.len() as u32).to_le_bytes());
    out.extend_from_slice(&entry.epoch.0.to_le_bytes());
    out.extend_from_slice(&entry.offset.0.to_le_bytes());
    out.push(kind);
    out.extend_from_slice(&(entry.time.as_millis() as u64).to_le_bytes()[..7]);
    out.extend_from_slice(&entry.data);
    let crc = crc32c(&out[begin + 4..]) ^ salt.0;
    out[begin..begin + 4].copy_from_slice(&crc.to_le_bytes());
}

/// The fields of a header, not verified yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of data.
    pub length: usize,
    /// The entry's epoch.
    pub epoch: LogEpoch,
    /// The entry's offset.
    pub offset: Offset,
}

impl Header {
    /// The header at the beginning of these bytes, if there are enough.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Header> {
        let header = bytes.get(..HEADER)?;
        Some(Header {
            length: u32_at(header, 4) as usize,
            epoch: LogEpoch(u64_at(header, 8)),
            offset: Offset(u64_at(header, 16)),
        })
    }

    /// Bytes of the whole record.
    #[must_use]
    pub fn record_len(&self) -> usize {
        HEADER + self.length
    }
}

/// What is at a position of a buffer.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The expected entry, and the position of the next one.
    Entry(Entry, usize),
    /// The buffer ends before the record does.
    Cut,
    /// Something other than the expected entry.
    Damage(&'static str),
}

/// Reads the expected entry at this position and verifies it; its data shares the buffer.
#[must_use]
pub fn decode(buffer: &Bytes, at: usize, salt: Salt, expected: Offset) -> Found {
    let Some(rest) = buffer.get(at..) else { return Found::Cut };
    let Some(header) = Header::read(rest) else { return Found::Cut };
    if header.length > MAX_DATA {
        return Found::Damage("its length is impossible");
    }
    let Some(record) = rest.get(..header.record_len()) else {
        return if header.offset == expected {
            Found::Cut
        } else {
            Found::Damage("its header belongs to another entry")
        };
    };
    if crc32c(&record[4..]) ^ salt.0 != u32_at(record, 0) {
        return Found::Damage("its checksum is wrong");
    }
    if header.offset != expected {
        return Found::Damage("another entry is in its place");
    }
    let kind = match record[24] {
        KIND_DATA => EntryKind::Data,
        KIND_BEGIN => EntryKind::Begin,
        _ => return Found::Damage("its kind is unknown"),
    };
    let time = Duration::from_millis(u64_at(record, 24) >> 8);
    let data = buffer.slice(at + HEADER..at + header.record_len());
    let entry = Entry { epoch: header.epoch, offset: header.offset, kind, time, data };
    Found::Entry(entry, at + header.record_len())
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(salt: Salt) -> Vec<u8> {
        let data = Bytes::from_static(b"hello");
        let entry = Entry {
            epoch: LogEpoch(3),
            offset: Offset(7),
            kind: EntryKind::Data,
            time: Duration::from_millis(1_700_000_000_123),
            data,
        };
        let mut out = Vec::new();
        encode(&mut out, salt, &entry);
        out
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let salt = Salt::of("orders");
        let good = encoded(salt);
        let Found::Entry(entry, 37) = decode(&good.clone().into(), 0, salt, Offset(7)) else { panic!() };
        assert_eq!((entry.kind, entry.time.as_millis()), (EntryKind::Data, 1_700_000_000_123));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let found = decode(&bad.into(), 0, salt, Offset(7));
            assert!(!matches!(found, Found::Entry(..)), "bit {bit}");
        }
    }

    #[test]
    fn an_entry_of_another_log_or_place_does_not_pass() {
        let bytes = Bytes::from(encoded(Salt::of("orders")));
        assert!(matches!(decode(&bytes, 0, Salt::of("others"), Offset(7)), Found::Damage(_)));
        assert!(matches!(decode(&bytes, 0, Salt::of("orders"), Offset(8)), Found::Damage(_)));
        assert_eq!(decode(&bytes.slice(..20), 0, Salt::of("orders"), Offset(7)), Found::Cut);
    }
}
