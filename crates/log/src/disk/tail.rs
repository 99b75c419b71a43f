//! Which entries of a log are durable in the journal and not in its segments yet? Its tail: kept in memory and read
//! from there until it is moved into the segments in large writes.

use std::collections::VecDeque;

use bytes::Bytes;

use super::record::Header;
use crate::entry::{LogEpoch, Offset};

/// The records of one append, with the same bytes as in the journal and in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Its first offset.
    pub first: Offset,
    /// The offset after its last entry.
    pub end: Offset,
    /// The records; they share the memory of their group.
    pub records: Bytes,
}

impl Chunk {
    /// A chunk of these records; `None` if they are not complete records at consecutive offsets.
    #[must_use]
    pub fn of(records: Bytes) -> Option<Chunk> {
        let first = Header::read(&records)?.offset;
        let (mut at, mut end) = (0, first);
        while at < records.len() {
            let header = Header::read(&records[at..]).filter(|header| header.offset == end)?;
            at += header.record_len();
            end = end.plus(1);
        }
        (at == records.len()).then_some(Chunk { first, end, records })
    }

    /// Offset, epoch and position of every record.
    pub fn entries(&self) -> impl Iterator<Item = (Offset, LogEpoch, usize)> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let header = Header::read(&self.records[at..])?;
            let found = (header.offset, header.epoch, at);
            at += header.record_len();
            Some(found)
        })
    }

    /// The part before this offset.
    fn before(&self, end: Offset) -> Chunk {
        let at = self.position(end);
        Chunk { first: self.first, end, records: self.records.slice(..at) }
    }

    /// The position of the record with this offset.
    #[must_use]
    pub fn position(&self, wanted: Offset) -> usize {
        self.entries().find(|(offset, ..)| *offset == wanted).map_or(self.records.len(), |(.., at)| at)
    }
}

/// Consecutive chunks of one log.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    chunks: VecDeque<Chunk>,
}

impl Tail {
    /// Adds records at the end.
    pub fn push(&mut self, chunk: Chunk) {
        self.chunks.push_back(chunk);
    }

    /// Bytes of its records.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.records.len()).sum()
    }

    /// The oldest chunks that end at or before this offset.
    pub fn upto(&self, end: Offset) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().take_while(move |chunk| chunk.end <= end)
    }

    /// Drops chunks that end at or before this offset: they are in the segments.
    pub fn release(&mut self, end: Offset) {
        while self.chunks.front().is_some_and(|chunk| chunk.end <= end) {
            self.chunks.pop_front();
        }
    }

    /// Drops everything from this offset on.
    pub fn cut(&mut self, from: Offset) {
        while self.chunks.back().is_some_and(|chunk| chunk.first >= from) {
            self.chunks.pop_back();
        }
        if let Some(last) = self.chunks.back_mut().filter(|chunk| chunk.end > from) {
            *last = last.before(from);
        }
    }

    /// The chunks from the one with this offset on: at least that one, and about this many bytes.
    #[must_use]
    pub fn from(&self, offset: Offset, max_bytes: usize) -> Vec<Chunk> {
        let first = self.chunks.partition_point(|chunk| chunk.end <= offset);
        let mut bytes = 0;
        let fits = |chunk: &&Chunk| {
            let wanted = bytes == 0 || bytes < max_bytes;
            bytes += chunk.records.len();
            wanted
        };
        self.chunks.range(first..).take_while(fits).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{self, Salt};
    use super::*;
    use crate::entry::{Entry, EntryKind};
    use std::time::Duration;

    fn chunk(offsets: std::ops::Range<u64>) -> Chunk {
        let mut records = Vec::new();
        for offset in offsets {
            let data = Bytes::from(vec![7; offset as usize]);
            let entry = Entry {
                epoch: LogEpoch(1),
                offset: Offset(offset),
                kind: EntryKind::Data,
                time: Duration::ZERO,
                data,
            };
            record::encode(&mut records, Salt(0), &entry);
        }
        Chunk::of(records.into()).unwrap()
    }

    fn tail() -> Tail {
        let mut tail = Tail::default();
        [0..3, 3..4, 4..8].into_iter().for_each(|offsets| tail.push(chunk(offsets)));
        tail
    }

    fn ends(chunks: &[Chunk]) -> Vec<(u64, u64)> {
        chunks.iter().map(|chunk| (chunk.first.0, chunk.end.0)).collect()
    }

    #[test]
    fn chunks_are_found_released_and_cut_by_offset() {
        let mut tail = tail();
        assert_eq!(ends(&tail.from(Offset(2), 1_000)), [(0, 3), (3, 4), (4, 8)]);
        assert_eq!(ends(&tail.from(Offset(3), 1)), [(3, 4)]);
        assert_eq!(ends(&tail.from(Offset(8), 1)), []);
        tail.cut(Offset(6));
        assert_eq!(tail.chunks.back(), Some(&chunk(4..6)));
        tail.release(Offset(5));
        assert_eq!(ends(&tail.from(Offset(4), 1_000)), [(4, 6)]);
        tail.cut(Offset(4));
        assert_eq!(tail.bytes(), 0);
    }

    #[test]
    fn bytes_that_are_no_records_make_no_chunk() {
        let whole = chunk(3..6).records;
        assert!(Chunk::of(whole.slice(..whole.len() - 1)).is_none());
        assert!(Chunk::of(Bytes::new()).is_none());
        let gap = [chunk(1..2).records, chunk(3..4).records].concat();
        assert!(Chunk::of(gap.into()).is_none());
    }
}
