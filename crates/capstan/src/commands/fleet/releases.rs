//! Which release is meant, and what is it? What the fleet knows already, else what its source says.

use anyhow::{Context as _, Result, bail};
use capstan_fleet::Fleet;
use capstan_fleet::api::ConfigKey;
use capstan_fleet::encoding::Moment;
use capstan_fleet::release::{
    MAX_MANIFEST_BYTES, Manifest, Prereleases, ReleaseFile, Source, SourceError, SourceSpec, Version, newest,
};
use capstan_fleet::spec::ReleaseRecord;
use std::sync::Arc;

/// The named release or else the newest, known to the fleet when this returns: an operator need not wait until the
/// updater has looked at the source.
pub(super) async fn meant(fleet: &Fleet, named: Option<&str>) -> Result<String> {
    let known = known(fleet).await?;
    if let Some(named) = named {
        let version: Version = named.parse()?;
        if !known.contains(&version) {
            learn(fleet, &version).await?;
        }
        return Ok(named.to_owned());
    }
    let offered = match source(fleet).await? {
        None => None,
        Some(source) => {
            // Where nothing was published yet there is no list.
            let listed = match source.list().await {
                Err(SourceError::NotFound { .. }) => Vec::new(),
                listed => listed?,
            };
            newest(&listed, Prereleases::Exclude).map(|listed| listed.version.clone())
        }
    };
    let Some(version) = offered.into_iter().chain(known.iter().cloned()).max() else {
        bail!(
            "the fleet knows no release, and its source has none\nMake one (capstan fleet release sample), or say \
             where releases are: capstan fleet config set source DIR-OR-URL"
        );
    };
    if !known.contains(&version) {
        learn(fleet, &version).await?;
    }
    Ok(version.to_string())
}

async fn known(fleet: &Fleet) -> Result<Vec<Version>> {
    let world = fleet.world().await?;
    Ok(world.releases.keys().filter_map(|version| version.parse().ok()).collect())
}

/// Tells the updaters what a release consists of. Hosts do not believe it: each checks the signed manifest itself.
async fn learn(fleet: &Fleet, version: &Version) -> Result<()> {
    let Some(source) = source(fleet).await? else {
        bail!(
            "release {version} not found: the fleet does not know it and has no source\nSay where releases are: \
             capstan fleet config set source DIR-OR-URL"
        );
    };
    let body = source.open(version, &ReleaseFile::Manifest, 0).await?;
    let manifest = Manifest::parse(&body.read(MAX_MANIFEST_BYTES).await?)?;
    if manifest.version.as_str() != version.as_str() {
        bail!("the source has release {} where {version} should be", manifest.version);
    }
    fleet.add_release(&ReleaseRecord::of(&manifest, Moment::now())).await?;
    Ok(())
}

async fn source(fleet: &Fleet) -> Result<Option<Arc<dyn Source>>> {
    let Some(text) = fleet.config_get(ConfigKey::Source).await?.value else { return Ok(None) };
    let proxy = fleet.config_get(ConfigKey::Proxy).await?.value;
    let spec: SourceSpec = text.parse().with_context(|| format!("the fleet's source is {text:?}"))?;
    Ok(Some(spec.connect(proxy.as_deref())?))
}
