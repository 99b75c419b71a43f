//! What a release is: a signed manifest and the artifacts that it names.
//!
//! Everything here handles untrusted bytes. Types validate when they are made, so that a value of them
//! may be used as a file name or an argument without another look.

pub mod layout;
pub mod make;
mod manifest;
mod name;
mod signature;
mod source;
mod step;
mod trust;
mod version;

pub use layout::{Listed, Prereleases, ReleaseFile, newest};
pub use manifest::{Image, MAX_MANIFEST_BYTES, Manifest, ManifestError, Package, VersionRange};
pub use name::{ArtifactName, Digest, NameError, StepName, StepNumber, Tag};
pub use signature::{
    KeyError, KeyId, MAX_SIGNATURE_BYTES, PublicKey, SecretKey, Signature, SignatureBytes, Signatures,
};
pub use source::{Body, Directory, GitHub, Http, Source, SourceError, SourceSpec, SpecError};
pub use step::{Action, AfterCrash, Argv, ArgvError, HealthGate, Probe, SafePoint, Step, StepKind};
pub use trust::{HostFacts, MAX_TRUST_BYTES, Refusal, Trust, TrustError, TrustedKey};
pub use version::{Version, VersionError};
