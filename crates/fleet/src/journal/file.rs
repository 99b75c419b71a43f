//! The journal on the disk: appended, synced, locked; a torn end is cut, other damage is reported.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::record::{Course, Entry, Event, decode, encode};
use super::resume::essence;
use crate::artifact::files::{make_dir, sync_dir, write_atomic};

/// From this size on the journal is replaced by what still matters, which is a few dozen lines.
const COMPACT_BYTES: u64 = 256 * 1024;
/// A journal beyond this was not written by us.
const MAX_BYTES: u64 = 16 * 1024 * 1024;
/// A failure's text is for people; the whole output is in the step's file.
const MAX_WHY: usize = 2000;

/// Why the journal does not work.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another worker runs on this host.
    #[error("another worker uses {0}: only one may run on a host")]
    InUse(PathBuf),
    /// A line in the middle is damaged: what happened cannot be known.
    #[error("{path} is damaged in line {line}: look at the host, then remove the file")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
    },
    /// The disk.
    #[error("{path}: {error}")]
    Disk {
        /// Which file.
        path: PathBuf,
        /// What went wrong.
        error: io::Error,
    },
}

/// The journal of one host, held by one worker.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    bytes: u64,
    entries: Vec<Entry>,
    next: u64,
    /// Held as long as the journal: a second worker on the host would act twice.
    _lock: File,
}

impl Journal {
    /// Opens or makes the journal in a directory.
    pub fn open(dir: &Path) -> Result<Journal, JournalError> {
        let path = dir.join("journal");
        let disk = |error| JournalError::Disk { path: path.clone(), error };
        make_dir(dir).map_err(disk)?;
        let lock = lock(&dir.join("journal.lock"))?;
        let mut options = OpenOptions::new();
        let mut file = options.create(true).read(true).append(true).open(&path).map_err(disk)?;
        sync_dir(dir).map_err(disk)?;
        let content = read_whole(&mut file).map_err(disk)?;
        let (entries, good) =
            read_lines(&content).map_err(|line| JournalError::Damaged { path: path.clone(), line })?;
        if good < content.len() {
            tracing::warn!(path = %path.display(), cut = content.len() - good, "cut the torn end of the journal");
            file.set_len(good as u64).and_then(|()| file.sync_all()).map_err(disk)?;
        }
        let next = entries.last().map_or(1, |entry| entry.number + 1);
        Ok(Journal { path, file, bytes: good as u64, entries, next, _lock: lock })
    }

    /// What happened, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Writes what is about to happen or has happened; when this returns it is on the disk.
    pub fn append(&mut self, course: &Course, event: Event) -> Result<(), JournalError> {
        let event = match event {
            Event::Failed { act, why } => Event::Failed { act, why: why.chars().take(MAX_WHY).collect() },
            Event::Intent(_) | Event::Done(_) | Event::Finished => event,
        };
        let entry = Entry { number: self.next, at: now(), course: course.clone(), event };
        let line = encode(&entry).map_err(|e| self.disk(e.into()))?;
        if self.bytes + line.len() as u64 > COMPACT_BYTES {
            self.compact()?;
        }
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Half a line would hide the next one.
            let _ = self.file.set_len(self.bytes);
            return Err(self.disk(error));
        }
        self.bytes += line.len() as u64;
        self.next += 1;
        self.entries.push(entry);
        Ok(())
    }

    fn compact(&mut self) -> Result<(), JournalError> {
        let kept = essence(&self.entries);
        let lines: Result<Vec<Vec<u8>>, _> = kept.iter().map(encode).collect();
        let content = lines.map_err(|e| self.disk(e.into()))?.concat();
        write_atomic(&self.path, &content).map_err(|e| self.disk(e))?;
        self.file = OpenOptions::new().read(true).append(true).open(&self.path).map_err(|e| self.disk(e))?;
        self.bytes = content.len() as u64;
        self.entries = kept;
        Ok(())
    }

    fn disk(&self, error: io::Error) -> JournalError {
        JournalError::Disk { path: self.path.clone(), error }
    }
}

fn read_whole(file: &mut File) -> io::Result<Vec<u8>> {
    if file.metadata()?.len() > MAX_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large to be a journal"));
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(content)
}

/// The journal of a host that may be running: for reports and tests.
pub fn read(path: &Path) -> Result<Vec<Entry>, JournalError> {
    let content = std::fs::read(path).map_err(|error| JournalError::Disk { path: path.to_owned(), error })?;
    let read = read_lines(&content);
    read.map(|(entries, _)| entries).map_err(|line| JournalError::Damaged { path: path.to_owned(), line })
}

fn lock(path: &Path) -> Result<File, JournalError> {
    let disk = |error| JournalError::Disk { path: path.to_owned(), error };
    let file = OpenOptions::new().create(true).append(true).open(path).map_err(disk)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::InUse(path.to_owned())),
        Err(TryLockError::Error(error)) => Err(disk(error)),
    }
}

/// A write that the crash cut short ends without a line break, or has blocks that were never written. A whole line
/// that is wrong is something else: what it said may matter.
fn is_torn(line: &[u8]) -> bool {
    !line.ends_with(b"\n") || line.contains(&0)
}

/// The entries, and how many bytes of whole lines they take. The last line may be torn; no other, and no entry may be
/// missing between two others of one request.
fn read_lines(content: &[u8]) -> Result<(Vec<Entry>, usize), usize> {
    let (mut entries, mut good) = (Vec::<Entry>::new(), 0);
    for (index, line) in content.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let whole = line.strip_suffix(b"\n").and_then(decode);
        let last = good + line.len() == content.len();
        match whole {
            Some(entry) if entries.last().is_none_or(|before| before.number < entry.number) => {
                entries.push(entry)
            }
            None if last && is_torn(line) => return Ok((entries, good)),
            Some(_) | None => return Err(index + 1),
        }
        good += line.len();
    }
    Ok((entries, good))
}

/// The host's clock, for readers of the journal.
pub(crate) fn now() -> Timestamp {
    let since = capstan_meta::clock::since_epoch();
    Timestamp::from_duration(jiff::SignedDuration::try_from(since).unwrap_or_default())
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Act;
    use crate::release::StepNumber;
    use crate::run::{Generation, Permission};

    fn line(number: u64) -> Vec<u8> {
        let act = Act { step: StepNumber::FIRST, number: number as u32 };
        let (generation, permission) = (Generation(1), Permission::Upgrade);
        let course = Course { generation, permission, release: "1.0".parse().unwrap() };
        encode(&Entry { number, at: Timestamp::UNIX_EPOCH, course, event: Event::Intent(act) }).unwrap()
    }

    #[test]
    fn a_torn_end_is_cut_wherever_it_tears() {
        let whole = [line(1), line(2)].concat();
        for cut in line(1).len()..whole.len() {
            let (entries, good) = read_lines(&whole[..cut]).unwrap();
            assert_eq!((entries.len(), good), (1, line(1).len()), "cut at {cut}");
        }
        assert_eq!(read_lines(&whole).unwrap().0.len(), 2);
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let whole = [line(1), line(2)].concat();
        for at in 0..line(1).len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert!(read_lines(&damaged).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_line_twice_is_damage() {
        assert_eq!(read_lines(&[line(1), line(1)].concat()).unwrap_err(), 2);
    }
}
