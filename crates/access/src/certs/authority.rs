//! The private authority: what signs the certificates of hosts.

use std::time::Duration;

use capstan_meta::clock;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};

use super::{CLOCK_SKEW, CertError, Fingerprint, HostNames, MAX_ADDRESSES, describe};
use crate::secret::Secret;

/// The organization in the subject of every certificate.
const ORGANIZATION: &str = "capstan";

/// An authority with its key. The key can impersonate every host of the cluster.
pub struct Authority {
    pem: String,
    fingerprint: Fingerprint,
    /// In seconds since 1970.
    end: u64,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authority({})", self.fingerprint)
    }
}

impl Authority {
    /// Makes an authority; the second value is its private key (PEM).
    pub fn create(name: &str, life: Duration) -> Result<(Authority, Secret), CertError> {
        let key = KeyPair::generate()?;
        let mut params = validity(CertificateParams::default(), clock::since_epoch(), life);
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
        // It signs hosts and no further authorities.
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let pem = params.self_signed(&key)?.pem();
        let secret = Secret::new(key.serialize_pem());
        Ok((Authority::from_pem(&pem, &secret)?, secret))
    }

    /// Reads an authority and its key, and checks that they belong together.
    pub fn from_pem(certificate: &str, key: &Secret) -> Result<Authority, CertError> {
        let described = describe(certificate.as_bytes())?;
        let [described] = described.as_slice() else {
            return Err(CertError::Invalid("an authority is one certificate".to_owned()));
        };
        if !described.is_authority {
            return Err(CertError::Invalid(format!("{} is not an authority", described.subject)));
        }
        let key = KeyPair::from_pem(key.reveal())
            .map_err(|_| CertError::Invalid("the key of the authority cannot be read".to_owned()))?;
        if described.public_key != key.public_key_raw() {
            let text = "the key does not belong to the certificate of the authority";
            return Err(CertError::Invalid(text.to_owned()));
        }
        Ok(Authority {
            pem: certificate.to_owned(),
            fingerprint: described.fingerprint.clone(),
            end: described.not_after,
            issuer: Issuer::from_ca_cert_pem(certificate, key)?,
        })
    }

    /// Its certificate (PEM).
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.pem
    }

    /// What a token to join pins.
    #[must_use]
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Signs a request, for these names and no others, for both sides of a connection. Returns the chain (PEM): the
    /// certificate and the authority's, so that a machine that knows only the fingerprint can check it.
    pub fn sign(&self, request: &str, names: &HostNames, life: Duration) -> Result<String, CertError> {
        let now = clock::since_epoch();
        let left = Duration::from_secs(self.end.saturating_sub(now.as_secs()));
        if left.is_zero() {
            return Err(CertError::Invalid("the authority has expired; make another one".to_owned()));
        }
        if names.addresses.len() > MAX_ADDRESSES {
            return Err(CertError::Invalid(format!("a host has at most {MAX_ADDRESSES} addresses")));
        }
        // Checks that the sender has the private key: the request is signed with it.
        let wanted = CertificateSigningRequestParams::from_pem(request)
            .map_err(|error| CertError::Invalid(format!("not a signing request: {error}")))?;
        let params = CertificateParams::new(names.subject_names())?;
        let mut params = validity(params, now, life.min(left));
        params.distinguished_name.push(DnType::CommonName, names.host.as_str());
        params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let signed = params.signed_by(&wanted.public_key, &self.issuer)?;
        Ok(signed.pem() + &self.pem)
    }
}

fn validity(mut params: CertificateParams, now: Duration, life: Duration) -> CertificateParams {
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(now.saturating_sub(CLOCK_SKEW).as_secs());
    params.not_after = epoch + Duration::from_secs((now + life).as_secs());
    params
}
