//! A temporary directory per test; removed when the test passes, kept when it panics.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;

/// Bytes for several servers at a time: an etcd allocates its log in pieces of 64 MiB.
const ENOUGH_MEMORY: u64 = 2 << 30;

/// A fresh directory, removed on drop. It is kept, and its path printed, when the thread is panicking or
/// `CAPSTAN_TEST_KEEP=1` is set. Its parent is the system's temporary directory (`TMPDIR` moves it).
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Creates the directory; `label` becomes part of its name.
    pub fn new(label: &str) -> anyhow::Result<Self> {
        Self::below(&std::env::temp_dir(), label)
    }

    /// The same in memory if there is such a file system with enough space: for programs that sync after every file, in
    /// tests that do not simulate power cuts. A shared disk can stall for seconds.
    pub fn in_memory(label: &str) -> anyhow::Result<Self> {
        let memory = Path::new("/dev/shm");
        let free =
            nix::sys::statvfs::statvfs(memory).map_or(0, |fs| fs.blocks_available() * fs.fragment_size());
        if free >= ENOUGH_MEMORY { Self::below(memory, label) } else { Self::new(label) }
    }

    fn below(parent: &Path, label: &str) -> anyhow::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("capstan-{label}-{}-{number}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                // Left by an earlier process with the same id whose test failed or was killed. Not ours to remove.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => {
                    return Err(e).with_context(|| format!("cannot make test directory {}", path.display()));
                }
            }
        }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path inside it; nothing is created.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

impl AsRef<Path> for TempDir {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if std::thread::panicking() || std::env::var_os("CAPSTAN_TEST_KEEP").is_some_and(|keep| keep == "1") {
            eprintln!("test directory kept: {}", self.path.display());
        } else if let Err(e) = std::fs::remove_dir_all(&self.path) {
            eprintln!("test directory {} not removed: {e}", self.path.display());
        }
    }
}
