//! Every key of the schema registry and its record: the only place of this crate with key text.

use std::fmt;
use std::str::FromStr;

use capstan_meta::record::path::check_name;
use capstan_meta::record::{InvalidName, Segment};
use capstan_meta::{keys, text_records};

use crate::compat::Mode;
use crate::spec::{IdRecord, SubjectMode, SubjectRecord, VersionRecord};

/// Names under which the registry keeps its own keys beside the subjects.
const RESERVED: [&str; 2] = ["_global", "_index"];

/// Names a subject: the list of versions of one schema.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(String);

impl Subject {
    /// The name, if the text can be one.
    pub fn new(text: impl Into<String>) -> Result<Subject, InvalidName> {
        let text = text.into();
        check_name("Subject", &text)?;
        if RESERVED.contains(&text.as_str()) {
            return Err(InvalidName { kind: "Subject", text, reason: "it is reserved for the registry" });
        }
        Ok(Subject(text))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Segment for Subject {}

impl FromStr for Subject {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Subject, InvalidName> {
        Subject::new(text)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_records!(Mode);

keys! {
    /// Every key of the registry, in path order.
    pub const CATALOGUE;

    /// The compatibility mode of subjects that have none of their own.
    pub struct DefaultModeKey {} at "/schemas/_global/compatibility" => Mode {
        writer: "an operator",
        lifetime: Durable,
    }

    /// The next free schema id.
    pub struct NextIdKey {} at "/schemas/_global/next_schema_id" => u64 {
        writer: "each registration that gives an id, in its transaction",
        lifetime: Durable,
    }

    /// The subject that an id belongs to.
    pub struct IdKey { id: u64 } at "/schemas/_index/by_id/{id}" => IdRecord {
        writer: "the registration that gave the id",
        lifetime: Durable,
        prefixes: [
            /// Every id.
            pub struct Ids {} at "/schemas/_index/by_id/",
        ],
    }

    /// The compatibility mode that was set for a subject.
    pub struct SubjectModeKey { subject: Subject } at "/schemas/{subject}/compatibility" => SubjectMode {
        writer: "an operator",
        lifetime: Durable,
    }

    /// A subject with its mode and all its versions.
    pub struct SubjectKey { subject: Subject } at "/schemas/{subject}/metadata" => SubjectRecord {
        writer: "each registration and change of mode",
        lifetime: Durable,
        prefixes: [
            /// Every subject.
            pub struct Subjects {} at "/schemas/",
        ],
    }

    /// One version of a subject. Never changed.
    pub struct VersionKey { subject: Subject, version: u32 } at "/schemas/{subject}/versions/{version}" => VersionRecord {
        writer: "the registration of the version",
        lifetime: Durable,
        prefixes: [
            /// Every version of a subject.
            pub struct Versions { subject: Subject } at "/schemas/{subject}/versions/",
        ],
    }
}
