//! Fetches the artifacts of a release and installs images into the host's OCI layout.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tokio_util::sync::CancellationToken;

use crate::artifact::oci::{Descriptor, Layout, OciError, children, media_type_of};
use crate::artifact::{Cache, FetchError};
use crate::release::{Digest, Image, Manifest, Package, ReleaseFile, Source};

/// An index, its manifests, their layers.
const MAX_DEPTH: usize = 3;
const MAX_BLOBS: usize = 1024;

/// Why artifacts are not there.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A file could not be fetched, or is not what was signed.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// An image is not one.
    #[error("image {name}: {error}")]
    Image {
        /// Which.
        name: String,
        /// What is wrong.
        error: OciError,
    },
}

/// Fetches artifacts of one release.
#[derive(Clone, Copy, Debug)]
pub struct Stager<'a> {
    /// Where they come from.
    pub source: &'a dyn Source,
    /// Where they go.
    pub cache: &'a Cache,
    /// What they belong to.
    pub manifest: &'a Manifest,
    /// Interrupts at once; what has arrived is kept.
    pub stop: &'a CancellationToken,
}

impl Stager<'_> {
    /// The file of a package.
    pub async fn package(&self, package: &Package) -> Result<PathBuf, StageError> {
        let file = ReleaseFile::package(package);
        Ok(self.fetch(&file, &package.digest, package.size).await?)
    }

    /// All blobs of an image, its own document first.
    pub async fn image(&self, image: &Image) -> Result<Vec<Descriptor>, StageError> {
        let wrong = |error| StageError::Image { name: image.name.to_string(), error };
        let bytes = self.document(&image.digest, image.size).await?;
        let media_type = media_type_of(&image.digest, &bytes).map_err(wrong)?;
        let top = Descriptor { media_type, digest: image.digest.clone(), size: image.size };
        let mut all = vec![top.clone()];
        let mut level = vec![(top, bytes)];
        for _ in 0..MAX_DEPTH {
            let mut next = Vec::new();
            for (blob, bytes) in level {
                for child in children(&blob.digest, &bytes).map_err(wrong)? {
                    if all.iter().any(|known| known.digest == child.digest) {
                        continue;
                    }
                    if all.len() >= MAX_BLOBS {
                        return Err(wrong(OciError::TooMany));
                    }
                    all.push(child.clone());
                    if child.is_document() {
                        let bytes = self.document(&child.digest, child.size).await?;
                        next.push((child, bytes));
                    } else {
                        self.blob(&child.digest, child.size).await?;
                    }
                }
            }
            level = next;
        }
        if level.is_empty() { Ok(all) } else { Err(wrong(OciError::TooMany)) }
    }

    async fn document(&self, digest: &Digest, size: u64) -> Result<Vec<u8>, StageError> {
        let path = self.blob(digest, size).await?;
        std::fs::read(&path).map_err(|e| FetchError::Disk { path, why: e.to_string() }.into())
    }

    async fn blob(&self, digest: &Digest, size: u64) -> Result<PathBuf, FetchError> {
        self.fetch(&ReleaseFile::Blob(digest.clone()), digest, size).await
    }

    async fn fetch(&self, file: &ReleaseFile, digest: &Digest, size: u64) -> Result<PathBuf, FetchError> {
        self.cache.fetch(self.source, &self.manifest.version, file, (digest, size), self.stop).await
    }
}

/// Puts an image whose blobs are in the cache into a layout. A stop is seen before the image becomes visible.
pub fn install(
    layout: &Layout,
    cache: &Cache,
    image: &Image,
    blobs: &[Descriptor],
    stop: &CancellationToken,
) -> Result<(), OciError> {
    layout.prepare()?;
    if layout.verify(&image.name, &image.tag, &image.digest).is_ok() {
        return Ok(());
    }
    let Some(top) = blobs.first() else { return Err(OciError::TooMany) };
    for blob in blobs {
        if stop.is_cancelled() {
            return Ok(());
        }
        layout.add_blob(&blob.digest, &cache.path(&blob.digest))?;
    }
    layout.tag(&image.name, &image.tag, top.clone())?;
    layout.verify(&image.name, &image.tag, &image.digest)
}

/// Every file in the cache that a release needs, as far as the cache has its documents.
pub fn digests(manifest: &Manifest, cache: &Cache) -> BTreeSet<Digest> {
    let mut all: BTreeSet<Digest> = manifest.packages.iter().map(|package| package.digest.clone()).collect();
    let mut documents: Vec<Digest> = manifest.images.iter().map(|image| image.digest.clone()).collect();
    while let Some(digest) = documents.pop() {
        let blobs = std::fs::read(cache.path(&digest)).ok().and_then(|bytes| children(&digest, &bytes).ok());
        if all.insert(digest) {
            for blob in blobs.unwrap_or_default() {
                if blob.is_document() {
                    documents.push(blob.digest);
                } else {
                    all.insert(blob.digest);
                }
            }
        }
    }
    all
}
