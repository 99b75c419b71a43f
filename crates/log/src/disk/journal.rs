//! How does one sync make the appends of every log durable? They go into one journal, a group at a time.
//!
//! A journal file is filled with zeros once, by a thread that prepares it in advance, and is then written over again and
//! again: overwriting blocks that exist needs no file-system transaction, so a sync costs what the device needs and
//! nothing more. While no prepared file is there, one grows under the writing. Groups are written through handles with
//! `O_DSYNC`: that waits for the blocks of the group alone, where `fdatasync` waits for all of the file, the other group
//! on its way included. Where the file system has `O_DIRECT` they also pass by the page cache, from which nobody would
//! read them.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

use nix::fcntl::OFlag;

use super::error::{DiskError, DiskResult};
use super::files::sync_dir;
use super::group::{BLOCK, Group};

/// Zeros written ahead when a file grows: the sync that pays for growing pays for the next groups too.
const AHEAD: u64 = 256 * 1024;
/// Zeros written at once when a file is prepared.
const FILL: usize = 1024 * 1024;

/// Handles of a file through which what is written is durable when the write returns.
#[derive(Debug)]
struct Handles {
    /// By way of the page cache.
    cached: File,
    /// Past it, for memory that begins at a multiple of a block: if the file system can.
    direct: Option<File>,
}

impl Handles {
    fn open(path: &Path) -> std::io::Result<Handles> {
        let open =
            |flags: OFlag| File::options().read(true).write(true).custom_flags(flags.bits()).open(path);
        Ok(Handles { cached: open(OFlag::O_DSYNC)?, direct: open(OFlag::O_DSYNC | OFlag::O_DIRECT).ok() })
    }

    /// Writes whole blocks over what is there.
    fn write(&self, blocks: &[u8], at: u64) -> std::io::Result<()> {
        let aligned = blocks.as_ptr().align_offset(BLOCK) == 0;
        match self.direct.as_ref().filter(|_| aligned).map(|file| file.write_all_at(blocks, at)) {
            // Not with this device after all.
            Some(Err(error)) if error.kind() == std::io::ErrorKind::InvalidInput => {}
            Some(outcome) => return outcome,
            None => {}
        }
        self.cached.write_all_at(blocks, at)
    }
}

/// A file of the journal, open.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    file: Arc<Handles>,
    /// How long it may become.
    size: u64,
    /// How long it is.
    grown: u64,
    first_group: u64,
}

/// The journal of a directory, open for writing.
#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    key: u32,
    file_bytes: u64,
    /// In use, oldest first; the last one is written to.
    live: VecDeque<JournalFile>,
    /// To be written over.
    free: Vec<JournalFile>,
    at: u64,
    next_group: u64,
    /// Every group up to this one is durable.
    durable: u64,
    next_file: u64,
    /// Where a file is asked for, and where it arrives.
    wanted: SyncSender<PathBuf>,
    prepared: Receiver<Option<JournalFile>>,
    asked: bool,
}

/// Prepares journal files of this length until nobody can ask any more. Blocking: for a thread of its own.
pub fn prepare(size: u64, wanted: &Receiver<PathBuf>, prepared: &SyncSender<Option<JournalFile>>) {
    while let Ok(path) = wanted.recv() {
        let filled = fill(&path, size);
        if filled.is_err() {
            std::fs::remove_file(&path).ok();
        }
        let file = filled.ok().map(|file| JournalFile {
            path,
            file: Arc::new(file),
            size,
            grown: size,
            first_group: 0,
        });
        if prepared.send(file).is_err() {
            return;
        }
    }
}

fn fill(path: &Path, size: u64) -> std::io::Result<Handles> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    let zeros = vec![0; FILL];
    for at in (0..size).step_by(FILL) {
        file.write_all_at(&zeros[..FILL.min((size - at) as usize)], at)?;
    }
    file.sync_all()?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())?;
    Handles::open(path)
}

