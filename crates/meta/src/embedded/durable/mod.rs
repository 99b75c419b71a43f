//! The durable engine: a log of groups in files of our own, over a base that is written now and then.
//!
//! The state lives in memory; this is what it is rebuilt from. A group of the writer is one frame of the log, durable with
//! one write and one sync. When enough of the log is only history that may not be read any more, a new base is written
//! beside the running store ([`BaseJob`]) and the files of the log before it are removed. Every call goes through
//! [`Disk`], so that tests can cut the power at each of them.
//!
//! What is on disk is known in one place, here: the writer hands in what happened and learns whether it is durable.

mod base;
mod frame;
mod job;
mod legacy;
mod log;
mod names;
mod open;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use capstan_disk::{Disk, Lock};

use self::frame::Kind;
pub use self::frame::MAX_CHANGE;
use self::job::Turn;
pub use self::job::{BaseJob, Written};
use self::log::{LogFile, LogHead};
pub use self::open::{Contents, create, open};
use super::codec;
use super::engine::{Base, DiskSize, Engine, EngineError, Entry, Need};
use crate::kv::Revision;

/// Format of the data directory that this version writes. Format 1 was a SQLite database; format 2 had no users and no
/// alarms, and is read as if there were none.
pub const FORMAT: u32 = 3;

/// The oldest format that is read as it is.
const OLDEST_FORMAT: u32 = 2;

/// An open data directory.
#[derive(Debug)]
pub struct Durable {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    cluster_id: u64,
    /// Files of the log that are complete, oldest first.
    sealed: VecDeque<Sealed>,
    current: LogFile,
    /// The newest revision in the log.
    head: Revision,
    next_group: u64,
    /// Whether the last frame proves that the one before it is durable.
    marked: bool,
    base: BaseFacts,
    /// A file of the log is complete when it has this many bytes.
    file_bytes: u64,
    turn: Arc<Turn>,
    /// A write or a sync failed: what is on disk is not known, and nothing may be written behind it.
    broken: bool,
    /// Held as long as the directory is open.
    _lock: Box<dyn Lock>,
}

/// A complete file of the log.
#[derive(Clone, Copy, Debug)]
struct Sealed {
    number: u64,
    bytes: u64,
    /// The newest revision when it was completed.
    last: Revision,
}

/// The base that the log goes on from.
#[derive(Clone, Copy, Debug)]
struct BaseFacts {
    number: u64,
    revision: Revision,
    bytes: u64,
}

/// Keeps frames of one file from being taken for those of another.
fn salt(cluster_id: u64, number: u64) -> u32 {
    let text = [cluster_id.to_le_bytes(), number.to_le_bytes()].concat();
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &text) as u32
}

fn check_format(found: u32) -> Result<(), EngineError> {
    if (OLDEST_FORMAT..=FORMAT).contains(&found) { Ok(()) } else { Err(EngineError::Newer(found.into())) }
}

impl Durable {
    /// Names this store among all that ever were.
    #[must_use]
    pub fn cluster_id(&self) -> u64 {
        self.cluster_id
    }

    fn write(&mut self, frame: Vec<u8>, kind: Kind) -> Result<(), EngineError> {
        if self.broken {
            return Err(EngineError::Failed("the disk has failed before".into()));
        }
        let written = self.write_frame(frame, kind);
        self.broken = matches!(written, Err(EngineError::Failed(_)));
        written
    }

    fn write_frame(&mut self, mut frame: Vec<u8>, kind: Kind) -> Result<(), EngineError> {
        let end = self.current.at + frame.len().next_multiple_of(frame::SECTOR) as u64;
        if end > self.file_bytes && self.current.has_groups() {
            self.roll()?;
        }
        self.current.seal(&mut frame, kind, self.next_group);
        self.current.append(&frame, &self.dir)?;
        self.next_group += 1;
        self.marked = kind == Kind::Mark;
        Ok(())
    }

    /// Completes the current file and begins the next one.
    fn roll(&mut self) -> Result<(), EngineError> {
        let LogHead { cluster_id, number, .. } = self.current.head;
        let head = LogHead { cluster_id, number: number + 1, first_group: self.next_group };
        let next = LogFile::create(&*self.disk, &self.dir, head, self.file_bytes)?;
        let before = std::mem::replace(&mut self.current, next);
        self.sealed.push_back(Sealed { number, bytes: before.at, last: self.head });
        Ok(())
    }

