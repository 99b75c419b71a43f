//! How is a record written? JSON documents, plain text, and markers whose presence is all they say.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordFormat {
    /// One JSON document, compact.
    Json,
    /// A number or a string as it is.
    Text,
    /// Nothing; the key's presence is the fact.
    Empty,
    /// The JSON word `null`; the key's presence is the fact.
    Null,
}

/// What a key leads to. Implemented with [`json_records!`](crate::json_records) or
/// [`text_records!`](crate::text_records), or one of the markers and plain types here.
pub trait Record: Sized + Send + Sync + 'static {
    /// How it is written.
    const FORMAT: RecordFormat;

    /// Reads a value; the error says what is wrong with it.
    fn decode(value: &[u8]) -> Result<Self, String>;

    /// Writes a value; the error says why the type cannot be written.
    fn encode(&self) -> Result<Bytes, String>;
}

/// JSON fields that this version does not know, kept across a read-modify-write: `#[serde(flatten)] pub extra: Extra`.
pub type Extra = serde_json::Map<String, serde_json::Value>;

/// A marker with an empty value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Empty;

/// A marker with the value `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Null;

impl Record for Empty {
    const FORMAT: RecordFormat = RecordFormat::Empty;

    /// Accepts any value: whoever set the marker by hand meant the key.
    fn decode(_value: &[u8]) -> Result<Empty, String> {
        Ok(Empty)
    }

    fn encode(&self) -> Result<Bytes, String> {
        Ok(Bytes::new())
    }
}

impl Record for Null {
    const FORMAT: RecordFormat = RecordFormat::Null;

    /// Accepts any value: whoever set the marker by hand meant the key.
    fn decode(_value: &[u8]) -> Result<Null, String> {
        Ok(Null)
    }

    fn encode(&self) -> Result<Bytes, String> {
        Ok(Bytes::from_static(b"null"))
    }
}

/// Reads a JSON document.
pub fn from_json<T: DeserializeOwned>(value: &[u8]) -> Result<T, String> {
    serde_json::from_slice(value).map_err(|error| error.to_string())
}

/// Writes a JSON document, compact, fields in the order of their declaration.
pub fn to_json<T: Serialize>(record: &T) -> Result<Bytes, String> {
    serde_json::to_vec(record).map(Bytes::from).map_err(|error| error.to_string())
}

/// Reads plain text; white space around it (a newline typed with `etcdctl put`) is not part of it.
pub fn from_text<T: FromStr<Err: fmt::Display>>(value: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(value).map_err(|error| error.to_string())?;
    text.trim().parse::<T>().map_err(|error| error.to_string())
}

/// Writes plain text.
pub fn to_text<T: fmt::Display>(record: &T) -> Result<Bytes, String> {
    Ok(Bytes::from(record.to_string()))
}

crate::text_records!(u16, u32, u64, i64);

impl Record for String {
    const FORMAT: RecordFormat = RecordFormat::Text;

    fn decode(value: &[u8]) -> Result<String, String> {
        std::str::from_utf8(value).map(str::to_owned).map_err(|error| error.to_string())
    }

    fn encode(&self) -> Result<Bytes, String> {
        Ok(Bytes::from(self.clone()))
    }
}

/// A JSON document of which nothing is known, for tools that show the tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AnyJson(pub serde_json::Value);

crate::json_records!(AnyJson);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Status {
        version: String,
        step: u32,
        #[serde(flatten)]
        extra: Extra,
    }
    crate::json_records!(Status);

    #[test]
    fn unknown_fields_survive_and_known_ones_keep_the_order_of_the_document() {
        let written = br#"{"zone":"b","step":2,"version":"1.2.3-1","id":13940288943180594845}"#;
        let mut status = Status::decode(written).unwrap();
        status.step = 3;
        let expected = r#"{"version":"1.2.3-1","step":3,"zone":"b","id":13940288943180594845}"#;
        assert_eq!(status.encode().unwrap(), expected.as_bytes());
    }

    #[test]
    fn a_bad_value_is_an_error_that_says_why() {
        assert!(Status::decode(b"{\"version\":1}").unwrap_err().contains("invalid type"));
        assert!(u64::decode(b"12x").unwrap_err().contains("invalid digit"));
        assert!(String::decode(&[0xff]).is_err());
        assert_eq!(u64::decode(b"12\n"), Ok(12));
        assert_eq!(Null::decode(b"whatever"), Ok(Null));
    }
}
