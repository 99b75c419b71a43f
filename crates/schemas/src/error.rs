//! The errors of the registry's boundary.

use capstan_meta::record::{InvalidName, RecordError};
use capstan_meta::settle::Contended;
use capstan_meta::{MetaError, Remedy};

use crate::compat::{Mode, Problem};
use crate::format::SchemaType;
use crate::keys::Subject;

/// Why an operation of the registry failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The name cannot be a subject.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The text is not a schema of its type.
    #[error("not a valid {schema_type} schema: {reason}")]
    Invalid {
        /// The type it was given as.
        schema_type: SchemaType,
        /// What is wrong.
        reason: String,
    },
    /// The word names no schema type.
    #[error("unknown schema type {0:?}: use bytes, string, number, avro, json_schema or protobuf")]
    UnknownType(String),
    /// The word names no compatibility mode.
    #[error(
        "unknown compatibility mode {0:?}: use none, backward, forward, full, or one of these with _transitive"
    )]
    UnknownMode(String),
    /// The new version would break readers.
    #[error("version is not {mode} compatible with {subject}: {}", list(problems))]
    Incompatible {
        /// The subject.
        subject: Subject,
        /// The mode it was checked by.
        mode: Mode,
        /// What would break.
        problems: Vec<Problem>,
    },
    /// There is no such subject.
    #[error("subject {0} does not exist")]
    NoSubject(Subject),
    /// There is no such version.
    #[error("version {1} of subject {0} does not exist")]
    NoVersion(Subject, u32),
    /// There is no schema with this id.
    #[error("schema id {0} does not exist")]
    NoId(u64),
    /// The version is in use.
    #[error("version {version} of subject {subject} is in use by {user}; unbind it first")]
    InUse {
        /// The subject.
        subject: Subject,
        /// The version.
        version: u32,
        /// The topic that uses it.
        user: String,
    },
    /// No more ids or versions can be given.
    #[error("the registry is full: {0}")]
    Full(&'static str),
    /// Others kept changing the same records.
    #[error(transparent)]
    Contended(#[from] Contended),
    /// The store could not be asked, or holds something unreadable.
    #[error(transparent)]
    Store(#[from] RecordError),
}

impl From<MetaError> for SchemaError {
    fn from(error: MetaError) -> SchemaError {
        SchemaError::Store(error.into())
    }
}

impl SchemaError {
    /// What the caller may do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            SchemaError::Store(error) => error.remedy(),
            SchemaError::Contended(_) => Remedy::Refresh,
            SchemaError::Name(_)
            | SchemaError::Invalid { .. }
            | SchemaError::UnknownType(_)
            | SchemaError::UnknownMode(_)
            | SchemaError::Incompatible { .. }
            | SchemaError::NoSubject(_)
            | SchemaError::NoVersion(..)
            | SchemaError::NoId(_)
            | SchemaError::Full(_)
            | SchemaError::InUse { .. } => Remedy::Reject,
        }
    }
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
