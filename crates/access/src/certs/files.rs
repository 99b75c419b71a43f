//! Where are authorities and certificates kept? In files that are replaced as a whole, and whose keys only their owner
//! can read.
//!
//! A host's chain and its key are in one file: a renewal replaces both at once, and a process that starts in the middle
//! of it finds a pair that belongs together.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use super::{Authority, CertError};
use crate::secret::Secret;

/// The certificate of the authority.
pub const AUTHORITY: &str = "ca.pem";
/// The key of the authority.
pub const AUTHORITY_KEY: &str = "ca.key";
/// The chain and the key of a host.
pub const HOST: &str = "host.pem";

/// Larger files are not read: they hold no certificates.
const MAX_BYTES: u64 = 1024 * 1024;

/// What others may do with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Its owner alone reads it.
    Owner,
    /// Everybody reads it.
    All,
}

/// Makes a directory that only its owner can enter, unless there is one already.
pub fn make_dir(dir: &Path) -> Result<(), CertError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|cause| failed(dir, cause))
}

/// Replaces a file as a whole, durably: after a crash the old content or the new one is there.
pub fn replace(path: &Path, content: &str, readers: Readers) -> Result<(), CertError> {
    let mode = match readers {
        Readers::Owner => 0o600,
        Readers::All => 0o644,
    };
    // Two processes of one machine may renew the same certificate.
    let partial = path.with_extension(format!("{}.part", std::process::id()));
    let write = || {
        // A leftover of an interrupted attempt could have other permissions.
        match std::fs::remove_file(&partial) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&partial)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&partial, path)?;
        match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => std::fs::File::open(dir)?.sync_all(),
            Some(_) | None => Ok(()),
        }
    };
    write().map_err(|cause| failed(path, cause))
}

/// Reads a PEM file.
pub fn read(path: &Path) -> Result<String, CertError> {
    let read = || {
        let mut text = String::new();
        std::fs::File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(std::io::Error::new(ErrorKind::InvalidData, "too large to hold certificates"));
        }
        Ok(text)
    };
    read().map_err(|cause| failed(path, cause))
}

/// Reads an authority and its key.
pub fn read_authority(certificate: &Path, key: &Path) -> Result<Authority, CertError> {
    Authority::from_pem(&read(certificate)?, &Secret::new(read(key)?))
}

fn failed(path: &Path, cause: std::io::Error) -> CertError {
    CertError::File { path: path.display().to_string(), cause }
}
