//! What users ask for: names, namespaces, topics, subscriptions and their policies.

mod storage;

use std::fmt;
use std::str::FromStr;

use capstan_log::LogName;
use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::error::TopicsError;
use crate::keys::{
    DeliveryKey, ListedKey, LocalName, Namespace, ProgressOf, RootKey, SchemaConfigKey, StorageOf,
    Subscriptions, TopicKey, TopicTree, UnassignedKey,
};

pub use storage::StoragePolicy;

/// The longest part of a topic's name.
const MAX_PART: usize = 120;
/// What separates the base of a partitioned topic from the number of a partition.
const PARTITION_MARK: &str = "-part-";

/// A topic: `/namespace/topic`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName {
    /// Its namespace.
    pub namespace: Namespace,
    /// Its name there.
    pub local: LocalName,
}

impl TopicName {
    /// The partition with this number of a partitioned topic.
    pub fn partition(&self, number: u32) -> Result<TopicName, TopicsError> {
        format!("{self}{PARTITION_MARK}{number}").parse()
    }

    /// The partitioned topic and the number, if this is the name of a partition.
    #[must_use]
    pub fn base(&self) -> Option<(TopicName, u32)> {
        let (base, number) = self.local.as_str().rsplit_once(PARTITION_MARK)?;
        let number = number.parse::<u32>().ok().filter(|parsed| parsed.to_string() == number)?;
        let local = LocalName::new(base).ok()?;
        Some((TopicName { namespace: self.namespace.clone(), local }, number))
    }

    pub(crate) fn record_key(&self) -> TopicKey {
        TopicKey { namespace: self.namespace.clone(), topic: self.local.clone() }
    }

    pub(crate) fn root_key(&self) -> RootKey {
        RootKey { namespace: self.namespace.clone(), topic: self.local.clone() }
    }

    pub(crate) fn delivery_key(&self) -> DeliveryKey {
        DeliveryKey { namespace: self.namespace.clone(), topic: self.local.clone() }
    }

    pub(crate) fn schema_key(&self) -> SchemaConfigKey {
        SchemaConfigKey { namespace: self.namespace.clone(), topic: self.local.clone() }
    }

    pub(crate) fn listed_key(&self) -> ListedKey {
        let (namespace, topic) = (self.namespace.clone(), self.local.clone());
        ListedKey { again: namespace.clone(), namespace, topic }
    }

    pub(crate) fn unassigned_key(&self) -> UnassignedKey {
        UnassignedKey { namespace: self.namespace.clone(), topic: self.local.clone() }
    }

    pub(crate) fn tree(&self) -> TopicTree {
        TopicTree { namespace: self.namespace.clone(), topic: self.local.clone() }
    }

    pub(crate) fn storage(&self) -> StorageOf {
        StorageOf { namespace: self.namespace.clone(), topic: self.local.clone() }
    }

    pub(crate) fn progress(&self) -> ProgressOf {
        ProgressOf { namespace: self.namespace.clone(), topic: self.local.clone() }
    }

    pub(crate) fn subscriptions(&self) -> Subscriptions {
        Subscriptions { namespace: self.namespace.clone(), topic: self.local.clone() }
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.namespace, self.local)
    }
}

impl FromStr for TopicName {
    type Err = TopicsError;

    fn from_str(text: &str) -> Result<TopicName, TopicsError> {
        let invalid = || TopicsError::InvalidTopic(text.chars().take(64).collect());
        let (namespace, local) =
            text.strip_prefix('/').and_then(|rest| rest.split_once('/')).ok_or_else(invalid)?;
        if !is_part(namespace) || !is_part(local) {
            return Err(invalid());
        }
        let (namespace, local) = (Namespace::new(namespace), LocalName::new(local));
        Ok(TopicName { namespace: namespace.map_err(|_| invalid())?, local: local.map_err(|_| invalid())? })
    }
}

/// Whether a text can be a namespace or the local part of a topic's name.
#[must_use]
pub fn is_part(text: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    (1..=MAX_PART).contains(&text.len()) && text.chars().all(legal)
}

/// How a topic delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// Acknowledged when committed, delivered at least once.
    Reliable,
    /// Best effort: consumers that are slow or absent miss messages, which are counted.
    NonReliable,
}

impl fmt::Display for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Delivery::Reliable => "Reliable",
            Delivery::NonReliable => "NonReliable",
        })
    }
}

/// The number of partitions of a topic; 0: it is one itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Partitions(pub u32);

