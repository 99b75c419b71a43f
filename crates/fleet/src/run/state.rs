//! Which release a host has and which one it keeps, and the manifests of both.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::artifact::files::{make_dir, open_beneath, read_bounded, write_atomic};
use crate::release::{MAX_MANIFEST_BYTES, MAX_SIGNATURE_BYTES, ReleaseFile, Version};

const FILE: &str = "releases.json";
const MAX_FILE_BYTES: u64 = 4096;

/// Which release a host has and which one it keeps for a rollback.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Releases {
    /// The one that it finished last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<Version>,
    /// The one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Version>,
}

impl Releases {
    /// After a release was finished. Going back to the kept one keeps nothing: what was left behind is no way out.
    #[must_use]
    pub fn after(&self, finished: &Version) -> Releases {
        let same = |one: &Option<Version>| one.as_ref().is_some_and(|v| v.as_str() == finished.as_str());
        let kept = match (same(&self.current), same(&self.kept)) {
            (true, _) => self.kept.clone(),
            (false, true) => None,
            (false, false) => self.current.clone(),
        };
        Releases { current: Some(finished.clone()), kept }
    }
}

/// The directory in which a host remembers its releases.
#[derive(Clone, Debug)]
pub struct ReleaseStore {
    dir: PathBuf,
}

impl ReleaseStore {
    /// The store in a host's state directory.
    #[must_use]
    pub fn new(dir: &Path) -> ReleaseStore {
        ReleaseStore { dir: dir.to_owned() }
    }

    /// Which releases the host has.
    pub fn releases(&self) -> io::Result<Releases> {
        let bytes = match open_beneath(&self.dir, Path::new(FILE)) {
            Ok(file) => read_bounded(file, MAX_FILE_BYTES)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Releases::default()),
            Err(e) => return Err(e),
        };
        serde_json::from_slice(&bytes).map_err(|e| io::Error::other(format!("{FILE}: {e}")))
    }

    /// Writes which releases the host has.
    pub fn set_releases(&self, releases: &Releases) -> io::Result<()> {
        write_atomic(&self.dir.join(FILE), &serde_json::to_vec_pretty(releases)?)
    }

    fn release_dir(&self, version: &Version) -> PathBuf {
        self.dir.join("releases").join(version.as_str())
    }

    /// A manifest and its signatures, if the host has them.
    pub fn manifest(&self, version: &Version) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        let dir = self.release_dir(version);
        let read = |file: ReleaseFile, most: usize| {
            open_beneath(&dir, Path::new(&file.to_string())).and_then(|file| read_bounded(file, most as u64))
        };
        match read(ReleaseFile::Manifest, MAX_MANIFEST_BYTES) {
            Ok(manifest) => Ok(Some((manifest, read(ReleaseFile::Signatures, MAX_SIGNATURE_BYTES)?))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Remembers a manifest. The manifest is written last: with it the signatures are there too.
    pub fn keep_manifest(&self, version: &Version, manifest: &[u8], signatures: &[u8]) -> io::Result<()> {
        let dir = self.release_dir(version);
        make_dir(&dir)?;
        write_atomic(&dir.join(ReleaseFile::Signatures.to_string()), signatures)?;
        write_atomic(&dir.join(ReleaseFile::Manifest.to_string()), manifest)
    }

    /// Forgets every manifest but these.
    pub fn forget_others(&self, kept: &[&Version]) -> io::Result<()> {
        for entry in std::fs::read_dir(self.dir.join("releases"))? {
            let entry = entry?;
            let name = entry.file_name();
            if !kept.iter().any(|version| version.as_str() == name.to_string_lossy()) {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_before_is_kept_and_a_rollback_keeps_none() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        let none = Releases::default();
        let one = none.after(&version("1"));
        assert_eq!(one, Releases { current: Some(version("1")), kept: None });
        let two = one.after(&version("2"));
        assert_eq!(two, Releases { current: Some(version("2")), kept: Some(version("1")) });
        assert_eq!(two.after(&version("2")), two, "finished twice");
        assert_eq!(two.after(&version("1")), Releases { current: Some(version("1")), kept: None });
    }
}
