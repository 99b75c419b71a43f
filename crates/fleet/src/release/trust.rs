//! May this host install this release? The trust file of the host decides, and no release can change that file.
//!
//! Nothing of a manifest is read before its signatures are known to be good.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::manifest::{MAX_MANIFEST_BYTES, Manifest, ManifestError};
use super::signature::{KeyError, KeyId, PublicKey, Signatures};
use super::version::Version;
use crate::run::Permission;

const FORMAT: u32 = 1;
const MAX_KEYS: usize = 32;
/// A trust file is a screenful.
pub const MAX_TRUST_BYTES: u64 = 64 * 1024;

/// What a host trusts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trust {
    /// The format of the file: 1.
    pub format: u32,
    /// How many different keys must have signed a release.
    pub threshold: usize,
    /// The keys that count.
    pub keys: Vec<TrustedKey>,
    /// No release older than this, not even in a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_version: Option<Version>,
    /// This release and no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<Version>,
}

/// A key that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustedKey {
    /// The public key.
    pub ed25519: PublicKey,
    /// Whose it is, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
}

/// Why a trust file is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// No JSON, or a field that is not known.
    #[error("the trust file cannot be read: {0}")]
    Malformed(String),
    /// Written for later workers.
    #[error("the trust file has format {0}, and this worker reads format {FORMAT}")]
    Format(u32),
    /// The threshold can never be met, or is none.
    #[error("the trust file's threshold is {threshold}: it must be from 1 to the number of its keys, {keys}")]
    Threshold {
        /// What it says.
        threshold: usize,
        /// How many different keys there are.
        keys: usize,
    },
    /// A key counts once.
    #[error("the trust file has key {0} twice, or more than {MAX_KEYS} keys")]
    Keys(KeyId),
}

/// What is known on the host when a release is checked.
#[derive(Clone, Debug)]
pub struct HostFacts {
    /// The wall clock: expiry is a promise to people.
    pub now: Timestamp,
    /// The version of this worker.
    pub worker_version: Version,
    /// The release that the host has.
    pub current: Option<Version>,
    /// The release that the host keeps for a rollback.
    pub kept: Option<Version>,
    /// The release that the host has begun: it may be completed after its expiry, since half of it is worse.
    pub begun: Option<Version>,
}

/// Why a release is refused. Nothing of it was installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There are no signatures.
    #[error("the release is not signed")]
    Unsigned,
    /// The file of signatures cannot be read.
    #[error("the release is refused: {0}")]
    Signatures(KeyError),
    /// None of the signers is trusted.
    #[error("the release is signed by {}, and none of these keys is in the trust file", list(signers))]
    WrongKey {
        /// The keys that signed.
        signers: Vec<KeyId>,
    },
    /// A trusted key is named, and the signature is not over these bytes.
    #[error("the signature of key {0} does not fit the manifest: one of them was changed")]
    BadSignature(KeyId),
    /// Not enough trusted keys.
    #[error("the release is signed by {good} trusted keys, and the trust file asks for {threshold}")]
    BelowThreshold {
        /// How many.
        good: usize,
        /// How many are needed.
        threshold: usize,
    },
    /// Signed, but no manifest that this worker understands.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The source gave another release than was asked for.
    #[error("release {asked} was asked for, and the manifest is that of {offered}")]
    OtherRelease {
        /// What was asked for.
        asked: Version,
        /// What was offered.
        offered: Version,
    },
    /// Too old to be started.
    #[error("release {version} expired at {expired}, and it is {now}")]
    Expired {
        /// Which release.
        version: Version,
        /// Since when.
        expired: Timestamp,
        /// What the host's clock says.
        now: Timestamp,
    },
    /// Older than what is installed.
    #[error("release {offered} is older than the installed {installed}: only a rollback may go back")]
    Downgrade {
        /// What is installed.
        installed: Version,
        /// What was offered.
        offered: Version,
    },
    /// A rollback to something else than what is kept.
    #[error("a rollback to {offered} is not possible: this host keeps {}", kept.as_ref().map_or("no release", |kept| kept.as_str()))]
    NotKept {
        /// What was asked for.
        offered: Version,
        /// What is kept.
        kept: Option<Version>,
    },
    /// The release does not know how to update this version.
    #[error("release {offered} cannot be installed over {installed}: its allowed_from does not name it")]
    NotAllowedFrom {
        /// What is installed.
        installed: Version,
        /// What was offered.
        offered: Version,
    },
    /// The release needs a later worker.
    #[error("release {offered} needs worker {needs} or later, and this is worker {is}")]
    WorkerTooOld {
        /// Which release.
        offered: Version,
        /// What it needs.
        needs: Version,
        /// What this is.
        is: Version,
    },
    /// Below the floor of the trust file.
    #[error("release {offered} is older than {minimum}, the min_version of the trust file")]
    BelowMinimum {
        /// Which release.
        offered: Version,
        /// The floor.
        minimum: Version,
    },
    /// The trust file holds the host at another release.
    #[error("release {offered} is not {pinned}, to which the trust file pins this host")]
    NotPinned {
        /// Which release.
        offered: Version,
        /// The pin.
        pinned: Version,
    },
}

