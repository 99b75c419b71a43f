//! Compaction by key: the last message of each key stays where it is, and nothing else of the topic changes.

use std::collections::BTreeMap;
use std::time::Duration;

use capstan_client::wire::capstan::topics::v1::Record;
use capstan_client::wire::danube::StreamMessage;
use capstan_client::wire::danube::consumer_request::SubscriptionType;
use capstan_client::{Client, Consumer, Subscribe};
use capstan_testkit::seed::soak;
use capstan_testkit::{TempDir, eventually};
use capstan_topics::check;
use capstan_topics::commit;
use capstan_topics::spec::StoragePolicy;
use capstan_topics::tier::TierOptions;
use serde_json::Value;

use crate::cluster::{Cluster, SOON};
use crate::retention::{earliest, offset};

const TOPIC: &str = "/default/prices";
/// Bytes of a message: some of them fill a file.
const LARGE: usize = 8 << 10;
const KEYS: u64 = 20;
/// A key that is published once: its message stays in the oldest object.
const ONCE: &str = "once";
/// The key that is removed.
const GONE: &str = "k0";

/// The keys and the offsets of their last messages.
type Keys = BTreeMap<String, u64>;

/// What was published.
#[derive(Default)]
struct Published {
    next: u64,
    keys: Keys,
}

impl Published {
    /// The first messages of the topic.
    async fn begin(client: &Client) -> Published {
        let mut published = Published::default();
        published.send(client, std::iter::once(ONCE.to_owned())).await;
        published.round(client, 0).await;
        published
    }

    async fn send(&mut self, client: &Client, keys: impl Iterator<Item = String>) {
        let mut producer = client.producer(TOPIC, &format!("p{}", self.next));
        for key in keys {
            let mut value = self.next.to_string().into_bytes();
            value.resize(LARGE, b' ');
            let record =
                Record { key: Some(key.clone().into()), value: Some(value.into()), ..Record::default() };
            producer.send(vec![record]).await.unwrap();
            self.keys.insert(key, self.next);
            self.next += 1;
        }
        producer.flush().await.unwrap();
    }

    /// A message for each key, except for the first ones.
    async fn round(&mut self, client: &Client, first: u64) {
        self.send(client, (first..KEYS).map(|key| format!("k{key}"))).await;
    }

    async fn remove(&mut self, client: &Client, key: &str) {
        let mut producer = client.producer(TOPIC, "remover");
        let record = Record { key: Some(key.to_owned().into()), value: None, ..Record::default() };
        producer.send(vec![record]).await.unwrap();
        producer.flush().await.unwrap();
        self.keys.remove(key);
        self.next += 1;
    }
}

/// What a reader knows after some messages.
#[derive(Default)]
struct Seen {
    messages: u64,
    next: u64,
    keys: Keys,
}

impl Seen {
    fn note(&mut self, message: &StreamMessage) {
        let (at, key) = (offset(message), message.routing_key.clone().unwrap());
        assert!(at >= self.next, "{at} comes after {}", self.next);
        (self.messages, self.next) = (self.messages + 1, at + 1);
        if message.payload.is_empty() {
            self.keys.remove(&key);
        } else {
            let text = String::from_utf8(message.payload.to_vec()).unwrap();
            assert_eq!(text.trim(), at.to_string(), "a message has kept its offset");
            self.keys.insert(key, at);
        }
    }
}

async fn try_read(client: &Client) -> Result<Seen, String> {
    let messages = client.read(TOPIC, earliest(), 0).await;
    let mut messages = messages.map_err(|error| error.to_string())?;
    let mut seen = Seen::default();
    while let Some(message) = messages.message().await.map_err(|status| status.to_string())? {
        seen.note(&message);
    }
    Ok(seen)
}

async fn read(client: &Client) -> Seen {
    try_read(client).await.unwrap()
}

async fn consumer(client: &Client, subscription: &str) -> Consumer {
    let subscribe = Subscribe {
        topic: TOPIC.to_owned(),
        subscription: subscription.to_owned(),
        consumer: "c".to_owned(),
        kind: SubscriptionType::Exclusive,
        from: earliest(),
    };
    client.consumer(subscribe).await.unwrap()
}

/// Receives and acknowledges everything.
async fn consume(client: &Client, subscription: &str, published: &Published) -> Seen {
    let (mut consumer, mut seen) = (consumer(client, subscription).await, Seen::default());
    while seen.next < published.next {
        let message = consumer.next().await.unwrap();
        if offset(&message) >= seen.next {
            seen.note(&message);
        }
        consumer.acknowledge(vec![offset(&message)]).await.unwrap();
    }
    seen
}

/// A place for old messages: everything goes there at once.
fn tier(dir: &TempDir) -> TierOptions {
    let url = format!("file://{}", dir.path().display());
    TierOptions { local_bytes: 0, interval: Duration::from_millis(200), ..TierOptions::new(&url) }
}

/// Has the topic compacted.
async fn compact(cluster: &Cluster) {
    let (compact_by_key, tombstone_seconds) = (Some(1), Some(1));
    let policy = StoragePolicy { compact_by_key, tombstone_seconds, ..StoragePolicy::default() };
    commit::set_storage(&cluster.store, &TOPIC.parse().unwrap(), |_| policy).await.unwrap();
}

