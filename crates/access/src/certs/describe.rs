//! What does a certificate say? The part of X.509 that operators and checks ask about. Pure; input that is not a
//! certificate is an error.

use std::net::IpAddr;

use capstan_meta::tls;
use serde::Serialize;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use super::{CLOCK_SKEW, CertError, Fingerprint};

/// What one certificate says.
#[derive(Clone, Debug, Serialize)]
pub struct Description {
    /// The name that it is made out to.
    pub subject: String,
    /// The name of its authority.
    pub issuer: String,
    /// Further names: those that a client may connect to.
    pub names: Vec<String>,
    /// Addresses that a client may connect to.
    pub addresses: Vec<IpAddr>,
    /// Whether it may sign others.
    pub is_authority: bool,
    /// When it begins, in seconds since 1970.
    #[serde(rename = "begins_at", with = "capstan_control::time::rfc3339_seconds")]
    pub not_before: u64,
    /// When it ends, in seconds since 1970.
    #[serde(rename = "ends_at", with = "capstan_control::time::rfc3339_seconds")]
    pub not_after: u64,
    /// Its SHA-256.
    pub fingerprint: Fingerprint,
    /// The public key, as it is in the certificate.
    #[serde(skip)]
    pub public_key: Vec<u8>,
}

/// A certificate that ends sooner than this should be replaced now, unless its whole life is short.
const SOON_SECONDS: u64 = 14 * 24 * 3600;

impl Description {
    /// Whether its replacement is overdue at this time. Authorities need people: two weeks. Certificates of hosts are
    /// renewed at half of their life: at a quarter something is in the way.
    #[must_use]
    pub fn ends_soon(&self, now: u64) -> bool {
        let margin = if self.is_authority { SOON_SECONDS } else { SOON_SECONDS.min(self.life() / 4) };
        self.not_after.saturating_sub(now) < margin
    }

    /// Whether a host should have it renewed at this time.
    #[must_use]
    pub fn is_due(&self, now: u64) -> bool {
        now > self.renew_at()
    }

    /// When a host should have it renewed, in seconds since 1970: at half of its life.
    #[must_use]
    pub fn renew_at(&self) -> u64 {
        self.not_after.saturating_sub(self.life() / 2)
    }

    /// When it was made, in seconds since 1970, if it is one of an authority of ours.
    #[must_use]
    pub fn made_at(&self) -> u64 {
        self.not_before.saturating_add(CLOCK_SKEW.as_secs())
    }

    /// Seconds from when it was made to its end. What it is valid before that, for clocks that are behind, does not
    /// count: certificates may live for less.
    fn life(&self) -> u64 {
        self.not_after.saturating_sub(self.not_before).saturating_sub(CLOCK_SKEW.as_secs())
    }
}

/// Describes every certificate of a PEM, in its order: the first is the holder's own.
pub fn describe(pem: &[u8]) -> Result<Vec<Description>, CertError> {
    let chain = tls::certificates(pem).map_err(|error| CertError::Invalid(error.to_string()))?;
    chain.iter().map(|der| describe_der(der)).collect()
}

/// Describes a certificate in DER.
pub fn describe_der(der: &[u8]) -> Result<Description, CertError> {
    let invalid = |error: &dyn std::fmt::Display| CertError::Invalid(format!("not a certificate: {error}"));
    let (_, certificate) = parse_x509_certificate(der).map_err(|error| invalid(&error))?;
    let (names, addresses) = names(&certificate).map_err(|error| invalid(&error))?;
    let seconds = |at: i64| u64::try_from(at).unwrap_or(0);
    Ok(Description {
        subject: common_name(certificate.subject()),
        issuer: common_name(certificate.issuer()),
        names,
        addresses,
        is_authority: certificate.is_ca(),
        not_before: seconds(certificate.validity().not_before.timestamp()),
        not_after: seconds(certificate.validity().not_after.timestamp()),
        fingerprint: Fingerprint::of(der),
        public_key: certificate.public_key().subject_public_key.data.to_vec(),
    })
}

fn common_name(name: &x509_parser::x509::X509Name<'_>) -> String {
    let first = name.iter_common_name().next().and_then(|part| part.as_str().ok());
    first.map_or_else(|| name.to_string(), str::to_owned)
}

type Names = (Vec<String>, Vec<IpAddr>);

fn names(certificate: &X509Certificate<'_>) -> Result<Names, x509_parser::error::X509Error> {
    let (mut names, mut addresses) = (Vec::new(), Vec::new());
    let Some(extension) = certificate.subject_alternative_name()? else { return Ok((names, addresses)) };
    for name in &extension.value.general_names {
        match name {
            GeneralName::DNSName(name) => names.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => addresses.extend(address(bytes)),
            other => names.push(other.to_string()),
        }
    }
    Ok((names, addresses))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}
