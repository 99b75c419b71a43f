//! Every metric of the service. The catalogue of the console describes them; a test compares the two.
//!
//! Counters are of the process. Gauges are of each broker in it and are as old as its last sweep, a few seconds.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// What brokers count. Cheap to clone; clones count together.
#[derive(Clone, Debug)]
pub struct TopicsMetrics {
    served: Family<BrokerLabels, Gauge>,
    producers: Family<BrokerLabels, Gauge>,
    consumers: Family<BrokerLabels, Gauge>,
    subscriptions: Family<BrokerLabels, Gauge>,
    backlog: Family<BrokerLabels, Gauge>,
    in_flight: Family<BrokerLabels, Gauge>,
    missed: Family<BrokerLabels, Gauge>,
    messages: Counter,
    bytes: Counter,
    refused: Family<ReasonLabels, Counter>,
    publish: Histogram,
    acknowledged: Counter,
    nacked: Counter,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct BrokerLabels {
    broker: u64,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct ReasonLabels {
    reason: String,
}

/// What a broker has at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pub(crate) topics: u64,
    pub(crate) producers: u64,
    pub(crate) consumers: u64,
    pub(crate) subscriptions: u64,
    pub(crate) backlog: u64,
    pub(crate) in_flight: u64,
    pub(crate) missed: u64,
}

impl Default for TopicsMetrics {
    fn default() -> TopicsMetrics {
        TopicsMetrics {
            served: Family::default(),
            producers: Family::default(),
            consumers: Family::default(),
            subscriptions: Family::default(),
            backlog: Family::default(),
            in_flight: Family::default(),
            missed: Family::default(),
            messages: Counter::default(),
            bytes: Counter::default(),
            refused: Family::default(),
            // From 0.1 ms to 3.3 s.
            publish: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            acknowledged: Counter::default(),
            nacked: Counter::default(),
        }
    }
}

impl TopicsMetrics {
    /// Makes them part of what a process shows.
    pub fn register(&self, registry: &mut Registry) {
        let sub = registry.sub_registry_with_prefix("topics");
        sub.register("served", "Topics that a broker has loaded", self.served.clone());
        sub.register("producers", "Producers that are registered with a broker", self.producers.clone());
        sub.register("consumers", "Consumers that are registered with a broker", self.consumers.clone());
        sub.register("subscriptions", "Subscriptions that a broker has loaded", self.subscriptions.clone());
        sub.register("backlog", "Messages that subscriptions have not acknowledged", self.backlog.clone());
        let help = "Messages that were delivered and are not acknowledged";
        sub.register("in_flight", help, self.in_flight.clone());
        let help = "Messages of NonReliable topics that consumers missed";
        sub.register("missed", help, self.missed.clone());
        sub.register("messages", "Messages taken from producers", self.messages.clone());
        sub.register("message_bytes", "Bytes of the messages taken from producers", self.bytes.clone());
        sub.register(
            "refused",
            "Publications that were refused, by reason: schema, invalid, limit, elsewhere, other",
            self.refused.clone(),
        );
        let help = "Time until a message that was sent alone is committed";
        sub.register_with_unit("publish", help, Unit::Seconds, self.publish.clone());
        sub.register("acknowledged", "Messages that consumers acknowledged", self.acknowledged.clone());
        sub.register("nacked", "Messages that consumers refused", self.nacked.clone());
    }

    pub(crate) fn took(&self, messages: usize, bytes: usize) {
        self.messages.inc_by(messages as u64);
        self.bytes.inc_by(bytes as u64);
    }

    pub(crate) fn refused(&self, reason: &str) {
        self.refused.get_or_create(&ReasonLabels { reason: reason.to_owned() }).inc();
    }

    pub(crate) fn published(&self, took: Duration) {
        self.publish.observe(took.as_secs_f64());
    }

    pub(crate) fn acknowledged(&self, messages: usize) {
        self.acknowledged.inc_by(messages as u64);
    }

    pub(crate) fn nacked(&self) {
        self.nacked.inc();
    }

    pub(crate) fn set(&self, broker: u64, census: Census) {
        let values = [
            (&self.served, census.topics),
            (&self.producers, census.producers),
            (&self.consumers, census.consumers),
            (&self.subscriptions, census.subscriptions),
            (&self.backlog, census.backlog),
            (&self.in_flight, census.in_flight),
            (&self.missed, census.missed),
        ];
        for (family, value) in values {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            family.get_or_create(&BrokerLabels { broker }).set(value);
        }
    }
}
