//! What goes into the next group? The appends of any logs that wait while the group before is made durable.

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

/// Appends in one group; a sync is worth more of them than any client count will bring.
const GROUP_APPENDS: usize = 4096;
/// Bytes after which a group is closed: about what a disk writes in the time of a sync.
const GROUP_BYTES: usize = 4 * 1024 * 1024;

/// Entries that somebody wants at the end of a log.
pub struct Append {
    /// The log.
    pub shelf: Arc<Shelf>,
    /// The entries.
    pub entries: Vec<Entry>,
    /// Told what became of them.
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
    /// Where its records are.
    records: Range<usize>,
    /// Told when it is durable.
    pub done: Done,
}

impl Draft {
    /// Whether no more fits.
    pub fn is_full(&self) -> bool {
        self.appends.len() >= GROUP_APPENDS || self.bytes >= GROUP_BYTES
    }

    /// Adds an append.
    pub fn add(&mut self, append: Append) {
        self.bytes += append.entries.iter().map(record::size).sum::<usize>();
        self.appends.push(append);
    }

    /// The group, and what follows from it when it is durable. One log's trouble is not the others': appends that do not
    /// follow on what their log has are left out and come back with the reason.
    pub fn stage(self) -> (Group, Vec<Staged>, Vec<Told>) {
        let mut group = Group::for_bytes(self.bytes + self.appends.len() * change::HEADER);
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
            let records = group.append(shelf.id, encode);
            staged.push(Staged { shelf, offsets, records, done });
        }
        (group, staged, refused)
    }
}

/// Somebody, and what they are told.
pub type Told = (Done, DiskResult<()>);

impl Staged {
    /// Shows the append to readers of its log.
    pub fn publish(&self, group: &bytes::Bytes) -> DiskResult<()> {
        let records = group.slice(self.records.clone());
        self.shelf.publish(Chunk { first: self.offsets.start, end: self.offsets.end, records })
    }

    /// It will not be there.
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
