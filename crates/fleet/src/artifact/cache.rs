//! The artifacts that a host has fetched, named by their digests.
//!
//! A file is in the cache only whole and verified: it arrives in `partial/`, is hashed while it does, and is renamed
//! when length and digest are right. A download that broke off goes on where it ended.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::digest::{Hasher, digest_file};
use super::files::{make_dir, sync_dir};
use crate::release::{Body, Digest, ReleaseFile, Source, SourceError, Version};

/// Each try goes on where the last one ended.
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// How often another download of the same file into the same cache is looked at.
const LOCK_POLL: Duration = Duration::from_millis(20);
/// Another process that holds a download for so long hangs.
const LOCK_DEADLINE: Duration = Duration::from_secs(600);

/// Why an artifact is not in the cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// The source did not give it.
    #[error("{file} of release {version}: {error}")]
    Source {
        /// Which file.
        file: String,
        /// Of which release.
        version: Version,
        /// What the source said.
        error: SourceError,
    },
    /// The source ended too early, again and again.
    #[error("{file} of release {version} ends after {got} of {size} bytes")]
    Truncated {
        /// Which file.
        file: String,
        /// Of which release.
        version: Version,
        /// How much came.
        got: u64,
        /// How much should have come.
        size: u64,
    },
    /// The source sent more than the manifest says.
    #[error("{file} of release {version} is longer than the {size} bytes that the manifest says: refused")]
    TooLong {
        /// Which file.
        file: String,
        /// Of which release.
        version: Version,
        /// What the manifest says.
        size: u64,
    },
    /// The bytes are not those that were signed.
    #[error("{file} of release {version} has digest {got}, and the manifest says {expected}: refused")]
    Tampered {
        /// Which file.
        file: String,
        /// Of which release.
        version: Version,
        /// What the bytes hash to.
        got: Digest,
        /// What was signed.
        expected: Digest,
    },
    /// A stop came first. What has arrived is kept.
    #[error("the download was stopped")]
    Stopped,
    /// The disk.
    #[error("the cache {path}: {why}")]
    Disk {
        /// Where.
        path: PathBuf,
        /// What went wrong.
        why: String,
    },
}

/// A directory of verified artifacts. Several hosts of one machine may share it.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// What is fetched.
#[derive(Clone, Copy, Debug)]
struct Wanted<'a> {
    version: &'a Version,
    file: &'a ReleaseFile,
    digest: &'a Digest,
    size: u64,
}

impl Wanted<'_> {
    fn source(&self, error: SourceError) -> FetchError {
        FetchError::Source { file: self.file.to_string(), version: self.version.clone(), error }
    }
}

/// A download that has begun: the file, what of it is there, and its hash so far.
struct Partial {
    path: PathBuf,
    file: File,
    hasher: Hasher,
    len: u64,
}

