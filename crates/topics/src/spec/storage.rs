//! How long do messages stay? Said for a namespace, or for one topic.

use serde::{Deserialize, Serialize};

/// What becomes of old messages. Absent: as in the namespace, or no limit there; zero: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoragePolicy {
    /// Messages older than this are dropped, delivered or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_seconds: Option<u64>,
    /// Bytes of a topic beyond which its oldest messages are dropped, delivered or not, in whole files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_bytes: Option<u64>,
    /// Messages older than this are not delivered any more. They can still be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_ttl_seconds: Option<u64>,
    /// Not zero: of the messages with a key that are in object storage and acknowledged, only the last one of each stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compact_by_key: Option<u64>,
    /// How long a message with a key and without a value, which removes the key, stays itself. Absent: a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tombstone_seconds: Option<u64>,
}

/// How long a tombstone stays, if nothing else is said: readers that are behind by less see that a key is gone.
const TOMBSTONE_SECONDS: u64 = 86_400;

impl StoragePolicy {
    /// The names of the limits, as they stand in records and commands.
    pub const LIMITS: [&'static str; 5] = [
        "retention_seconds",
        "retention_bytes",
        "message_ttl_seconds",
        "compact_by_key",
        "tombstone_seconds",
    ];

    /// This policy, and the other one where it says nothing.
    #[must_use]
    pub fn or(self, other: StoragePolicy) -> StoragePolicy {
        StoragePolicy {
            retention_seconds: self.retention_seconds.or(other.retention_seconds),
            retention_bytes: self.retention_bytes.or(other.retention_bytes),
            message_ttl_seconds: self.message_ttl_seconds.or(other.message_ttl_seconds),
            compact_by_key: self.compact_by_key.or(other.compact_by_key),
            tombstone_seconds: self.tombstone_seconds.or(other.tombstone_seconds),
        }
    }

    /// Whether messages are ever dropped.
    #[must_use]
    pub fn drops(&self) -> bool {
        self.retention_seconds.unwrap_or_default() > 0 || self.retention_bytes.unwrap_or_default() > 0
    }

    /// How long tombstones stay, in milliseconds; nothing if there is no compaction.
    #[must_use]
    pub fn tombstone_grace(&self) -> Option<u64> {
        let seconds = self.tombstone_seconds.unwrap_or(TOMBSTONE_SECONDS);
        (self.compact_by_key.unwrap_or_default() > 0).then_some(seconds.saturating_mul(1_000))
    }

    /// Sets a limit by its name; whether there is one of this name.
    pub fn set(&mut self, name: &str, limit: Option<u64>) -> bool {
        let field = match name {
            "retention_seconds" => &mut self.retention_seconds,
            "retention_bytes" => &mut self.retention_bytes,
            "message_ttl_seconds" => &mut self.message_ttl_seconds,
            "compact_by_key" => &mut self.compact_by_key,
            "tombstone_seconds" => &mut self.tombstone_seconds,
            _ => return false,
        };
        *field = limit;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_says_more_than_its_namespace_and_zero_is_no_limit() {
        let mut namespace = StoragePolicy::default();
        for name in StoragePolicy::LIMITS {
            assert!(namespace.set(name, Some(60)), "{name}");
        }
        assert!(!namespace.set("retention", Some(1)) && namespace.drops());
        let topic = StoragePolicy { retention_seconds: Some(0), ..StoragePolicy::default() };
        let both = topic.or(namespace);
        assert_eq!((both.retention_seconds, both.retention_bytes), (Some(0), Some(60)));
        assert!(!StoragePolicy { retention_bytes: None, ..both }.drops());
        assert_eq!(serde_json::to_string(&StoragePolicy::default()).unwrap(), "{}");
        assert_eq!(both.tombstone_grace(), Some(60_000));
        assert_eq!(StoragePolicy::default().tombstone_grace(), None);
        let compacted = StoragePolicy { compact_by_key: Some(1), ..StoragePolicy::default() };
        assert_eq!(compacted.tombstone_grace(), Some(86_400_000));
    }
}
