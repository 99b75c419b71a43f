//! The operating system's disk, full as long as a file beside the directory says so: files can be overwritten and
//! removed, and none can be created or grow.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use capstan_disk::{Disk, DiskFile, Lock, Os};

/// The file that makes the disk of a directory full.
pub fn flag(dir: impl AsRef<Path>) -> PathBuf {
    dir.as_ref().with_extension("full")
}

#[derive(Clone, Debug)]
pub struct Crowded {
    flag: Arc<PathBuf>,
}

#[derive(Debug)]
struct CrowdedFile {
    file: Arc<dyn DiskFile>,
    disk: Crowded,
}

impl Crowded {
    pub fn new(dir: impl AsRef<Path>) -> Crowded {
        Crowded { flag: Arc::new(flag(dir)) }
    }

    fn has_room(&self) -> io::Result<()> {
        if self.flag.exists() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn wrap(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(CrowdedFile { file, disk: self.clone() })
    }
}

impl Disk for Crowded {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.has_room()?;
        Ok(self.wrap(Os.create(path)?))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(Os.open(path)?))
    }
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Os.open_read(path)
    }
    fn open_through(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(Os.open_through(path)?))
    }
    fn size(&self, path: &Path) -> io::Result<u64> {
        Os.size(path)
    }
    fn sync_files(&self, dir: &Path, files: &[&Path]) -> io::Result<()> {
        Os.sync_files(dir, files)
    }
    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        Os.create_dirs(dir)
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        Os.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Os.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        Os.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        Os.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        Os.lock(path)
    }
}

impl DiskFile for CrowdedFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buffer, at)
    }
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        if at + bytes.len() as u64 > self.file.size()? {
            self.disk.has_room()?;
        }
        self.file.write_at(bytes, at)
    }
    fn set_size(&self, bytes: u64) -> io::Result<()> {
        if bytes > self.file.size()? {
            self.disk.has_room()?;
        }
        self.file.set_size(bytes)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}
