//! How a release is made: built from a description, signed, verified, published.
//!
//! This runs where releases are made. A built release is a directory with the files of
//! [`layout`](super::layout), all beside each other; publishing puts it into a repository.

mod build;
mod publish;
mod sample;

use std::path::{Path, PathBuf};

pub use build::{Description, ImageDescription, build};
pub use publish::{Maturity, Published, publish};
pub use sample::{Sample, sample};

use super::layout::ReleaseFile;
use super::manifest::{MAX_MANIFEST_BYTES, Manifest, ManifestError};
use super::signature::{KeyError, MAX_SIGNATURE_BYTES, SecretKey, Signature, Signatures};
use super::trust::{Refusal, Trust};
use super::version::{Version, VersionError};
use crate::artifact::digest_file;
use crate::artifact::files::{open_beneath, read_bounded, write_atomic};
use crate::artifact::oci::{Descriptor, Layout, OciError, children};

/// Why a release was not made.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// The description cannot be read.
    #[error("{path}: {why}")]
    Description {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {error}")]
    Disk {
        /// Which file.
        path: PathBuf,
        /// What went wrong.
        error: std::io::Error,
    },
    /// The manifest would be refused everywhere.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A version that is none.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// A key or signature.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An image.
    #[error(transparent)]
    Image(#[from] OciError),
    /// The trust file does not accept it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A program that is needed did not work.
    #[error("{program} failed: {why}")]
    Program {
        /// Which one.
        program: String,
        /// What it said.
        why: String,
    },
    /// A file of the release is missing or not what the manifest says.
    #[error("{file}: {why}")]
    Artifact {
        /// Which file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// A directory without a manifest.
    #[error("{0} is not a built release: it has no manifest.json")]
    NoRelease(PathBuf),
    /// A published release never changes.
    #[error("release {0} is published already, with other content: publish a higher version")]
    Exists(Version),
}

fn disk(path: &Path) -> impl FnOnce(std::io::Error) -> MakeError {
    move |error| MakeError::Disk { path: path.to_owned(), error }
}

/// The manifest of a built release, and its bytes.
pub fn read_manifest(dir: &Path) -> Result<(Manifest, Vec<u8>), MakeError> {
    let bytes = manifest_bytes(dir)?;
    Ok((Manifest::parse(&bytes)?, bytes))
}

fn manifest_bytes(dir: &Path) -> Result<Vec<u8>, MakeError> {
    read(dir, &ReleaseFile::Manifest, MAX_MANIFEST_BYTES).map_err(|e| match e {
        MakeError::Disk { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            MakeError::NoRelease(dir.to_owned())
        }
        e => e,
    })
}

/// The signatures of a built release; none if it is unsigned.
pub fn read_signatures(dir: &Path) -> Result<Option<Vec<u8>>, MakeError> {
    match read(dir, &ReleaseFile::Signatures, MAX_SIGNATURE_BYTES) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(MakeError::Disk { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn read(dir: &Path, file: &ReleaseFile, most: usize) -> Result<Vec<u8>, MakeError> {
    let name = file.to_string();
    let opened = open_beneath(dir, Path::new(&name));
    opened.and_then(|file| read_bounded(file, most as u64)).map_err(disk(&dir.join(name)))
}

/// Signs a built release; signatures of other keys stay.
pub fn sign(dir: &Path, key: &SecretKey) -> Result<Signature, MakeError> {
    let (_, bytes) = read_manifest(dir)?;
    let mut signatures = match read_signatures(dir)? {
        Some(bytes) => Signatures::parse(&bytes)?,
        None => Signatures::default(),
    };
    let signature = key.sign(&bytes);
    signatures.add(signature.clone());
    let path = dir.join(ReleaseFile::Signatures.to_string());
    write_atomic(&path, &signatures.to_bytes()?).map_err(disk(&path))?;
    Ok(signature)
}

/// Checks the signatures of a built release against a trust file, and every artifact against the manifest. Expiry
/// and what a host has installed are the host's to check.
pub fn verify(dir: &Path, trust: &Trust) -> Result<Manifest, MakeError> {
    let bytes = manifest_bytes(dir)?;
    let manifest = trust.open(&bytes, read_signatures(dir)?.as_deref())?;
    verify_artifacts(dir, &manifest)?;
    Ok(manifest)
}

/// Checks that every artifact is there and is what the manifest says; returns the names of all files.
pub fn verify_artifacts(dir: &Path, manifest: &Manifest) -> Result<Vec<String>, MakeError> {
    let mut files = Vec::new();
    for package in &manifest.packages {
        let file = package.file();
        check_file(dir, &file, &package.digest, package.size)?;
        files.push(file);
    }
    for image in &manifest.images {
        // Whether it is a manifest or an index, it is a document.
        let media_type = crate::artifact::oci::MANIFEST.to_owned();
        let top = Descriptor { media_type, digest: image.digest.clone(), size: image.size };
        verify_blobs(dir, &top, 0, &mut files)?;
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// Images of images nest no deeper than an index, a manifest and its layers.
const MAX_DEPTH: usize = 3;

fn verify_blobs(
    dir: &Path,
    blob: &Descriptor,
    depth: usize,
    files: &mut Vec<String>,
) -> Result<(), MakeError> {
    let file = ReleaseFile::Blob(blob.digest.clone()).to_string();
    check_file(dir, &file, &blob.digest, blob.size)?;
    files.push(file);
    if !blob.is_document() {
        return Ok(());
    }
    if depth == MAX_DEPTH {
        return Err(OciError::TooMany.into());
    }
    let bytes = read(dir, &ReleaseFile::Blob(blob.digest.clone()), MAX_MANIFEST_BYTES)?;
    for child in children(&blob.digest, &bytes)? {
        verify_blobs(dir, &child, depth + 1, files)?;
    }
    Ok(())
}

fn check_file(dir: &Path, file: &str, digest: &super::Digest, size: u64) -> Result<(), MakeError> {
    let wrong = |why: String| MakeError::Artifact { file: file.to_owned(), why };
    let opened = open_beneath(dir, Path::new(file)).and_then(|mut file| digest_file(&mut file));
    let (found, len) = opened.map_err(|e| wrong(e.to_string()))?;
    if len != size {
        return Err(wrong(format!("it has {len} bytes, and the manifest says {size}")));
    }
    if found != *digest {
        return Err(wrong(format!("it has digest {found}, and the manifest says {digest}")));
    }
    Ok(())
}

/// The layout from which an image is taken.
fn image_in(layout: &Layout, reference: Option<&str>) -> Result<Descriptor, MakeError> {
    let Some(reference) = reference else { return Ok(layout.only_image()?) };
    let missing = OciError::NoImage { dir: layout.dir().to_owned(), name: reference.to_owned() };
    Ok(layout.find(reference)?.ok_or(missing)?)
}
