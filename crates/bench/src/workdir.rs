//! A directory for one area's files, removed after the measurement.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Below the user's directory, which is on the disk to be measured.
pub(super) struct WorkDir(pub(super) PathBuf);

impl WorkDir {
    pub(super) fn below(dir: &Path, area: &str) -> Result<WorkDir> {
        let dir = dir.join(format!("capstan-bench-{area}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(WorkDir(dir))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
