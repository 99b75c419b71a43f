//! Which files are open? A bounded set, so that a host with more logs than file descriptors still works.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::resource::{Resource, getrlimit};

use super::error::{DiskError, DiskResult};

/// Fewest and most open segment files. In between it is half of what the process may open: a host with more logs than
/// that opens a file for most appends, so it should be allowed more.
const OPEN_FILES: (usize, usize) = (128, 16_384);

/// The open segment files of a directory. Shared by the writer and all readers.
#[derive(Debug)]
pub struct Files {
    open: Mutex<Open>,
    most: usize,
}

impl Default for Files {
    fn default() -> Files {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
        let half = usize::try_from(limit / 2).unwrap_or(usize::MAX);
        Files { open: Mutex::default(), most: half.clamp(OPEN_FILES.0, OPEN_FILES.1) }
    }
}

#[derive(Debug, Default)]
struct Open {
    files: HashMap<PathBuf, (Arc<File>, u64)>,
    uses: u64,
}

impl Files {
    /// The file at this path, opened or made.
    pub fn get(&self, path: &Path) -> DiskResult<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.uses += 1;
        let uses = open.uses;
        if let Some((file, used)) = open.files.get_mut(path) {
            *used = uses;
            return Ok(Arc::clone(file));
        }
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = Arc::new(file.map_err(|error| DiskError::io(path, &error))?);
        if open.files.len() >= self.most {
            let oldest = open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(path, _)| path.clone());
            oldest.and_then(|path| open.files.remove(&path));
        }
        open.files.insert(path.to_owned(), (Arc::clone(&file), uses));
        Ok(file)
    }

    /// Deletes a file; one that is gone already is fine.
    pub fn remove(&self, path: &Path) -> DiskResult<()> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).files.remove(path);
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(DiskError::io(path, &error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Makes a directory's entries durable.
pub fn sync_dir(dir: &Path) -> DiskResult<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| DiskError::io(dir, &error))
}
