//! What the prober of this process sees of Redis.

use std::collections::BTreeMap;

use capstan_redis::health::Probed;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Metrics of Redis, as probes see them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RedisMetrics {
    keys: Family<ClusterLabels, Gauge>,
    memory: Family<ClusterLabels, Gauge>,
    nodes: Family<NodeLabels, Gauge>,
    proxies: Gauge,
    probes: Counter,
    failed: Counter,
    took: Histogram,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct ClusterLabels {
    cluster: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, PartialOrd, Ord, EncodeLabelSet)]
struct NodeLabels {
    health: String,
}

impl Default for RedisMetrics {
    fn default() -> RedisMetrics {
        RedisMetrics {
            keys: Family::default(),
            memory: Family::default(),
            nodes: Family::default(),
            proxies: Gauge::default(),
            probes: Counter::default(),
            failed: Counter::default(),
            // From 0.1 ms to 3.3 s.
            took: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
        }
    }
}

impl RedisMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let sub = registry.sub_registry_with_prefix("redis");
        sub.register("keys", "Keys in the primaries of a cluster", self.keys.clone());
        sub.register_with_unit(
            "used_memory",
            "Memory of the primaries of a cluster",
            Unit::Bytes,
            self.memory.clone(),
        );
        sub.register(
            "nodes",
            "Nodes of all clusters by health: ready, loading, down, lost and others",
            self.nodes.clone(),
        );
        sub.register("proxies", "Proxies that this process probes", self.proxies.clone());
        sub.register(
            "probes",
            "Probes of proxies: a write through the path of a client",
            self.probes.clone(),
        );
        sub.register("probes_failed", "Probes that found a proxy not serving", self.failed.clone());
        let help = "Time of a probe: connection, login and one write to each primary of the proxy";
        sub.register_with_unit("probe", help, Unit::Seconds, self.took.clone());
    }

    /// Takes over what a probe of all proxies saw.
    pub fn set(&self, probed: &Probed) {
        let (mut keys, mut memory) = (BTreeMap::new(), BTreeMap::new());
        let mut nodes: BTreeMap<&str, i64> =
            ["ready", "loading", "down", "lost"].map(|word| (word, 0)).into();
        for seen in probed.seen.values() {
            self.probes.inc();
            match seen.took {
                Some(took) => self.took.observe(took.as_secs_f64()),
                None => drop(self.failed.inc()),
            }
            for node in seen.nodes.values() {
                let Some((cluster, _)) = node.owner.as_deref().and_then(|owner| owner.split_once('/')) else {
                    continue;
                };
                *nodes.entry(node.health.word()).or_default() += 1;
                if node.replica_of.is_none() {
                    *keys.entry(cluster).or_default() += super::bounded(node.keys);
                    *memory.entry(cluster).or_default() += super::bounded(node.used_memory);
                }
            }
        }
        self.proxies.set(super::bounded(probed.proxies));
        fill(&self.keys, &keys);
        fill(&self.memory, &memory);
        self.nodes.clear();
        for (health, count) in nodes {
            self.nodes.get_or_create(&NodeLabels { health: health.to_owned() }).set(count);
        }
    }
}

/// Clusters that are gone must not stay at their last value.
fn fill(family: &Family<ClusterLabels, Gauge>, values: &BTreeMap<&str, i64>) {
    family.clear();
    for (cluster, value) in values {
        family.get_or_create(&ClusterLabels { cluster: (*cluster).to_owned() }).set(*value);
    }
}
