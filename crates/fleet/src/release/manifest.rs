//! What a release consists of: the manifest, parsed strictly.
//!
//! Unknown fields are refused, on purpose: a signed instruction that this worker does not understand must not be half
//! obeyed. What a later worker learns comes with a higher `format`, which this one refuses by name.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::name::{ArtifactName, Digest, NameError, StepName, StepNumber, Tag};
use super::step::{Action, HealthGate, MAX_ACTIONS, MAX_SECONDS, Probe, Step};
use super::version::Version;

/// The format that this worker reads and writes.
const FORMAT: u32 = 1;
/// A manifest is read whole before its signature is known to be good: a stranger decides how long it is.
pub const MAX_MANIFEST_BYTES: usize = 256 * 1024;
/// Real releases have some dozens of each.
const MAX_ARTIFACTS: usize = 256;
/// The status of a host and the plan of a rollout show every step.
const MAX_STEPS: usize = 64;
const MAX_RANGES: usize = 64;
/// The largest package or image that a host accepts: it must not fill the disk.
const MAX_ARTIFACT_BYTES: u64 = 16 << 30;
const MAX_URL_BYTES: usize = 2048;

/// A release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The format of the manifest: 1.
    pub format: u32,
    /// The version of the release.
    pub version: Version,
    /// The oldest worker that can carry it out.
    pub min_worker_version: Version,
    /// From which versions a host may come; without an entry from every one. A host that has no release yet may
    /// always come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_from: Vec<VersionRange>,
    /// From then on no host starts it any more.
    pub expires: Timestamp,
    /// The Debian packages.
    #[serde(default)]
    pub packages: Vec<Package>,
    /// The container images.
    #[serde(default)]
    pub images: Vec<Image>,
    /// What is done, in order.
    pub steps: Vec<Step>,
}

/// Some versions: both ends belong to it, a missing end is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VersionRange {
    /// The oldest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<Version>,
    /// The newest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<Version>,
}

impl VersionRange {
    /// Whether a version belongs to it.
    #[must_use]
    pub fn contains(&self, version: &Version) -> bool {
        self.at_least.as_ref().is_none_or(|least| version >= least)
            && self.at_most.as_ref().is_none_or(|most| version <= most)
    }
}

/// A Debian package.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// Its name.
    pub name: ArtifactName,
    /// Its own version, which is not the release's.
    pub version: Version,
    /// Of the `.deb` file.
    pub digest: Digest,
    /// Of the `.deb` file, in bytes.
    pub size: u64,
}

impl Package {
    /// The name of its file in a release. It follows from name and digest, so that a manifest cannot name another.
    #[must_use]
    pub fn file(&self) -> String {
        format!("{}-{}.deb", self.name, self.digest.hex())
    }
}

/// A container image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// Its name.
    pub name: ArtifactName,
    /// Its tag.
    pub tag: Tag,
    /// Of its image manifest, whose own digests cover the rest.
    pub digest: Digest,
    /// Of its image manifest, in bytes.
    pub size: u64,
}

