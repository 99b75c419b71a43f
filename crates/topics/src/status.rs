//! What brokers report and what was decided.

use std::collections::BTreeMap;

use capstan_log::{HolderId, LogEpoch, LogName};
use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::spec::FailurePolicy;

/// The identity of a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerRecord {
    /// Its number.
    pub id: u64,
}

/// A broker that is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Where the admin services are.
    pub admin_addr: String,
    /// Host and port that clients are given.
    pub advertised_addr: String,
    /// Where clients connect.
    pub broker_addr: String,
    /// Where the metrics are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prom_exporter: Option<String>,
    /// The name that newer clients have for `broker_addr`.
    pub broker_url: String,
    /// Where newer clients connect.
    pub connect_url: String,
    /// The holder that keeps its logs.
    pub holder: HolderId,
    /// The hash of the token by which other brokers know this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_hash: Option<String>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a broker has to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadReport {
    /// In percent.
    pub resources_usage: Vec<ResourceUsage>,
    /// The topics that it serves.
    pub topic_list: Vec<String>,
    /// How many they are.
    pub topics_len: usize,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// How much of a resource is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceUsage {
    /// `CPU` or `Memory`.
    pub resource: String,
    /// In percent.
    pub usage: u32,
}

/// A producer that is connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProducerRecord {
    /// Always 0: shared.
    pub access_mode: i32,
    /// Its number.
    pub producer_id: u64,
    /// Its name.
    pub producer_name: String,
    /// Whether it is active.
    pub status: bool,
    /// What it publishes to.
    pub topic_name: String,
}

/// Why a topic has no broker; `null` for a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unassigned(pub Option<UnassignedReason>);

/// Why a topic lost its broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnassignedReason {
    /// `unload`, `failover`.
    pub reason: String,
    /// The broker that had it.
    pub from_broker: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Where a topic was when it last changed its broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// Always true.
    pub sealed: bool,
    /// The offset of the last message; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_committed_offset: Option<u64>,
    /// The broker that had the topic.
    pub broker_id: u64,
    /// In seconds since 1970.
    pub timestamp: u64,
    /// The offset of the next message.
    pub next_offset: u64,
}

/// Messages in object storage, as the document shows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierObject {
    /// Always true: an object without a descriptor is not complete.
    pub completed: bool,
    /// In seconds since 1970.
    pub created_at: u64,
    /// The offset of the last message.
    pub end_offset: u64,
    /// Always null.
    pub etag: Option<String>,
    /// The object's name.
    pub object_id: String,
    /// Offsets of messages and the bytes at which their entries begin.
    pub offset_index: Vec<(u64, u64)>,
    /// In bytes.
    pub size: u64,
    /// The offset of the first message.
    pub start_offset: u64,
    /// CRC-32C of the object.
    pub checksum: u32,
    /// When the last message was taken, in milliseconds since 1970.
    pub max_time: u64,
    /// How many messages compaction has left; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacted: Option<u64>,
}

/// The newest object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierCursor {
    /// The offset of its first message, in twenty digits.
    pub start: String,
}

/// A topic that was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstone {
    /// Its log.
    pub log: LogName,
    /// Its name, for operators.
    pub topic: String,
}

/// What a subscription has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The epoch of the log in which it was written: a broker of the past writes nothing over it.
    pub epoch: LogEpoch,
    /// The topic that it belongs to.
    pub topic_id: u64,
    /// Everything before this offset is acknowledged.
    pub floor: u64,
    /// What is acknowledged above: first offset to the one behind the last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub acknowledged: BTreeMap<u64, u64>,
    /// Counts seeks: the floor may fall with them.
    #[serde(default)]
    pub seeks: u64,
    /// What becomes of messages that are not acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// Messages that consumers may have without an acknowledgment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unacked_messages: Option<u32>,
}

/// What is wrong with topics that a broker serves, as far as only the broker can see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerHealth {
    /// The problems, at most a few dozen.
    pub problems: Vec<Problem>,
}

/// Something that is wrong with a topic or a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What.
    pub kind: ProblemKind,
    /// The topic.
    pub topic: String,
    /// The subscription, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// More about it.
    pub cause: String,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

/// The kinds of problems that a broker sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemKind {
    /// Consumers of a subscription are slower than producers, or there are none.
    BacklogGrows,
    /// Consumers have messages and acknowledge none.
    ConsumerStuck,
    /// Messages were refused because of the topic's schema.
    SchemaRejected,
    /// Old messages do not get into object storage.
    TierFails,
    /// A topic is to be compacted, and the broker has no object storage.
    NotCompacted,
}

json_records!(
    BrokerHealth,
    BrokerRecord,
    Registration,
    LoadReport,
    ProducerRecord,
    Unassigned,
    Sealed,
    TierObject,
    TierCursor,
    Tombstone,
    Progress,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_null_or_say_why() {
        assert_eq!(serde_json::to_string(&Unassigned::default()).unwrap(), "null");
        let text = r#"{"reason":"unload","from_broker":12549595323552083708}"#;
        let marker: Unassigned = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&marker).unwrap(), text);
    }
}
