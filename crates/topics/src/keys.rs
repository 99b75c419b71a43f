//! Every key of the service and its record: the only place with key text.
//!
//! The keys under `/cluster`, `/namespaces`, `/topics` and `/danube-data` are those of the document, value for value.
//! What it has no place for stands under `/capstan/topics`.

use std::fmt;
use std::str::FromStr;

use capstan_control::Epoch;
use capstan_control::keys::HostId;
use capstan_meta::record::{Null, Segment};
use capstan_meta::{keys, names};

use crate::spec::{
    BrokerState, Delivery, NamespacePolicy, Partitions, SchemaConfig, SubscriptionSpec, TopicRecord,
};
use crate::status::{
    BrokerHealth, BrokerRecord, LoadReport, ProducerRecord, Progress, Registration, Sealed, TierCursor,
    TierObject, Tombstone, Unassigned,
};

names! {
    /// Names a cluster of brokers.
    pub struct ClusterName;

    /// Names a namespace.
    pub struct Namespace;

    /// Names a topic within its namespace.
    pub struct LocalName;

    /// Names a subscription of a topic.
    pub struct SubscriptionName;
}

/// An offset in twenty digits, so that keys are in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Padded(pub u64);

impl fmt::Display for Padded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}", self.0)
    }
}

impl FromStr for Padded {
    type Err = String;

    fn from_str(text: &str) -> Result<Padded, String> {
        let digits = text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_digit());
        let offset = text.parse().ok().filter(|_| digits);
        offset.map(Padded).ok_or_else(|| format!("{text:?} is not an offset of twenty digits"))
    }
}

impl Segment for Padded {}

