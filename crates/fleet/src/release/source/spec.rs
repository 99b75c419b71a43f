//! How a person names a source: `/srv/releases`, `https://releases.example.org/fleet`, `github:owner/name`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Directory, GitHub, Http, Source};

/// Where releases come from, as written in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum SourceSpec {
    /// A directory.
    Directory(PathBuf),
    /// The address of a web server.
    Http(String),
    /// `github:owner/name`, or `github:owner/name#prefix` for tags that begin with a prefix.
    GitHub {
        /// `owner/name`.
        repository: String,
        /// Only tags that begin so count; what follows is the version.
        tag_prefix: String,
    },
}

/// Why a text names no source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Nothing was given.
    #[error("a source is a directory, an http:// or https:// address, or github:owner/name#tag-prefix")]
    Empty,
    /// An address that is none.
    #[error("{0:?} is not an address: {1}")]
    Url(String, String),
    /// A repository that is none.
    #[error("{0:?} is not a repository: write github:owner/name")]
    Repository(String),
    /// A proxy that is none.
    #[error("{0:?} is not a proxy: {1}")]
    Proxy(String, String),
    /// The system's certificates cannot be read, say.
    #[error("no connection can be made: {0}")]
    Client(String),
}

/// GitHub's usual prefix of tags.
const DEFAULT_TAG_PREFIX: &str = "v";

impl FromStr for SourceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if text.is_empty() {
            return Err(SpecError::Empty);
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            Http::new(text, None)?;
            return Ok(SourceSpec::Http(text.to_owned()));
        }
        if let Some(repository) = text.strip_prefix("github:") {
            let (repository, prefix) = repository.split_once('#').unwrap_or((repository, DEFAULT_TAG_PREFIX));
            GitHub::new(super::github::API, repository, prefix, None)?;
            let (repository, tag_prefix) = (repository.to_owned(), prefix.to_owned());
            return Ok(SourceSpec::GitHub { repository, tag_prefix });
        }
        Ok(SourceSpec::Directory(text.into()))
    }
}

impl SourceSpec {
    /// The source itself; downloads go through the proxy if there is one.
    pub fn connect(&self, proxy: Option<&str>) -> Result<Arc<dyn Source>, SpecError> {
        Ok(match self {
            SourceSpec::Directory(path) => Arc::new(Directory::new(path)),
            SourceSpec::Http(base) => Arc::new(Http::new(base, proxy)?),
            SourceSpec::GitHub { repository, tag_prefix } => {
                Arc::new(GitHub::new(super::github::API, repository, tag_prefix, proxy)?)
            }
        })
    }
}

impl fmt::Display for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceSpec::Directory(path) => write!(f, "{}", path.display()),
            SourceSpec::Http(base) => f.write_str(base),
            SourceSpec::GitHub { repository, tag_prefix } => write!(f, "github:{repository}#{tag_prefix}"),
        }
    }
}

impl TryFrom<String> for SourceSpec {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<SourceSpec> for String {
    fn from(spec: SourceSpec) -> String {
        spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_written_as_they_are_read() {
        for text in ["/srv/releases", "releases", "http://127.0.0.1:80/x", "github:o/r#release-"] {
            assert_eq!(text.parse::<SourceSpec>().unwrap().to_string(), text);
        }
        assert_eq!("github:o/r".parse::<SourceSpec>().unwrap().to_string(), "github:o/r#v");
    }

    #[test]
    fn what_names_no_source_is_refused() {
        for text in ["", "http://", "github:o", "github:o/r/x", "github:../r", "github:o/.."] {
            assert!(text.parse::<SourceSpec>().is_err(), "{text:?}");
        }
    }
}
