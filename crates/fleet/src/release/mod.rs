//! What a release is: a signed manifest and the artifacts that it names.
//!
//! Everything here is about bytes that somebody else wrote. Types validate when they are made, so that a value of them
//! may be used as a file name or an argument without another look.

mod manifest;
mod name;
mod step;
mod version;

pub use manifest::{Image, MAX_MANIFEST_BYTES, Manifest, ManifestError, Package, VersionRange};
pub use name::{ArtifactName, Digest, NameError, StepName, StepNumber, Tag};
pub use step::{Action, AfterCrash, Argv, HealthGate, Probe, SafePoint, Step, StepKind};
pub use version::{Version, VersionError};
