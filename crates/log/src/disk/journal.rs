//! How does one sync make the appends of every log durable? They go into one journal, a group at a time.
//!
//! A journal file is filled with zeros once, by a thread that prepares it in advance, and is then written over again and
//! again: overwriting blocks that exist needs no file-system transaction, so a sync costs what the device needs and
//! nothing more. While no prepared file is there, one grows under the writing. A group begins on a block of its own, has a number and a checksum; what an earlier use of the file left behind
//! has a lower number.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender};

use super::error::{DiskError, DiskResult};
use super::files::sync_dir;
use super::record::{crc32c, u32_at, u64_at};

/// Groups begin at multiples of this, so that no acknowledged byte is ever written again.
const BLOCK: usize = 4096;
/// Bytes before the content of a group.
const GROUP_HEADER: usize = 32;
const MAGIC: u32 = 0x4a50_4143;
/// Zeros written ahead when a file grows: the sync that pays for growing pays for the next groups too.
const AHEAD: usize = 256 * 1024;
/// Zeros written at once when a file is prepared.
const FILL: usize = 1024 * 1024;

/// A group under construction.
#[derive(Debug)]
pub struct Group {
    bytes: Vec<u8>,
}

impl Default for Group {
    fn default() -> Group {
        Group { bytes: vec![0; GROUP_HEADER] }
    }
}

impl Group {
    /// Where the content goes.
    pub fn content(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Bytes of content so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() - GROUP_HEADER
    }

    fn seal(&mut self, number: u64, key: u32) -> &[u8] {
        let content = self.len() as u32;
        self.bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        self.bytes[8..16].copy_from_slice(&number.to_le_bytes());
        self.bytes[16..20].copy_from_slice(&content.to_le_bytes());
        let crc = crc32c(&self.bytes[8..]) ^ key;
        self.bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        &self.bytes
    }

    /// Ready for the next group; the memory is kept.
    pub fn clear(&mut self) {
        self.bytes.truncate(GROUP_HEADER);
        self.bytes.fill(0);
    }
}

/// A file of the journal, open.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    file: File,
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
        let file = filled.ok().map(|file| JournalFile { path, file, size, grown: size, first_group: 0 });
        if prepared.send(file).is_err() {
            return;
        }
    }
}

fn fill(path: &Path, size: u64) -> std::io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    let zeros = vec![0; FILL];
    for at in (0..size).step_by(FILL) {
        file.write_all_at(&zeros[..FILL.min((size - at) as usize)], at)?;
    }
    file.sync_all()?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())?;
    Ok(file)
}

impl Journal {
    /// Goes on with this group. Everything in the directory may be written over.
    pub fn begin(
        dir: &Path,
        key: u32,
        file_bytes: u64,
        next_group: u64,
        (wanted, prepared): (SyncSender<PathBuf>, Receiver<Option<JournalFile>>),
    ) -> DiskResult<Journal> {
        let mut free = Vec::new();
        let mut next_file = 0;
        for path in journal_files(dir)? {
            let opened = File::options().read(true).write(true).open(&path);
            let opened = opened.and_then(|file| Ok((file.metadata()?.len(), file)));
            let (size, file) = opened.map_err(|error| DiskError::io(&path, &error))?;
            next_file = next_file.max(number_of(&path) + 1);
            let (size, grown) = (size.max(file_bytes), size);
            free.push(JournalFile { path, file, size, grown, first_group: 0 });
        }
        let dir = dir.to_owned();
        let live = VecDeque::new();
        let asked = false;
        let mut journal = Journal {
            dir,
            key,
            file_bytes,
            live,
            free,
            at: 0,
            next_group,
            next_file,
            wanted,
            prepared,
            asked,
        };
        journal.ask();
        Ok(journal)
    }

    /// The number of the next group.
    #[must_use]
    pub fn next_group(&self) -> u64 {
        self.next_group
    }

