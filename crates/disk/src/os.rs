//! The operating system's files.

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::OFlag;

use crate::{Disk, DiskFile, Lock};

/// The alignment of direct writes: position, length and memory.
const BLOCK: usize = 4096;
/// From this many files on, one sync of the file system is cheaper than one per file.
const SYNC_ALL_FROM: usize = 32;
/// Files contain users' data: only the owner may read them.
const OWNER_ONLY: u32 = 0o600;
const OWNER_ONLY_DIR: u32 = 0o700;

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Os;

impl Disk for Os {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true).mode(OWNER_ONLY);
        Ok(Arc::new(options.open(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(File::options().read(true).write(true).open(path)?))
    }

    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(File::open(path)?))
    }

    fn open_through(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let open =
            |flags: OFlag| File::options().read(true).write(true).custom_flags(flags.bits()).open(path);
        let direct = open(OFlag::O_DSYNC | OFlag::O_DIRECT).ok();
        Ok(Arc::new(Through { cached: open(OFlag::O_DSYNC)?, direct }))
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn sync_files(&self, dir: &Path, files: &[&Path]) -> io::Result<()> {
        if files.len() >= SYNC_ALL_FROM {
            return Ok(nix::unistd::syncfs(File::open(dir)?)?);
        }
        files.iter().try_for_each(|path| match File::options().write(true).open(path) {
            Ok(file) => file.sync_data(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        })
    }

    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        let (missing, existing): (Vec<&Path>, Vec<&Path>) =
            dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()).partition(|dir| !dir.exists());
        if let Some(deepest) = existing.first() {
            self.sync_name(deepest)?;
        }
        // Each name is durable before anything is made below it: after a crash only the deepest one can be in doubt.
        for made in missing.into_iter().rev() {
            match fs::DirBuilder::new().mode(OWNER_ONLY_DIR).create(made) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && made.is_dir() => {}
                outcome => outcome?,
            }
            self.sync_dir(parent(made))?;
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let file = File::options().create(true).truncate(false).write(true).mode(OWNER_ONLY).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(Held(file)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Os {
    /// Makes the name of an existing directory durable: the process that made it may have ended before it did. In a parent
    /// that cannot be read, or cannot be written, none of ours was made.
    fn sync_name(self, dir: &Path) -> io::Result<()> {
        match self.sync_dir(parent(dir)) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Ok(())
            }
            outcome => outcome,
        }
    }
}

fn parent(dir: &Path) -> &Path {
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => dir,
    }
}

/// Unlocked explicitly: closing the file is not enough while a child process between fork and exec still has it open.
#[derive(Debug)]
struct Held(File);

impl Lock for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        // After an error the lock stays until the process ends.
        self.0.unlock().ok();
    }
}

impl DiskFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        FileExt::write_at(self, bytes, at)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Handles of a file whose writes are durable when they return.
#[derive(Debug)]
struct Through {
    /// Through the page cache.
    cached: File,
    /// Bypassing it, if the file system supports that.
    direct: Option<File>,
}

impl DiskFile for Through {
    fn size(&self) -> io::Result<u64> {
        DiskFile::size(&self.cached)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(&self.cached, buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let aligned = bytes.as_ptr().align_offset(BLOCK) == 0
            && bytes.len().is_multiple_of(BLOCK)
            && at.is_multiple_of(BLOCK as u64);
        match self.direct.as_ref().filter(|_| aligned).map(|file| FileExt::write_at(file, bytes, at)) {
            // The device does not support it after all.
            Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {}
            Some(outcome) => return outcome,
            None => {}
        }
        FileExt::write_at(&self.cached, bytes, at)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.cached.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.cached.sync_data()
    }
}
