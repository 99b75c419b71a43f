//! Old messages: retention by time and size, messages that expire, messages that are delivered later.

use std::time::{Duration, Instant};

use capstan_client::wire::capstan::topics::v1::{Position, Record, position};
use capstan_client::wire::danube::StreamMessage;
use capstan_client::wire::danube::consumer_request::SubscriptionType;
use capstan_client::{Client, Consumer, Subscribe};
use capstan_log::{LogError, LogName, Offset};
use capstan_meta::clock;
use capstan_testkit::eventually;
use capstan_topics::commit;
use capstan_topics::spec::StoragePolicy;

use crate::cluster::{Cluster, SOON};

/// Bytes of a message: some of them fill a file.
const LARGE: usize = 8 << 10;

fn record(number: u64, bytes: usize) -> Record {
    let mut value = number.to_string().into_bytes();
    value.resize(bytes.max(value.len()), b' ');
    Record { value: Some(value.into()), ..Record::default() }
}

pub fn number(message: &StreamMessage) -> u64 {
    String::from_utf8(message.payload.to_vec()).unwrap().trim().parse().unwrap()
}

pub fn offset(message: &StreamMessage) -> u64 {
    message.msg_id.as_ref().unwrap().topic_offset
}

pub fn earliest() -> Position {
    Position { at: Some(position::At::Earliest(true)) }
}

/// Publishes messages with these numbers.
pub async fn publish(client: &Client, topic: &str, numbers: std::ops::Range<u64>, bytes: usize) {
    let mut producer = client.producer(topic, &format!("p{}", numbers.start));
    for number in numbers {
        producer.send(vec![record(number, bytes)]).await.unwrap();
    }
    producer.flush().await.unwrap();
}

/// A consumer that begins with the oldest message.
pub async fn consumer(client: &Client, topic: &str) -> Consumer {
    let subscribe = Subscribe {
        topic: topic.to_owned(),
        subscription: "s".to_owned(),
        consumer: "c".to_owned(),
        kind: SubscriptionType::Exclusive,
        from: earliest(),
    };
    client.consumer(subscribe).await.unwrap()
}

async fn set(cluster: &Cluster, topic: &str, policy: StoragePolicy) {
    commit::set_storage(&cluster.store, &topic.parse().unwrap(), |_| policy).await.unwrap();
}

/// Reads a topic from its first message on: numbers are offsets, and none is missing.
pub async fn read_all(client: &Client, topic: &str) -> (u64, u64) {
    let mut messages = client.read(topic, earliest(), 0).await.unwrap();
    let (mut first, mut next) = (None, 0);
    while let Some(message) = messages.message().await.unwrap() {
        let start = *first.get_or_insert(offset(&message));
        next = next.max(start);
        assert_eq!((offset(&message), number(&message)), (next, next));
        next += 1;
    }
    (first.unwrap(), next)
}

async fn start_of(client: &Client, topic: &str) -> (u64, u64) {
    let stats = client.stats(topic).await.unwrap();
    (stats.start, stats.end)
}

