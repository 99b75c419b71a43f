//! How are versions and entries written to disk? As fixed little-endian fields.
//!
//! A row of a base or a snapshot carries a CRC-32C; an entry of the log is covered by the checksum of its frame. What does
//! not match is damage, reported as such and never served.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use crc_fast::CrcAlgorithm;

use super::engine::{EngineError, Entry, Logged};
use crate::kv::{KeyValue, LeaseId, Revision};
use crate::request::Event;

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

/// A row of the base behind its key, as it stands in bases and snapshots.
pub fn put_row(rows: &mut Vec<u8>, kv: &KeyValue) {
    let row = base_row(kv);
    rows.put_u32_le(kv.key.len() as u32);
    rows.put_u32_le(row.len() as u32);
    rows.extend_from_slice(&kv.key);
    rows.extend_from_slice(&row);
}

/// Reads rows back that stand one behind the other.
pub fn read_rows(rows: &[u8], keys: &mut Vec<Arc<KeyValue>>) -> Result<(), EngineError> {
    let mut rows = Reader(rows);
    while rows.0.has_remaining() {
        let (key_len, row_len) = (rows.u32()?, rows.u32()?);
        let (key, row) = (rows.bytes(key_len)?, rows.bytes(row_len)?);
        keys.push(Arc::new(read_base_row(key, row)?));
    }
    Ok(())
}

const CHANGE: u8 = 1;
const LEASE_GRANTED: u8 = 2;
const LEASE_ENDED: u8 = 3;
const COMPACTED: u8 = 4;
const USERS: u8 = 5;
const ALARM: u8 = 6;

/// Appends an entry of the log.
pub fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    match entry {
        Entry::Change(change) => {
            put_change(out, change.revision, change.events.iter().map(|event| &event.kv));
        }
        Entry::LeaseGranted(id, ttl) => put_lease(out, *id, ttl.as_secs()),
        Entry::LeaseEnded(id) => put_number(out, LEASE_ENDED, id.0),
        Entry::Compacted(revision) => put_number(out, COMPACTED, revision.0),
        Entry::Users(record) => put_users(out, record),
        Entry::Alarm(raised) => put_number(out, ALARM, i64::from(*raised)),
    }
}

/// Appends an entry that was read elsewhere.
pub fn put_logged(out: &mut Vec<u8>, logged: &Logged) {
    match logged {
        Logged::Change(revision, versions) => put_change(out, *revision, versions.iter()),
        Logged::LeaseGranted(id, ttl) => put_lease(out, *id, ttl.as_secs()),
        Logged::LeaseEnded(id) => put_number(out, LEASE_ENDED, id.0),
        Logged::Compacted(revision) => put_number(out, COMPACTED, revision.0),
        Logged::Users(record) => put_users(out, record),
        Logged::Alarm(raised) => put_number(out, ALARM, i64::from(*raised)),
    }
}

fn put_change<'a>(
    out: &mut Vec<u8>,
    revision: Revision,
    versions: impl ExactSizeIterator<Item = &'a Arc<KeyValue>>,
) {
    put_number(out, CHANGE, revision.0);
    out.put_u32_le(versions.len() as u32);
    for kv in versions {
        put_version(out, kv);
        out.put_u32_le(kv.key.len() as u32);
        out.put_u32_le(kv.value.len() as u32);
        out.extend_from_slice(&kv.key);
        out.extend_from_slice(&kv.value);
    }
}

/// Bytes that a change of these events has in the log.
pub fn change_bytes(events: &[Event]) -> usize {
    const HEAD: usize = 1 + 8 + 4;
    const VERSION: usize = 3 * 8 + 2 * 4;
    HEAD + events.iter().map(|event| VERSION + event.kv.key.len() + event.kv.value.len()).sum::<usize>()
}

fn put_lease(out: &mut Vec<u8>, id: LeaseId, ttl_seconds: u64) {
    put_number(out, LEASE_GRANTED, id.0);
    out.put_u64_le(ttl_seconds);
}

fn put_users(out: &mut Vec<u8>, record: &[u8]) {
    put_number(out, USERS, record.len() as i64);
    out.extend_from_slice(record);
}

