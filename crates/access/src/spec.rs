//! What is kept about identities, keys, roles and sessions. Secrets are hashes, and `Debug` hides even those.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use capstan_control::keys::HostId;
use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::certs::Fingerprint;
use crate::grant::Grant;
use crate::keys::{IdentityName, KeyId, RoleName};

/// The hash of a secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hash(pub String);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hash]")
    }
}

/// What an identity is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdentityKind {
    /// A person, who signs in with a password and may have access keys.
    User,
    /// A program, which has access keys only.
    Account,
}

impl fmt::Display for IdentityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IdentityKind::User => "user",
            IdentityKind::Account => "account",
        })
    }
}

/// A user or a service account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityRecord {
    /// What it is.
    pub kind: IdentityKind,
    /// The argon2id hash of its password. Without one the identity cannot sign in with a password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Hash>,
    /// Its roles: built in, or made by an operator.
    #[serde(default)]
    pub roles: Vec<RoleName>,
    /// What it may do beside that.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// Whether it is refused for now, with everything that it has.
    #[serde(default)]
    pub disabled: bool,
    /// When it was made, in seconds since 1970.
    pub created_at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// An access key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// The identity that it stands for.
    pub identity: IdentityName,
    /// SHA-256 of its secret part, in hex. The secret is random, so a slow hash would add nothing.
    pub hash: Hash,
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Where present, the key may do only what these allow and its identity may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Vec<Grant>>,
    /// When it was made, in seconds since 1970.
    pub created_at: u64,
    /// When it ends, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// The key that replaces it, if it was rotated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<KeyId>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A role made by an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleRecord {
    /// What the role allows.
    pub grants: Vec<Grant>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The identity that signed in.
    pub identity: IdentityName,
    /// SHA-256 of the secret part of its token, in hex.
    pub hash: Hash,
    /// The key that it was opened with; the session ends with the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// When it ends, in seconds since 1970.
    pub expires_at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The last use of an access key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastUse {
    /// When, in seconds since 1970.
    pub at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A token to join.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRecord {
    /// The host that it is for.
    pub host: HostId,
    /// The addresses that its certificate is made out to.
    pub addresses: Vec<IpAddr>,
    /// What the host is to do.
    #[serde(default)]
    pub roles: Vec<String>,
    /// SHA-256 of the secret part of the token, in hex.
    pub hash: Hash,
    /// When it ends, in seconds since 1970.
    pub expires_at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A host that may have its certificate renewed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrolledHost {
    /// The addresses that its certificate is made out to.
    pub addresses: Vec<IpAddr>,
    /// When it joined, in seconds since 1970.
    pub since: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A process that signs certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignerRecord {
    /// Where its HTTP API is served, over TLS.
    pub address: SocketAddr,
    /// The fingerprint of its authority.
    pub authority: Fingerprint,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

json_records!(
    IdentityRecord,
    KeyRecord,
    RoleRecord,
    SessionRecord,
    LastUse,
    JoinRecord,
    EnrolledHost,
    SignerRecord
);