/// Why bytes are no manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Longer than a manifest may be.
    #[error("the manifest is longer than {MAX_MANIFEST_BYTES} bytes")]
    TooLarge,
    /// No JSON, a field too many, a field too few, a value of a wrong form.
    #[error("the manifest cannot be read: {0}")]
    Malformed(String),
    /// Written for later workers.
    #[error("the manifest has format {0}, and this worker reads format {FORMAT}: update the worker first")]
    Format(u32),
    /// More of something than there may be.
    #[error("the manifest has {count} {what}: at most {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        most: usize,
    },
    /// A release without steps does nothing.
    #[error("the manifest has no steps")]
    NoSteps,
    /// Two of the same name.
    #[error("the manifest has two {what} named {name}")]
    Twice {
        /// Packages, images or steps.
        what: &'static str,
        /// Which.
        name: String,
    },
    /// A step installs what the manifest does not have.
    #[error("step {step} installs {what} {name}, which the manifest does not have")]
    Unknown {
        /// Which step.
        step: StepName,
        /// Package or image.
        what: &'static str,
        /// Which.
        name: ArtifactName,
    },
    /// An artifact that no step installs: surely a mistake.
    #[error("no step installs {what} {name}")]
    Unused {
        /// Package or image.
        what: &'static str,
        /// Which.
        name: ArtifactName,
    },
    /// A time outside of what makes sense.
    #[error("step {step}: {what} must be from {least} to {MAX_SECONDS} seconds")]
    Seconds {
        /// Which step.
        step: StepName,
        /// Which time.
        what: &'static str,
        /// The shortest it may be.
        least: u32,
    },
    /// The address of a probe that is none.
    #[error(
        "step {0}: the probe's url must begin with http:// or https:// and have at most {MAX_URL_BYTES} bytes"
    )]
    Url(StepName),
    /// An artifact of an impossible size.
    #[error("{what} {name}: its size must be from 1 to {most} bytes")]
    Size {
        /// Package or image.
        what: &'static str,
        /// Which.
        name: ArtifactName,
        /// The largest size.
        most: u64,
    },
    /// Steps of kind `self` come first: what follows may need the new worker.
    #[error("step {0} is of kind self and stands behind a step of another kind")]
    SelfTooLate(StepName),
    /// A name that is none.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// Just enough to tell a later format from a broken one.
#[derive(Deserialize)]
struct FormatOnly {
    format: u32,
}

impl Manifest {
    /// Reads a manifest and checks that it is whole.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge);
        }
        let malformed = |e: serde_json::Error| ManifestError::Malformed(e.to_string());
        let FormatOnly { format } = serde_json::from_slice(bytes).map_err(malformed)?;
        if format != FORMAT {
            return Err(ManifestError::Format(format));
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(malformed)?;
        manifest.check()?;
        Ok(manifest)
    }

    /// Its bytes as they are signed and published: indented JSON that ends in a line break.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ManifestError> {
        self.check()?;
        let mut bytes =
            serde_json::to_vec_pretty(self).map_err(|e| ManifestError::Malformed(e.to_string()))?;
        bytes.push(b'\n');
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge);
        }
        Ok(bytes)
    }

    /// A step by its number.
    #[must_use]
    pub fn step(&self, number: StepNumber) -> Option<&Step> {
        self.steps.get(number.index())
    }

    /// The steps with their numbers.
    pub fn numbered_steps(&self) -> impl Iterator<Item = (StepNumber, &Step)> {
        std::iter::successors(Some(StepNumber::FIRST), |number| Some(number.next())).zip(&self.steps)
    }

    /// The number of the last step.
    #[must_use]
    pub fn last_step(&self) -> StepNumber {
        StepNumber::new(self.steps.len() as u32).unwrap_or(StepNumber::FIRST)
    }

    /// A package by its name.
    #[must_use]
    pub fn package(&self, name: &ArtifactName) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == *name)
    }

    /// An image by its name.
    #[must_use]
    pub fn image(&self, name: &ArtifactName) -> Option<&Image> {
        self.images.iter().find(|image| image.name == *name)
    }

    fn check(&self) -> Result<(), ManifestError> {
        if self.format != FORMAT {
            return Err(ManifestError::Format(self.format));
        }
        at_most("packages", self.packages.len(), MAX_ARTIFACTS)?;
        at_most("images", self.images.len(), MAX_ARTIFACTS)?;
        at_most("version ranges", self.allowed_from.len(), MAX_RANGES)?;
        at_most("steps", self.steps.len(), MAX_STEPS)?;
        if self.steps.is_empty() {
            return Err(ManifestError::NoSteps);
        }
        unique("packages", self.packages.iter().map(|package| package.name.as_str()))?;
        unique("images", self.images.iter().map(|image| image.name.as_str()))?;
        unique("steps", self.steps.iter().map(|step| step.name.as_str()))?;
        self.check_sizes()?;
        self.check_order()?;
        self.steps.iter().try_for_each(|step| self.check_step(step))?;
        self.check_used()
    }

    fn check_sizes(&self) -> Result<(), ManifestError> {
        let size = |what, name: &ArtifactName, size: u64, most: u64| match (1..=most).contains(&size) {
            true => Ok(()),
            false => Err(ManifestError::Size { what, name: name.clone(), most }),
        };
        for package in &self.packages {
            size("package", &package.name, package.size, MAX_ARTIFACT_BYTES)?;
        }
        for image in &self.images {
            size("image", &image.name, image.size, MAX_MANIFEST_BYTES as u64)?;
        }
        Ok(())
    }

    fn check_order(&self) -> Result<(), ManifestError> {
        let is_self = |step: &&Step| step.kind == super::step::StepKind::SelfUpdate;
        match self.steps.iter().skip_while(is_self).find(is_self) {
            Some(late) => Err(ManifestError::SelfTooLate(late.name.clone())),
            None => Ok(()),
        }
    }

    fn check_step(&self, step: &Step) -> Result<(), ManifestError> {
        at_most("actions in one step", step.actions.len(), MAX_ACTIONS)?;
        seconds(step, "timeout_seconds", step.timeout_seconds, 1)?;
        if let Some(health) = &step.health {
            check_health(step, health)?;
        }
        for (what, name) in step.actions.iter().flat_map(installs) {
            let known = match what {
                "package" => self.package(name).is_some(),
                _ => self.image(name).is_some(),
            };
            if !known {
                return Err(ManifestError::Unknown { step: step.name.clone(), what, name: name.clone() });
            }
        }
        Ok(())
    }

    fn check_used(&self) -> Result<(), ManifestError> {
        let used: BTreeSet<_> = self.steps.iter().flat_map(|step| &step.actions).flat_map(installs).collect();
        let packages = self.packages.iter().map(|package| ("package", &package.name));
        let images = self.images.iter().map(|image| ("image", &image.name));
        match packages.chain(images).find(|artifact| !used.contains(artifact)) {
            Some((what, name)) => Err(ManifestError::Unused { what, name: name.clone() }),
            None => Ok(()),
        }
    }
}

