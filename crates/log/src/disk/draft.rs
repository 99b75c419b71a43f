//! What goes into the next group? Appends of any logs that wait while the previous group is made durable.

use std::ops::Range;
use std::sync::Arc;

use super::change;
use super::error::DiskResult;
use super::group::Group;
use super::record;
use super::shelf::Shelf;
use super::tail::Chunk;
use super::writer::Done;
use crate::entry::{Entry, Offset};

/// Appends per group; more than any number of clients produces during one sync.
const GROUP_APPENDS: usize = 4096;
/// Bytes after which a group is closed: about what a disk writes during one sync.
const GROUP_BYTES: usize = 4 * 1024 * 1024;

/// Bytes of an append besides its records: its header and the committed offset.
const APPEND_OVERHEAD: usize = 2 * change::HEADER + 8;

/// Entries to append to a log.
pub struct Append {
    /// The log.
    pub shelf: Arc<Shelf>,
    /// The entries.
    pub entries: Vec<Entry>,
    /// Receives the outcome.
    pub done: Done,
}

/// Appends for one group.
#[derive(Default)]
pub struct Draft {
    appends: Vec<Append>,
    /// Bytes of their records.
    bytes: usize,
}

/// One append of a group.
pub struct Staged {
    shelf: Arc<Shelf>,
    /// First offset, and the one behind the last.
    offsets: Range<Offset>,
    /// The position of its records.
    records: Range<usize>,
    /// Notified when it is durable.
    pub done: Done,
}

impl Draft {
    /// Whether the group is full.
    pub fn is_full(&self) -> bool {
        self.appends.len() >= GROUP_APPENDS || self.bytes >= GROUP_BYTES
    }

    /// Adds an append.
    pub fn add(&mut self, append: Append) {
        self.bytes += append.entries.iter().map(record::size).sum::<usize>();
        self.appends.push(append);
    }

    /// The group, and what to do when it is durable. An append that does not continue its log is left out and returned
    /// with the reason; other logs are not affected.
    pub fn stage(self) -> (Group, Vec<Staged>, Vec<Told>) {
        let mut group = Group::for_bytes(self.bytes + self.appends.len() * APPEND_OVERHEAD);
        let (mut staged, mut refused) = (Vec::with_capacity(self.appends.len()), Vec::new());
        for Append { shelf, entries, done } in self.appends {
            let first = entries.first().map_or(Offset::ZERO, |entry| entry.offset);
            let offsets = first..first.plus(entries.len());
            if let Err(error) = shelf.place(&offsets) {
                refused.push((done, Err(error)));
                continue;
            }
            let encode =
                |out: &mut Vec<u8>| entries.iter().for_each(|e| record::encode(out, shelf.salt(), e));
            if let Some(committed) = shelf.unjournaled() {
                change::Change::Committed(committed).encode(shelf.id, group.content());
            }
            let records = group.append(shelf.id, encode);
            staged.push(Staged { shelf, offsets, records, done });
        }
        (group, staged, refused)
    }
}

/// A waiting caller and its result.
pub type Told = (Done, DiskResult<()>);

impl Staged {
    /// Makes the append visible to readers of its log.
    pub fn publish(&self, group: &bytes::Bytes) -> DiskResult<()> {
        let records = group.slice(self.records.clone());
        self.shelf.publish(Chunk { first: self.offsets.start, end: self.offsets.end, records })
    }

    /// Rolls the append back.
    pub fn take_back(&self) {
        self.shelf.take_back(self.offsets.start);
    }

    /// Bytes of its records.
    pub fn bytes(&self) -> usize {
        self.records.len()
    }

    /// Its log.
    pub fn log(&self) -> u64 {
        self.shelf.id
    }
}
