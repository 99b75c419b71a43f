//! From a description, package files and OCI layouts to a release directory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;
use serde::Deserialize;

use super::{MakeError, disk, image_in};
use crate::artifact::dpkg::show_fields;
use crate::artifact::files::{link_or_copy, make_dir, read_bounded, write_atomic};
use crate::artifact::oci::Layout;
use crate::artifact::{digest_file, digest_of};
use crate::release::{ArtifactName, Image, Manifest, Package, ReleaseFile, Step, Tag, Version, VersionRange};

/// Without an expiry in the description.
const DEFAULT_EXPIRES_DAYS: u32 = 90;
const MAX_DESCRIPTION_BYTES: u64 = 1024 * 1024;
const SECONDS_PER_DAY: i64 = 86_400;

/// What a release is made of, as its author writes it (TOML). Paths are relative to the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// The version of the release.
    pub version: Version,
    /// The oldest worker that can carry it out; any if left out.
    #[serde(default)]
    pub min_worker_version: Option<Version>,
    /// From which versions a host may come.
    #[serde(default)]
    pub allowed_from: Vec<VersionRange>,
    /// Until when hosts start it.
    #[serde(default)]
    pub expires: Option<Timestamp>,
    /// Or so many days after it was built.
    #[serde(default)]
    pub expires_days: Option<u32>,
    /// Package files.
    #[serde(default)]
    pub packages: Vec<PathBuf>,
    /// Images in OCI layouts.
    #[serde(default)]
    pub images: Vec<ImageDescription>,
    /// What is done.
    pub steps: Vec<Step>,
}

/// An image in an OCI layout.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageDescription {
    /// Its name on the hosts.
    pub name: ArtifactName,
    /// Its tag on the hosts.
    pub tag: Tag,
    /// The layout's directory.
    pub layout: PathBuf,
    /// What the layout calls it; may be left out if it has only one.
    #[serde(default)]
    pub r#ref: Option<String>,
}

impl Description {
    /// Reads a description.
    pub fn read(path: &Path) -> Result<Description, MakeError> {
        let wrong = |why: String| MakeError::Description { path: path.to_owned(), why };
        let file = File::open(path).map_err(disk(path))?;
        let bytes = read_bounded(file, MAX_DESCRIPTION_BYTES).map_err(disk(path))?;
        let text = String::from_utf8(bytes).map_err(|_| wrong("it is not text".to_owned()))?;
        toml::from_str(&text).map_err(|e| wrong(e.to_string().trim_end().to_owned()))
    }

    fn expiry(&self, now: Timestamp) -> Timestamp {
        let days = i64::from(self.expires_days.unwrap_or(DEFAULT_EXPIRES_DAYS));
        let later = now.as_second().saturating_add(days * SECONDS_PER_DAY);
        self.expires.unwrap_or_else(|| Timestamp::from_second(later).unwrap_or(Timestamp::MAX))
    }
}

/// Builds a release into `out`, which must not exist or be empty. `base` is the directory of the description.
pub fn build(
    description: &Description,
    base: &Path,
    out: &Path,
    now: Timestamp,
) -> Result<Manifest, MakeError> {
    make_dir(out).map_err(disk(out))?;
    if std::fs::read_dir(out).map_err(disk(out))?.next().is_some() {
        let error = std::io::Error::new(std::io::ErrorKind::DirectoryNotEmpty, "it is not empty");
        return Err(MakeError::Disk { path: out.to_owned(), error });
    }
    let any_worker = "0".parse()?;
    let manifest = Manifest {
        format: 1,
        version: description.version.clone(),
        min_worker_version: description.min_worker_version.clone().unwrap_or(any_worker),
        allowed_from: description.allowed_from.clone(),
        expires: description.expiry(now),
        packages: collect(&description.packages, |path| add_package(&base.join(path), out))?,
        images: collect(&description.images, |image| add_image(image, base, out))?,
        steps: description.steps.clone(),
    };
    let path = out.join(ReleaseFile::Manifest.to_string());
    // Last: a directory without a manifest is no release.
    write_atomic(&path, &manifest.to_bytes()?).map_err(disk(&path))?;
    Ok(manifest)
}

fn collect<T, U>(items: &[T], one: impl Fn(&T) -> Result<U, MakeError>) -> Result<Vec<U>, MakeError> {
    items.iter().map(one).collect()
}

fn add_package(path: &Path, out: &Path) -> Result<Package, MakeError> {
    let (name, version) = package_fields(path)?;
    let (digest, size) = File::open(path).and_then(|mut file| digest_file(&mut file)).map_err(disk(path))?;
    let package = Package { name, version, digest, size };
    let to = out.join(package.file());
    std::fs::copy(path, &to).map_err(disk(&to))?;
    Ok(package)
}

fn package_fields(path: &Path) -> Result<(ArtifactName, Version), MakeError> {
    let argv = show_fields(path);
    let output = Command::new(&argv[0]).args(&argv[1..]).env("LC_ALL", "C").output();
    let failed = |why: String| MakeError::Program { program: argv[0].clone(), why };
    let output = output.map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = |why: String| MakeError::Artifact { file: path.display().to_string(), why };
    let (name, version) = text.trim_end().split_once('\t').unwrap_or((&text, ""));
    let name = name.parse::<ArtifactName>().map_err(|e| wrong(e.to_string()))?;
    let version = version.parse::<Version>().map_err(|e| wrong(e.to_string()))?;
    Ok((name, version))
}

fn add_image(image: &ImageDescription, base: &Path, out: &Path) -> Result<Image, MakeError> {
    let layout = Layout::new(base.join(&image.layout));
    let top = image_in(&layout, image.r#ref.as_deref())?;
    let bytes = layout.document(&top.digest)?;
    for blob in layout.blobs(&top)? {
        layout.verify_blob(&blob.digest, Some(blob.size))?;
        let to = out.join(ReleaseFile::Blob(blob.digest.clone()).to_string());
        link_or_copy(&layout.blob_path(&blob.digest), &to).map_err(disk(&to))?;
    }
    debug_assert_eq!(digest_of(&bytes), top.digest);
    let size = bytes.len() as u64;
    Ok(Image { name: image.name.clone(), tag: image.tag.clone(), digest: top.digest, size })
}
