//! Which files are open? A bounded set, so that a host can have more logs than file descriptors.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use capstan_disk::{Disk as FileSystem, DiskFile};
use nix::sys::resource::{Resource, getrlimit};

use super::error::{DiskError, DiskResult};

/// The file system of a directory.
pub type Fs = Arc<dyn FileSystem>;
/// An open file.
pub type File = Arc<dyn DiskFile>;

/// The minimum and maximum of open segment files. In between it is half of the process's limit. A host with more logs
/// than that opens a file for most appends; raise its limit.
const OPEN_FILES: (usize, usize) = (128, 16_384);

/// The open segment files of a directory. Shared by the writer and all readers.
#[derive(Debug)]
pub struct Files {
    fs: Fs,
    open: Mutex<Open>,
    most: usize,
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<PathBuf, (File, u64)>,
    uses: u64,
}

impl Files {
    /// An empty set.
    #[must_use]
    pub fn new(fs: &Fs) -> Files {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
        let half = usize::try_from(limit / 2).unwrap_or(usize::MAX);
        let most = half.clamp(OPEN_FILES.0, OPEN_FILES.1);
        Files { fs: Arc::clone(fs), open: Mutex::default(), most }
    }

    /// The file system of the files.
    #[must_use]
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// The file at this path, for reading. It is not created.
    pub fn get(&self, path: &Path) -> DiskResult<File> {
        self.open(path, |fs| fs.open(path))
    }

    /// The file at this path, created if missing.
    pub fn get_or_make(&self, path: &Path) -> DiskResult<File> {
        self.open(path, |fs| match fs.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs.create(path),
            opened => opened,
        })
    }

    fn open(&self, path: &Path, open_one: impl FnOnce(&Fs) -> io::Result<File>) -> DiskResult<File> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.uses += 1;
        let uses = open.uses;
        if let Some((file, used)) = open.files.get_mut(path) {
            *used = uses;
            return Ok(Arc::clone(file));
        }
        let file = open_one(&self.fs).map_err(|error| DiskError::io(path, &error))?;
        if open.files.len() >= self.most {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(path, _)| path.clone());
            oldest.and_then(|path| open.files.remove(&path));
        }
        open.files.insert(path.to_owned(), (Arc::clone(&file), uses));
        Ok(file)
    }

    /// Deletes a file; a missing file is not an error.
    pub fn remove(&self, path: &Path) -> DiskResult<()> {
        // Under the lock: otherwise a reader could reopen the file before it is deleted.
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.files.remove(path);
        match self.fs.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(DiskError::io(path, &error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The length of a file; zero if it does not exist.
    pub fn size(&self, path: &Path) -> DiskResult<u64> {
        match self.fs.size(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            size => size.map_err(|error| DiskError::io(path, &error)),
        }
    }
}

/// Makes a directory's entries durable.
pub fn sync_dir(fs: &Fs, dir: &Path) -> DiskResult<()> {
    fs.sync_dir(dir).map_err(|error| DiskError::sync(dir, &error))
}