fn put_number(out: &mut Vec<u8>, tag: u8, number: i64) {
    out.put_u8(tag);
    out.put_i64_le(number);
}

/// Reads the entries of one group back.
pub fn read_entries(group: &[u8]) -> Result<Vec<Logged>, EngineError> {
    let mut content = Reader(group);
    let mut entries = Vec::new();
    while content.0.has_remaining() {
        let (tag, number) = (content.u8()?, content.i64()?);
        entries.push(match tag {
            CHANGE => content.change(Revision(number))?,
            LEASE_GRANTED => Logged::LeaseGranted(LeaseId(number), Duration::from_secs(content.u64()?)),
            LEASE_ENDED => Logged::LeaseEnded(LeaseId(number)),
            COMPACTED => Logged::Compacted(Revision(number)),
            USERS => {
                let len = u32::try_from(number).map_err(|_| damaged("a record of users of no length"))?;
                Logged::Users(Bytes::copy_from_slice(content.bytes(len)?))
            }
            ALARM => Logged::Alarm(number != 0),
            other => return Err(damaged(format!("an entry of unknown kind {other}"))),
        });
    }
    Ok(entries)
}

/// Reads a row of the log of format 1 back.
pub fn read_log_row(row: &[u8]) -> Result<Vec<Logged>, EngineError> {
    let mut content = Reader(unsealed(&[], row)?);
    let mut changes = Vec::new();
    while content.0.has_remaining() {
        let revision = Revision(content.i64()?);
        changes.push(content.change(revision)?);
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
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn u8(&mut self) -> Result<u8, EngineError> {
        self.0.try_get_u8().map_err(|_| damaged("an entry ends too early"))
    }

    /// The next eight bytes as a number without a sign.
    pub fn u64(&mut self) -> Result<u64, EngineError> {
        self.0.try_get_u64_le().map_err(|_| damaged("row ends in the middle of a number"))
    }

    /// The next eight bytes as a number.
    pub fn i64(&mut self) -> Result<i64, EngineError> {
        self.0.try_get_i64_le().map_err(|_| damaged("row ends in the middle of a number"))
    }

    /// The next four bytes as a number.
    pub fn u32(&mut self) -> Result<u32, EngineError> {
        self.0.try_get_u32_le().map_err(|_| damaged("row ends in the middle of a number"))
    }

    pub(super) fn bytes(&mut self, len: u32) -> Result<&'a [u8], EngineError> {
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

    fn change(&mut self, revision: Revision) -> Result<Logged, EngineError> {
        let count = self.u32()?;
        let versions = (0..count).map(|_| self.keyed_version(revision)).collect::<Result<_, _>>()?;
        Ok(Logged::Change(revision, versions))
    }

    fn keyed_version(&mut self, mod_revision: Revision) -> Result<Arc<KeyValue>, EngineError> {
        let (create_revision, version, lease) = self.version()?;
        let (key_len, value_len) = (self.u32()?, self.u32()?);
        let (key, value) = own(self.bytes(key_len)?, self.bytes(value_len)?);
        Ok(Arc::new(KeyValue { key, value, create_revision, mod_revision, version, lease }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::history::Change;
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
        let ttl = Duration::from_secs(7);
        let entries = [
            Entry::Change(change),
            Entry::LeaseGranted(LeaseId(-7), ttl),
            Entry::Compacted(Revision(4)),
            Entry::LeaseEnded(LeaseId(3)),
            Entry::Users(Bytes::from_static(b"{}")),
            Entry::Alarm(true),
        ];
        let mut group = Vec::new();
        entries.iter().for_each(|entry| put_entry(&mut group, entry));
        let read = read_entries(&group).unwrap();
        let expected = [
            Logged::Change(Revision(9), vec![Arc::new(kv())]),
            Logged::LeaseGranted(LeaseId(-7), ttl),
            Logged::Compacted(Revision(4)),
            Logged::LeaseEnded(LeaseId(3)),
            Logged::Users(Bytes::from_static(b"{}")),
            Logged::Alarm(true),
        ];
        assert_eq!(read, expected);
        let mut again = Vec::new();
        read.iter().for_each(|logged| put_logged(&mut again, logged));
        assert_eq!(again, group);
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