impl Cache {
    /// The cache in this directory, which is made.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Cache> {
        let cache = Cache { dir: dir.into() };
        make_dir(&cache.dir.join("sha256"))?;
        make_dir(&cache.dir.join("partial"))?;
        Ok(cache)
    }

    /// Where a file is if it is there.
    #[must_use]
    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("sha256").join(digest.hex())
    }

    /// The file with this digest, hashed again just now; one that rotted is removed.
    pub fn get(&self, digest: &Digest) -> Result<Option<PathBuf>, FetchError> {
        let path = self.path(digest);
        let checked = match File::open(&path) {
            Ok(mut file) => digest_file(&mut file).map(|(found, _)| found == *digest),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => Err(e),
        };
        match checked {
            Ok(true) => Ok(Some(path)),
            Ok(false) => {
                tracing::warn!(path = %path.display(), "a cached artifact was changed and is fetched again");
                std::fs::remove_file(&path).map_err(|e| disk(&path, &e))?;
                Ok(None)
            }
            Err(e) => Err(disk(&path, &e)),
        }
    }

    /// Fetches a file of a release unless it is there; returns where it is.
    pub async fn fetch(
        &self,
        source: &dyn Source,
        version: &Version,
        file: &ReleaseFile,
        (digest, size): (&Digest, u64),
        stop: &CancellationToken,
    ) -> Result<PathBuf, FetchError> {
        let wanted = Wanted { version, file, digest, size };
        stop.run_until_cancelled(self.fetch_wanted(source, wanted)).await.unwrap_or(Err(FetchError::Stopped))
    }

    async fn fetch_wanted(&self, source: &dyn Source, wanted: Wanted<'_>) -> Result<PathBuf, FetchError> {
        if let Some(path) = self.look(wanted.digest).await? {
            return Ok(path);
        }
        let lock = self.lock(wanted.digest).await?;
        // The process that held the lock may have fetched it.
        if let Some(path) = self.look(wanted.digest).await? {
            return Ok(path);
        }
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            match self.attempt(source, wanted).await {
                Err(error) if attempt < TRIES && may_pass(&error) => {
                    tracing::info!(%error, attempt, "a download broke off and is tried again");
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
                outcome => {
                    drop(lock);
                    return outcome;
                }
            }
        }
        Err(FetchError::Stopped)
    }

    /// [`Cache::get`], beside the runtime: a large file takes seconds to hash.
    async fn look(&self, digest: &Digest) -> Result<Option<PathBuf>, FetchError> {
        let (cache, digest) = (self.clone(), digest.clone());
        let looked = tokio::task::spawn_blocking(move || cache.get(&digest)).await;
        looked.unwrap_or_else(|e| Err(FetchError::Disk { path: self.dir.clone(), why: e.to_string() }))
    }

    async fn lock(&self, digest: &Digest) -> Result<File, FetchError> {
        let path = self.dir.join("partial").join(format!("{}.lock", digest.hex()));
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(|e| disk(&path, &e))?;
        let deadline = Instant::now() + LOCK_DEADLINE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    tokio::time::sleep(LOCK_POLL).await;
                }
                Err(e) => return Err(disk(&path, &e.into())),
            }
        }
    }

    async fn attempt(&self, source: &dyn Source, wanted: Wanted<'_>) -> Result<PathBuf, FetchError> {
        let mut partial = self.partial(wanted)?;
        if partial.len < wanted.size {
            let body = source.open(wanted.version, wanted.file, partial.len).await;
            partial.receive(body.map_err(|e| wanted.source(e))?, wanted).await?;
        }
        partial.keep(wanted, &self.path(wanted.digest))
    }

    /// What an earlier download left. What is as long as the whole, or longer, was no good: begin anew.
    fn partial(&self, wanted: Wanted<'_>) -> Result<Partial, FetchError> {
        let path = self.dir.join("partial").join(wanted.digest.hex());
        let opened = (|| {
            let mut file =
                OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
            if file.metadata()?.len() >= wanted.size {
                file.set_len(0)?;
            }
            let (mut hasher, mut len) = (Hasher::default(), 0);
            let mut buffer = vec![0; 128 * 1024];
            loop {
                match io::Read::read(&mut file, &mut buffer)? {
                    0 => break,
                    read => {
                        hasher.update(&buffer[..read]);
                        len += read as u64;
                    }
                }
            }
            Ok(Partial { path: path.clone(), file, hasher, len })
        })();
        opened.map_err(|e: io::Error| disk(&path, &e))
    }

    /// Removes everything but these files. No other process may be fetching into this cache.
    pub fn retain(&self, kept: &BTreeSet<Digest>) -> io::Result<usize> {
        let mut removed = 0;
        for entry in std::fs::read_dir(self.dir.join("sha256"))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !kept.iter().any(|digest| digest.hex() == name) {
                std::fs::remove_file(&path)?;
                removed += 1;
            }
        }
        sync_dir(&self.dir.join("sha256"))?;
        // What was begun and not completed belongs to releases that are over.
        for entry in std::fs::read_dir(self.dir.join("partial"))? {
            std::fs::remove_file(entry?.path())?;
        }
        Ok(removed)
    }
}

impl Partial {
    async fn receive(&mut self, mut body: Body, wanted: Wanted<'_>) -> Result<(), FetchError> {
        if body.start != self.len {
            // It cannot send parts.
            self.begin_anew().map_err(|e| disk(&self.path, &e))?;
        }
        while let Some(chunk) = body.chunk().await.map_err(|e| wanted.source(e))? {
            if self.len + chunk.len() as u64 > wanted.size {
                let _ = std::fs::remove_file(&self.path);
                let (file, version) = (wanted.file.to_string(), wanted.version.clone());
                return Err(FetchError::TooLong { file, version, size: wanted.size });
            }
            self.file.write_all(&chunk).map_err(|e| disk(&self.path, &e))?;
            self.hasher.update(&chunk);
            self.len += chunk.len() as u64;
        }
        Ok(())
    }

    fn begin_anew(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        io::Seek::rewind(&mut self.file)?;
        self.hasher = Hasher::default();
        self.len = 0;
        Ok(())
    }

    fn keep(self, wanted: Wanted<'_>, place: &Path) -> Result<PathBuf, FetchError> {
        let (file, version) = (wanted.file.to_string(), wanted.version.clone());
        if self.len < wanted.size {
            return Err(FetchError::Truncated { file, version, got: self.len, size: wanted.size });
        }
        let got = self.hasher.finish();
        if got != *wanted.digest {
            let _ = std::fs::remove_file(&self.path);
            return Err(FetchError::Tampered { file, version, got, expected: wanted.digest.clone() });
        }
        let kept = (|| {
            self.file.sync_all()?;
            std::fs::rename(&self.path, place)?;
            place.parent().map_or(Ok(()), sync_dir)
        })();
        kept.map_err(|e| disk(place, &e))?;
        Ok(place.to_owned())
    }
}

fn may_pass(error: &FetchError) -> bool {
    match error {
        FetchError::Source { error: SourceError::Unreachable { .. }, .. } | FetchError::Truncated { .. } => {
            true
        }
        FetchError::Source { error: SourceError::NotFound { .. } | SourceError::Wrong { .. }, .. }
        | FetchError::TooLong { .. }
        | FetchError::Tampered { .. }
        | FetchError::Stopped
        | FetchError::Disk { .. } => false,
    }
}

fn disk(path: &Path, error: &io::Error) -> FetchError {
    FetchError::Disk { path: path.to_owned(), why: error.to_string() }
}
