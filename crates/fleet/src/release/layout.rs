//! Where the files of a release lie, in a directory that any web server can serve.
//!
//! ```text
//! index.json                                    which releases there are
//! releases/<version>/manifest.json
//! releases/<version>/manifest.json.sig
//! releases/<version>/<name>-<digest>.deb        a package
//! releases/<version>/sha256-<digest>            a blob of an image
//! ```
//!
//! The files of one release have no directories among them, so that they can be the assets of a GitHub release.

use std::fmt;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::manifest::Package;
use super::name::Digest;
use super::version::Version;

/// The list of releases.
pub const INDEX: &str = "index.json";
/// Some thousands of releases.
pub const MAX_INDEX_BYTES: usize = 1024 * 1024;
const FORMAT: u32 = 1;

/// A file of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseFile {
    /// The manifest.
    Manifest,
    /// Its signatures.
    Signatures,
    /// The file of a package.
    Package(String),
    /// A blob of an image.
    Blob(Digest),
}

impl ReleaseFile {
    /// The file of a package.
    #[must_use]
    pub fn package(package: &Package) -> ReleaseFile {
        ReleaseFile::Package(package.file())
    }
}

impl fmt::Display for ReleaseFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReleaseFile::Manifest => f.write_str("manifest.json"),
            ReleaseFile::Signatures => f.write_str("manifest.json.sig"),
            ReleaseFile::Package(file) => f.write_str(file),
            ReleaseFile::Blob(digest) => write!(f, "sha256-{}", digest.hex()),
        }
    }
}

/// The directory of a release, relative to the repository.
#[must_use]
pub fn release_dir(version: &Version) -> PathBuf {
    PathBuf::from("releases").join(version.as_str())
}

/// Which releases there are. It is not signed: it can hide a release, never forge one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// The format of the file: 1.
    pub format: u32,
    /// The releases, oldest first.
    pub releases: Vec<Listed>,
}

impl Default for Index {
    fn default() -> Self {
        Index { format: FORMAT, releases: Vec::new() }
    }
}

/// A release that a source has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its version.
    pub version: Version,
    /// Whether only fleets that opted in get it.
    #[serde(default)]
    pub prerelease: bool,
    /// When it was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_at: Option<Timestamp>,
}

impl Index {
    /// Reads the list.
    pub fn parse(bytes: &[u8]) -> Result<Index, String> {
        let index: Index = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        match index.format {
            FORMAT => Ok(index),
            other => Err(format!("it has format {other}, and this worker reads format {FORMAT}")),
        }
    }

    /// Adds a release, in the place of an earlier entry of the same version.
    pub fn add(&mut self, listed: Listed) {
        self.releases.retain(|old| old.version != listed.version);
        self.releases.push(listed);
        self.releases.sort_by(|a, b| a.version.cmp(&b.version));
    }
}

/// The newest of some releases; one before its release only where asked for.
#[must_use]
pub fn newest(listed: &[Listed], prereleases: Prereleases) -> Option<&Listed> {
    let wanted = |listed: &&Listed| match prereleases {
        Prereleases::Include => true,
        Prereleases::Exclude => !listed.prerelease,
    };
    listed.iter().filter(wanted).max_by(|a, b| a.version.cmp(&b.version))
}

/// Whether releases before their release count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prereleases {
    /// They count.
    Include,
    /// They do not.
    #[default]
    Exclude,
}
