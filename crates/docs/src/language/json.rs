//! JSON as a view of BSON. Numbers without a fraction are int32 or int64, others are doubles; dates, ids and binary are
//! written in MongoDB's relaxed extended JSON (`{"$date": ...}`).

use bson::{Bson, Document};
use serde_json::Value;

use super::{MAX_DEPTH, Refusal};

/// Reads a JSON value.
pub fn from_json(value: Value) -> Result<Bson, Refusal> {
    if depth(&value) > MAX_DEPTH {
        return Err(Refusal::new(format!("more than {MAX_DEPTH} levels of nesting")));
    }
    Bson::try_from(value).map_err(|error| Refusal::new(format!("not a value that can be stored: {error}")))
}

/// Reads a JSON object.
pub(crate) fn object_from_json(value: Value, what: &str) -> Result<Document, Refusal> {
    match from_json(value)? {
        Bson::Document(document) => Ok(document),
        _ => Err(Refusal::new(format!("{what} is not an object"))),
    }
}

/// Shows a value.
#[must_use]
pub fn to_json(value: Bson) -> Value {
    match value {
        Bson::Double(number) if number.fract() == 0.0 && number.abs() < 9.0e15 => Value::from(number as i64),
        Bson::Document(document) => document_to_json(document),
        Bson::Array(items) => items.into_iter().map(to_json).collect(),
        other => other.into_relaxed_extjson(),
    }
}

/// Shows a document.
#[must_use]
pub(crate) fn document_to_json(document: Document) -> Value {
    Value::Object(document.into_iter().map(|(name, value)| (name, to_json(value))).collect())
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
