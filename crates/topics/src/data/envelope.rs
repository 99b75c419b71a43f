//! What stands in an entry of a log: a fixed envelope and a payload.
//!
//! Offsets of messages count records and have no gaps. They differ from the log's own offsets, because an entry may hold
//! many records and an epoch begins with an entry that holds none. Replication, indexing and deduplication read only
//! the envelope. Fields that the leader assigns are outside of the payload's checksum, so that a batch of another wire
//! can be stored as it came.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::TopicsError;

/// Bytes of an envelope.
pub(crate) const ENVELOPE_BYTES: usize = 80;
const VERSION: u8 = 1;
/// Bytes of the number of a producer's life, and the largest such number.
const SESSION_BYTES: usize = 6;
pub(crate) const MAX_SESSION: u64 = (1 << 48) - 1;

/// What a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Records of ours.
    Native,
}

/// What is known about an entry without reading its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) format: Format,
    /// Records in the entry.
    pub(crate) count: u32,
    /// The offset of the first.
    pub(crate) base_offset: u64,
    /// The epoch of the log in which it was written.
    pub(crate) leader_epoch: u64,
    pub(crate) producer_id: u64,
    pub(crate) producer_epoch: i16,
    /// The life of the producer that the sequence belongs to, in 48 bits; zero: none.
    pub(crate) session: u64,
    /// The sequence of the first record; negative: none. Wider than Kafka's, which wraps.
    pub(crate) base_sequence: i64,
    /// Creation times, in milliseconds since 1970.
    pub(crate) base_timestamp: u64,
    pub(crate) max_timestamp: u64,
    /// When the leader took it.
    pub(crate) append_time: u64,
}

impl Envelope {
    /// The offset behind the last record.
    pub(crate) fn end(&self) -> u64 {
        self.base_offset + u64::from(self.count)
    }

    /// The entry with this payload.
    pub(crate) fn seal(&self, payload: &[u8]) -> Bytes {
        let mut entry = BytesMut::with_capacity(ENVELOPE_BYTES + payload.len());
        entry.put_u8(VERSION);
        entry.put_u8(match self.format {
            Format::Native => 0,
        });
        // Codec and flags: none yet.
        entry.put_u16_le(0);
        entry.put_u32_le(self.count);
        entry.put_u64_le(self.base_offset);
        entry.put_u64_le(self.leader_epoch);
        entry.put_u64_le(self.producer_id);
        entry.put_i16_le(self.producer_epoch);
        entry.put_uint_le(self.session & MAX_SESSION, SESSION_BYTES);
        entry.put_i64_le(self.base_sequence);
        entry.put_u64_le(self.base_timestamp);
        entry.put_u64_le(self.max_timestamp);
        entry.put_u64_le(self.append_time);
        entry.put_u32_le(checksum(payload));
        entry.put_u32_le(u32::try_from(payload.len()).unwrap_or(u32::MAX));
        entry.put_slice(payload);
        entry.freeze()
    }

    /// The envelope of an entry.
    pub(crate) fn open(entry: &Bytes) -> Result<Envelope, TopicsError> {
        let mut fields = entry.get(..ENVELOPE_BYTES).ok_or_else(|| corrupt("it is too short"))?;
        if fields.get_u8() != VERSION {
            return Err(corrupt("its version is not known"));
        }
        let format = match fields.get_u8() {
            0 => Format::Native,
            _ => return Err(corrupt("its format is not known")),
        };
        if fields.get_u16_le() != 0 {
            return Err(corrupt("it has flags that are not known"));
        }
        let count = fields.get_u32_le();
        let base_offset = fields.get_u64_le();
        let leader_epoch = fields.get_u64_le();
        let producer_id = fields.get_u64_le();
        let producer_epoch = fields.get_i16_le();
        let session = fields.get_uint_le(SESSION_BYTES);
        Ok(Envelope {
            format,
            count,
            base_offset,
            leader_epoch,
            producer_id,
            producer_epoch,
            session,
            base_sequence: fields.get_i64_le(),
            base_timestamp: fields.get_u64_le(),
            max_timestamp: fields.get_u64_le(),
            append_time: fields.get_u64_le(),
        })
    }

    /// The payload behind the envelope, checked.
    pub(crate) fn payload(entry: &Bytes) -> Result<Bytes, TopicsError> {
        let mut fields =
            entry.get(ENVELOPE_BYTES - 8..ENVELOPE_BYTES).ok_or_else(|| corrupt("it is too short"))?;
        let (sum, bytes) = (fields.get_u32_le(), fields.get_u32_le());
        let payload = entry.slice(ENVELOPE_BYTES..);
        if usize::try_from(bytes).ok() != Some(payload.len()) || checksum(&payload) != sum {
            return Err(corrupt("its checksum is wrong"));
        }
        Ok(payload)
    }
}

fn checksum(payload: &[u8]) -> u32 {
    // CRC-32C fits into 32 bits.
    u32::try_from(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, payload)).unwrap_or_default()
}

fn corrupt(why: &str) -> TopicsError {
    TopicsError::Corrupt(format!("an entry of a topic's log cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_opens_as_it_was_sealed_and_damage_is_found() {
        let envelope = Envelope {
            format: Format::Native,
            count: 3,
            base_offset: 41,
            leader_epoch: 7,
            producer_id: u64::MAX,
            producer_epoch: 2,
            session: MAX_SESSION,
            base_sequence: -1,
            base_timestamp: 5,
            max_timestamp: 9,
            append_time: 11,
        };
        let entry = envelope.seal(b"payload");
        assert_eq!(entry.len(), ENVELOPE_BYTES + 7);
        assert_eq!((Envelope::open(&entry).unwrap(), envelope.end()), (envelope, 44));
        assert_eq!(Envelope::payload(&entry).unwrap(), Bytes::from_static(b"payload"));
        for (at, found) in [(0, false), (1, false), (2, false), (ENVELOPE_BYTES, true)] {
            let mut damaged = entry.to_vec();
            damaged[at] ^= 0x80;
            let damaged = Bytes::from(damaged);
            assert_eq!(Envelope::open(&damaged).is_ok(), found, "{at}");
            assert!(!found || Envelope::payload(&damaged).is_err(), "{at}");
        }
        assert!(
            Envelope::open(&entry.slice(..20)).is_err() && Envelope::payload(&entry.slice(..20)).is_err()
        );
    }
}
