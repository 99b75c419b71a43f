//! Payloads that must match a schema. A validator is compiled once and used for every message.

use std::fmt;

use prost_reflect::{DynamicMessage, MessageDescriptor};

use super::{Definition, Parsed, SchemaType, json};

/// Decides whether payloads match a schema.
pub struct Validator(Kind);

enum Kind {
    Anything,
    Text,
    Number,
    Avro(Box<apache_avro::Schema>),
    Json(Box<jsonschema::Validator>),
    Protobuf(MessageDescriptor),
}

/// Why a payload does not match its schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("payload does not match its schema: {0}")]
pub struct InvalidPayload(String);

impl fmt::Debug for Validator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Validator")
    }
}

impl Definition {
    /// Compiles the validator of this schema.
    pub fn validator(&self) -> Result<Validator, InvalidPayload> {
        let kind = match &self.parsed {
            Parsed::Primitive(SchemaType::String) => Kind::Text,
            Parsed::Primitive(SchemaType::Number) => Kind::Number,
            Parsed::Primitive(_) => Kind::Anything,
            Parsed::Avro(schema) => Kind::Avro(Box::new(schema.compiled.clone())),
            Parsed::Json(schema) => Kind::Json(Box::new(json::compile(schema).map_err(InvalidPayload)?)),
            Parsed::Protobuf(file) => match file.payload() {
                Some(message) => Kind::Protobuf(message),
                None => return Err(InvalidPayload("the schema declares no message".to_owned())),
            },
        };
        Ok(Validator(kind))
    }
}

impl Validator {
    /// Checks one payload.
    pub fn check(&self, payload: &[u8]) -> Result<(), InvalidPayload> {
        match &self.0 {
            Kind::Anything => Ok(()),
            Kind::Text => std::str::from_utf8(payload).map(drop).map_err(|e| InvalidPayload(e.to_string())),
            Kind::Number => check_number(payload),
            Kind::Avro(schema) => check_avro(schema, payload),
            Kind::Json(validator) => check_json(validator, payload),
            Kind::Protobuf(message) => DynamicMessage::decode(message.clone(), payload)
                .map(drop)
                .map_err(|error| InvalidPayload(error.to_string())),
        }
    }
}

/// A number is its text, or eight bytes (an integer or a double, big-endian).
fn check_number(payload: &[u8]) -> Result<(), InvalidPayload> {
    let is_text = std::str::from_utf8(payload).is_ok_and(|text| text.trim().parse::<f64>().is_ok());
    if is_text || payload.len() == 8 {
        Ok(())
    } else {
        Err(InvalidPayload("neither a number as text nor eight bytes".to_owned()))
    }
}

fn check_avro(schema: &apache_avro::Schema, payload: &[u8]) -> Result<(), InvalidPayload> {
    let mut rest = payload;
    let reader = apache_avro::reader::datum::GenericDatumReader::builder(schema).build();
    let reader = reader.map_err(|error| InvalidPayload(error.to_string()))?;
    reader.read_value(&mut rest).map_err(|error| InvalidPayload(error.to_string()))?;
    if rest.is_empty() {
        Ok(())
    } else {
        Err(InvalidPayload(format!("{} bytes follow the value", rest.len())))
    }
}

fn check_json(validator: &jsonschema::Validator, payload: &[u8]) -> Result<(), InvalidPayload> {
    let value = serde_json::from_slice(payload).map_err(|error| InvalidPayload(error.to_string()))?;
    validator.validate(&value).map_err(|error| {
        let at = error.instance_path().to_string();
        InvalidPayload(if at.is_empty() { error.to_string() } else { format!("{at}: {error}") })
    })
}
