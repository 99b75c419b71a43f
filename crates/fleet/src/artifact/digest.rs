//! The digest of bytes and of files.

use std::fs::File;
use std::io::{self, Read};

use aws_lc_rs::digest::{Context, SHA256};

use crate::release::Digest;

const CHUNK: usize = 128 * 1024;

/// Computes a digest piece by piece.
#[derive(Clone)]
pub struct Hasher(Context);

impl Default for Hasher {
    fn default() -> Self {
        Hasher(Context::new(&SHA256))
    }
}

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes that were added.
    #[must_use]
    pub fn finish(self) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.finish().as_ref());
        Digest::from_sha256(bytes)
    }
}

/// The digest of some bytes.
#[must_use]
pub fn digest_of(bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::default();
    hasher.update(bytes);
    hasher.finish()
}

/// The digest and the length of the rest of a file.
pub fn digest_file(file: &mut File) -> io::Result<(Digest, u64)> {
    let (mut hasher, mut size) = (Hasher::default(), 0);
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((hasher.finish(), size)),
            read => {
                hasher.update(&buffer[..read]);
                size += read as u64;
            }
        }
    }
}