keys! {
    /// Every key of the service.
    pub const CATALOGUE;

    /// The identity of a broker: the same number in every life of its host.
    pub struct BrokerKey { host: HostId } at "/capstan/topics/broker/{host}" => BrokerRecord {
        writer: "the broker, when it starts for the first time",
        lifetime: Durable,
        prefixes: [
            /// Every broker that ever was.
            pub struct Brokers {} at "/capstan/topics/broker/",
        ],
    }

    /// What a broker sees that is wrong with the topics that it serves. Absent: nothing.
    pub struct HealthKey { broker: u64 } at "/capstan/topics/health/{broker}" => BrokerHealth {
        writer: "the broker, when its problems change, at most every 5 seconds",
        lifetime: Leased,
        prefixes: [
            /// What every broker sees.
            pub struct Healths {} at "/capstan/topics/health/",
        ],
    }

    /// The number of the next broker.
    pub struct NextBrokerKey {} at "/capstan/topics/next-broker" => u64 {
        writer: "a broker, when it starts for the first time",
        lifetime: Durable,
    }

    /// What a subscription has acknowledged, and how it redelivers: the truth behind the cursor.
    pub struct ProgressKey { namespace: Namespace, topic: LocalName, subscription: SubscriptionName }
        at "/capstan/topics/progress/{namespace}/{topic}/{subscription}" => Progress {
        writer: "the topic's broker: at subscribe, every 1,000 acknowledgments or 5 seconds, and when consumers leave",
        lifetime: Durable,
        prefixes: [
            /// Every subscription's progress.
            pub struct AllProgress {} at "/capstan/topics/progress/",
            /// The progress of every subscription of one topic.
            pub struct ProgressOf { namespace: Namespace, topic: LocalName }
                at "/capstan/topics/progress/{namespace}/{topic}/",
        ],
    }

    /// The number of leaders of the load manager so far.
    pub struct TermKey {} at "/capstan/topics/term" => Epoch {
        writer: "each new leader, in its first transaction",
        lifetime: Durable,
    }

    /// A topic that was deleted and whose log may still be there.
    pub struct TombstoneKey { id: u64 } at "/capstan/topics/tombstone/{id}" => Tombstone {
        writer: "the deletion of a topic; removed by the leader when the log is gone",
        lifetime: Durable,
        prefixes: [
            /// Every tombstone.
            pub struct Tombstones {} at "/capstan/topics/tombstone/",
        ],
    }

    /// A topic: its identity, its log and its own policies.
    pub struct TopicKey { namespace: Namespace, topic: LocalName }
        at "/capstan/topics/topic/{namespace}/{topic}" => TopicRecord {
        writer: "the creation of the topic",
        lifetime: Durable,
        prefixes: [
            /// Every topic.
            pub struct Topics {} at "/capstan/topics/topic/",
            /// Every topic of a namespace.
            pub struct TopicsOf { namespace: Namespace } at "/capstan/topics/topic/{namespace}/",
        ],
    }

    /// Whether a broker takes topics.
    pub struct BrokerStateKey { broker: u64 } at "/cluster/brokers/{broker}/state" => BrokerState {
        writer: "the broker at its first start; an operator who drains or activates it",
        lifetime: Durable,
        prefixes: [
            /// The state of every broker, with the assignments.
            pub struct BrokerStates {} at "/cluster/brokers/",
        ],
    }

    /// A topic that a broker serves.
    pub struct AssignmentKey { broker: u64, namespace: Namespace, topic: LocalName }
        at "/cluster/brokers/{broker}/{namespace}/{topic}" => Null {
        writer: "the leader: follows the primary of the topic's log",
        lifetime: Durable,
        prefixes: [
            /// Every assignment, with the states of the brokers.
            pub struct Assignments {} at "/cluster/brokers/",
            /// The assignments of one broker.
            pub struct AssignmentsOf { broker: u64 } at "/cluster/brokers/{broker}/",
        ],
    }

    /// The broker that leads the load manager.
    pub struct LeaderKey {} at "/cluster/leader" => u64 {
        writer: "the broker that creates it",
        lifetime: Leased,
    }

    /// What a broker has to do.
    pub struct LoadKey { broker: u64 } at "/cluster/load/{broker}" => LoadReport {
        writer: "the broker, every 30 seconds",
        lifetime: Leased,
        prefixes: [
            /// Every report.
            pub struct Loads {} at "/cluster/load/",
        ],
    }

    /// A broker that is up, and where clients find it.
    pub struct RegisterKey { broker: u64 } at "/cluster/register/{broker}" => Registration {
        writer: "the broker",
        lifetime: Leased,
        prefixes: [
            /// Every broker that is up.
            pub struct Registrations {} at "/cluster/register/",
        ],
    }

    /// A topic that no broker serves yet, or none any more.
    pub struct UnassignedKey { namespace: Namespace, topic: LocalName }
        at "/cluster/unassigned/{namespace}/{topic}" => Unassigned {
        writer: "the creation of the topic, an unload, the leader after a failure; removed with the assignment",
        lifetime: Durable,
        prefixes: [
            /// Every topic without a broker.
            pub struct UnassignedTopics {} at "/cluster/unassigned/",
        ],
    }

    /// The cluster that the brokers belong to. Its name is none of the fixed words beside it.
    pub struct ClusterKey { cluster: ClusterName } at "/cluster/{cluster}" => Null {
        writer: "the first broker",
        lifetime: Durable,
    }

    /// The newest object of a topic, for tools: it follows from the descriptors.
    pub struct TierCursorKey { namespace: Namespace, topic: LocalName }
        at "/danube-data/storage/topics/{namespace}/{topic}/objects/cur" => TierCursor {
        writer: "the topic's broker, together with the descriptor",
        lifetime: Durable,
    }

    /// Messages of a topic that are in object storage. Written when the object is complete.
    pub struct TierObjectKey { namespace: Namespace, topic: LocalName, start: Padded }
        at "/danube-data/storage/topics/{namespace}/{topic}/objects/{start}" => TierObject {
        writer: "the topic's broker, after an upload and when it compacts; removed by retention and with the topic",
        lifetime: Durable,
        prefixes: [
            /// The objects of a topic.
            pub struct TierObjects { namespace: Namespace, topic: LocalName }
                at "/danube-data/storage/topics/{namespace}/{topic}/objects/",
        ],
    }

    /// Where a topic was when it last changed its broker. Reported from the log; sets no offset.
    pub struct SealedKey { namespace: Namespace, topic: LocalName }
        at "/danube-data/storage/topics/{namespace}/{topic}/state" => Sealed {
        writer: "the broker that hands the topic over",
        lifetime: Durable,
        prefixes: [
            /// Everything that is stored about the storage of one topic.
            pub struct StorageOf { namespace: Namespace, topic: LocalName }
                at "/danube-data/storage/topics/{namespace}/{topic}/",
        ],
    }

    /// What a namespace allows.
    pub struct PolicyKey { namespace: Namespace } at "/namespaces/{namespace}/policy" => NamespacePolicy {
        writer: "the creation of the namespace; an operator",
        lifetime: Durable,
        prefixes: [
            /// Every policy, with the lists of topics.
            pub struct Policies {} at "/namespaces/",
        ],
    }

    /// A topic in the list of its namespace, which the document names twice.
    pub struct ListedKey { namespace: Namespace, again: Namespace, topic: LocalName }
        at "/namespaces/{namespace}/topics/{again}/{topic}" => Null {
        writer: "the creation of the topic",
        lifetime: Durable,
        prefixes: [
            /// The topics of a namespace.
            pub struct Listed { namespace: Namespace } at "/namespaces/{namespace}/topics/",
        ],
    }

    /// A topic exists; the number of its partitions, 0 for a topic that is one.
    pub struct RootKey { namespace: Namespace, topic: LocalName }
        at "/topics/{namespace}/{topic}" => Partitions {
        writer: "the creation of the topic",
        lifetime: Durable,
        prefixes: [
            /// Every topic, with everything below it.
            pub struct Roots {} at "/topics/",
            /// Every topic of a namespace, with everything below it.
            pub struct RootsOf { namespace: Namespace } at "/topics/{namespace}/",
        ],
    }

    /// How a topic delivers.
    pub struct DeliveryKey { namespace: Namespace, topic: LocalName }
        at "/topics/{namespace}/{topic}/delivery" => Delivery {
        writer: "the creation of the topic",
        lifetime: Durable,
        prefixes: [
            /// Everything below a topic's root.
            pub struct TopicTree { namespace: Namespace, topic: LocalName } at "/topics/{namespace}/{topic}/",
        ],
    }

    /// A producer that is connected.
    pub struct ProducerKey { namespace: Namespace, topic: LocalName, producer: u64 }
        at "/topics/{namespace}/{topic}/producers/{producer}" => ProducerRecord {
        writer: "the topic's broker",
        lifetime: Leased,
    }

    /// The schema of a topic's messages. Absent: none was ever named.
    pub struct SchemaConfigKey { namespace: Namespace, topic: LocalName }
        at "/topics/{namespace}/{topic}/schema_config" => SchemaConfig {
        writer: "the first producer that names a subject; an operator",
        lifetime: Durable,
    }

    /// A subscription.
    pub struct SubscriptionKey { namespace: Namespace, topic: LocalName, subscription: SubscriptionName }
        at "/topics/{namespace}/{topic}/subscriptions/{subscription}" => SubscriptionSpec {
        writer: "the topic's broker, at subscribe",
        lifetime: Durable,
        prefixes: [
            /// Every subscription of a topic, with the cursors.
            pub struct Subscriptions { namespace: Namespace, topic: LocalName }
                at "/topics/{namespace}/{topic}/subscriptions/",
        ],
    }

    /// The last offset before which everything is acknowledged. Absent while nothing is.
    pub struct CursorKey { namespace: Namespace, topic: LocalName, subscription: SubscriptionName }
        at "/topics/{namespace}/{topic}/subscriptions/{subscription}/cursor" => u64 {
        writer: "the topic's broker, together with the progress",
        lifetime: Durable,
    }
}
