//! What can go wrong when access is managed, and why a credential is refused.

use capstan_control::keys::HostId;
use capstan_meta::record::{BadValue, InvalidName, RecordError};
use capstan_meta::settle::Contended;
use capstan_meta::{MetaError, Remedy};

use crate::certs::CertError;
use crate::grant::BadGrant;

/// An error of managing identities, keys and roles.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// There is no such identity, key or role.
    #[error("there is no {0}; `capstan access list` shows what there is")]
    NotFound(String),
    /// It is there already.
    #[error("{0} exists already")]
    Exists(String),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The host has no certificate that may be renewed.
    #[error("host {0} is not enrolled, or was revoked; `capstan certs token {0}` lets it join")]
    Unenrolled(HostId),
    /// The credential is not accepted.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Others kept changing the same record.
    #[error(transparent)]
    Contended(#[from] Contended),
    /// The store holds something unreadable.
    #[error(transparent)]
    BadValue(#[from] BadValue),
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] MetaError),
}

impl AccessError {
    /// What the caller may do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            AccessError::NotFound(_)
            | AccessError::Exists(_)
            | AccessError::Invalid(_)
            | AccessError::Unenrolled(_)
            | AccessError::Refused(_) => Remedy::Reject,
            AccessError::Contended(_) => Remedy::Retry,
            AccessError::BadValue(_) => Remedy::Report,
            AccessError::Store(error) => error.remedy(),
        }
    }
}

impl From<RecordError> for AccessError {
    fn from(error: RecordError) -> AccessError {
        match error {
            RecordError::Store(error) => AccessError::Store(error),
            RecordError::BadValue(bad) => AccessError::BadValue(bad),
        }
    }
}

impl From<InvalidName> for AccessError {
    fn from(error: InvalidName) -> AccessError {
        AccessError::Invalid(error.to_string())
    }
}

impl From<CertError> for AccessError {
    fn from(error: CertError) -> AccessError {
        AccessError::Invalid(error.to_string())
    }
}

impl From<BadGrant> for AccessError {
    fn from(error: BadGrant) -> AccessError {
        AccessError::Invalid(error.to_string())
    }
}

/// Why a credential was not accepted. Clients are told no more than this: not whether a name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no credential, and requests without one are not allowed.
    #[error("sign in first: no credential was given")]
    Missing,
    /// It is wrong, has expired or was revoked.
    #[error("the credential is not valid: it is wrong, has expired or was revoked")]
    Invalid,
    /// Too many attempts.
    #[error("too many failed attempts; try again later")]
    TooMany,
}