/// A topic with messages of its own: a plain topic or one partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicRecord {
    /// Never used for another topic.
    pub id: u64,
    /// The log that holds its messages.
    pub log: LogName,
    /// How it delivers.
    pub delivery: Delivery,
    /// How many copies of the log there should be.
    pub copies: usize,
    /// When it was created, in seconds since 1970.
    pub created_at: u64,
    /// How long its messages stay, where it is not as in its namespace.
    #[serde(flatten)]
    pub storage: StoragePolicy,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a namespace allows. Zero: no limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespacePolicy {
    /// Consumers of one subscription.
    #[serde(default)]
    pub max_consumers_per_subscription: u32,
    /// Consumers of one topic.
    #[serde(default)]
    pub max_consumers_per_topic: u32,
    /// Bytes of one message.
    #[serde(default)]
    pub max_message_size: u64,
    /// Producers of one topic.
    #[serde(default)]
    pub max_producers_per_topic: u32,
    /// Messages a second that a topic takes; publishers that are faster wait.
    #[serde(default)]
    pub max_publish_rate: u32,
    /// Messages a second that a subscription delivers.
    #[serde(default)]
    pub max_subscription_dispatch_rate: u32,
    /// Subscriptions of one topic.
    #[serde(default)]
    pub max_subscriptions_per_topic: u32,
    /// Not zero: only operators create topics. A producer of a topic that is not there is refused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub forbid_auto_create: u32,
    /// How long messages stay.
    #[serde(flatten)]
    pub storage: StoragePolicy,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What the document does not show is stored only where it is set.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Default for NamespacePolicy {
    fn default() -> NamespacePolicy {
        NamespacePolicy {
            max_consumers_per_subscription: 0,
            max_consumers_per_topic: 0,
            max_message_size: 10 << 20,
            max_producers_per_topic: 0,
            max_publish_rate: 0,
            max_subscription_dispatch_rate: 0,
            max_subscriptions_per_topic: 0,
            forbid_auto_create: 0,
            storage: StoragePolicy::default(),
            extra: Extra::default(),
        }
    }
}

/// How messages of a subscription are shared out among its consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionKind {
    /// One consumer.
    Exclusive,
    /// In turns.
    Shared,
    /// One consumer at a time; the next one takes over.
    Failover,
    /// Each key has one consumer.
    KeyShared,
}

impl SubscriptionKind {
    /// The number that stands for it in metadata and on the wire.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            SubscriptionKind::Exclusive => 0,
            SubscriptionKind::Shared => 1,
            SubscriptionKind::Failover => 2,
            SubscriptionKind::KeyShared => 3,
        }
    }

    /// The kind with this number.
    #[must_use]
    pub fn of(number: i32) -> Option<SubscriptionKind> {
        match number {
            0 => Some(SubscriptionKind::Exclusive),
            1 => Some(SubscriptionKind::Shared),
            2 => Some(SubscriptionKind::Failover),
            3 => Some(SubscriptionKind::KeyShared),
            _ => None,
        }
    }
}

impl fmt::Display for SubscriptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubscriptionKind::Exclusive => "exclusive",
            SubscriptionKind::Shared => "shared",
            SubscriptionKind::Failover => "failover",
            SubscriptionKind::KeyShared => "key-shared",
        })
    }
}

impl FromStr for SubscriptionKind {
    type Err = String;

    fn from_str(text: &str) -> Result<SubscriptionKind, String> {
        match text {
            "exclusive" => Ok(SubscriptionKind::Exclusive),
            "shared" => Ok(SubscriptionKind::Shared),
            "failover" => Ok(SubscriptionKind::Failover),
            "key-shared" => Ok(SubscriptionKind::KeyShared),
            _ => Err(format!("{text:?} is none of exclusive, shared, failover, key-shared")),
        }
    }
}

impl Serialize for SubscriptionKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i32(self.number())
    }
}

impl<'de> Deserialize<'de> for SubscriptionKind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<SubscriptionKind, D::Error> {
        let number = i32::deserialize(deserializer)?;
        SubscriptionKind::of(number)
            .ok_or_else(|| serde::de::Error::custom(format!("{number} is no kind of subscription")))
    }
}

/// A subscription, as the document shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionSpec {
    /// Always null.
    pub consumer_id: Option<u64>,
    /// The consumer that subscribed last.
    pub consumer_name: String,
    /// Its name.
    pub subscription_name: String,
    /// How messages are shared out.
    pub subscription_type: SubscriptionKind,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What becomes of messages that consumers do not acknowledge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailurePolicy {
    /// Redeliveries before a message counts as poison; 0: the first failure is one too many.
    pub max_redelivery_count: u32,
    /// A message that is not acknowledged within this time is delivered again.
    pub ack_timeout_ms: u64,
    /// The pause before the first redelivery.
    pub base_redelivery_delay_ms: u64,
    /// The longest pause.
    pub max_redelivery_delay_ms: u64,
    /// Whether pauses double.
    pub backoff: BackoffStrategy,
    /// Where poison goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_topic: Option<String>,
    /// What becomes of poison.
    pub poison: PoisonPolicy,
}

