//! The document's keys, one test for each item of the checklist T-01 to T-35, on the embedded store and on a real etcd.
//!
//! T-16, T-17 and the scenarios C and D are in `moves`; T-31 and T-32 are about tiers.

mod cluster_keys;
mod schema_keys;
mod tools;
mod topic_keys;

use capstan_meta::Store;
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::request::Range;
use capstan_testkit::eventually;
use serde_json::Value;

use crate::cluster::{Cluster, SOON};

const TOPIC: &str = "/default/reliable_topic";

/// Where a test's metadata are.
#[derive(Clone)]
enum Place {
    Embedded,
    /// A key space of its own in an etcd.
    Etcd(String, &'static str),
}

impl Place {
    async fn cluster(&self, brokers: &[&str]) -> Cluster {
        match self {
            Place::Embedded => Cluster::start(brokers).await,
            Place::Etcd(endpoint, name) => {
                let options = EtcdOptions::new([endpoint.as_str()]).prefix(format!("/test/{name}"));
                Cluster::on(Store::new(Etcd::connect(options).await.unwrap()), brokers).await
            }
        }
    }
}

/// Each check as a test on the embedded store, and all of them as one test on an etcd.
macro_rules! checks {
    ($($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                checks::$name(super::Place::Embedded).await;
            }
        )*

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn all_on_a_real_etcd() {
            let etcd = capstan_testkit::Etcd::start().await.unwrap();
            $(
                checks::$name(super::Place::Etcd(etcd.endpoint().to_owned(), stringify!($name))).await;
            )*
        }
    };
}
use checks;

async fn keys(cluster: &Cluster, prefix: &str) -> Vec<String> {
    let found = cluster.store.range(Range::prefix(prefix.to_owned())).await.unwrap();
    found.kvs.iter().map(|kv| kv.key_text().into_owned()).collect()
}

async fn json_at(cluster: &Cluster, key: &str) -> Value {
    let text =
        eventually("a key is there", SOON, async || cluster.value(key).await.ok_or(key.to_owned())).await;
    serde_json::from_str(&text).unwrap()
}

async fn gone(cluster: &Cluster, prefix: &str) {
    eventually("keys are gone", SOON, async || {
        let left = keys(cluster, prefix).await;
        if left.is_empty() { Ok(()) } else { Err(left.join(" ")) }
    })
    .await;
}
