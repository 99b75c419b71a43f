//! One file of the log: made with zeros ahead, written frame by frame, read back after a restart.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::BufMut;
use capstan_disk::{DRAFT, Disk, DiskFile, DiskFileExt as _};

use super::frame::{self, Kind, SECTOR, Scan};
use super::{FORMAT, names};
use crate::embedded::codec::{Reader, damaged};
use crate::embedded::engine::EngineError;

/// Zeros written ahead at most: growing costs a sync of its own, so it is paid for many groups at once.
const AHEAD: u64 = 1 << 20;

/// Facts about a file of the log, in its first frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogHead {
    pub(super) cluster_id: u64,
    pub(super) number: u64,
    /// Number of its first group.
    pub(super) first_group: u64,
}

impl LogHead {
    fn salt(self) -> u32 {
        super::salt(self.cluster_id, self.number)
    }

    fn frame(self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(32);
        payload.put_u32_le(FORMAT);
        payload.put_u64_le(self.cluster_id);
        payload.put_u64_le(self.number);
        payload.put_u64_le(self.first_group);
        frame::framed(Kind::Head, 0, 0, &payload)
    }

    fn read(content: &[u8]) -> Result<LogHead, EngineError> {
        let head = &content[..content.len().min(SECTOR)];
        let frames = frame::scan(head, 0, 0, 0)?.frames;
        let first = frames.first().filter(|frame| frame.kind == Kind::Head);
        let payload = &head[first.ok_or_else(|| damaged("it has no head"))?.payload.clone()];
        let mut fields = Reader(payload);
        super::check_format(fields.u32()?)?;
        let (cluster_id, number, first_group) = (fields.u64()?, fields.u64()?, fields.u64()?);
        Ok(LogHead { cluster_id, number, first_group })
    }
}

/// A file of the log as it was found: the file, its content and its head.
pub(super) type FoundLog = (Arc<dyn DiskFile>, Vec<u8>, LogHead);

/// A file of the log, open for writing.
#[derive(Debug)]
pub(super) struct LogFile {
    pub(super) head: LogHead,
    file: Arc<dyn DiskFile>,
    /// Where the next frame goes.
    pub(super) at: u64,
    /// Up to here there are zeros, durably.
    pub(super) grown: u64,
    ahead: u64,
}

impl LogFile {
    /// Makes a file, durably and under its name; nothing is left behind if there is no room.
    pub(super) fn create(
        disk: &dyn Disk,
        dir: &Path,
        head: LogHead,
        limit: u64,
    ) -> Result<LogFile, EngineError> {
        let name = names::log(head.number);
        let (draft, path) = (dir.join(format!("{name}{DRAFT}")), dir.join(name));
        let made = LogFile::draft(disk, &draft, head, limit);
        if made.is_err() {
            // A draft that stays is removed at the next opening.
            disk.remove(&draft).ok();
        }
        let made = made?;
        disk.rename(&draft, &path).map_err(|error| failed(&path, &error))?;
        disk.sync_dir(dir).map_err(|error| failed(dir, &error))?;
        Ok(made)
    }

    fn draft(disk: &dyn Disk, path: &Path, head: LogHead, limit: u64) -> Result<LogFile, EngineError> {
        let file = disk.create(path).map_err(|error| classed(path, &error))?;
        let frame = head.frame();
        file.write_all_at(&frame, 0).map_err(|error| classed(path, &error))?;
        let ahead = AHEAD.min(limit / 4).next_multiple_of(SECTOR as u64);
        let at = frame.len() as u64;
        let mut log = LogFile { head, file, at, grown: at, ahead };
        log.reserve(SECTOR, path)?;
        Ok(log)
    }

    /// Reads a file's content and head.
    pub(super) fn read(disk: &dyn Disk, dir: &Path, number: u64) -> Result<FoundLog, EngineError> {
        let path = names::log_path(dir, number);
        let open = || {
            let file = disk.open(&path)?;
            let content = file.read_all()?;
            Ok((file, content))
        };
        let (file, content) = open().map_err(|error: io::Error| failed(&path, &error))?;
        let head = LogHead::read(&content).map_err(|error| named(&path, error))?;
        if head.number != number {
            return Err(damaged(format!("{} calls itself file {}", path.display(), head.number)));
        }
        Ok((file, content, head))
    }

