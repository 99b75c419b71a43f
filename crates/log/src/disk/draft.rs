//! What goes into the next group? Appends of any logs, encoded one behind the other while the group before is synced.

use std::ops::Range;
use std::sync::Arc;

use super::change;
use super::error::DiskResult;
use super::journal::Group;
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

/// A group of appends that nobody has checked against their logs yet.
pub struct Draft {
    group: Group,
    staged: Vec<Staged>,
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
    /// An empty draft, with room for so many bytes.
    pub fn for_bytes(expected: usize) -> Draft {
        Draft { group: Group::for_bytes(expected), staged: Vec::new() }
    }

    /// Whether no more fits.
    pub fn is_full(&self) -> bool {
        self.staged.len() >= GROUP_APPENDS || self.group.len() >= GROUP_BYTES
    }

    /// Bytes of content so far.
    pub fn bytes(&self) -> usize {
        self.group.len()
    }

    /// Adds an append.
    pub fn add(&mut self, append: Append) {
        let Append { shelf, entries, done } = append;
        let first = entries.first().map_or(Offset::ZERO, |entry| entry.offset);
        let encode = |out: &mut Vec<u8>| entries.iter().for_each(|e| record::encode(out, shelf.salt(), e));
        let records = change::put_append(self.group.content(), shelf.id, encode);
        self.staged.push(Staged { shelf, offsets: first..first.plus(entries.len()), records, done });
    }

    /// The group, and what follows from it when it is durable. One log's trouble is not the others': appends that do not
    /// follow on what their log has are taken out and come back with the reason.
    pub fn check(self) -> (Group, Vec<Staged>, Vec<Told>) {
        let (mut good, mut refused) = (Vec::with_capacity(self.staged.len()), Vec::new());
        for staged in self.staged {
            match staged.shelf.place(&staged.offsets) {
                Ok(()) => good.push(staged),
                Err(error) => refused.push((staged.done, Err(error))),
            }
        }
        let mut group = self.group;
        if !refused.is_empty() {
            group = rebuild(&mut group, &mut good);
        }
        (group, good, refused)
    }

    /// Everybody, to be told that it did not happen.
    pub fn refuse(self) -> impl Iterator<Item = Done> {
        self.staged.into_iter().map(|staged| staged.done)
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

/// The same group with only these appends.
fn rebuild(group: &mut Group, kept: &mut [Staged]) -> Group {
    let mut rebuilt = Group::for_bytes(group.len());
    for staged in kept {
        let records = &group.content()[staged.records.clone()];
        let copy = |out: &mut Vec<u8>| out.extend_from_slice(records);
        staged.records = change::put_append(rebuilt.content(), staged.shelf.id, copy);
    }
    rebuilt
}