/// The descriptors of the topic's objects.
async fn objects(cluster: &Cluster) -> Vec<Value> {
    let objects = "/danube-data/storage/topics/default/prices/objects/";
    let described = cluster.store.range(capstan_meta::Range::prefix(objects)).await.unwrap();
    let values = described.kvs.iter().map(|kv| serde_json::from_slice::<Value>(&kv.value).unwrap());
    values.filter(|value| value["object_id"].is_string()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_message_of_each_key_stays_and_a_tombstone_removes_its_key() {
    let dir = TempDir::new("tier").unwrap();
    let mut cluster = Cluster::start_with(&["a"], Some(tier(&dir))).await;
    let client = cluster.own_client();
    let mut published = Published::begin(&client).await;
    compact(&cluster).await;

    // What a subscription has not acknowledged stays.
    drop(consumer(&client, "slow").await);
    eventually("old messages are uploaded", SOON, async || {
        published.round(&client, 0).await;
        let uploaded = objects(&cluster).await.len();
        if uploaded >= 3 { Ok(()) } else { Err(uploaded) }
    })
    .await;
    // What is in no closed file yet is uploaded after a pass over the objects that there are.
    let passed = published.next;
    eventually("a pass over them is finished", SOON, async || {
        published.round(&client, 0).await;
        let last = objects(&cluster).await.pop().unwrap()["end_offset"].as_u64().unwrap();
        if last >= passed { Ok(()) } else { Err(last) }
    })
    .await;
    let compacted: Vec<_> =
        objects(&cluster).await.into_iter().filter(|object| object["compacted"].is_u64()).collect();
    assert!(compacted.is_empty(), "{compacted:?}");
    let seen = read(&client).await;
    assert_eq!((seen.messages, seen.next), (published.next, published.next));
    let seen = consume(&client, "slow", &published).await;
    assert_eq!((seen.messages, &seen.keys), (published.next, &published.keys));

    eventually("old messages of a key go", SOON, async || {
        published.round(&client, 0).await;
        consume(&client, "slow", &published).await;
        let seen = read(&client).await;
        assert_eq!((seen.next, &seen.keys), (published.next, &published.keys));
        let gone = published.next - seen.messages;
        if gone > 2 * KEYS { Ok(()) } else { Err(format!("{gone} of {} are gone", published.next)) }
    })
    .await;

    published.remove(&client, GONE).await;
    eventually("the key and its tombstone go", SOON, async || {
        published.round(&client, 1).await;
        consume(&client, "slow", &published).await;
        let mut messages = client.read(TOPIC, earliest(), 0).await.unwrap();
        while let Some(message) = messages.message().await.unwrap() {
            if message.routing_key.as_deref() == Some(GONE) {
                return Err(format!("message {} is there", offset(&message)));
            }
        }
        Ok(())
    })
    .await;

    // A new subscription gets over what is gone, and another life of the broker finds the same.
    for again in ["again", "after-a-restart"] {
        let client = cluster.own_client();
        let seen = consume(&client, again, &published).await;
        assert_eq!(seen.keys, published.keys);
        assert!(seen.messages < published.next);
        eventually("everything counts as acknowledged", SOON, async || {
            let stats = client.stats(TOPIC).await.unwrap();
            assert_eq!(stats.end, published.next, "offsets go on");
            let it = stats.subscriptions.into_iter().find(|known| known.name == again).unwrap();
            if it.backlog == 0 { Ok(()) } else { Err(it.backlog) }
        })
        .await;
        cluster.end("a").await;
        cluster.begin("a").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_that_end_while_they_compact_lose_no_key() {
    let dir = TempDir::new("tier").unwrap();
    let mut cluster = Cluster::start_with(&["a", "b", "c"], Some(tier(&dir))).await;
    let mut published = Published::begin(&cluster.own_client()).await;
    compact(&cluster).await;
    for _ in 0..soak(4, 60) {
        for _ in 0..3 {
            published.round(&cluster.own_client(), 0).await;
        }
        let owner = cluster.owner(TOPIC).await;
        cluster.end(&owner).await;
        cluster.begin(&owner).await;
        let client = cluster.own_client();
        let read = eventually("the topic is read", SOON, async || try_read(&client).await);
        let seen = read.await;
        assert_eq!((seen.next, &seen.keys), (published.next, &published.keys));
    }
    eventually("old messages of a key go", SOON, async || {
        let client = cluster.own_client();
        published.round(&client, 0).await;
        let seen = try_read(&client).await?;
        assert_eq!((seen.next, &seen.keys), (published.next, &published.keys));
        let gone = published.next - seen.messages;
        if gone > 2 * KEYS { Ok(()) } else { Err(format!("{gone} of {} are gone", published.next)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_has_no_effect_is_a_finding() {
    let cluster = Cluster::start(&["a"]).await;
    Published::begin(&cluster.own_client()).await;
    for (compact_by_key, is_found) in [(Some(1), true), (Some(0), false)] {
        let policy = StoragePolicy { compact_by_key, ..StoragePolicy::default() };
        commit::set_storage(&cluster.store, &TOPIC.parse().unwrap(), |_| policy).await.unwrap();
        eventually("the finding comes and goes with the policy", SOON, async || {
            let findings = cluster.findings().await;
            let found = findings.iter().any(|finding| finding.code == check::NOT_COMPACTED);
            if found == is_found { Ok(()) } else { Err(format!("{findings:?}")) }
        })
        .await;
    }
}
