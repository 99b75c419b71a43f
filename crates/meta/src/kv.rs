//! What is stored: keys, values, revisions, leases, and ranges of keys.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The store's one counter. Every transaction that changes something gets the next one; an empty store is at 1.
///
/// Zero stands for "never" in a compare and for "now" in a read, exactly as on etcd's wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub i64);

impl Revision {
    /// "Never" in a compare, "current" in a read.
    pub const ZERO: Revision = Revision(0);
    /// The revision of a store that nothing was ever written to.
    pub const FIRST: Revision = Revision(1);

    /// The revision that follows this one.
    #[must_use]
    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a lease; zero is "no lease".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub i64);

impl LeaseId {
    /// A key with this lease is not attached to any.
    pub const NONE: LeaseId = LeaseId(0);
}

impl fmt::Display for LeaseId {
    /// Sixteen hex digits, the way etcdctl prints and reads leases.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One version of one key. A deleted key's version has `version == 0` and nothing but `key` and `mod_revision`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value, empty in a deletion.
    pub value: Bytes,
    /// Revision of the first put since the key was last absent.
    pub create_revision: Revision,
    /// Revision of this version.
    pub mod_revision: Revision,
    /// 1 for the first put since the key was last absent, then counting up.
    pub version: i64,
    /// The lease that the key dies with.
    pub lease: LeaseId,
}

/// Memory that a version takes besides its key and value: the record, its places in the tree and in the history.
const VERSION_OVERHEAD: u64 = 256;

impl KeyValue {
    /// The version that says "deleted at this revision".
    #[must_use]
    pub fn tombstone(key: Bytes, at: Revision) -> KeyValue {
        KeyValue { key, mod_revision: at, ..KeyValue::default() }
    }

    /// About how much memory this version keeps: its bytes, and what surrounds them.
    pub(crate) fn cost(&self) -> u64 {
        (self.key.len() + self.value.len()) as u64 + VERSION_OVERHEAD
    }

    /// Whether this version says that the key was deleted.
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.version == 0
    }

    /// The key as text, for messages; keys that are not UTF-8 are shown with replacement characters.
    #[must_use]
    pub fn key_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.key)
    }
}

/// A range of keys in etcd's form: no end is one key, an end of `\0` is "everything from the key on".
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key.
    pub start: Bytes,
    /// First key behind the range; empty: only `start`; a single zero byte: no upper bound.
    pub end: Bytes,
}

/// The `end` that means "no upper bound".
const UNBOUNDED: &[u8] = b"\0";

impl KeyRange {
    /// Just this key.
    pub fn one(key: impl Into<Bytes>) -> KeyRange {
        KeyRange { start: key.into(), end: Bytes::new() }
    }

    /// Every key that begins with these bytes; the empty prefix is every key.
    pub fn prefix(prefix: impl Into<Bytes>) -> KeyRange {
        let start = prefix.into();
        let end = prefix_end(&start);
        let start = if start.is_empty() { Bytes::from_static(UNBOUNDED) } else { start };
        KeyRange { start, end }
    }

    /// Every key from this one on.
    pub fn from_key(start: impl Into<Bytes>) -> KeyRange {
        KeyRange { start: start.into(), end: Bytes::from_static(UNBOUNDED) }
    }

    /// Keys from `start` up to, not including, `end`.
    pub fn span(start: impl Into<Bytes>, end: impl Into<Bytes>) -> KeyRange {
        KeyRange { start: start.into(), end: end.into() }
    }

    /// Every key of the store.
    #[must_use]
    pub fn all() -> KeyRange {
        KeyRange::prefix(Bytes::new())
    }

    /// Whether the range is a single key.
    #[must_use]
    pub fn is_one(&self) -> bool {
        self.end.is_empty()
    }

    /// The upper bound, unless the range has none or is a single key.
    #[must_use]
    pub fn upper(&self) -> Option<&Bytes> {
        (!self.end.is_empty() && self.end != UNBOUNDED).then_some(&self.end)
    }

    /// Whether no key at all can be in the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.upper().is_some_and(|end| *end <= self.start)
    }

    /// Whether the range is exactly "every key that begins with `start`".
    #[must_use]
    pub fn is_prefix(&self) -> bool {
        !self.end.is_empty()
            && (self.end == prefix_end(&self.start) || *self.start == *UNBOUNDED && self.end == UNBOUNDED)
    }

    /// Whether the key is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        if self.is_one() {
            return key == self.start;
        }
        key >= &self.start[..] && self.upper().is_none_or(|end| key < &end[..])
    }
}

/// The first key behind all keys with this prefix; unbounded if there is none (an empty prefix, or one of 0xff only).
fn prefix_end(prefix: &[u8]) -> Bytes {
    match prefix.iter().rposition(|byte| *byte < 0xff) {
        Some(last) => {
            let mut end = prefix[..=last].to_vec();
            end[last] += 1;
            Bytes::from(end)
        }
        None => Bytes::from_static(UNBOUNDED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_holds_what_begins_with_it_and_nothing_else() {
        let range = KeyRange::prefix("/hosts/1");
        assert!(range.contains(b"/hosts/1"));
        assert!(range.contains(b"/hosts/10"));
        assert!(!range.contains(b"/hosts/2"));
        assert!(!range.contains(b"/hosts/"));
        assert!(range.is_prefix());
    }

    #[test]
    fn a_prefix_of_high_bytes_has_no_end() {
        assert_eq!(KeyRange::prefix(vec![0xff, 0xff]).end, UNBOUNDED);
        assert_eq!(KeyRange::prefix(vec![b'a', 0xff]).end, "b".as_bytes());
        assert!(KeyRange::all().contains(b"\0"));
        assert!(KeyRange::all().is_prefix());
    }

    #[test]
    fn an_inverted_span_is_empty_and_a_single_key_is_not() {
        assert!(KeyRange::span("b", "a").is_empty());
        assert!(KeyRange::span("a", "a").is_empty());
        assert!(!KeyRange::one("a").is_empty());
        assert!(!KeyRange::from_key("a").is_empty());
    }
}