impl Journal {
    /// Goes on with this group. Everything in the directory may be written over but the files that are still needed,
    /// each given with its first group.
    pub fn begin(
        dir: &Path,
        key: u32,
        file_bytes: u64,
        next_group: u64,
        needed: &[(PathBuf, u64)],
        (wanted, prepared): (SyncSender<PathBuf>, Receiver<Option<JournalFile>>),
    ) -> DiskResult<Journal> {
        let (mut free, mut live) = (Vec::new(), VecDeque::new());
        let mut next_file = 0;
        for path in journal_files(dir)? {
            let opened = Handles::open(&path).and_then(|file| Ok((file.cached.metadata()?.len(), file)));
            let (size, file) = opened.map_err(|error| DiskError::io(&path, &error))?;
            let file = Arc::new(file);
            next_file = next_file.max(number_of(&path) + 1);
            // A file that is needed is full, whatever its length: nothing is written behind a tail that may be torn.
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

    /// Groups that were placed and are not durable.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.next_group - self.first_pending()
    }

    /// Bytes of the files that cannot be written over yet.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live.iter().map(|file| file.size).sum()
    }

    /// Gives a group its number and its place.
    pub fn place(&mut self, group: &mut Group) -> DiskResult<Write> {
        let number = self.next_group;
        let bytes = group.seal(number, self.durable, self.key);
        let end = self.at + bytes;
        self.receive();
        let ready = self.free.iter().any(|file| file.grown >= self.file_bytes && file.size >= bytes);
        // A file that would have to grow is left as it is as soon as there is one that does not.
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
        // There is no room until there is: what the file lacks is written now, so that the group only overwrites.
        if let Err(error) = current.grow(self.at) {
            self.at -= bytes;
            self.next_group -= 1;
            return Err(error);
        }
        Ok(write)
    }

    /// The group with this number is durable, and all before it.
    pub fn completed(&mut self, number: u64) {
        self.durable = number;
    }

    /// A prepared file, if one has arrived.
    fn receive(&mut self) {
        if self.asked
            && let Ok(answer) = self.prepared.try_recv()
        {
            self.asked = false;
            self.free.extend(answer);
        }
    }

    /// Has a file prepared if there is none to go on with.
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
        let file = File::create(&path).and_then(|_| Handles::open(&path));
        let file = file.map_err(|error| DiskError::io(&path, &error))?;
        sync_dir(&self.dir)?;
        self.next_file += 1;
        let file = Arc::new(file);
        Ok(JournalFile { path, file, size: self.file_bytes.max(needed), grown: 0, first_group })
    }

    /// Groups before this one are not needed any more: their files can be written over.
    pub fn release(&mut self, before: u64) {
        while self.live.len() > 1 && self.live[1].first_group <= before {
            self.free.extend(self.live.pop_front());
        }
    }
}

impl JournalFile {
    /// Makes the file at least this long, and some more.
    fn grow(&mut self, end: u64) -> DiskResult<()> {
        let wanted = self.size.min(end + AHEAD).max(end);
        let zeros = vec![0; (wanted - self.grown) as usize];
        // Zeros that are there in earnest: the groups that go there find their blocks as in a prepared file.
        let file = File::options().write(true).open(&self.path);
        let lengthened = file.and_then(|file| {
            file.write_all_at(&zeros, self.grown)?;
            file.sync_data()
        });
        if let Err(error) = lengthened {
            self.file.cached.set_len(self.grown).ok();
            return Err(DiskError::io(&self.path, &error));
        }
        self.grown = wanted;
        Ok(())
    }
}

/// A group on its way to the disk.
#[derive(Debug)]
pub struct Write {
    /// The group's number.
    pub number: u64,
    file: Arc<Handles>,
    path: PathBuf,
    at: u64,
}

impl Write {
    /// Writes the group and makes it durable. Its place exists, so a failure is never a want of room that could be
    /// taken back.
    pub fn perform(&self, group: &Group) -> DiskResult<()> {
        let done = self.file.write(group.sealed(), self.at);
        done.map_err(|error| DiskError::Failed(format!("{}: {error}", self.path.display())))
    }
}

/// The files of the journal in this directory, by name.
pub fn journal_files(dir: &Path) -> DiskResult<Vec<PathBuf>> {
    let listed = std::fs::read_dir(dir).map_err(|error| DiskError::io(dir, &error))?;
    let mut paths: Vec<PathBuf> = listed.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "journal"));
    paths.sort();
    Ok(paths)
}

fn number_of(path: &Path) -> u64 {
    path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok()).unwrap_or_default()
}
