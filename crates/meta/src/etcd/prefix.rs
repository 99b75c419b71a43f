//! Which keys of etcd are ours: the prefix that is put in front of every key on the way in and taken off on the way
//! out. An open-ended range of ours ends where the prefix does.

use bytes::Bytes;

use crate::kv::KeyRange;

/// The `range_end` that means "no upper bound".
const UNBOUNDED: &[u8] = b"\0";

/// A prefix of keys; empty is all of etcd.
#[derive(Clone, Debug)]
pub(super) struct Prefix {
    bytes: Bytes,
    /// First key behind every key of ours.
    end: Bytes,
}

impl Prefix {
    pub(super) fn new(prefix: &str) -> Prefix {
        let bytes = Bytes::copy_from_slice(prefix.as_bytes());
        let end = KeyRange::prefix(bytes.clone()).end;
        Prefix { bytes, end }
    }

    /// Whether keys pass as they are.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Our key as etcd knows it.
    pub(super) fn key(&self, key: &[u8]) -> Vec<u8> {
        [&self.bytes, key].concat()
    }

    /// Our range as etcd knows it: `(key, range_end)`.
    pub(super) fn range(&self, range: &KeyRange) -> (Vec<u8>, Vec<u8>) {
        let end = if range.is_one() {
            Vec::new()
        } else if range.end == UNBOUNDED {
            self.end.to_vec()
        } else {
            self.key(&range.end)
        };
        (self.key(&range.start), end)
    }

    /// Etcd's key as we know it; `None` for a key that is not ours.
    pub(super) fn strip(&self, key: Vec<u8>) -> Option<Bytes> {
        let ours = key.starts_with(&self.bytes);
        ours.then(|| Bytes::from(key).slice(self.bytes.len()..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(prefix: &str, range: KeyRange) -> (Vec<u8>, Vec<u8>) {
        Prefix::new(prefix).range(&range)
    }

    #[test]
    fn without_a_prefix_ranges_pass_unchanged() {
        for keys in [
            KeyRange::one("a"),
            KeyRange::prefix("a"),
            KeyRange::from_key("a"),
            KeyRange::all(),
            KeyRange::span("b", "a"),
        ] {
            assert_eq!(range("", keys.clone()), (keys.start.to_vec(), keys.end.to_vec()));
        }
    }

    #[test]
    fn an_open_end_is_the_end_of_the_prefix() {
        assert_eq!(range("/a/", KeyRange::from_key("k")), (b"/a/k".to_vec(), b"/a0".to_vec()));
        assert_eq!(range("/a/", KeyRange::all()), (b"/a/\0".to_vec(), b"/a0".to_vec()));
        assert_eq!(range("/a/", KeyRange::prefix(vec![0xff])), (b"/a/\xff".to_vec(), b"/a0".to_vec()));
    }

    #[test]
    fn both_ends_get_the_prefix_and_one_key_stays_one_key() {
        assert_eq!(range("/a/", KeyRange::span("k", "m")), (b"/a/k".to_vec(), b"/a/m".to_vec()));
        assert_eq!(range("/a/", KeyRange::span("m", "k")), (b"/a/m".to_vec(), b"/a/k".to_vec()));
        assert_eq!(range("/a/", KeyRange::one("k")), (b"/a/k".to_vec(), Vec::new()));
    }

    #[test]
    fn answers_lose_the_prefix_and_foreign_keys_are_not_ours() {
        let prefix = Prefix::new("/a/");
        assert_eq!(prefix.strip(b"/a/k".to_vec()), Some(Bytes::from_static(b"k")));
        assert_eq!(prefix.strip(b"/b/k".to_vec()), None);
        assert_eq!(Prefix::new("").strip(b"/b/k".to_vec()), Some(Bytes::from_static(b"/b/k")));
    }
}
