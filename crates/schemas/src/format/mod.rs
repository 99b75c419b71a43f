//! What is a schema? Its type, its parsed form, and the validator of payloads.

pub(crate) mod avro;
pub(crate) mod json;
pub(crate) mod protobuf;
mod validate;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::error::SchemaError;
use crate::spec::{StoredSchema, StoredText};

pub use validate::{InvalidPayload, Validator};

/// The largest schema text that is accepted.
pub const MAX_SCHEMA_BYTES: usize = 1 << 20;

/// The language of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SchemaType {
    /// Any bytes.
    Bytes,
    /// UTF-8 text.
    String,
    /// A number.
    Number,
    /// Avro.
    Avro,
    /// JSON Schema.
    JsonSchema,
    /// Protocol Buffers.
    Protobuf,
}

impl SchemaType {
    /// The word for it on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SchemaType::Bytes => "bytes",
            SchemaType::String => "string",
            SchemaType::Number => "number",
            SchemaType::Avro => "avro",
            SchemaType::JsonSchema => "json_schema",
            SchemaType::Protobuf => "protobuf",
        }
    }
}

impl fmt::Display for SchemaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SchemaType {
    type Err = SchemaError;

    fn from_str(text: &str) -> Result<SchemaType, SchemaError> {
        match text.to_ascii_lowercase().as_str() {
            "bytes" => Ok(SchemaType::Bytes),
            "string" => Ok(SchemaType::String),
            "number" | "int" | "int64" | "float" | "double" => Ok(SchemaType::Number),
            "avro" => Ok(SchemaType::Avro),
            "json_schema" | "json" | "jsonschema" => Ok(SchemaType::JsonSchema),
            "protobuf" | "proto" => Ok(SchemaType::Protobuf),
            _ => Err(SchemaError::UnknownType(text.chars().take(64).collect())),
        }
    }
}

/// A schema that was parsed. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Definition {
    text: Arc<str>,
    pub(crate) parsed: Parsed,
}

/// The parsed form of a schema.
#[derive(Clone, Debug)]
pub(crate) enum Parsed {
    Primitive(SchemaType),
    Avro(Arc<avro::AvroSchema>),
    Json(Arc<serde_json::Value>),
    Protobuf(Arc<protobuf::ProtoFile>),
}

impl Definition {
    /// Parses a schema; a text that is not one is refused with the reason.
    pub fn parse(schema_type: SchemaType, text: &str) -> Result<Definition, SchemaError> {
        if text.len() > MAX_SCHEMA_BYTES {
            let reason = format!("{} bytes are more than the limit of {MAX_SCHEMA_BYTES}", text.len());
            return Err(SchemaError::Invalid { schema_type, reason });
        }
        let parsed = match schema_type {
            SchemaType::Bytes | SchemaType::String | SchemaType::Number => {
                return Ok(Definition { text: "".into(), parsed: Parsed::Primitive(schema_type) });
            }
            SchemaType::Avro => avro::AvroSchema::parse(text).map(|schema| Parsed::Avro(Arc::new(schema))),
            SchemaType::JsonSchema => json::parse(text).map(|schema| Parsed::Json(Arc::new(schema))),
            SchemaType::Protobuf => {
                protobuf::ProtoFile::parse(text).map(|file| Parsed::Protobuf(Arc::new(file)))
            }
        };
        let parsed = parsed.map_err(|reason| SchemaError::Invalid { schema_type, reason })?;
        Ok(Definition { text: text.into(), parsed })
    }

    /// Parses what the registry has stored.
    pub fn of_stored(stored: &StoredSchema) -> Result<Definition, SchemaError> {
        let (schema_type, text) = match stored {
            StoredSchema::Bytes => (SchemaType::Bytes, ""),
            StoredSchema::String => (SchemaType::String, ""),
            StoredSchema::Number => (SchemaType::Number, ""),
            StoredSchema::Avro(text) => (SchemaType::Avro, text.raw_schema.as_str()),
            StoredSchema::JsonSchema(text) => (SchemaType::JsonSchema, text.raw_schema.as_str()),
            StoredSchema::Protobuf(text) => (SchemaType::Protobuf, text.raw_schema.as_str()),
        };
        Definition::parse(schema_type, text)
    }

    /// The form that the registry stores.
    #[must_use]
    pub fn to_stored(&self) -> StoredSchema {
        let text = || StoredText { fingerprint: self.fingerprint(), raw_schema: self.text.to_string() };
        match self.schema_type() {
            SchemaType::Bytes => StoredSchema::Bytes,
            SchemaType::String => StoredSchema::String,
            SchemaType::Number => StoredSchema::Number,
            SchemaType::Avro => StoredSchema::Avro(text()),
            SchemaType::JsonSchema => StoredSchema::JsonSchema(text()),
            SchemaType::Protobuf => StoredSchema::Protobuf(text()),
        }
    }

    /// The language of the schema.
    #[must_use]
    pub fn schema_type(&self) -> SchemaType {
        match &self.parsed {
            Parsed::Primitive(schema_type) => *schema_type,
            Parsed::Avro(_) => SchemaType::Avro,
            Parsed::Json(_) => SchemaType::JsonSchema,
            Parsed::Protobuf(_) => SchemaType::Protobuf,
        }
    }

    /// The text as it was registered; empty for the primitive types.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The compiled form of a Protobuf schema, in base64.
    #[must_use]
    pub fn compiled(&self) -> Option<String> {
        match &self.parsed {
            Parsed::Protobuf(file) => Some(file.compiled()),
            Parsed::Primitive(_) | Parsed::Avro(_) | Parsed::Json(_) => None,
        }
    }

    /// Identifies the schema: the digest of its text, or the word of a primitive type.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        if let Parsed::Primitive(schema_type) = self.parsed {
            return schema_type.name().to_owned();
        }
        let digest = Sha256::digest(self.text.as_bytes());
        digest.iter().fold("sha256:".to_owned(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
            text
        })
    }
}

impl StoredSchema {
    /// The language of the schema.
    #[must_use]
    pub fn schema_type(&self) -> SchemaType {
        match self {
            StoredSchema::Bytes => SchemaType::Bytes,
            StoredSchema::String => SchemaType::String,
            StoredSchema::Number => SchemaType::Number,
            StoredSchema::Avro(_) => SchemaType::Avro,
            StoredSchema::JsonSchema(_) => SchemaType::JsonSchema,
            StoredSchema::Protobuf(_) => SchemaType::Protobuf,
        }
    }

    /// The text as it was registered; empty for the primitive types.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            StoredSchema::Bytes | StoredSchema::String | StoredSchema::Number => "",
            StoredSchema::Avro(text) | StoredSchema::JsonSchema(text) | StoredSchema::Protobuf(text) => {
                &text.raw_schema
            }
        }
    }
}
