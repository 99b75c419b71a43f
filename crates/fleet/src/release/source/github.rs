//! Releases as assets of the releases of a GitHub repository, found through its API.

use std::fmt;

use async_trait::async_trait;
use jiff::Timestamp;
use reqwest::{Client, RequestBuilder, Url};
use serde::Deserialize;

use super::http::{client, fetch};
use super::{Body, Source, SourceError, SpecError};
use crate::release::Version;
use crate::release::layout::{Listed, ReleaseFile};

/// The public API.
pub const API: &str = "https://api.github.com";
const PER_PAGE: usize = 100;
/// A thousand releases: what is older is no candidate.
const MAX_PAGES: usize = 10;
/// A page of a hundred releases with some dozens of assets each.
const MAX_PAGE_BYTES: usize = 16 * 1024 * 1024;

/// The releases of a repository.
#[derive(Clone)]
pub struct GitHub {
    api: Url,
    repository: String,
    /// Only tags that begin so count; what follows is the version.
    tag_prefix: String,
    token: Option<String>,
    client: Client,
}

impl fmt::Debug for GitHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GitHub({} {} {}*)", self.api, self.repository, self.tag_prefix)
    }
}

#[derive(Deserialize)]
struct Release {
    tag_name: String,
    draft: bool,
    prerelease: bool,
    #[serde(default)]
    published_at: Option<Timestamp>,
    #[serde(default)]
    assets: Vec<Asset>,
}

#[derive(Deserialize)]
struct Asset {
    name: String,
    browser_download_url: String,
}

impl GitHub {
    /// The releases of `owner/name` whose tags begin with this.
    pub fn new(
        api: &str,
        repository: &str,
        tag_prefix: &str,
        proxy: Option<&str>,
    ) -> Result<GitHub, SpecError> {
        let part = |part: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            !part.is_empty() && part != "." && part != ".." && part.chars().all(allowed)
        };
        let valid = repository.split_once('/').is_some_and(|(owner, name)| part(owner) && part(name));
        if !valid {
            return Err(SpecError::Repository(repository.to_owned()));
        }
        let api = Url::parse(api).map_err(|e| SpecError::Url(api.to_owned(), e.to_string()))?;
        let (repository, tag_prefix) = (repository.to_owned(), tag_prefix.to_owned());
        Ok(GitHub { api, repository, tag_prefix, token: None, client: client(proxy)? })
    }

    /// The same, with a token for repositories that are not public or for a higher rate limit.
    #[must_use]
    pub fn with_token(self, token: String) -> GitHub {
        GitHub { token: Some(token), ..self }
    }

    fn get(&self, url: &Url) -> RequestBuilder {
        let request = self.client.get(url.clone()).header("accept", "application/vnd.github+json");
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    fn url(&self, path: &str) -> Result<Url, SourceError> {
        let text = format!("{}/repos/{}/{path}", self.api.as_str().trim_end_matches('/'), self.repository);
        Url::parse(&text).map_err(|e| SourceError::wrong(&self.api, e))
    }

    async fn page(&self, page: usize) -> Result<Vec<Release>, SourceError> {
        let url = self.url(&format!("releases?per_page={PER_PAGE}&page={page}"))?;
        let bytes = fetch(self.get(&url), &url, 0).await?.read(MAX_PAGE_BYTES).await?;
        serde_json::from_slice(&bytes).map_err(|e| SourceError::wrong(&url, e))
    }

    /// The version that a tag names; other tags are none of ours.
    fn version(&self, tag: &str) -> Option<Version> {
        tag.strip_prefix(&self.tag_prefix)?.parse().ok()
    }

    async fn releases(&self) -> Result<Vec<(Version, Release)>, SourceError> {
        let mut all = Vec::new();
        for page in 1..=MAX_PAGES {
            let releases = self.page(page).await?;
            let last = releases.len() < PER_PAGE;
            let published = releases.into_iter().filter(|release| !release.draft);
            all.extend(published.filter_map(|release| Some((self.version(&release.tag_name)?, release))));
            if last {
                break;
            }
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(all)
    }
}

#[async_trait]
impl Source for GitHub {
    async fn list(&self) -> Result<Vec<Listed>, SourceError> {
        let listed = |(version, release): (Version, Release)| Listed {
            version,
            prerelease: release.prerelease,
            published_at: release.published_at,
        };
        Ok(self.releases().await?.into_iter().map(listed).collect())
    }

    async fn open(&self, version: &Version, file: &ReleaseFile, from: u64) -> Result<Body, SourceError> {
        let url = self.url(&format!("releases/tags/{}{version}", self.tag_prefix))?;
        let bytes = fetch(self.get(&url), &url, 0).await?.read(MAX_PAGE_BYTES).await?;
        let release: Release = serde_json::from_slice(&bytes).map_err(|e| SourceError::wrong(&url, e))?;
        let name = file.to_string();
        let asset = release.assets.into_iter().find(|asset| asset.name == name);
        let asset = asset.ok_or_else(|| SourceError::not_found(&url, format!("asset {name}")))?;
        let url = Url::parse(&asset.browser_download_url).map_err(|e| SourceError::wrong(&url, e))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(SourceError::wrong(&url, "an asset's address is neither http nor https"));
        }
        // The token is for the API only: assets may lie on another host.
        fetch(self.client.get(url.clone()), &url, from).await
    }
}
