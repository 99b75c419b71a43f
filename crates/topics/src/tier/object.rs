//! What is in an object? The entries of a topic's log, one behind the other, each with its length and a checksum.

use std::sync::Arc;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use crate::data::envelope::Envelope;
use crate::data::message::{self, Message};
use crate::error::TopicsError;
use crate::status::TierObject;

/// Length and checksum in front of an entry.
const HEADER: usize = 8;
/// Messages or bytes after which the index has another line: what one read fetches at least.
const INDEX_MESSAGES: u64 = 1_000;
const INDEX_BYTES: u64 = 1 << 20;

/// An object in the making.
#[derive(Debug)]
pub(crate) struct Draft {
    bytes: BytesMut,
    /// The first offset, and the one behind the last.
    span: (u64, u64),
    index: Vec<(u64, u64)>,
    max_time: u64,
}

impl Draft {
    /// An object that begins with this offset.
    pub(crate) fn new(start: u64) -> Draft {
        Draft { bytes: BytesMut::new(), span: (start, start), index: Vec::new(), max_time: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The offset behind the last message.
    pub(crate) fn end(&self) -> u64 {
        self.span.1
    }

    /// Adds the entry that goes on where the object ends.
    pub(crate) fn push(&mut self, envelope: &Envelope, entry: &Bytes) {
        let at = self.bytes.len() as u64;
        let far = self.index.last().is_none_or(|(offset, byte)| {
            envelope.base_offset >= offset + INDEX_MESSAGES || at >= byte + INDEX_BYTES
        });
        if far {
            self.index.push((envelope.base_offset, at));
        }
        if self.bytes.is_empty() {
            self.span.0 = envelope.base_offset;
        }
        self.bytes.put_u32_le(u32::try_from(entry.len()).unwrap_or(u32::MAX));
        self.bytes.put_u32_le(checksum(entry));
        self.bytes.put_slice(entry);
        self.span.1 = envelope.end();
        self.max_time = self.max_time.max(envelope.append_time);
    }

    /// The object, and its descriptor. The same entries in the same epoch make the same object.
    pub(crate) fn finish(self, epoch: u64, now: u64) -> (TierObject, Bytes) {
        let content = self.bytes.freeze();
        let (start, last) = (self.span.0, self.span.1.saturating_sub(1));
        let descriptor = TierObject {
            completed: true,
            created_at: now,
            end_offset: last,
            etag: None,
            object_id: object_id(start, last, epoch),
            offset_index: self.index,
            size: content.len() as u64,
            start_offset: start,
            checksum: checksum(&content),
            max_time: self.max_time,
            compacted: None,
        };
        (descriptor, content)
    }
}

/// The name of an object.
fn object_id(start: u64, last: u64, epoch: u64) -> String {
    format!("data-{start}-{last}-{epoch}.dnb1")
}

/// The name of an object that takes the place of another one.
pub(crate) fn compacted_id(old: &TierObject, number: u64, epoch: u64) -> String {
    format!("data-{}-{}-{number:016x}-{epoch}.dnb1", old.start_offset, old.end_offset)
}

/// The epoch in which an object of this name was written.
pub(crate) fn epoch_of(object_id: &str) -> Option<u64> {
    let fields = object_id.strip_prefix("data-")?.strip_suffix(".dnb1")?;
    fields.rsplit('-').next()?.parse().ok()
}

/// The bytes of an object in which a message is found: from its line of the index to the next one.
pub(crate) fn stretch(descriptor: &TierObject, offset: u64) -> (u64, u64) {
    let behind = descriptor.offset_index.partition_point(|(first, _)| *first <= offset);
    let from = descriptor.offset_index.get(behind.saturating_sub(1)).map_or(0, |(_, byte)| *byte);
    let to = descriptor.offset_index.get(behind).map_or(descriptor.size, |(_, byte)| *byte);
    (from, to)
}

/// All stretches of an object that may have this message or later ones, in their order.
pub(crate) fn stretches_from(descriptor: &TierObject, offset: u64) -> Vec<(u64, u64)> {
    let lines = &descriptor.offset_index;
    let first = lines.partition_point(|(first, _)| *first <= offset).saturating_sub(1);
    let lines = lines.get(first..).unwrap_or_default();
    let ends = lines.iter().skip(1).map(|(_, byte)| *byte).chain([descriptor.size]);
    lines.iter().map(|(_, byte)| *byte).zip(ends).collect()
}

/// The messages of a stretch, checked.
pub(crate) fn decode(mut bytes: Bytes) -> Result<Vec<Arc<Message>>, TopicsError> {
    let mut messages = Vec::new();
    while bytes.has_remaining() {
        if bytes.len() < HEADER {
            return Err(damaged("it ends within an entry"));
        }
        let (length, sum) = (bytes.get_u32_le(), bytes.get_u32_le());
        let length = usize::try_from(length).ok().filter(|length| *length <= bytes.len());
        let entry = bytes.split_to(length.ok_or_else(|| damaged("it ends within an entry"))?);
        if checksum(&entry) != sum {
            return Err(damaged("a checksum is wrong"));
        }
        messages.extend(message::decode(&entry)?);
    }
    Ok(messages)
}

pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    // CRC-32C fits into 32 bits.
    u32::try_from(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes)).unwrap_or_default()
}

fn damaged(why: &str) -> TopicsError {
    TopicsError::Corrupt(format!("an object cannot be read: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::envelope::Format;
    use crate::data::message::Record;

    fn entry(base_offset: u64, count: u32) -> (Envelope, Bytes) {
        let records: Vec<Record> = (0..count)
            .map(|at| Record {
                value: Some(format!("{}", base_offset + u64::from(at)).into()),
                ..Record::default()
            })
            .collect();
        let envelope = Envelope {
            format: Format::Native,
            count,
            base_offset,
            leader_epoch: 1,
            producer_id: 1,
            producer_epoch: 0,
            session: 0,
            base_sequence: -1,
            base_timestamp: 0,
            max_timestamp: 0,
            append_time: base_offset,
        };
        (envelope, envelope.seal(&message::encode(&records).unwrap()))
    }

    #[test]
    fn every_message_is_found_through_the_index_and_damage_is_found() {
        let mut draft = Draft::new(0);
        assert!(draft.is_empty());
        for at in 0..50 {
            let (envelope, bytes) = entry(30 + at * 100, 100);
            draft.push(&envelope, &bytes);
        }
        let (descriptor, content) = draft.finish(7, 1);
        assert_eq!((descriptor.start_offset, descriptor.end_offset), (30, 5_029));
        assert_eq!((descriptor.object_id.as_str(), descriptor.max_time), ("data-30-5029-7.dnb1", 4_930));
        assert_eq!(descriptor.offset_index.len(), 5);
        assert_eq!(epoch_of(&descriptor.object_id), Some(7));
        assert_eq!((epoch_of("data-30-5029.txt"), epoch_of("other")), (None, None));
        for offset in [30, 129, 130, 1_029, 1_030, 4_444, 5_029] {
            let (from, to) = stretch(&descriptor, offset);
            let bytes = content.slice(usize::try_from(from).unwrap()..usize::try_from(to).unwrap());
            let messages = decode(bytes.clone()).unwrap();
            let found = messages.iter().find(|message| message.offset == offset).unwrap();
            assert_eq!(found.record.value.as_deref(), Some(offset.to_string().as_bytes()));
            let mut damaged = bytes.to_vec();
            damaged[HEADER + 3] ^= 1;
            assert!(decode(damaged.into()).is_err());
            assert!(decode(bytes.slice(..bytes.len() - 1)).is_err());
        }
    }
}
