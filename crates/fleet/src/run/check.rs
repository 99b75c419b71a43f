//! Is a published release what it should be? Everything is fetched as a host would, and nothing is installed.

use std::path::Path;

use tokio_util::sync::CancellationToken;

use super::images::Stager;
use super::work::StepError;
use super::{host::staging, host::unavailable};
use crate::artifact::Cache;
use crate::release::{
    MAX_MANIFEST_BYTES, MAX_SIGNATURE_BYTES, Manifest, Refusal, ReleaseFile, Source, SourceError, Trust,
    Version,
};

/// Fetches a release into the directory `cache` and checks its signatures and every artifact.
pub async fn check_source(
    source: &dyn Source,
    version: &Version,
    trust: &Trust,
    cache: &Path,
) -> Result<Manifest, StepError> {
    let cache = Cache::open(cache).map_err(|e| StepError::Host(format!("{}: {e}", cache.display())))?;
    let (manifest, signatures) = fetch_signed(source, version).await.map_err(unavailable)?;
    let refused = |e: Refusal| StepError::Refused(e.to_string());
    let manifest = trust.open(&manifest, signatures.as_deref()).map_err(refused)?;
    if manifest.version.as_str() != version.as_str() {
        let (asked, offered) = (version.clone(), manifest.version);
        return Err(refused(Refusal::OtherRelease { asked, offered }));
    }
    let stop = CancellationToken::new();
    let stager = Stager { source, cache: &cache, manifest: &manifest, stop: &stop };
    for package in &manifest.packages {
        stager.package(package).await.map_err(staging)?;
    }
    for image in &manifest.images {
        stager.image(image).await.map_err(staging)?;
    }
    Ok(manifest)
}

/// A manifest and its signatures, before verification.
pub(crate) async fn fetch_signed(
    source: &dyn Source,
    version: &Version,
) -> Result<(Vec<u8>, Option<Vec<u8>>), SourceError> {
    let manifest = source.open(version, &ReleaseFile::Manifest, 0).await?.read(MAX_MANIFEST_BYTES).await?;
    match source.open(version, &ReleaseFile::Signatures, 0).await {
        Ok(signatures) => Ok((manifest, Some(signatures.read(MAX_SIGNATURE_BYTES).await?))),
        Err(SourceError::NotFound { .. }) => Ok((manifest, None)),
        Err(e) => Err(e),
    }
}
