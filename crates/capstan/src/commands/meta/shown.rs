//! How keys and values are shown: as text where they are text, never as a mess on a terminal.

use capstan_meta::KeyValue;
use serde_json::{Value, json};

/// Bytes as one line of text: what is not printable is escaped.
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

/// A key as JSON. Bytes that are no text are in hex under `key_hex` and `value_hex`.
pub(super) fn document(kv: &KeyValue) -> Value {
    let mut document = json!({});
    field(&mut document, "key", &kv.key);
    field(&mut document, "value", &kv.value);
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
