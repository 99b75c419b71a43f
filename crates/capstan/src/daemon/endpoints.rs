//! The addresses of a running process, for scripts and commands: a small JSON file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use capstan_console::About;
use serde::{Deserialize, Serialize};

/// Name of the file in the data directory.
const FILE: &str = "endpoints.json";

/// The addresses of a process. Field names are a contract with scripts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Endpoints {
    /// The metadata store, on the etcd v3 wire.
    pub(crate) meta: String,
    /// Console, JSON API, metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) http: Option<String>,
    /// A broker of topics, for clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) topics: Option<String>,
    /// The HTTP API of a document store node: the base URL for clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) docs: Option<String>,
    /// The same for every node in this process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) docs_nodes: Vec<String>,
    /// Every other service in this process, by name: `redis` is the address for clients.
    #[serde(flatten)]
    pub(crate) services: BTreeMap<String, String>,
    /// The host of the process.
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
    pub(crate) fn about(&self, serves: &[&str]) -> About {
        let http = self.http.iter().map(|http| ("console, JSON API, metrics".to_owned(), http.clone()));
        let topics = self.topics.iter().map(|topics| ("topics (gRPC)".to_owned(), topics.clone()));
        let meta = [("metadata (etcd v3 wire)".to_owned(), self.meta.clone())];
        About {
            version: self.version.clone(),
            host: self.host.clone(),
            serves: serves.iter().map(|service| (*service).to_owned()).collect(),
            endpoints: http.chain(meta).chain(topics).collect(),
        }
    }

    /// Writes the file to the data directory, where commands find it, and to the path that a script asked for.
    pub(crate) fn announce(&self, dir: &Path, ready_file: Option<&Path>) -> Result<()> {
        self.write(&dir.join(FILE))?;
        ready_file.map_or(Ok(()), |path| self.write(path))
    }

    /// Removes the file from the data directory: the process has stopped.
    pub(crate) fn withdraw(dir: &Path) {
        if let Err(error) = std::fs::remove_file(dir.join(FILE)) {
            tracing::debug!(%error, "cannot remove endpoints file");
        }
    }

    /// Writes the file atomically.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let partial = path.with_added_extension("part");
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&partial, text)
            .and_then(|()| std::fs::rename(&partial, path))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The endpoints file of the process that serves this data directory, if there is one.
    pub(crate) fn of_dir(dir: &Path) -> Option<Endpoints> {
        let text = std::fs::read(dir.join(FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}
