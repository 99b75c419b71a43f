//! Where releases come from: a directory, a web server, the releases of a GitHub repository.
//!
//! A source is not trusted. It answers with bytes and an upper bound on them; what they are worth is decided by
//! signatures and digests.

mod directory;
mod github;
mod http;
mod spec;

use async_trait::async_trait;
use bytes::Bytes;

pub use directory::Directory;
pub use github::GitHub;
pub use http::Http;
pub use spec::{SourceSpec, SpecError};

use super::layout::{Listed, ReleaseFile};
use super::version::Version;

/// Why a source did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// It does not have this.
    #[error("{place} has no {what}")]
    NotFound {
        /// Which source.
        place: String,
        /// What it lacks.
        what: String,
    },
    /// It cannot be reached, or broke off. It may work later.
    #[error("{place} cannot be reached: {why}")]
    Unreachable {
        /// Which source.
        place: String,
        /// What went wrong.
        why: String,
    },
    /// It answered with something else than was asked for.
    #[error("{place} gave a wrong answer: {why}")]
    Wrong {
        /// Which source.
        place: String,
        /// What is wrong with it.
        why: String,
    },
}

impl SourceError {
    fn not_found(place: impl ToString, what: impl ToString) -> Self {
        SourceError::NotFound { place: place.to_string(), what: what.to_string() }
    }

    fn unreachable(place: impl ToString, why: impl ToString) -> Self {
        SourceError::Unreachable { place: place.to_string(), why: why.to_string() }
    }

    fn wrong(place: impl ToString, why: impl ToString) -> Self {
        SourceError::Wrong { place: place.to_string(), why: why.to_string() }
    }
}

/// Where releases come from.
#[async_trait]
pub trait Source: Send + Sync + std::fmt::Debug {
    /// Which releases it has, oldest first.
    async fn list(&self) -> Result<Vec<Listed>, SourceError>;

    /// Opens a file of a release, from this offset on if the source can.
    async fn open(&self, version: &Version, file: &ReleaseFile, from: u64) -> Result<Body, SourceError>;
}

/// The bytes of a file as they arrive.
#[derive(Debug)]
pub struct Body {
    /// The offset of the first byte: what was asked for, or zero.
    pub start: u64,
    source: String,
    bytes: BodyBytes,
}

#[derive(Debug)]
enum BodyBytes {
    File(tokio::fs::File),
    Response(reqwest::Response),
}

/// How much of a file is read at a time.
const CHUNK: usize = 128 * 1024;

impl Body {
    /// The next bytes; nothing at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, SourceError> {
        match &mut self.bytes {
            BodyBytes::Response(response) => {
                response.chunk().await.map_err(|e| SourceError::unreachable(&self.source, http::plain(e)))
            }
            BodyBytes::File(file) => {
                use tokio::io::AsyncReadExt;
                let mut buffer = vec![0; CHUNK];
                let read = file.read(&mut buffer).await;
                let read = read.map_err(|e| SourceError::unreachable(&self.source, e))?;
                buffer.truncate(read);
                Ok((read > 0).then(|| buffer.into()))
            }
        }
    }

    /// All bytes, at most `most`: for what is small and read whole.
    pub async fn read(mut self, most: usize) -> Result<Vec<u8>, SourceError> {
        let mut all = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if all.len() + chunk.len() > most {
                return Err(SourceError::wrong(&self.source, format!("it is longer than {most} bytes")));
            }
            all.extend_from_slice(&chunk);
        }
        Ok(all)
    }
}
