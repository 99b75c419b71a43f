//! How are keys and values shown? As text where possible, escaped otherwise, and secrets never.

use std::borrow::Cow;

use capstan_meta::{KeyValue, record};
use serde_json::{Value, json};

use crate::catalogue::CATALOGUES;

/// The replacement for a secret.
pub(super) const REDACTED: &str = "<redacted>";

/// Whether the catalogue marks the value of a key as secret.
pub(super) fn is_secret(kv: &KeyValue) -> bool {
    record::is_secret(CATALOGUES, &kv.key_text())
}

/// The value of a key, redacted if secret.
pub(super) fn value(kv: &KeyValue) -> Cow<'_, [u8]> {
    if is_secret(kv) && !kv.value.is_empty() { REDACTED.as_bytes().into() } else { kv.value.as_ref().into() }
}

/// Bytes as one line of text: non-printable ones are escaped.
pub(super) fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().all(|c| !c.is_control()) => text.to_owned(),
        Ok(text) => text.escape_debug().to_string(),
        Err(_) => bytes.escape_ascii().to_string(),
    }
}

/// A text cut to a number of characters.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(3)).chain("...".chars()).collect()
}

/// A key as JSON. Non-text bytes are in hex under `key_hex` and `value_hex`.
pub(super) fn document(kv: &KeyValue) -> Value {
    let mut document = json!({});
    field(&mut document, "key", &kv.key);
    field(&mut document, "value", &value(kv));
    document["create_revision"] = kv.create_revision.0.into();
    document["mod_revision"] = kv.mod_revision.0.into();
    document["version"] = kv.version.into();
    if kv.lease.0 != 0 {
        document["lease"] = kv.lease.to_string().into();
    }
    document
}

/// A field of bytes, as text if it is text.
pub(super) fn field(document: &mut Value, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => document[name] = text.into(),
        Err(_) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            document[format!("{name}_hex")] = hex.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printable_is_escaped() {
        assert_eq!(text("plain ä".as_bytes()), "plain ä");
        assert_eq!(text(b"two\nlines"), "two\\nlines");
        assert_eq!(text(b"\xff\x1b[31m"), "\\xff\\x1b[31m");
    }

    #[test]
    fn long_texts_are_cut_visibly() {
        assert_eq!(cut("0123456789", 6), "012...");
        assert_eq!(cut("012345", 6), "012345");
    }
}
