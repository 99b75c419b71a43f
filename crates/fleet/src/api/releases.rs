//! Which release is meant, and may the fleet have it? What the fleet knows already, else what its source says; nothing is
//! aimed at before its signatures are known to be good.

use std::sync::Arc;

use super::Fleet;
use crate::encoding::Moment;
use crate::error::FleetError;
use crate::facts::Facts;
use crate::release::{Manifest, Prereleases, Source, SourceError, SourceSpec, Version, newest};
use crate::run::fetch_signed;
use crate::spec::ReleaseRecord;

impl Fleet {
    /// The named release or else the newest, known to the fleet when this returns: an operator need not wait until the
    /// updater has looked at the source.
    pub async fn meant(&self, named: Option<&str>) -> Result<String, FleetError> {
        let facts = self.facts().await?;
        let known: Vec<Version> = facts.releases.keys().filter_map(|version| version.parse().ok()).collect();
        let source = source(&facts)?;
        let version = match named {
            Some(named) => named.parse().map_err(invalid)?,
            None => {
                let offered = match &source {
                    None => None,
                    Some(source) => newest_at(&**source).await?,
                };
                offered.into_iter().chain(known.iter().cloned()).max().ok_or_else(|| {
                    let text = "the fleet knows no release, and its source has none\nMake one (capstan fleet release \
                                sample), or say where releases are: capstan fleet config set source DIR-OR-URL";
                    FleetError::Invalid(text.to_owned())
                })?
            }
        };
        if !known.contains(&version) {
            self.learn(source, &version).await?;
        }
        Ok(named.map_or_else(|| version.to_string(), str::to_owned))
    }

    /// Tells the updaters what a release consists of, if its signatures are good. Hosts do not believe it: each checks
    /// the signed manifest itself.
    async fn learn(&self, source: Option<Arc<dyn Source>>, version: &Version) -> Result<(), FleetError> {
        let Some(source) = source else {
            let text = format!(
                "release {version} not found: the fleet does not know it and has no source\nSay where releases are: \
                 capstan fleet config set source DIR-OR-URL"
            );
            return Err(FleetError::Invalid(text));
        };
        let manifest = self.verified(&*source, version).await?;
        self.add_release(&ReleaseRecord::of(&manifest, Moment::now())).await
    }

    /// The manifest of a release whose signatures are good. Without a trust file it must be signed by some key; whose it
    /// is only hosts can tell.
    pub async fn verified(&self, source: &dyn Source, version: &Version) -> Result<Manifest, FleetError> {
        let fetched =
            fetch_signed(source, version).await.map_err(|error| FleetError::Elsewhere(error.to_string()));
        let (bytes, signatures) = fetched?;
        let refused = |why: String| FleetError::Refused(format!("release {version}: {why}"));
        let manifest = match self.trust() {
            Some(trust) => {
                trust.open(&bytes, signatures.as_deref()).map_err(|refusal| refused(refusal.to_string()))?
            }
            None if signatures.is_none() => return Err(refused("it is not signed".to_owned())),
            None => Manifest::parse(&bytes).map_err(|error| refused(error.to_string()))?,
        };
        match manifest.version.as_str() == version.as_str() {
            true => Ok(manifest),
            false => Err(refused(format!("the source has release {} in its place", manifest.version))),
        }
    }
}

fn invalid(error: impl std::fmt::Display) -> FleetError {
    FleetError::Invalid(error.to_string())
}

/// The newest release at a source. Where nothing was published yet there is no list.
async fn newest_at(source: &dyn Source) -> Result<Option<Version>, FleetError> {
    let listed = match source.list().await {
        Err(SourceError::NotFound { .. }) => Vec::new(),
        listed => listed.map_err(|error| FleetError::Elsewhere(error.to_string()))?,
    };
    Ok(newest(&listed, Prereleases::Exclude).map(|listed| listed.version.clone()))
}

fn source(facts: &Facts) -> Result<Option<Arc<dyn Source>>, FleetError> {
    let Some(text) = &facts.settings.source else { return Ok(None) };
    let spec: SourceSpec =
        text.parse().map_err(|error| invalid(format!("the fleet's source is {text:?}: {error}")))?;
    Ok(Some(spec.connect(facts.settings.proxy.as_deref()).map_err(invalid)?))
}
