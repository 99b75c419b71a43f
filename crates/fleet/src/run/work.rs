//! What the worker asks of its host, and what the host answers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::release::{ArtifactName, Manifest, StepName, StepNumber, Tag, Version};

/// Which request of the fleet a step belongs to: the same step of a later request is other work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What the operator allows this update to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// To a newer version, or to the one that is installed.
    Upgrade,
    /// Back to the one version that the host keeps for this, and to no other.
    RollBack,
}

/// One step of one update on this host.
#[derive(Clone, Debug)]
pub struct StepWork {
    /// Which request it belongs to.
    pub generation: Generation,
    /// The release, as [`Runner::release`] returned it.
    pub manifest: Arc<Manifest>,
    /// Which step.
    pub step: StepNumber,
    /// What the operator allows.
    pub permission: Permission,
}

/// What is verifiably installed: read back from the host, not remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Installed {
    /// Debian packages.
    pub packages: BTreeMap<ArtifactName, Version>,
    /// Container images.
    pub images: BTreeMap<ArtifactName, Tag>,
}

/// A step is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepOutcome {
    /// What this step installed and verified afterwards. Only this may be recorded in the metadata.
    pub installed: Installed,
}

/// Why a step is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The stop was obeyed. Running the same work again goes on where it was interrupted.
    #[error("step {step} was stopped{}", after.as_ref().map(|what| format!(" after {what}")).unwrap_or_default())]
    Stopped {
        /// Which step.
        step: StepName,
        /// What was finished first, because half of it would be worse.
        after: Option<String>,
    },
    /// The stop came while artifacts were being fetched. What has arrived is kept.
    #[error("fetching the release was stopped")]
    StagingStopped,
    /// The release may not be installed on this host. Nothing was changed.
    #[error("{0}")]
    Refused(String),
    /// An artifact or the manifest could not be fetched. Nothing was changed.
    #[error("{0}")]
    Unavailable(String),
    /// An action failed.
    #[error("step {step} failed: {what}")]
    Failed {
        /// Which step.
        step: StepName,
        /// What failed and what it printed last.
        what: String,
    },
    /// The actions took too long and were ended.
    #[error("step {step} was not done after {timeout:?}: {what}")]
    TimedOut {
        /// Which step.
        step: StepName,
        /// How long it was allowed to take.
        timeout: Duration,
        /// What it was doing.
        what: String,
    },
    /// The actions are done and the host did not become healthy.
    #[error("step {step} is done and the host is not healthy after {deadline:?}: {what}")]
    Unhealthy {
        /// Which step.
        step: StepName,
        /// How long was waited.
        deadline: Duration,
        /// What the probe said last.
        what: String,
    },
    /// The host itself does not work: its disk, its journal, its package database.
    #[error("this host cannot work: {0}")]
    Host(String),
}

/// A host that carries steps out.
///
/// Every method may be called again after a crash of the caller: what was done is not done twice. The order of an
/// update is `release`, `stage`, `run` for each step that this host takes part in, `finish`.
#[async_trait]
pub trait Runner: Send + Sync {
    /// The release that the host has: the one that it finished last.
    async fn current(&self) -> Result<Option<Version>, StepError>;

    /// Fetches a release's manifest and checks it against this host's trust. Nothing is installed.
    async fn release(&self, version: &Version, permission: Permission) -> Result<Arc<Manifest>, StepError>;

    /// Fetches and verifies every artifact of a release, so that a bad one is found before anything is changed.
    async fn stage(&self, manifest: &Manifest, stop: &CancellationToken) -> Result<(), StepError>;

    /// Does one step's work on this host and waits for its health gate; [`crate::release::Probe::Services`] is left to
    /// the caller. Returns after a stop as soon as the safe point allows.
    async fn run(&self, work: &StepWork, stop: &CancellationToken) -> Result<StepOutcome, StepError>;

    /// All steps are done: the release is now the host's current one, and the one before is kept for a rollback.
    async fn finish(&self, generation: Generation, manifest: &Manifest) -> Result<(), StepError>;

    /// Ends every command that an earlier life of this host's worker left running, and waits for installers to finish.
    async fn end_orphans(&self) -> Result<(), StepError> {
        Ok(())
    }

    /// The highest request that this host has worked for.
    fn newest(&self) -> Generation {
        Generation(0)
    }

    /// What of a release is verifiably installed, by the fleet or otherwise.
    async fn installed(&self, manifest: &Manifest) -> Result<Installed, StepError>;
}
