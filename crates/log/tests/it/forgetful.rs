//! A disk that leaves out the syncs of one place in the code, as a broken build would. Which place a call comes from is
//! told by its file and by the thread: preparer, writers, flusher, or the thread that opens the directory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use capstan_disk::{Disk as FileSystem, DiskFile, Lock};
use capstan_testkit::disk::SimDisk;

use super::power::DIR;

/// The sync that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omitted {
    Nothing,
    /// Groups are written without `O_DSYNC`.
    JournalWrites,
    /// The names of journal files.
    JournalNames,
    /// The name of a journal file that was prepared in advance.
    PreparedName,
    /// The name of a journal file that was created when it was needed.
    JournalName,
    /// The content of segments, before a checkpoint.
    Segments,
    SegmentNames,
    /// The content of the checkpoint.
    Checkpoint,
    CheckpointName,
    /// The zeros of a prepared journal file.
    PreparedZeros,
    /// The zeros by which a journal file grows.
    Growth,
    /// Names in the directory that an earlier process may not have synced.
    FoundNames,
    /// The same, of journal files.
    FoundJournalNames,
    /// Groups that are visible after a restart, and whose space is needed still.
    ReplayedGroups,
    /// The removal of groups that were never acknowledged.
    Erasure,
    /// The repair of a damaged entry.
    Repair,
}

impl Omitted {
    /// Without these, a power cut in the life of a host loses entries.
    pub const OF_A_HOST: [Omitted; 5] = [
        Omitted::JournalWrites,
        Omitted::Segments,
        Omitted::SegmentNames,
        Omitted::Checkpoint,
        Omitted::CheckpointName,
    ];

    /// Without these, a power cut in the life of one process loses entries.
    pub const IN_A_LIFE: [Omitted; 6] = [
        Omitted::JournalWrites,
        Omitted::JournalNames,
        Omitted::Segments,
        Omitted::SegmentNames,
        Omitted::Checkpoint,
        Omitted::CheckpointName,
    ];

    /// Without these, groups are written to blocks or names that are not durable.
    pub const OF_JOURNAL_FILES: [Omitted; 4] =
        [Omitted::PreparedZeros, Omitted::Growth, Omitted::PreparedName, Omitted::JournalName];

    /// Without these, a power cut after a restart loses what was there before.
    pub const AFTER_A_RESTART: [Omitted; 3] =
        [Omitted::FoundNames, Omitted::FoundJournalNames, Omitted::ReplayedGroups];
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Preparer,
    Writer,
    Opener,
}

fn by() -> By {
    match std::thread::current().name() {
        Some("log-preparer") => By::Preparer,
        Some(name) if name.starts_with("log-") => By::Writer,
        Some(_) | None => By::Opener,
    }
}

/// A disk that leaves out some syncs.
#[derive(Clone, Debug)]
pub struct Forgetful {
    sim: SimDisk,
    omitted: Omitted,
    /// Whether the directory was locked and its names were not synced since.
    locked: Arc<AtomicBool>,
    /// How long a group is written and not synced.
    sync_takes: Duration,
}

impl Forgetful {
    pub fn new(sim: &SimDisk, omitted: Omitted) -> Forgetful {
        Forgetful { sim: sim.clone(), omitted, locked: Arc::default(), sync_takes: Duration::ZERO }
    }

    /// A disk that leaves out nothing and is slow: two groups are in flight most of the time.
    pub fn slow(sim: &SimDisk) -> Forgetful {
        Forgetful { sync_takes: Duration::from_millis(1), ..Forgetful::new(sim, Omitted::Nothing) }
    }

    fn wrap(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(ForgetfulFile { disk: self.clone(), path: path.to_owned(), file, is_through: false })
    }

    fn forgets_file(&self, path: &Path) -> bool {
        let name = path.to_string_lossy();
        match self.omitted {
            Omitted::Checkpoint => name.contains("checkpoint"),
            Omitted::Repair => name.ends_with(".seg"),
            Omitted::PreparedZeros => name.ends_with(".journal") && by() == By::Preparer,
            Omitted::Growth => name.ends_with(".journal") && by() == By::Writer,
            Omitted::Erasure => name.ends_with(".journal") && by() == By::Opener,
            _ => false,
        }
    }

    fn forgets_write_through(&self) -> bool {
        match self.omitted {
            Omitted::JournalWrites => by() == By::Writer,
            Omitted::ReplayedGroups => by() == By::Opener,
            _ => false,
        }
    }

    fn forgets_dir(&self, dir: &Path) -> bool {
        let root = PathBuf::from(DIR);
        let found = dir == root && self.locked.swap(false, Ordering::Relaxed);
        match self.omitted {
            Omitted::FoundNames => found,
            Omitted::CheckpointName => dir == root && !found,
            Omitted::SegmentNames => dir == root.join("segments"),
            Omitted::JournalNames => dir == root.join("journal") && by() != By::Opener,
            Omitted::PreparedName => dir == root.join("journal") && by() == By::Preparer,
            Omitted::JournalName => dir == root.join("journal") && by() == By::Writer,
            Omitted::FoundJournalNames => dir == root.join("journal") && by() == By::Opener,
            _ => false,
        }
    }
}

impl FileSystem for Forgetful {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        // Otherwise it depends on the preparer's speed whether the writers ever create a file or let one grow.
        if matches!(self.omitted, Omitted::Growth | Omitted::JournalName) && by() == By::Preparer {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(self.wrap(path, self.sim.create(path)?))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(path, self.sim.open(path)?))
    }
    fn open_through(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.sim.open(path)?;
        Ok(Arc::new(ForgetfulFile { disk: self.clone(), path: path.to_owned(), file, is_through: true }))
    }
    fn sync_files(&self, dir: &Path, files: &[&Path]) -> io::Result<()> {
        if self.omitted == Omitted::Segments { Ok(()) } else { self.sim.sync_files(dir, files) }
    }
    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        self.sim.create_dirs(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.sim.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.sim.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.sim.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.forgets_dir(dir) { Ok(()) } else { self.sim.sync_dir(dir) }
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        self.locked.store(true, Ordering::Relaxed);
        self.sim.lock(path)
    }
}

#[derive(Debug)]
struct ForgetfulFile {
    disk: Forgetful,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    /// Whether writes are durable when they return.
    is_through: bool,
}

impl DiskFile for ForgetfulFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buffer, at)
    }
    #[expect(clippy::disallowed_methods, reason = "a slow disk is what is tested")]
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let written = self.file.write_at(bytes, at)?;
        if self.is_through && !self.disk.forgets_write_through() {
            // tidy: allow, because the slow disk is the input
            std::thread::sleep(self.disk.sync_takes);
            self.file.sync()?;
        }
        Ok(written)
    }
    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.file.set_size(bytes)
    }
    fn sync(&self) -> io::Result<()> {
        if self.disk.forgets_file(&self.path) { Ok(()) } else { self.file.sync() }
    }
}
