//! Which slot does a key belong to? CRC16 of the key, or of its hash tag, as in Redis Cluster.

use std::fmt;

pub use capstan_placement::slots::{SLOTS, SlotMap, SlotRange};

/// A slot of a cluster, below [`SLOTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// The slot with this number, if it is valid.
    #[must_use]
    pub fn new(number: u16) -> Option<Slot> {
        (number < SLOTS).then_some(Slot(number))
    }

    /// The slot that a key belongs to.
    #[must_use]
    pub fn of(key: &[u8]) -> Slot {
        Slot(crc16(hash_tag(key)) % SLOTS)
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }

    /// Its number as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The slots in both ranges.
#[must_use]
pub fn overlap(one: SlotRange, other: SlotRange) -> Option<SlotRange> {
    let first = one.first().max(other.first());
    SlotRange::new(first.into(), one.last().min(other.last()).into()).ok()
}

/// The part of a key between the first `{` and the next `}`, if not empty; else the whole key.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr::memchr(b'{', key) else { return key };
    match memchr::memchr(b'}', &key[open + 1..]) {
        None | Some(0) => key,
        Some(len) => &key[open + 1..open + 1 + len],
    }
}

/// CRC16 with polynomial 0x1021 and no reflection (XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, &byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

const TABLE: [u16; 256] = table();

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (key, slot) in
            [("", 0), ("foo", 12182), ("bar", 5061), ("{foo}.x", 12182), ("x{foo}y{bar}", 12182)]
        {
            assert_eq!(Slot::of(key.as_bytes()).number(), slot, "{key}");
        }
    }

    #[test]
    fn an_empty_or_open_tag_is_no_tag() {
        assert_eq!(hash_tag(b"{}foo"), b"{}foo");
        assert_eq!(hash_tag(b"{foo"), b"{foo");
        assert_eq!(hash_tag(b"a{{b}}"), b"{b");
    }
}
