//! What is one write to the journal? A group of changes, of any logs.
//!
//! ```text
//! magic u32 | crc32c u32 | number u64 | length u32 | durable u64 | flags u8 | 3 zeros | changes | zeros to a whole block
//! ```
//!
//! A group begins at a block boundary and has a number and a checksum; remains of an earlier use of the file have lower
//! numbers. Two groups may be in flight, so each also records which group was durable when it was written: a missing
//! group after that one was never acknowledged.

use std::ops::Range;

use bytes::Bytes;

use super::change;
use super::record::{crc32c, u32_at};

/// Groups begin at multiples of this, so that no acknowledged byte is ever rewritten.
pub(super) const BLOCK: usize = 4096;
/// Bytes before the content of a group.
pub(super) const GROUP_HEADER: usize = 32;
pub(super) const MAGIC: u32 = 0x4a50_4143;
/// The flag for a header that has the number of the group that was durable when it was written.
pub(super) const KNOWS_DURABLE: u8 = 1;

/// A group under construction.
#[derive(Debug)]
pub struct Group {
    /// Valid from `begin` on, which is block-aligned in memory as long as the expected size was sufficient.
    bytes: Vec<u8>,
    begin: usize,
}

impl Default for Group {
    fn default() -> Group {
        Group::for_bytes(0)
    }
}

impl Group {
    /// An empty group with space for this many bytes.
    #[must_use]
    pub fn for_bytes(expected: usize) -> Group {
        let mut bytes: Vec<u8> =
            Vec::with_capacity((GROUP_HEADER + expected).next_multiple_of(BLOCK) + BLOCK);
        let begin = bytes.as_ptr().align_offset(BLOCK).min(BLOCK);
        bytes.resize(begin + GROUP_HEADER, 0);
        Group { bytes, begin }
    }

    /// The buffer of the content.
    pub fn content(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Adds an append to a log, whose records `body` writes; returns their position in the frozen group.
    pub fn append(&mut self, log: u64, body: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
        let before = self.begin + GROUP_HEADER;
        let records = change::put_append(&mut self.bytes, log, body);
        records.start - before..records.end - before
    }

    /// Bytes of content so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.begin - GROUP_HEADER
    }

    /// Assigns this number, with the group that is durable now; returns the length on disk.
    pub(super) fn seal(&mut self, number: u64, durable: u64, key: u32) -> u64 {
        let content = self.len() as u32;
        let sealed = &mut self.bytes[self.begin..];
        sealed[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        sealed[8..16].copy_from_slice(&number.to_le_bytes());
        sealed[16..20].copy_from_slice(&content.to_le_bytes());
        sealed[20..28].copy_from_slice(&durable.to_le_bytes());
        sealed[28] = KNOWS_DURABLE;
        let crc = crc32c(&sealed[8..]) ^ key;
        sealed[4..8].copy_from_slice(&crc.to_le_bytes());
        let padded = sealed.len().next_multiple_of(BLOCK);
        self.bytes.resize(self.begin + padded, 0);
        padded as u64
    }

    /// The bytes as they are written.
    pub(super) fn sealed(&self) -> &[u8] {
        &self.bytes[self.begin..]
    }

    /// The content as it was written; later reads share this memory.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        let content = self.begin + GROUP_HEADER..self.begin + GROUP_HEADER + self.content_len();
        if self.bytes.capacity() > 2 * content.len() {
            // Copied without the padding, because it is kept until its last entry is in a segment.
            return Bytes::copy_from_slice(&self.bytes[content]);
        }
        Bytes::from(self.bytes).slice(content)
    }

    /// Bytes of content of a sealed group.
    fn content_len(&self) -> usize {
        u32_at(self.sealed(), 16) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Group};

    fn sealed(bytes: usize, expected: usize) -> (Group, std::ops::Range<usize>) {
        let mut group = Group::for_bytes(expected);
        let records = group.append(1, |out| out.resize(out.len() + bytes, 7));
        group.seal(2, 1, 0);
        (group, records)
    }

    #[test]
    fn a_group_of_the_expected_size_is_blocks_in_memory_too() {
        for bytes in [0, 1, 4_000, 4_064, 40_000] {
            let (group, records) = sealed(bytes, bytes + super::change::HEADER);
            assert_eq!(group.sealed().as_ptr().align_offset(BLOCK), 0, "{bytes}");
            assert_eq!(group.sealed().len() % BLOCK, 0, "{bytes}");
            assert_eq!(group.freeze()[records], vec![7; bytes], "{bytes}");
        }
    }

    #[test]
    fn what_is_kept_of_a_small_group_is_small() {
        let (group, records) = sealed(10, 10);
        let kept = group.freeze();
        assert_eq!(kept[records], [7; 10]);
        assert!(kept.try_into_mut().unwrap().capacity() < 64);
    }
}
