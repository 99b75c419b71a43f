//! What is stored: subjects, versions, ids.

use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::compat::Mode;

/// A subject with all its versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubjectRecord {
    /// How a new version must relate to earlier ones.
    #[serde(with = "capitalised")]
    pub compatibility_mode: Mode,
    /// When the subject was created, in seconds since 1970.
    pub created_at: u64,
    /// The creator.
    pub created_by: String,
    /// The id of the subject.
    pub id: u64,
    /// The newest version.
    pub latest_version: u32,
    /// The name of the subject.
    pub subject: String,
    /// The topics that are bound to it.
    #[serde(default)]
    pub topics_using: Vec<String>,
    /// When the record was changed last, in seconds since 1970.
    pub updated_at: u64,
    /// All versions that were not deleted, oldest first.
    pub versions: Vec<VersionRecord>,
    /// The highest version that was ever given, where it was deleted. Numbers are never given twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest_version: Option<u32>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One version of a subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VersionRecord {
    /// When it was registered, in seconds since 1970.
    pub created_at: u64,
    /// The registrant.
    #[serde(default)]
    pub created_by: String,
    /// Counted from 1.
    pub version: u32,
    /// Identifies the text of the schema.
    pub fingerprint: String,
    /// Whether it should no longer be used.
    #[serde(default)]
    pub is_deprecated: bool,
    /// The schema.
    pub schema_def: StoredSchema,
    /// Free words.
    #[serde(default)]
    pub tags: Vec<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A schema as the document writes it: `{"Avro":{...}}`, or a word for the primitive types.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredSchema {
    /// Any bytes.
    Bytes,
    /// UTF-8 text.
    String,
    /// A number.
    Number,
    /// An Avro schema.
    Avro(StoredText),
    /// A JSON Schema.
    JsonSchema(StoredText),
    /// A `.proto` file.
    Protobuf(StoredText),
}

/// The text of a schema.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredText {
    /// Identifies the text.
    pub fingerprint: String,
    /// The text as it was registered.
    pub raw_schema: String,
}

/// The subject that an id belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRecord {
    /// The id.
    pub schema_id: u64,
    /// Its subject.
    pub subject: String,
}

/// The mode that was set for a subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectMode {
    /// The mode.
    #[serde(with = "capitalised")]
    pub mode: Mode,
}

json_records!(SubjectRecord, VersionRecord, IdRecord, SubjectMode);

/// A mode as the document writes it: `Backward`.
mod capitalised {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::compat::Mode;

    pub(super) fn serialize<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(mode.capitalised())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}
