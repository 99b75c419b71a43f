//! Which messages of old objects stay? The last one of each key, and those without a key. Pure.
//!
//! A message goes only if a later one of its key stays, or if it is a tombstone and its grace time is over. Objects are
//! rewritten from the oldest on, so that what a tombstone has removed never comes back, wherever a pass ends.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::object::{self, Draft};
use crate::data::envelope::{Envelope, Format};
use crate::data::message::{self, Message};
use crate::error::TopicsError;
use crate::status::TierObject;

/// Keys that one pass tells apart, and their bytes. Messages of further keys stay.
const MAX_KEYS: usize = 1 << 20;
const MAX_KEY_BYTES: usize = 64 << 20;

/// The last message of each key.
#[derive(Debug, Default)]
pub(crate) struct Latest {
    offsets: HashMap<Bytes, u64>,
    bytes: usize,
}

impl Latest {
    /// Notes a message. A key for which there was no room once never gets any.
    pub(crate) fn note(&mut self, message: &Message) {
        let Some(key) = &message.record.key else { return };
        if let Some(last) = self.offsets.get_mut(key) {
            *last = message.offset.max(*last);
        } else if self.offsets.len() < MAX_KEYS && self.bytes + key.len() <= MAX_KEY_BYTES {
            self.bytes += key.len();
            // A slice of what was read would keep all of it in memory.
            self.offsets.insert(Bytes::copy_from_slice(key), message.offset);
        }
    }

    /// Whether a message stays. Tombstones stay if they were taken at this time (milliseconds since 1970) or later.
    fn keeps(&self, message: &Message, oldest_tombstone: u64) -> bool {
        let last = message.record.key.as_ref().and_then(|key| self.offsets.get(key));
        match last {
            None => true,
            Some(last) if *last > message.offset => false,
            Some(_) => !message.record.is_tombstone() || message.append_time >= oldest_tombstone,
        }
    }

    /// The object without what goes, for the same offsets; nothing if everything stays.
    pub(crate) fn rewrite(
        &self,
        old: &TierObject,
        messages: &[Arc<Message>],
        oldest_tombstone: u64,
        made: Made,
    ) -> Result<Option<(TierObject, Bytes)>, TopicsError> {
        let kept: Vec<_> = messages.iter().filter(|message| self.keeps(message, oldest_tombstone)).collect();
        if kept.len() == messages.len() {
            return Ok(None);
        }
        let mut draft = Draft::new(old.start_offset);
        for message in &kept {
            let (envelope, entry) = sealed(message, made.epoch)?;
            draft.push(&envelope, &entry);
        }
        let (drafted, content) = draft.finish(made.epoch, made.now);
        let rewritten = TierObject {
            start_offset: old.start_offset,
            end_offset: old.end_offset,
            object_id: object::compacted_id(old, made.number, made.epoch),
            compacted: Some(kept.len() as u64),
            ..drafted
        };
        Ok(Some((rewritten, content)))
    }
}

/// How an object came to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Made {
    pub(crate) epoch: u64,
    /// Different for every object: one that is described is never written over.
    pub(crate) number: u64,
    /// In seconds since 1970.
    pub(crate) now: u64,
}

/// An entry with one message. Sequences of producers are judged by the log, not by objects.
fn sealed(message: &Message, epoch: u64) -> Result<(Envelope, Bytes), TopicsError> {
    let envelope = Envelope {
        format: Format::Native,
        count: 1,
        base_offset: message.offset,
        leader_epoch: epoch,
        producer_id: message.producer_id,
        producer_epoch: 0,
        session: 0,
        base_sequence: -1,
        base_timestamp: message.record.created_at,
        max_timestamp: message.record.created_at,
        append_time: message.append_time,
    };
    let payload = message::encode(std::slice::from_ref(&message.record))?;
    Ok((envelope, envelope.seal(&payload)))
}

/// Whether a pass over these objects is worth its reads: what is new since the last pass, which ended before this offset,
/// is at least half as large as what is not.
pub(crate) fn is_due(objects: &[TierObject], done: u64) -> bool {
    let size = |new: bool| -> u64 {
        objects.iter().filter(|object| (object.start_offset >= done) == new).map(|object| object.size).sum()
    };
    let (new, old) = (size(true), size(false));
    new > 0 && new.saturating_mul(2) >= old
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::message::Record;

    const MADE: Made = Made { epoch: 3, number: 0xab, now: 1 };

    fn message(offset: u64, key: Option<&'static str>, value: &'static str) -> Arc<Message> {
        let record = Record { key: key.map(Bytes::from), value: Some(value.into()), ..Record::default() };
        Arc::new(Message { offset, producer_id: 9, append_time: 100 + offset, record })
    }

    fn object(start_offset: u64, end_offset: u64, size: u64) -> TierObject {
        let (object, _) = Draft::new(start_offset).finish(1, 1);
        TierObject { end_offset, size, ..object }
    }

    fn rewritten(messages: &[Arc<Message>], oldest_tombstone: u64) -> Option<Vec<u64>> {
        let mut latest = Latest::default();
        messages.iter().for_each(|message| latest.note(message));
        let old = object(0, messages.len() as u64 - 1, 1);
        let (new, content) = latest.rewrite(&old, messages, oldest_tombstone, MADE).unwrap()?;
        assert_eq!((new.start_offset, new.end_offset), (old.start_offset, old.end_offset));
        assert_eq!(object::epoch_of(&new.object_id), Some(3));
        let kept = object::decode(content).unwrap();
        assert_eq!(new.compacted, Some(kept.len() as u64));
        for message in &kept {
            let before = &messages[usize::try_from(message.offset).unwrap()];
            assert_eq!((message.append_time, &message.record), (before.append_time, &before.record));
        }
        Some(kept.iter().map(|message| message.offset).collect())
    }

    #[test]
    fn the_last_message_of_a_key_stays_at_its_offset_and_so_does_what_has_no_key() {
        let messages = [
            message(0, Some("a"), "0"),
            message(1, Some("b"), "1"),
            message(2, None, "2"),
            message(3, Some("a"), "3"),
            message(4, None, "4"),
        ];
        assert_eq!(rewritten(&messages, 0), Some(vec![1, 2, 3, 4]));
        assert_eq!(rewritten(&messages[..3], 0), None, "everything stays");
    }

    #[test]
    fn a_tombstone_removes_its_key_at_once_and_goes_itself_after_the_grace_time() {
        let messages = [message(0, Some("a"), "0"), message(1, Some("a"), ""), message(2, None, "")];
        assert_eq!(rewritten(&messages, 101), Some(vec![1, 2]));
        assert_eq!(rewritten(&messages, 102), Some(vec![2]), "a message without a key is no tombstone");
        let again = [message(0, Some("a"), ""), message(1, Some("a"), "1")];
        assert_eq!(rewritten(&again, 1_000), Some(vec![1]), "a key can come back");
        assert_eq!(
            rewritten(&[message(0, Some("a"), "")], 1_000),
            Some(vec![]),
            "an object may become empty"
        );
    }

    #[test]
    fn a_pass_waits_until_there_is_enough_that_is_new() {
        let objects = [object(0, 9, 100), object(10, 19, 100), object(20, 29, 60)];
        assert!(is_due(&objects, 0) && is_due(&objects, 10));
        assert!(!is_due(&objects, 20) && !is_due(&objects, 30) && !is_due(&[], 0));
    }
}
