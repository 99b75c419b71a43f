//! Releases in a directory, as `capstan fleet release publish` writes it.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use super::{Body, BodyBytes, Source, SourceError};
use crate::artifact::files::{open_beneath, read_bounded};
use crate::release::Version;
use crate::release::layout::{INDEX, Index, Listed, MAX_INDEX_BYTES, ReleaseFile, release_dir};

/// A directory of releases. Links inside it are refused: write access to releases must not give read access to other files.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// The releases in this directory.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Directory {
        Directory(path.into())
    }

    fn open_file(&self, relative: &Path) -> Result<File, SourceError> {
        open_beneath(&self.0, relative).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => SourceError::not_found(self.0.display(), relative.display()),
            io::ErrorKind::InvalidInput => SourceError::wrong(self.0.display(), e),
            _ => SourceError::unreachable(self.0.display(), e),
        })
    }
}

#[async_trait]
impl Source for Directory {
    async fn list(&self) -> Result<Vec<Listed>, SourceError> {
        let wrong = |why: String| SourceError::wrong(self.0.display(), format!("{INDEX}: {why}"));
        let file = self.open_file(Path::new(INDEX))?;
        let bytes = read_bounded(file, MAX_INDEX_BYTES as u64).map_err(|e| wrong(e.to_string()))?;
        Ok(Index::parse(&bytes).map_err(wrong)?.releases)
    }

    async fn open(&self, version: &Version, file: &ReleaseFile, from: u64) -> Result<Body, SourceError> {
        let mut file = self.open_file(&release_dir(version).join(file.to_string()))?;
        file.seek(SeekFrom::Start(from)).map_err(|e| SourceError::unreachable(self.0.display(), e))?;
        let bytes = BodyBytes::File(tokio::fs::File::from_std(file));
        Ok(Body { start: from, source: self.0.display().to_string(), bytes })
    }
}