fn list(keys: &[KeyId]) -> String {
    keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Trust {
    /// Reads a trust file.
    pub fn parse(bytes: &[u8]) -> Result<Trust, TrustError> {
        let trust: Trust = serde_json::from_slice(bytes).map_err(|e| TrustError::Malformed(e.to_string()))?;
        if trust.format != FORMAT {
            return Err(TrustError::Format(trust.format));
        }
        let mut ids: Vec<KeyId> = trust.keys.iter().map(|key| key.ed25519.id()).collect();
        ids.sort();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(TrustError::Keys(pair[0].clone()));
        }
        if let Some(id) = ids.get(MAX_KEYS) {
            return Err(TrustError::Keys(id.clone()));
        }
        if !(1..=ids.len()).contains(&trust.threshold) {
            return Err(TrustError::Threshold { threshold: trust.threshold, keys: ids.len() });
        }
        Ok(trust)
    }

    /// Trust in some keys, all of which must sign.
    #[must_use]
    pub fn in_all_of(keys: Vec<PublicKey>) -> Trust {
        let threshold = keys.len();
        let keys = keys.into_iter().map(|ed25519| TrustedKey { ed25519, owner: String::new() }).collect();
        Trust { format: FORMAT, threshold, keys, min_version: None, pinned: None }
    }

    /// Whether enough trusted keys signed these bytes, and the manifest that they are.
    pub fn open(&self, manifest: &[u8], signatures: Option<&[u8]>) -> Result<Manifest, Refusal> {
        if manifest.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge.into());
        }
        let signatures =
            Signatures::parse(signatures.ok_or(Refusal::Unsigned)?).map_err(Refusal::Signatures)?;
        self.check_signatures(manifest, &signatures)?;
        Ok(Manifest::parse(manifest)?)
    }

    fn check_signatures(&self, manifest: &[u8], signatures: &Signatures) -> Result<(), Refusal> {
        if signatures.signatures.is_empty() {
            return Err(Refusal::Unsigned);
        }
        let mut good = Vec::new();
        for key in &self.keys {
            let id = key.ed25519.id();
            let mut by_key = signatures.signatures.iter().filter(|signature| signature.key == id).peekable();
            if by_key.peek().is_none() {
                continue;
            }
            if !by_key.all(|signature| key.ed25519.verifies(manifest, &signature.signature.0)) {
                return Err(Refusal::BadSignature(id));
            }
            good.push(id);
        }
        match good.len() {
            0 => Err(Refusal::WrongKey {
                signers: signatures.signatures.iter().map(|s| s.key.clone()).collect(),
            }),
            good if good < self.threshold => Err(Refusal::BelowThreshold { good, threshold: self.threshold }),
            _ => Ok(()),
        }
    }

    /// Whether this host may install a release whose signatures are good.
    ///
    /// A rollback is allowed to the one release that the host keeps. It may have expired since and need not name the
    /// current version as one that it comes from: it is the way out when the current one is bad.
    pub fn admit(
        &self,
        manifest: &Manifest,
        asked: &Version,
        permission: Permission,
        facts: &HostFacts,
    ) -> Result<(), Refusal> {
        let offered = manifest.version.clone();
        if offered.as_str() != asked.as_str() {
            return Err(Refusal::OtherRelease { asked: asked.clone(), offered });
        }
        match permission {
            Permission::Upgrade => admit_upgrade(manifest, facts)?,
            Permission::RollBack => admit_rollback(manifest, facts)?,
        }
        if facts.worker_version < manifest.min_worker_version {
            let (needs, is) = (manifest.min_worker_version.clone(), facts.worker_version.clone());
            return Err(Refusal::WorkerTooOld { offered, needs, is });
        }
        if let Some(minimum) = self.min_version.clone().filter(|minimum| offered < *minimum) {
            return Err(Refusal::BelowMinimum { offered, minimum });
        }
        match self.pinned.clone().filter(|pinned| offered != *pinned) {
            Some(pinned) => Err(Refusal::NotPinned { offered, pinned }),
            None => Ok(()),
        }
    }
}

fn admit_upgrade(manifest: &Manifest, facts: &HostFacts) -> Result<(), Refusal> {
    let offered = manifest.version.clone();
    let begun = facts.begun.as_ref().is_some_and(|begun| begun.as_str() == offered.as_str());
    if manifest.expires <= facts.now && !begun {
        return Err(Refusal::Expired { version: offered, expired: manifest.expires, now: facts.now });
    }
    let Some(installed) = facts.current.clone() else { return Ok(()) };
    if offered < installed {
        return Err(Refusal::Downgrade { installed, offered });
    }
    let allowed = manifest.allowed_from.is_empty()
        || offered == installed
        || manifest.allowed_from.iter().any(|range| range.contains(&installed));
    if allowed { Ok(()) } else { Err(Refusal::NotAllowedFrom { installed, offered }) }
}

fn admit_rollback(manifest: &Manifest, facts: &HostFacts) -> Result<(), Refusal> {
    let offered = &manifest.version;
    // The current one too: a rollback that crashed after its end is asked for again.
    let known = facts.kept.iter().chain(&facts.current).any(|kept| kept.as_str() == offered.as_str());
    if known { Ok(()) } else { Err(Refusal::NotKept { offered: offered.clone(), kept: facts.kept.clone() }) }
}
