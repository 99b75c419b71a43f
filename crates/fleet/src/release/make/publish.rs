//! Puts a built release into a repository, so that no reader ever sees half of one.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::{MakeError, disk, read_manifest, read_signatures, verify_artifacts};
use crate::artifact::files::{make_dir, open_beneath, read_bounded, sync_dir, write_atomic};
use crate::release::layout::{INDEX, Index, Listed, MAX_INDEX_BYTES, ReleaseFile, release_dir};
use crate::release::{Manifest, Refusal, Version};

/// What was published.
#[derive(Clone, Debug)]
pub struct Published {
    /// Where it lies now.
    pub dir: PathBuf,
    /// Its files.
    pub files: Vec<String>,
    /// Its manifest.
    pub manifest: Manifest,
}

/// For whom a release is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maturity {
    /// For every fleet.
    Released,
    /// For fleets that opted in to prereleases.
    Prerelease,
}

/// Publishes a built and signed release into the repository `repository`. A release that is published already may be
/// published again with further signatures, never with another manifest.
pub fn publish(
    dir: &Path,
    repository: &Path,
    maturity: Maturity,
    now: Timestamp,
) -> Result<Published, MakeError> {
    let (manifest, bytes) = read_manifest(dir)?;
    let signatures = read_signatures(dir)?.ok_or(Refusal::Unsigned)?;
    let files = verify_artifacts(dir, &manifest)?;
    make_dir(&repository.join("releases")).map_err(disk(repository))?;
    let _lock = lock(repository)?;
    let to = repository.join(release_dir(&manifest.version));
    match existing_manifest(&to)? {
        Some(old) if old != bytes => return Err(MakeError::Exists(manifest.version)),
        Some(_) => {
            let path = to.join(ReleaseFile::Signatures.to_string());
            write_atomic(&path, &signatures).map_err(disk(&path))?;
        }
        None => copy_release(dir, &to, &files, &bytes, &signatures).map_err(disk(&to))?,
    }
    list(repository, &manifest.version, maturity, now)?;
    Ok(Published { dir: to, files, manifest })
}

/// Two publishers at once would lose one's entry in the index.
fn lock(repository: &Path) -> Result<std::fs::File, MakeError> {
    let path = repository.join(".lock");
    let file = OpenOptions::new().create(true).append(true).open(&path).map_err(disk(&path))?;
    file.lock().map_err(disk(&path))?;
    Ok(file)
}

fn existing_manifest(dir: &Path) -> Result<Option<Vec<u8>>, MakeError> {
    match std::fs::read(dir.join(ReleaseFile::Manifest.to_string())) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(disk(dir)(e)),
    }
}

/// Copies into a directory of another name first; the last act makes it visible.
fn copy_release(
    from: &Path,
    to: &Path,
    files: &[String],
    manifest: &[u8],
    signatures: &[u8],
) -> std::io::Result<()> {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let draft = to.with_file_name(format!(".{name}.{:016x}.draft", rand::random::<u64>()));
    let copied = (|| {
        std::fs::create_dir(&draft)?;
        for file in files {
            let mut source = open_beneath(from, Path::new(file))?;
            let mut target = OpenOptions::new().write(true).create_new(true).open(draft.join(file))?;
            std::io::copy(&mut source, &mut target)?;
            target.sync_all()?;
        }
        write_atomic(&draft.join(ReleaseFile::Manifest.to_string()), manifest)?;
        write_atomic(&draft.join(ReleaseFile::Signatures.to_string()), signatures)?;
        sync_dir(&draft)?;
        std::fs::rename(&draft, to)
    })();
    if copied.is_err() {
        let _ = std::fs::remove_dir_all(&draft);
    }
    copied?;
    to.parent().map_or(Ok(()), sync_dir)
}

fn list(repository: &Path, version: &Version, maturity: Maturity, now: Timestamp) -> Result<(), MakeError> {
    let path = repository.join(INDEX);
    let mut index = match open_beneath(repository, Path::new(INDEX)) {
        Ok(file) => {
            let bytes = read_bounded(file, MAX_INDEX_BYTES as u64).map_err(disk(&path))?;
            Index::parse(&bytes).map_err(|why| MakeError::Description { path: path.clone(), why })?
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Index::default(),
        Err(e) => return Err(disk(&path)(e)),
    };
    let prerelease = maturity == Maturity::Prerelease;
    index.add(Listed { version: version.clone(), prerelease, published_at: Some(now) });
    let bytes = serde_json::to_vec_pretty(&index);
    let bytes = bytes.map_err(|e| MakeError::Description { path: path.clone(), why: e.to_string() })?;
    write_atomic(&path, &bytes).map_err(disk(&path))
}