/// How pauses between redeliveries grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackoffStrategy {
    /// They do not.
    Fixed,
    /// They double.
    Exponential,
}

/// What becomes of a message that was delivered too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PoisonPolicy {
    /// It is published to the dead letter topic and acknowledged.
    DeadLetter,
    /// It stays unacknowledged and is not delivered any more, nor is anything behind it; with keys, nothing of its key.
    Block,
    /// It is acknowledged and counted.
    Drop,
}

impl Default for FailurePolicy {
    /// Messages are delivered again until they are acknowledged.
    fn default() -> FailurePolicy {
        FailurePolicy {
            max_redelivery_count: u32::MAX,
            ack_timeout_ms: 30_000,
            base_redelivery_delay_ms: 1_000,
            max_redelivery_delay_ms: 60_000,
            backoff: BackoffStrategy::Exponential,
            dead_letter_topic: None,
            poison: PoisonPolicy::Block,
        }
    }
}

/// The schema of a topic's messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SchemaConfig {
    /// The subject; empty: none.
    pub subject: String,
    /// The number of the subject.
    pub schema_id: u64,
    /// What becomes of messages that do not have it.
    pub validation_policy: ValidationPolicy,
    /// Whether payloads are checked against it.
    pub enable_payload_validation: bool,
}

/// What becomes of messages that do not fit their topic's schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValidationPolicy {
    /// Nothing is checked.
    None,
    /// They are taken, and the log says so.
    #[default]
    Warn,
    /// They are refused.
    Enforce,
}

impl fmt::Display for ValidationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ValidationPolicy::None => "none",
            ValidationPolicy::Warn => "warn",
            ValidationPolicy::Enforce => "enforce",
        })
    }
}

impl FromStr for ValidationPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<ValidationPolicy, String> {
        match text.to_ascii_lowercase().as_str() {
            "none" => Ok(ValidationPolicy::None),
            "warn" => Ok(ValidationPolicy::Warn),
            "enforce" => Ok(ValidationPolicy::Enforce),
            _ => Err(format!("{text:?} is none of none, warn, enforce")),
        }
    }
}

/// Whether a broker takes topics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerState {
    /// `active`, `draining` or `drained`.
    pub mode: BrokerMode,
    /// Why.
    pub reason: String,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a broker may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BrokerMode {
    /// It takes topics.
    Active,
    /// Its topics move away.
    Draining,
    /// It has none left.
    Drained,
}

json_records!(
    Delivery,
    Partitions,
    TopicRecord,
    NamespacePolicy,
    SubscriptionSpec,
    SchemaConfig,
    BrokerState,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_has_two_parts_of_plain_characters() {
        for right in ["/default/orders", "/a-b/c_1", "/default/orders-part-3"] {
            assert_eq!(right.parse::<TopicName>().unwrap().to_string(), right);
        }
        for wrong in ["", "orders", "/orders", "/a/b/c", "//b", "/a/", "/a/b c", "/a/b.c", "a/b", "/a/ü"] {
            assert!(wrong.parse::<TopicName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn partitions_are_recognised_by_their_number() {
        let base =
            |text: &str| text.parse::<TopicName>().unwrap().base().map(|(base, at)| (base.to_string(), at));
        assert_eq!(base("/default/a-part-3"), Some(("/default/a".to_owned(), 3)));
        assert_eq!(base("/default/a-part-03"), None);
        assert_eq!(base("/default/a-part-"), None);
        assert_eq!(base("/default/ab"), None);
        assert_eq!(base("/default/-part-1"), None);
    }

    #[test]
    fn records_look_as_in_the_document() {
        let policy = serde_json::to_value(NamespacePolicy::default()).unwrap();
        assert_eq!(policy["max_message_size"], 10_485_760);
        assert_eq!(policy.as_object().unwrap().len(), 7);
        assert_eq!(serde_json::to_string(&Delivery::Reliable).unwrap(), "\"Reliable\"");
        let spec = SubscriptionSpec {
            consumer_id: None,
            consumer_name: "cons_reliable".to_owned(),
            subscription_name: "subs_reliable".to_owned(),
            subscription_type: SubscriptionKind::Exclusive,
            extra: Extra::default(),
        };
        assert_eq!(
            serde_json::to_string(&spec).unwrap(),
            r#"{"consumer_id":null,"consumer_name":"cons_reliable","subscription_name":"subs_reliable","subscription_type":0}"#
        );
    }
}