    /// Bytes of the files that cannot be written over yet.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live.iter().map(|file| file.size).sum()
    }

    /// Writes a group and makes it durable. After `Full` nothing has happened.
    pub fn write(&mut self, group: &mut Group) -> DiskResult<()> {
        let number = self.next_group;
        let bytes = group.seal(number, self.key);
        let end = self.at + bytes.len() as u64;
        self.receive();
        let ready =
            self.free.iter().any(|file| file.grown >= self.file_bytes && file.size >= bytes.len() as u64);
        // A file that would have to grow is left as it is as soon as there is one that does not.
        if self.live.back().is_none_or(|file| end > file.size || (end > file.grown && ready)) {
            let next = self.next_file(bytes.len() as u64, number)?;
            self.live.push_back(next);
            self.at = 0;
        }
        let Some(current) = self.live.back_mut() else { return Err(DiskError::Closed) };
        current.write(bytes, self.at)?;
        self.at += bytes.len() as u64;
        self.next_group += 1;
        Ok(())
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
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(|error| DiskError::io(&path, &error))?;
        sync_dir(&self.dir)?;
        self.next_file += 1;
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
    fn write(&mut self, bytes: &[u8], at: u64) -> DiskResult<()> {
        let end = at + bytes.len() as u64;
        if let Err(error) = self.file.write_all_at(bytes, at) {
            // Nothing was synced: what is left of the group is written over by the next one.
            self.file.set_len(self.grown).ok();
            return Err(DiskError::io(&self.path, &error));
        }
        if end > self.grown {
            self.grown = end;
            let zeros = vec![0; AHEAD.min(self.size.saturating_sub(end) as usize)];
            if self.file.write_all_at(&zeros, end).is_ok() {
                self.grown += zeros.len() as u64;
            }
        }
        let synced = self.file.sync_data();
        synced.map_err(|error| DiskError::Failed(format!("{}: {error}", self.path.display())))
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

/// What a replay of the journal found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Groups that were replayed.
    pub groups: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// What an unfinished write left at the end, if anything; nobody was told that it was there.
    pub torn: Option<String>,
}

/// Gives every group from this number on to `take`, in order. A group that is not whole is a torn tail if nothing
/// follows it, and damage if something does: then acknowledged entries are lost, and that is an error.
pub fn replay(
    dir: &Path,
    key: u32,
    first: u64,
    mut take: impl FnMut(u64, &[u8]) -> DiskResult<()>,
) -> DiskResult<Replayed> {
    let mut replayed = Replayed::default();
    let mut expected = first;
    let paths = journal_files(dir)?;
    while let Some((path, at)) = find_first(&paths, key, expected)? {
        let bytes = std::fs::read(&path).map_err(|error| DiskError::io(&path, &error))?;
        let mut at = at;
        while let Some(content) = group_at(&bytes, key, at, expected) {
            take(expected, content)?;
            replayed.groups += 1;
            replayed.bytes += content.len() as u64;
            at += (GROUP_HEADER + content.len()).next_multiple_of(BLOCK);
            expected += 1;
        }
        if at + 16 <= bytes.len() && u32_at(&bytes, at) == MAGIC && u64_at(&bytes, at + 8) >= expected {
            replayed.torn = Some(format!("{} at {at}: group {expected} is not whole", path.display()));
        }
    }
    match find_later(&paths, key, expected)? {
        None => Ok(replayed),
        Some((path, number)) => Err(DiskError::Corrupt {
            dir: dir.display().to_string(),
            what: format!(
                "group {expected} of the journal is gone, and group {number} follows in {}",
                path.display()
            ),
        }),
    }
}

/// The whole group with this number at this place.
fn group_at(bytes: &[u8], key: u32, at: usize, number: u64) -> Option<&[u8]> {
    (number_at(bytes, key, at)? == number).then_some(())?;
    let len = u32_at(bytes, at + 16) as usize;
    bytes.get(at + GROUP_HEADER..at + GROUP_HEADER + len)
}

/// The number of the whole group at this place, if there is one.
fn number_at(bytes: &[u8], key: u32, at: usize) -> Option<u64> {
    let header = bytes.get(at..at + GROUP_HEADER)?;
    let len = u32_at(header, 16) as usize;
    let body = bytes.get(at + 8..at + GROUP_HEADER + len)?;
    (u32_at(header, 0) == MAGIC && crc32c(body) ^ key == u32_at(header, 4)).then(|| u64_at(header, 8))
}

/// The file and place at which a group begins. A file's groups are consecutive, so most files are ruled out by their
/// first header.
fn find_first(paths: &[PathBuf], key: u32, number: u64) -> DiskResult<Option<(PathBuf, usize)>> {
    for path in paths {
        let head = first_number(path)?;
        if head.is_none_or(|first| first > number) {
            continue;
        }
        let bytes = std::fs::read(path).map_err(|error| DiskError::io(path, &error))?;
        let places = (0..bytes.len()).step_by(BLOCK);
        let mut candidates = places.filter(|at| claims(&bytes, *at, number));
        if let Some(at) = candidates.find(|at| group_at(&bytes, key, *at, number).is_some()) {
            return Ok(Some((path.clone(), at)));
        }
    }
    Ok(None)
}

/// Whether the header at this place has this number; cheap.
fn claims(bytes: &[u8], at: usize, number: u64) -> bool {
    at + GROUP_HEADER <= bytes.len() && u32_at(bytes, at) == MAGIC && u64_at(bytes, at + 8) == number
}

fn first_number(path: &Path) -> DiskResult<Option<u64>> {
    let file = File::open(path).map_err(|error| DiskError::io(path, &error))?;
    let mut header = [0; GROUP_HEADER];
    let read = file.read_exact_at(&mut header, 0).is_ok();
    Ok((read && u32_at(&header, 0) == MAGIC).then(|| u64_at(&header, 8)))
}

/// A whole group with a number above this one.
fn find_later(paths: &[PathBuf], key: u32, number: u64) -> DiskResult<Option<(PathBuf, u64)>> {
    for path in paths {
        let bytes = std::fs::read(path).map_err(|error| DiskError::io(path, &error))?;
        for at in (0..bytes.len()).step_by(BLOCK) {
            let later = at + GROUP_HEADER <= bytes.len()
                && u32_at(&bytes, at) == MAGIC
                && u64_at(&bytes, at + 8) > number;
            if later && let Some(found) = number_at(&bytes, key, at) {
                return Ok(Some((path.clone(), found)));
            }
        }
    }
    Ok(None)
}