/// Where the copy of a topic's log on a node begins.
async fn copy_start(cluster: &Cluster, node: &str, topic: &str) -> Result<Offset, String> {
    let record = cluster.value(&format!("/capstan/topics/topic{topic}")).await.unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let log = LogName::new(record["log"].as_str().unwrap()).unwrap();
    let log = cluster.nodes[node].holder.opened(&log).ok_or("it is not open")?;
    match log.read(Offset::ZERO, 1).await {
        Err(LogError::Truncated(start)) => Ok(start),
        Ok(_) => Ok(Offset::ZERO),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_messages_go_from_every_holder_and_offsets_go_on() {
    let (by_size, by_time) = ("/default/by-size", "/default/by-time");
    let mut cluster = Cluster::start(&["a", "b", "c"]).await;
    let client = cluster.own_client();
    publish(&client, by_size, 0..150, LARGE).await;
    publish(&client, by_time, 0..20, 10).await;
    let mut slow = consumer(&client, by_size).await;
    assert_eq!(number(&slow.next().await.unwrap()), 0);
    drop(slow);
    set(&cluster, by_size, StoragePolicy { retention_bytes: Some(1), ..StoragePolicy::default() }).await;
    set(&cluster, by_time, StoragePolicy { retention_seconds: Some(1), ..StoragePolicy::default() }).await;

    let start = eventually("old files go", SOON, async || match start_of(&client, by_size).await {
        (0, _) => Err("all are there".to_owned()),
        (start, end) => {
            assert_eq!(end, 150);
            Ok(start)
        }
    })
    .await;
    assert!(start < 150, "the file that is written stays");
    for node in ["a", "b", "c"] {
        eventually("every holder drops them", SOON, async || {
            match copy_start(&cluster, node, by_size).await? {
                Offset::ZERO => Err(format!("{node} has all")),
                _ => Ok(()),
            }
        })
        .await;
    }
    // More goes when another file is full: here, when the journal is moved into files, and on brokers with other files.
    let is_there = |first: u64| (start..150).contains(&first);
    let (first, end) = read_all(&client, by_size).await;
    assert!(is_there(first) && end == 150, "{first} {end}");

    eventually("only the last message is young enough", SOON, async || {
        match start_of(&client, by_time).await {
            (19, 20) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for topic in [by_size, by_time] {
        let owner = cluster.owner(topic).await;
        cluster.end(&owner).await;
        cluster.begin(&owner).await;
    }
    let client = cluster.own_client();
    let mut consumer = consumer(&client, by_size).await;
    let first = number(&consumer.next().await.unwrap());
    assert!(is_there(first), "it goes on with what is there: {first}");
    publish(&client, by_time, 20..21, 10).await;
    let (_, end) = read_all(&client, by_time).await;
    assert_eq!(end, 21, "no offset is used again");
    publish(&client, by_size, 150..151, 10).await;
    assert_eq!(read_all(&client, by_size).await.1, 151);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_too_old_are_not_delivered_and_can_be_read() {
    let topic = "/default/ttl";
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.own_client();
    publish(&client, topic, 0..5, 10).await;
    // Long enough for a new message to be delivered by a busy machine.
    let ttl = Duration::from_secs(10);
    let policy = StoragePolicy { message_ttl_seconds: Some(ttl.as_secs()), ..StoragePolicy::default() };
    drop(consumer(&client, topic).await);
    set(&cluster, topic, policy).await;
    // tidy: allow, because messages have to become old
    tokio::time::sleep(ttl + Duration::from_millis(100)).await;
    publish(&client, topic, 5..6, 10).await;
    let mut consumer = consumer(&client, topic).await;
    let message = consumer.next().await.unwrap();
    assert_eq!(number(&message), 5);
    consumer.acknowledge(vec![5]).await.unwrap();
    assert_eq!(client.stats(topic).await.unwrap().subscriptions[0].backlog, 0);
    assert_eq!(read_all(&client, topic).await, (0, 6));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_messages_come_in_time_and_block_no_others() {
    let topic = "/default/later";
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.own_client();
    let mut producer = client.producer(topic, "p");
    let now = u64::try_from(clock::since_epoch().as_millis()).unwrap();
    // Long enough for the others to be delivered by a busy machine.
    let (delay, count) = (Duration::from_secs(10), 3_000);
    let due = now + 10_000;
    let later = |number| Record { deliver_at: due, ..record(number, 10) };
    // More than a subscription has in flight.
    producer.send((0..count).map(later).collect()).await.unwrap();
    producer.send((count..count + 10).map(|number| record(number, 10)).collect()).await.unwrap();
    producer.flush().await.unwrap();
    let published = Instant::now();
    let mut consumer = consumer(&client, topic).await;
    for expected in count..count + 10 {
        assert_eq!(number(&consumer.next().await.unwrap()), expected);
        consumer.acknowledge(vec![expected]).await.unwrap();
    }
    assert!(published.elapsed() < delay, "they wait for none: {:?}", published.elapsed());
    let (mut seen, mut outstanding) = (std::collections::BTreeSet::new(), Vec::new());
    while seen.len() < usize::try_from(count).unwrap() {
        let message = consumer.next().await.unwrap();
        assert!(clock::since_epoch().as_millis() >= u128::from(due), "not before its time");
        assert!(seen.insert(number(&message)), "once");
        outstanding.push(offset(&message));
        if outstanding.len() == 64 {
            consumer.acknowledge(std::mem::take(&mut outstanding)).await.unwrap();
        }
    }
    assert_eq!(seen.last(), Some(&(count - 1)));
}
