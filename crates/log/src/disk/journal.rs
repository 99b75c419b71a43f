//! How does one sync make the appends of every log durable? They go into one journal, one group at a time.
//!
//! A journal file is filled with zeros once, by a thread that prepares it in advance, and is then overwritten again and
//! again: overwriting existing blocks needs no file-system transaction, so a sync costs only what the device needs.
//! While no prepared file is available, the current one grows. Groups are written through `O_DSYNC` handles, which wait
//! for the blocks of the group alone; `fdatasync` waits for the whole file, including the other group in flight. With
//! `O_DIRECT`, where the file system supports it, they bypass the page cache, which nothing reads.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use capstan_disk::DiskFileExt as _;

use super::error::{DiskError, DiskResult};
use super::files::{File, Fs, sync_dir};
use super::group::Group;

/// Zeros written ahead when a file grows, so that one sync of the new size serves several groups.
const AHEAD: u64 = 256 * 1024;
/// Zeros per write when a file is prepared.
const FILL: usize = 1024 * 1024;

/// An open journal file.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    /// Writes through it are durable when they return.
    file: File,
    /// Its maximum length.
    size: u64,
    /// Its current length.
    grown: u64,
    first_group: u64,
}

/// The journal of a directory, open for writing.
#[derive(Debug)]
pub struct Journal {
    fs: Fs,
    dir: PathBuf,
    key: u32,
    file_bytes: u64,
    /// In use, oldest first; the last one is written.
    live: VecDeque<JournalFile>,
    /// Can be overwritten.
    free: Vec<JournalFile>,
    at: u64,
    next_group: u64,
    /// Every group up to this one is durable.
    durable: u64,
    next_file: u64,
    /// Requests for prepared files, and where they arrive.
    wanted: SyncSender<PathBuf>,
    prepared: Receiver<Option<JournalFile>>,
    asked: bool,
}

/// Prepares journal files of this length until the requester is gone. Blocking: runs on its own thread.
pub fn prepare(fs: &Fs, size: u64, wanted: &Receiver<PathBuf>, prepared: &SyncSender<Option<JournalFile>>) {
    while let Ok(path) = wanted.recv() {
        let filled = fill(fs, &path, size);
        if filled.is_err() {
            fs.remove(&path).ok();
        }
        let file = filled.ok().map(|file| JournalFile { path, file, size, grown: size, first_group: 0 });
        if prepared.send(file).is_err() {
            return;
        }
    }
}

fn fill(fs: &Fs, path: &Path, size: u64) -> std::io::Result<File> {
    let file = fs.create(path)?;
    let zeros = vec![0; FILL];
    for at in (0..size).step_by(FILL) {
        file.write_all_at(&zeros[..FILL.min((size - at) as usize)], at)?;
    }
    file.sync()?;
    path.parent().map_or(Ok(()), |dir| fs.sync_dir(dir))?;
    fs.open_through(path)
}

impl Journal {
    /// Continues with this group. Every file in the directory may be overwritten except those still needed, each given
    /// with its first group.
    pub fn begin(
        fs: &Fs,
        dir: &Path,
        key: u32,
        file_bytes: u64,
        next_group: u64,
        needed: &[(PathBuf, u64)],
        (wanted, prepared): (SyncSender<PathBuf>, Receiver<Option<JournalFile>>),
    ) -> DiskResult<Journal> {
        let (mut free, mut live) = (Vec::new(), VecDeque::new());
        let mut next_file = 0;
        for path in journal_files(fs, dir)? {
            let opened = fs.open_through(&path).and_then(|file| Ok((file.size()?, file)));
            let (size, file) = opened.map_err(|error| DiskError::io(&path, &error))?;
            next_file = next_file.max(number_of(&path) + 1);
            // A needed file counts as full at any length: nothing is written after a tail that may be torn.
            match needed.iter().find(|(other, _)| *other == path) {
                Some((_, first_group)) => {
                    live.push_back(JournalFile { path, file, size, grown: size, first_group: *first_group });
                }
                None => {
                    let (size, grown) = (size.max(file_bytes), size);
                    free.push(JournalFile { path, file, size, grown, first_group: 0 });
                }
            }
        }
        live.make_contiguous().sort_by_key(|file| file.first_group);
        let at = live.back().map_or(0, |file| file.size);
        let dir = dir.to_owned();
        let asked = false;
        let durable = next_group - 1;
        let mut journal = Journal {
            fs: Arc::clone(fs),
            dir,
            key,
            file_bytes,
            live,
            free,
            at,
            next_group,
            durable,
            next_file,
            wanted,
            prepared,
            asked,
        };
        journal.ask();
        Ok(journal)
    }

    /// The first group that is not durable.
    #[must_use]
    pub fn first_pending(&self) -> u64 {
        self.durable + 1
    }

