//! What a running process tells scripts and commands about itself: a small JSON file.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use capstan_console::About;
use serde::{Deserialize, Serialize};

/// Name of the file in the data directory.
const FILE: &str = "endpoints.json";

/// Where everything is served. Field names are a contract with scripts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Endpoints {
    /// The metadata store, on the etcd v3 wire.
    pub(crate) meta: String,
    /// Console, JSON API, metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http: Option<String>,
    /// The host that the process stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// The data directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dir: Option<PathBuf>,
    /// The process.
    pub(crate) pid: u32,
    /// The version of the build.
    pub(crate) version: String,
}

impl Endpoints {
    /// The same for the console.
    pub(crate) fn about(&self) -> About {
        let http = self.http.iter().map(|http| ("console, JSON API, metrics".to_owned(), http.clone()));
        let meta = [("metadata (etcd v3 wire)".to_owned(), self.meta.clone())];
        About {
            version: self.version.clone(),
            host: self.host.clone(),
            endpoints: http.chain(meta).collect(),
        }
    }

    /// Tells everyone: commands find the file in the data directory, scripts where they asked for it.
    pub(crate) fn announce(&self, dir: &Path, ready_file: Option<&Path>) -> Result<()> {
        self.write(&dir.join(FILE))?;
        ready_file.map_or(Ok(()), |path| self.write(path))
    }

    /// Takes the announcement in the data directory back: nobody should look for a process that has stopped.
    pub(crate) fn withdraw(dir: &Path) {
        if let Err(error) = std::fs::remove_file(dir.join(FILE)) {
            tracing::debug!(%error, "endpoints were not withdrawn");
        }
    }

    /// Writes the file so that nobody sees half of it.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let partial = path.with_added_extension("part");
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&partial, text)
            .and_then(|()| std::fs::rename(&partial, path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// What the process that serves this data directory has written there, if one has.
    pub(crate) fn of_dir(dir: &Path) -> Option<Endpoints> {
        let text = std::fs::read(dir.join(FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}