    /// The groups in a file's content.
    pub(super) fn scan(dir: &Path, content: &[u8], head: LogHead) -> Result<Scan, EngineError> {
        let path = names::log_path(dir, head.number);
        frame::scan(content, SECTOR, head.first_group, head.salt()).map_err(|error| named(&path, error))
    }

    /// Goes on with the last file. What was found in it is durable when this returns: the remains of a torn frame are
    /// gone, and the last frame is written once more, because its sync may have failed (only the frames before it are
    /// known to be on disk).
    pub(super) fn resume(
        file: Arc<dyn DiskFile>,
        content: &[u8],
        head: LogHead,
        scan: &Scan,
        (dir, limit): (&Path, u64),
    ) -> Result<LogFile, EngineError> {
        let path = names::log_path(dir, head.number);
        let settle = || {
            if let Some(until) = scan.torn_until {
                file.write_all_at(&vec![0; until - scan.end], scan.end as u64)?;
            } else if let Some(last) = scan.frames.last() {
                file.write_all_at(&content[last.bytes.clone()], last.bytes.start as u64)?;
            }
            file.sync()
        };
        settle().map_err(|error| failed(&path, &error))?;
        let ahead = AHEAD.min(limit / 4).next_multiple_of(SECTOR as u64);
        Ok(LogFile { head, file, at: scan.end as u64, grown: content.len() as u64, ahead })
    }

    /// Seals a frame for this file.
    pub(super) fn seal(&self, frame: &mut Vec<u8>, kind: Kind, number: u64) {
        frame::seal(frame, kind, number, self.head.salt());
    }

    /// Writes a frame and makes it durable. `Full`: nothing of it is there.
    pub(super) fn append(&mut self, frame: &[u8], dir: &Path) -> Result<(), EngineError> {
        let path = names::log_path(dir, self.head.number);
        self.reserve(frame.len(), &path)?;
        if let Err(error) = self.file.write_all_at(frame, self.at) {
            // Some file systems need room even to write over what exists. The zeros must be back before anything else.
            let erase = || {
                self.file.write_all_at(&vec![0; frame.len()], self.at)?;
                self.file.sync()
            };
            erase().map_err(|error| failed(&path, &error))?;
            return Err(classed(&path, &error));
        }
        // A sync that failed cannot be repeated: the system may have dropped what it should have written.
        self.file.sync().map_err(|error| failed(&path, &error))?;
        self.at += frame.len() as u64;
        Ok(())
    }

    /// Makes room for a frame: zeros that are on disk.
    fn reserve(&mut self, bytes: usize, path: &Path) -> Result<(), EngineError> {
        let end = self.at + bytes as u64;
        if end <= self.grown {
            return Ok(());
        }
        match self.grow(end + self.ahead, path) {
            Err(EngineError::Full) => self.grow(end, path),
            outcome => outcome,
        }
    }

    fn grow(&mut self, to: u64, path: &Path) -> Result<(), EngineError> {
        let zeros = vec![0; (to - self.grown) as usize];
        let grown = self.file.write_all_at(&zeros, self.grown).and_then(|()| self.file.sync());
        if let Err(error) = grown {
            self.file.set_size(self.grown).map_err(|error| failed(path, &error))?;
            return Err(classed(path, &error));
        }
        self.grown = to;
        Ok(())
    }
}

/// An error that a caller may survive: there was no room.
pub(super) fn classed(path: &Path, error: &io::Error) -> EngineError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => EngineError::Full,
        _ => failed(path, error),
    }
}

/// An error after which nothing on disk is believed.
pub(super) fn failed(path: &Path, error: &io::Error) -> EngineError {
    EngineError::Failed(format!("{}: {error}", path.display()))
}

/// Names the file in which damage was found.
pub(super) fn named(path: &Path, error: EngineError) -> EngineError {
    match error {
        EngineError::Corrupt(what) => {
            EngineError::Corrupt(format!("{}: {what}", PathBuf::from(path).display()))
        }
        EngineError::Full | EngineError::Failed(_) | EngineError::Newer(_) => error,
    }
}