    /// The first file of the log that has something after this revision.
    fn log_from(&self, revision: Revision) -> u64 {
        let needed = self.sealed.iter().find(|file| file.last > revision);
        needed.map_or(self.current.head.number, |file| file.number)
    }

    /// Bytes of the log that a base at this revision would make superfluous.
    fn superfluous(&self, revision: Revision) -> u64 {
        self.sealed.iter().filter(|file| file.last <= revision).map(|file| file.bytes).sum()
    }

    /// Removes the files before the base. What stays for now is removed at the next opening.
    fn remove_superfluous(&mut self, former_base: u64) {
        let needed = self.log_from(self.base.revision);
        let former = Some(former_base).filter(|number| *number < self.base.number);
        let mut files: Vec<_> = former.map(|number| self.dir.join(names::base(number))).into_iter().collect();
        while let Some(file) = self.sealed.front().copied().filter(|file| file.number < needed) {
            files.push(self.dir.join(names::log(file.number)));
            self.sealed.pop_front();
        }
        for file in files {
            if let Err(error) = self.disk.remove(&file) {
                tracing::warn!(file = %file.display(), %error, "cannot remove a file that is not needed any more");
            }
        }
    }
}

impl Engine for Durable {
    fn append(&mut self, entries: &[Entry]) -> Result<(), EngineError> {
        let mut frame = frame::begin(256 * entries.len());
        entries.iter().for_each(|entry| codec::put_entry(&mut frame, entry));
        self.write(frame, Kind::Group)?;
        let changes = entries.iter().filter_map(|entry| match entry {
            Entry::Change(change) => Some(change.revision),
            Entry::LeaseGranted(..)
            | Entry::LeaseEnded(_)
            | Entry::Compacted(_)
            | Entry::Users(_)
            | Entry::Alarm(_) => None,
        });
        self.head = changes.max().unwrap_or(self.head);
        Ok(())
    }

    fn settle(&mut self) -> Result<(), EngineError> {
        if self.marked { Ok(()) } else { self.write(frame::begin(0), Kind::Mark) }
    }

    fn base_due(&self, need: Need, revision: Revision) -> bool {
        let gain = self.superfluous(revision);
        let worth = match need {
            Need::WhenWorthIt => self.base.bytes.max(self.file_bytes),
            Need::Now => 1,
        };
        revision > self.base.revision && gain >= worth
    }

    fn begin_base(&mut self, wanted: Base) -> Option<BaseJob> {
        let head = base::BaseHead {
            cluster_id: self.cluster_id,
            number: self.base.number + 1,
            revision: wanted.revision,
            compacted: wanted.compacted,
            log_from: self.log_from(wanted.revision),
            leases: wanted.leases,
            beside: wanted.beside,
        };
        BaseJob::begin(self.disk.clone(), self.dir.clone(), head, wanted.undone, &self.turn)
    }

    fn finish_base(&mut self, written: Written) {
        let former = std::mem::replace(
            &mut self.base,
            BaseFacts { number: written.number, revision: written.revision, bytes: written.bytes },
        );
        self.remove_superfluous(former.number);
    }

    fn size(&self) -> DiskSize {
        let sealed: u64 = self.sealed.iter().map(|file| file.bytes).sum();
        let rest = sealed + self.base.bytes;
        DiskSize { total: rest + self.current.grown, in_use: rest + self.current.at }
    }

    fn close(mut self: Box<Self>) -> Result<(), EngineError> {
        self.turn.stop_and_wait();
        if self.broken {
            return Ok(());
        }
        match self.settle() {
            // Then the next opening settles what this one could not.
            Err(EngineError::Full) => Ok(()),
            outcome => outcome,
        }
    }
}

impl LogFile {
    fn has_groups(&self) -> bool {
        self.at > frame::SECTOR as u64
    }
}

/// The directory for messages.
fn shown(dir: &Path) -> String {
    dir.display().to_string()
}