    /// The number of groups that were placed and are not durable.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.next_group - self.first_pending()
    }

    /// Bytes of the files that cannot be overwritten yet.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live.iter().map(|file| file.size).sum()
    }

    /// Assigns a group its number and position.
    pub fn place(&mut self, group: &mut Group) -> DiskResult<Write> {
        let number = self.next_group;
        let bytes = group.seal(number, self.durable, self.key);
        let end = self.at + bytes;
        self.receive();
        let ready = self.free.iter().any(|file| file.grown >= self.file_bytes && file.size >= bytes);
        // A file that would have to grow is abandoned as soon as a prepared one is available.
        if self.live.back().is_none_or(|file| end > file.size || (end > file.grown && ready)) {
            let next = self.next_file(bytes, number)?;
            self.live.push_back(next);
            self.at = 0;
        }
        let Some(current) = self.live.back_mut() else { return Err(DiskError::Closed) };
        let write =
            Write { file: Arc::clone(&current.file), path: current.path.clone(), at: self.at, number };
        self.at += bytes;
        self.next_group += 1;
        if self.at <= current.grown {
            return Ok(write);
        }
        // Extends the file now, so that a full disk fails here and the group only overwrites.
        if let Err(error) = current.grow(&self.fs, self.at) {
            self.at -= bytes;
            self.next_group -= 1;
            return Err(error);
        }
        Ok(write)
    }

    /// Records that the group with this number and all earlier ones are durable.
    pub fn completed(&mut self, number: u64) {
        self.durable = number;
    }

    /// Takes a prepared file, if one has arrived.
    fn receive(&mut self) {
        if self.asked
            && let Ok(answer) = self.prepared.try_recv()
        {
            self.asked = false;
            self.free.extend(answer);
        }
    }

    /// Requests a file if none is available.
    fn ask(&mut self) {
        if !self.asked && self.free.is_empty() {
            let path = self.dir.join(format!("{:08}.journal", self.next_file));
            self.next_file += 1;
            self.asked = self.wanted.try_send(path).is_ok();
        }
    }

    fn next_file(&mut self, needed: u64, first_group: u64) -> DiskResult<JournalFile> {
        let fits = |file: &&(usize, &JournalFile)| file.1.size >= needed;
        let longest =
            self.free.iter().enumerate().filter(|file| fits(&file)).max_by_key(|(_, file)| file.grown);
        if let Some(index) = longest.map(|(index, _)| index) {
            let next = JournalFile { first_group, ..self.free.swap_remove(index) };
            self.ask();
            return Ok(next);
        }
        let path = self.dir.join(format!("{:08}.journal", self.next_file));
        let file = self.fs.create(&path).and_then(|_| self.fs.open_through(&path));
        let file = file.map_err(|error| DiskError::io(&path, &error))?;
        sync_dir(&self.fs, &self.dir)?;
        self.next_file += 1;
        Ok(JournalFile { path, file, size: self.file_bytes.max(needed), grown: 0, first_group })
    }

    /// Frees the files of groups before this one.
    pub fn release(&mut self, before: u64) {
        while self.live.len() > 1 && self.live[1].first_group <= before {
            self.free.extend(self.live.pop_front());
        }
    }
}

impl JournalFile {
    /// Makes the file at least this long, plus some zeros ahead.
    fn grow(&mut self, fs: &Fs, end: u64) -> DiskResult<()> {
        let wanted = self.size.min(end + AHEAD).max(end);
        let zeros = vec![0; (wanted - self.grown) as usize];
        // Real zeros, not a hole: later groups find allocated blocks, as in a prepared file.
        let failed = |error: std::io::Error| DiskError::io(&self.path, &error);
        let file = fs.open(&self.path).map_err(failed)?;
        if let Err(error) = file.write_all_at(&zeros, self.grown) {
            file.set_size(self.grown).ok();
            return Err(failed(error));
        }
        // A failed sync may also have lost the other group in flight.
        file.sync().map_err(|error| DiskError::sync(&self.path, &error))?;
        self.grown = wanted;
        Ok(())
    }
}

/// A group in flight to the disk.
#[derive(Debug)]
pub struct Write {
    /// The group's number.
    pub number: u64,
    file: File,
    path: PathBuf,
    at: u64,
}

impl Write {
    /// Writes the group and makes it durable. Its blocks exist, so a failure is never a full disk that could be rolled
    /// back.
    pub fn perform(&self, group: &Group) -> DiskResult<()> {
        let done = self.file.write_all_at(group.sealed(), self.at);
        done.map_err(|error| DiskError::Failed(format!("{}: {error}", self.path.display())))
    }
}

/// The files of the journal in this directory, by name.
pub fn journal_files(fs: &Fs, dir: &Path) -> DiskResult<Vec<PathBuf>> {
    let names = fs.list(dir).map_err(|error| DiskError::io(dir, &error))?;
    let mut paths: Vec<PathBuf> = names.iter().map(|name| dir.join(name)).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "journal"));
    paths.sort();
    Ok(paths)
}

fn number_of(path: &Path) -> u64 {
    path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok()).unwrap_or_default()
}