fn installs(action: &Action) -> impl Iterator<Item = (&'static str, &ArtifactName)> {
    let (what, names) = match action {
        Action::Packages(names) => ("package", names.as_slice()),
        Action::Images(names) => ("image", names.as_slice()),
        Action::Command { .. } => ("", [].as_slice()),
    };
    names.iter().map(move |name| (what, name))
}

fn check_health(step: &Step, health: &HealthGate) -> Result<(), ManifestError> {
    seconds(step, "min_healthy_seconds", health.min_healthy_seconds, 0)?;
    seconds(step, "deadline_seconds", health.deadline_seconds, health.min_healthy_seconds.saturating_add(1))?;
    match &health.probe {
        Probe::Http { url } => {
            let address = url.starts_with("http://") || url.starts_with("https://");
            if !address || url.len() > MAX_URL_BYTES {
                return Err(ManifestError::Url(step.name.clone()));
            }
            Ok(())
        }
        Probe::Command { .. } | Probe::Services => Ok(()),
    }
}

fn seconds(step: &Step, what: &'static str, value: u32, least: u32) -> Result<(), ManifestError> {
    match (least..=MAX_SECONDS).contains(&value) {
        true => Ok(()),
        false => Err(ManifestError::Seconds { step: step.name.clone(), what, least }),
    }
}

fn at_most(what: &'static str, count: usize, most: usize) -> Result<(), ManifestError> {
    if count > most { Err(ManifestError::TooMany { what, count, most }) } else { Ok(()) }
}

fn unique<'a>(what: &'static str, mut names: impl Iterator<Item = &'a str>) -> Result<(), ManifestError> {
    let mut seen = BTreeSet::new();
    match names.find(|name| !seen.insert(*name)) {
        Some(name) => Err(ManifestError::Twice { what, name: name.to_owned() }),
        None => Ok(()),
    }
}
