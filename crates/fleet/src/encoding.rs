//! How are the document's values written and read? As the Go program that it describes writes and reads them.
//!
//! Written: fields in the order of the struct, no spaces, nothing left out, `<`, `>`, `&` and the two line separators
//! of Unicode escaped. Read: unknown fields are kept, names match in any case, missing fields and `null` are the zero
//! value, text that is not UTF-8 gets replacement characters. Times and durations are in [`moment`] and [`duration`].

pub mod duration;
pub mod moment;

use std::io;

use capstan_meta::record::Value;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::{CompactFormatter, Formatter};

pub use duration::{Nanos, Span, parse_go_duration};
pub use moment::Moment;

/// Compact JSON with the characters escaped that Go's encoder escapes for the sake of HTML.
struct GoFormatter;

impl Formatter for GoFormatter {
    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (plain, escaped) = rest.split_at(at);
            CompactFormatter.write_string_fragment(writer, plain)?;
            let mut letters = escaped.chars();
            if let Some(letter) = letters.next() {
                write!(writer, "\\u{:04x}", u32::from(letter))?;
            }
            rest = letters.as_str();
        }
        CompactFormatter.write_string_fragment(writer, rest)
    }
}

/// Writes a value as Go's encoder does.
pub fn to_go_json<T: Serialize>(record: &T) -> Result<Value, String> {
    let mut written = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut written, GoFormatter);
    record.serialize(&mut serializer).map_err(|error| error.to_string())?;
    Ok(Value::from(written))
}

/// Reads a value as Go's decoder does; `fields` are the names of the struct's fields.
pub fn from_go_json<T: DeserializeOwned>(value: &[u8], fields: &[&str]) -> Result<T, String> {
    let text = String::from_utf8_lossy(value);
    let found: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let mut known = serde_json::Map::new();
    for (name, value) in found {
        if value.is_null() {
            continue;
        }
        let spelled = fields.iter().find(|field| field.eq_ignore_ascii_case(&name));
        known.insert(spelled.map_or(name, |field| (*field).to_owned()), value);
    }
    serde_json::from_value(serde_json::Value::Object(known)).map_err(|error| error.to_string())
}

/// Writes these types as the document's JSON, reading with Go's tolerance for the named fields.
macro_rules! go_records {
    ($($record:ty [$($field:literal),* $(,)?]),* $(,)?) => {$(
        impl ::capstan_meta::record::Record for $record {
            const FORMAT: ::capstan_meta::record::RecordFormat = ::capstan_meta::record::RecordFormat::Json;

            fn decode(value: &[u8]) -> Result<Self, String> {
                $crate::encoding::from_go_json(value, &[$($field),*])
            }

            fn encode(&self) -> Result<::capstan_meta::record::Value, String> {
                $crate::encoding::to_go_json(self)
            }
        }
    )*};
}
pub(crate) use go_records;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_as_go_escapes_it() {
        let written = to_go_json(&"a<b>&\u{2028}\u{2029}\"\\\n\u{7f}é").unwrap();
        assert_eq!(
            String::from_utf8_lossy(&written),
            "\"a\\u003cb\\u003e\\u0026\\u2028\\u2029\\\"\\\\\\n\u{7f}é\""
        );
    }

    #[test]
    fn names_match_in_any_case_and_null_is_nothing() {
        #[derive(serde::Deserialize, PartialEq, Debug, Default)]
        #[serde(default)]
        struct Both {
            version: String,
            servers: Vec<u32>,
        }
        let fields = ["version", "servers"];
        let read: Both = from_go_json(br#"{"VERSION":"1","Servers":null,"other":[1.5]}"#, &fields).unwrap();
        assert_eq!(read, Both { version: "1".to_owned(), servers: Vec::new() });
        let read: Both = from_go_json(b"{\"version\":\"a\xff\"}", &fields).unwrap();
        assert_eq!(read.version, "a\u{fffd}");
        for wrong in [&br#"{"servers":[1.5]}"#[..], br#"{"version":1}"#, b"[]", b"", b"{"] {
            assert!(from_go_json::<Both>(wrong, &fields).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
