//! The file system calls that durable code is built on, behind a trait that tests replace.
//!
//! Code that promises durability takes an `Arc<dyn Disk>` and makes every call through it: [`Os`] in production,
//! `capstan_testkit::disk::SimDisk` in tests. The simulated disk records the calls, and at any of them it can cut the
//! power, answer an error or a short write, run out of space, or flip bits. Code that goes around the trait is not
//! tested for these.
//!
//! ```
//! use std::path::Path;
//! use capstan_disk::{Disk, DiskExt as _, Os};
//!
//! # fn main() -> std::io::Result<()> {
//! # let dir = std::env::temp_dir().join(format!("capstan-disk-doc-{}", std::process::id()));
//! # let dir = dir.as_path();
//! let disk = Os;
//! disk.create_dirs(dir)?;
//! disk.replace(dir, "state", b"new content")?; // all of it or nothing, also after a power cut
//! assert_eq!(disk.read(&dir.join("state"))?, b"new content");
//! # disk.remove(&dir.join("state"))?;
//! # std::fs::remove_dir(dir)?;
//! # Ok(())
//! # }
//! ```
//!
//! What is durable when: the content of a file after [`DiskFile::sync`], or after a write through
//! [`Disk::open_through`]; that a name leads to it (creation, rename,
//! removal) after [`Disk::sync_dir`] of its directory. Nothing else is promised, and the simulated disk breaks
//! everything that is not: unsynced writes are lost, torn at sectors of 512 bytes or reordered, unsynced names go back.
//! After a failed sync the content is unknown: what was written since the last sync may never reach the disk, even if
//! a later sync succeeds.

mod os;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

pub use os::Os;

/// Suffix of the file that [`DiskExt::replace`] prepares; one that is found at startup is left over from a crash.
pub const DRAFT: &str = ".draft";

/// A file system.
pub trait Disk: fmt::Debug + Send + Sync + 'static {
    /// Creates an empty file for reading and writing; an existing file is truncated.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file for reading only.
    fn open_read(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.open(path)
    }

    /// Opens an existing file whose writes are durable when they return (`O_DSYNC`): for journals, which overwrite
    /// existing blocks. Where the system supports it, aligned writes bypass the page cache.
    fn open_through(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// The length of a file in bytes.
    fn size(&self, path: &Path) -> io::Result<u64> {
        self.open_read(path)?.size()
    }

    /// Makes the content of all these files durable; they are on one file system with `dir`. Missing files are skipped.
    fn sync_files(&self, dir: &Path, files: &[&Path]) -> io::Result<()> {
        let _ = dir;
        files.iter().try_for_each(|path| match self.open(path) {
            Ok(file) => file.sync(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        })
    }

    /// Creates a directory and its missing ancestors, and makes their names durable.
    fn create_dirs(&self, dir: &Path) -> io::Result<()>;

    /// The names in a directory, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Renames a file within the same file system; an existing file of that name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Creates the file if it is missing and locks it; `None` if another process holds the lock. The lock is released
    /// when the value is dropped, and when the process ends.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>>;
}

/// A held lock.
pub trait Lock: fmt::Debug + Send + Sync {}

/// An open file. All positions are absolute; there is no cursor.
pub trait DiskFile: fmt::Debug + Send + Sync {
    /// The file's length in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Reads at a position; fewer bytes than requested mean the end of the file, or an interrupted read.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize>;

    /// Writes at a position; returns how much was written, which may be less than all.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize>;

    /// Cuts the file, or extends it with zeros.
    fn set_size(&self, bytes: u64) -> io::Result<()>;

    /// Makes the content and the size durable (`fdatasync`).
    fn sync(&self) -> io::Result<()>;
}

/// Extensions of [`DiskFile`].
pub trait DiskFileExt {
    /// Writes all bytes, or fails.
    fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Fills the buffer, or fails.
    fn read_exact_at(&self, buffer: &mut [u8], at: u64) -> io::Result<()>;

    /// Reads the whole file.
    fn read_all(&self) -> io::Result<Vec<u8>>;
}

impl<F: DiskFile + ?Sized> DiskFileExt for F {
    fn write_all_at(&self, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.write_at(bytes, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    bytes = bytes.get(written..).unwrap_or_default();
                    at += written as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read_exact_at(&self, mut buffer: &mut [u8], mut at: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, at) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buffer = buffer.get_mut(read..).unwrap_or_default();
                    at += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn read_all(&self) -> io::Result<Vec<u8>> {
        let size = usize::try_from(self.size()?).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut content = vec![0; size];
        self.read_exact_at(&mut content, 0)?;
        Ok(content)
    }
}

/// Extensions of [`Disk`].
pub trait DiskExt {
    /// Reads a whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Replaces the file `name` in `dir`, durably and atomically: a draft is written and synced, renamed, and the
    /// directory is synced. After an error the file has its former content, or the new one.
    fn replace(&self, dir: &Path, name: &str, content: &[u8]) -> io::Result<()>;
}

impl<D: Disk + ?Sized> DiskExt for D {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.open_read(path)?.read_all()
    }

    fn replace(&self, dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
        let draft = dir.join(format!("{name}{DRAFT}"));
        let file = self.create(&draft)?;
        file.write_all_at(content, 0)?;
        file.sync()?;
        self.rename(&draft, &dir.join(name))?;
        self.sync_dir(dir)
    }
}
