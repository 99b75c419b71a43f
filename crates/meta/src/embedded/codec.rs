//! How are versions written to disk? Fixed little-endian fields, a CRC-32C over each row.
//!
//! A row is read back only if its checksum is right; anything else is damage, reported as such and never served.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use crc_fast::CrcAlgorithm;

use super::engine::{EngineError, LoggedChange};
use super::history::Change;
use crate::kv::{KeyValue, LeaseId, Revision};

/// Bytes of a checksum.
const CHECKSUM: usize = 4;

fn checksum(parts: &[&[u8]]) -> u32 {
    let mut digest = crc_fast::Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

/// Puts a checksum in front of a row's content.
pub fn sealed(key: &[u8], content: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(CHECKSUM + content.len());
    row.put_u32_le(checksum(&[key, content]));
    row.extend_from_slice(content);
    row
}

/// Checks a row's checksum and takes it off.
pub fn unsealed<'a>(key: &[u8], row: &'a [u8]) -> Result<&'a [u8], EngineError> {
    let (sum, content) = row.split_at_checked(CHECKSUM).ok_or_else(|| damaged("row is too short"))?;
    if sum != checksum(&[key, content]).to_le_bytes() {
        return Err(damaged("row does not match its checksum"));
    }
    Ok(content)
}

/// Names damage.
pub fn damaged(what: impl Into<String>) -> EngineError {
    EngineError::Corrupt(what.into())
}

/// The fields of a version except its key and revision.
fn put_version(out: &mut Vec<u8>, kv: &KeyValue) {
    out.put_i64_le(kv.create_revision.0);
    out.put_i64_le(kv.version);
    out.put_i64_le(kv.lease.0);
}

/// A key's row in the base: its newest version.
pub fn base_row(kv: &KeyValue) -> Vec<u8> {
    let mut content = Vec::with_capacity(32 + kv.value.len());
    content.put_i64_le(kv.mod_revision.0);
    put_version(&mut content, kv);
    content.extend_from_slice(&kv.value);
    sealed(&kv.key, &content)
}

/// Reads a key's row in the base back.
pub fn read_base_row(key: &[u8], row: &[u8]) -> Result<KeyValue, EngineError> {
    let mut content = Reader(unsealed(key, row)?);
    let mod_revision = Revision(content.i64()?);
    let (create_revision, version, lease) = content.version()?;
    let (key, value) = own(key, content.0);
    Ok(KeyValue { key, value, create_revision, mod_revision, version, lease })
}

/// What a base row adds to the digest of the whole base.
pub fn row_digest(row: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, row)
}

/// Consecutive changes as one row of the log.
pub fn log_row(changes: &[&Arc<Change>]) -> Vec<u8> {
    let mut content = Vec::with_capacity(256 * changes.len());
    for change in changes {
        content.put_i64_le(change.revision.0);
        content.put_u32_le(change.events.len() as u32);
        for event in &change.events {
            put_version(&mut content, &event.kv);
            content.put_u32_le(event.kv.key.len() as u32);
            content.put_u32_le(event.kv.value.len() as u32);
            content.extend_from_slice(&event.kv.key);
            content.extend_from_slice(&event.kv.value);
        }
    }
    sealed(&[], &content)
}

/// Reads a row of the log back.
pub fn read_log_row(row: &[u8]) -> Result<Vec<LoggedChange>, EngineError> {
    let mut content = Reader(unsealed(&[], row)?);
    let mut changes = Vec::new();
    while content.0.has_remaining() {
        let mod_revision = Revision(content.i64()?);
        let count = content.u32()?;
        let versions = (0..count).map(|_| content.change(mod_revision)).collect::<Result<_, _>>()?;
        changes.push((mod_revision, versions));
    }
    Ok(changes)
}

/// One allocation for a key and its value, shared with nothing else.
pub fn own(key: &[u8], value: &[u8]) -> (Bytes, Bytes) {
    let mut both = BytesMut::with_capacity(key.len() + value.len());
    both.extend_from_slice(key);
    both.extend_from_slice(value);
    let mut value = both.freeze();
    let key = value.split_to(key.len());
    (key, value)
}

/// Reads fields and says so when the content ends too early.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn i64(&mut self) -> Result<i64, EngineError> {
        self.0.try_get_i64_le().map_err(|_| damaged("row ends in the middle of a number"))
    }

    fn u32(&mut self) -> Result<u32, EngineError> {
        self.0.try_get_u32_le().map_err(|_| damaged("row ends in the middle of a number"))
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], EngineError> {
        let (bytes, rest) = self
            .0
            .split_at_checked(len as usize)
            .ok_or_else(|| damaged("row ends in the middle of a key or value"))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn version(&mut self) -> Result<(Revision, i64, LeaseId), EngineError> {
        Ok((Revision(self.i64()?), self.i64()?, LeaseId(self.i64()?)))
    }

    fn change(&mut self, mod_revision: Revision) -> Result<Arc<KeyValue>, EngineError> {
        let (create_revision, version, lease) = self.version()?;
        let (key_len, value_len) = (self.u32()?, self.u32()?);
        let (key, value) = own(self.bytes(key_len)?, self.bytes(value_len)?);
        Ok(Arc::new(KeyValue { key, value, create_revision, mod_revision, version, lease }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Event;

    fn kv() -> KeyValue {
        KeyValue {
            key: "/a/b".into(),
            value: "value".into(),
            create_revision: Revision(3),
            mod_revision: Revision(9),
            version: 4,
            lease: LeaseId(-7),
        }
    }

    #[test]
    fn rows_come_back_as_they_were() {
        assert_eq!(read_base_row(b"/a/b", &base_row(&kv())).unwrap(), kv());
        let change = Arc::new(Change {
            revision: Revision(9),
            events: Box::new([Event { kv: Arc::new(kv()), prev: None }]),
        });
        let read = read_log_row(&log_row(&[&change])).unwrap();
        assert_eq!(read, vec![(Revision(9), vec![Arc::new(kv())])]);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let row = base_row(&kv());
        for bit in 0..row.len() * 8 {
            let mut flipped = row.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read_base_row(b"/a/b", &flipped).is_err(), "bit {bit}");
        }
        for len in 0..row.len() {
            assert!(read_base_row(b"/a/b", &row[..len]).is_err(), "cut to {len}");
        }
        assert!(read_base_row(b"/a/c", &row).is_err(), "another key's row");
    }
}
