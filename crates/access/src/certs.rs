//! How do processes prove to each other what they are? A private authority signs short-lived certificates of hosts.
//!
//! Everything here works on values; only [`files`] touches the disk. A host makes its key itself and sends a signing
//! request: no private key but the authority's own is ever handed from one process to another.

pub mod files;

mod authority;
mod describe;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use aws_lc_rs::digest;
use capstan_control::keys::HostId;
use rcgen::{CertificateParams, KeyPair};
use serde::{Deserialize, Serialize};

pub use authority::Authority;
pub use describe::{Description, describe, describe_der};

use crate::secret::{Secret, hex};

/// How long a certificate of a host is valid, unless another time is asked for.
pub const HOST_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long an authority is valid, unless another time is asked for.
pub const AUTHORITY_LIFE: Duration = Duration::from_secs(5 * 365 * 24 * 3600);
/// Most addresses of one host.
pub const MAX_ADDRESSES: usize = 16;
/// Certificates are valid from so long before they are made: clocks of machines differ.
pub(crate) const CLOCK_SKEW: Duration = Duration::from_secs(300);
/// Every host is reached by these from itself.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// The services whose holders of logs have certificates by names of their own: `topics.HOST`.
const HOLDERS: [&str; 2] = ["topics", "docs"];

/// Why a certificate cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// What should be a certificate, a key or a request is none, or does not belong to the others.
    #[error("{0}")]
    Invalid(String),
    /// A certificate could not be signed.
    #[error("cannot sign: {0}")]
    Sign(#[from] rcgen::Error),
    /// A file could not be read or written.
    #[error("{path}: {cause}")]
    File {
        /// The file.
        path: String,
        /// Why.
        cause: std::io::Error,
    },
}

/// What a host's certificate is made out to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNames {
    /// The host. Its certificate is valid for its name and for those of its holders of logs.
    pub host: HostId,
    /// The addresses at which others reach it. Those of loopback are always included.
    pub addresses: Vec<IpAddr>,
}

impl HostNames {
    fn subject_names(&self) -> Vec<String> {
        let host = &self.host;
        let holders = HOLDERS.iter().map(|service| format!("{service}.{host}"));
        let addresses = self.addresses.iter().filter(|address| !address.is_loopback());
        let addresses = addresses.map(ToString::to_string);
        let loopback = LOOPBACK.map(str::to_owned);
        std::iter::once(host.to_string()).chain(holders).chain(addresses).chain(loopback).collect()
    }
}

/// A new private key, and the request to have its public half signed.
#[derive(Debug)]
pub struct KeyRequest {
    /// The private key (PEM). It stays where it was made.
    pub key: Secret,
    /// The request (PEM, PKCS #10).
    pub request: String,
}

impl KeyRequest {
    /// A new key from the system's random numbers.
    pub fn generate() -> Result<KeyRequest, CertError> {
        let key = KeyPair::generate()?;
        // The authority decides about the names: it ignores those of a request.
        let request = CertificateParams::default().serialize_request(&key)?.pem()?;
        Ok(KeyRequest { key: Secret::new(key.serialize_pem()), request })
    }
}

/// The SHA-256 of a certificate in DER.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(String);

impl TryFrom<String> for Fingerprint {
    type Error = CertError;

    fn try_from(text: String) -> Result<Fingerprint, CertError> {
        Fingerprint::parse(&text).ok_or_else(|| CertError::Invalid("not a fingerprint".to_owned()))
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> String {
        fingerprint.0
    }
}

impl Fingerprint {
    /// The fingerprint of a certificate in DER.
    #[must_use]
    pub fn of(der: &[u8]) -> Fingerprint {
        Fingerprint(hex(digest::digest(&digest::SHA256, der).as_ref()))
    }

    /// The fingerprint that this text is: 64 hex digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Fingerprint> {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == 64 && text.bytes().all(is_hex)).then(|| Fingerprint(text.to_owned()))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
