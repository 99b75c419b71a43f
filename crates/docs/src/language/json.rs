//! JSON as a view of BSON. Numbers without a fraction are int32 or int64, others are doubles; dates, ids and binary are
//! written in MongoDB's relaxed extended JSON (`{"$date": ...}`).

use bson::{Bson, Document};
use serde::ser::{Serialize, Serializer};
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

/// A document as it is shown, written without making a JSON value of it first.
pub(crate) struct Shown<'d>(pub(crate) &'d Document);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, ShownValue(value))))
    }
}

/// A value as [`to_json`] shows it.
pub(crate) struct ShownValue<'v>(pub(crate) &'v Bson);

impl Serialize for ShownValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Bson::String(text) => serializer.serialize_str(text),
            Bson::Int32(number) => serializer.serialize_i32(*number),
            Bson::Int64(number) => serializer.serialize_i64(*number),
            Bson::Boolean(flag) => serializer.serialize_bool(*flag),
            Bson::Null => serializer.serialize_unit(),
            Bson::Document(document) => Shown(document).serialize(serializer),
            Bson::Array(items) => serializer.collect_seq(items.iter().map(ShownValue)),
            other => to_json(other.clone()).serialize(serializer),
        }
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc};

    use super::*;

    #[test]
    fn a_document_is_written_as_it_is_shown() {
        let document = doc! {
            "z": 1, "a": i64::MAX, "text": "quote \" and \u{1}", "yes": true, "none": Bson::Null,
            "whole": 5.0, "part": 0.5, "huge": 1.0e300, "nan": f64::NAN, "symbol": Bson::Symbol("s".to_owned()),
            "date": bson::DateTime::from_millis(1_700_000_000_123), "id": bson::oid::ObjectId::from_bytes([7; 12]),
            "bytes": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![1, 2] },
            "list": [1, 2.5, { "inner": [Bson::Null, Bson::MaxKey] }], "empty": {}, "nothing": Bson::Undefined,
        };
        let written = serde_json::to_string(&Shown(&document)).unwrap();
        assert_eq!(written, document_to_json(document).to_string());
    }
}
