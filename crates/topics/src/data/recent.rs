//! The newest messages of a partition, kept in memory: consumers that keep up never read from disk.

use std::collections::VecDeque;
use std::sync::Arc;

use super::message::Message;

/// Messages that are kept, and their bytes.
const MAX_MESSAGES: usize = 4_096;
const MAX_BYTES: usize = 4 << 20;

/// Consecutive messages up to the newest.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    messages: VecDeque<Arc<Message>>,
    bytes: usize,
}

impl Recent {
    /// Adds messages at the end. A gap before them empties what was there.
    pub(crate) fn push(&mut self, messages: Vec<Arc<Message>>) {
        let Some(first) = messages.first() else { return };
        if self.messages.back().is_some_and(|newest| newest.offset + 1 != first.offset) {
            self.messages.clear();
            self.bytes = 0;
        }
        for message in messages {
            self.bytes += message.record.stored_size();
            self.messages.push_back(message);
        }
        while self.messages.len() > MAX_MESSAGES || (self.bytes > MAX_BYTES && self.messages.len() > 1) {
            let oldest = self.messages.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.record.stored_size());
        }
    }

    /// The offset of the oldest message that is here.
    pub(crate) fn start(&self) -> Option<u64> {
        self.messages.front().map(|oldest| oldest.offset)
    }

    /// Messages from this offset on; nothing if it is not here.
    pub(crate) fn from(&self, offset: u64, count: usize, max_bytes: usize) -> Option<Vec<Arc<Message>>> {
        let skip = usize::try_from(offset.checked_sub(self.start()?)?).ok()?;
        let mut bytes = 0;
        let wanted = self.messages.iter().skip(skip).take(count).take_while(|message| {
            let room = bytes < max_bytes;
            bytes += message.record.stored_size();
            room
        });
        Some(wanted.cloned().collect())
    }
}
