//! The metadata tree: every key of the document, with the value that it shows.

use capstan_meta::request::Range;
use capstan_testkit::eventually;
use capstan_topics::wire::danube::consumer_request::SubscriptionType;
use capstan_topics::wire::danube_admin::TopicRequest;
use serde_json::{Value, json};

use crate::cluster::{Cluster, RELIABLE, SOON};

const TOPIC: &str = "/default/reliable_topic";

async fn keys(cluster: &Cluster, prefix: &str) -> Vec<String> {
    let found = cluster.store.range(Range::prefix(prefix.to_owned())).await.unwrap();
    found.kvs.iter().map(|kv| kv.key_text().into_owned()).collect()
}

async fn json_at(cluster: &Cluster, key: &str) -> Value {
    let text =
        eventually("a key is there", SOON, async || cluster.value(key).await.ok_or(key.to_owned())).await;
    serde_json::from_str(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tree_is_the_one_of_the_document() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "prod_json_reliable", RELIABLE).await;
    let mut consumer =
        client.consumer(TOPIC, "subs_reliable", "cons_reliable", SubscriptionType::Exclusive).await;
    let broker = &cluster.nodes["a"].broker;
    let (id, url) = (broker.id(), broker.url().to_owned());
    assert_eq!(json_at(&cluster, "/cluster/test").await, Value::Null);
    let registered = json_at(&cluster, &format!("/cluster/register/{id}")).await;
    assert_eq!(registered["broker_addr"], json!(url));
    assert_eq!(registered["advertised_addr"], json!(url.trim_start_matches("http://")));
    let state = json_at(&cluster, &format!("/cluster/brokers/{id}/state")).await;
    assert_eq!(state, json!({"mode": "active", "reason": "boot"}));
    assert_eq!(
        json_at(&cluster, &format!("/cluster/brokers/{id}/default/reliable_topic")).await,
        Value::Null
    );
    eventually("the marker is gone", SOON, async || {
        let left = keys(&cluster, "/cluster/unassigned/").await;
        if left.is_empty() { Ok(()) } else { Err(left.join(" ")) }
    })
    .await;
    let load = json_at(&cluster, &format!("/cluster/load/{id}")).await;
    assert_eq!(load["resources_usage"][0]["resource"], "CPU");
    assert_eq!(json_at(&cluster, "/cluster/leader").await, json!(id));
    let policy = json_at(&cluster, "/namespaces/default/policy").await;
    let expected = json!({
        "max_consumers_per_subscription": 0, "max_consumers_per_topic": 0, "max_message_size": 10_485_760,
        "max_producers_per_topic": 0, "max_publish_rate": 0, "max_subscription_dispatch_rate": 0,
        "max_subscriptions_per_topic": 0,
    });
    assert_eq!(policy, expected);
    assert_eq!(json_at(&cluster, "/namespaces/default/topics/default/reliable_topic").await, Value::Null);
    assert_eq!(json_at(&cluster, "/topics/default/reliable_topic").await, json!(0));
    assert_eq!(json_at(&cluster, "/topics/default/reliable_topic/delivery").await, json!("Reliable"));
    let stored =
        json_at(&cluster, &format!("/topics/default/reliable_topic/producers/{}", producer.id)).await;
    let expected = json!({
        "access_mode": 0, "producer_id": producer.id, "producer_name": "prod_json_reliable", "status": true,
        "topic_name": TOPIC,
    });
    assert_eq!(stored, expected);
    let stored = json_at(&cluster, "/topics/default/reliable_topic/subscriptions/subs_reliable").await;
    let expected = json!({
        "consumer_id": null, "consumer_name": "cons_reliable", "subscription_name": "subs_reliable",
        "subscription_type": 0,
    });
    assert_eq!(stored, expected);
    for at in 0..14 {
        producer.send(&at.to_string()).await;
    }
    consumer.take(14).await;
    drop(consumer);
    let cursor = "/topics/default/reliable_topic/subscriptions/subs_reliable/cursor";
    eventually("the cursor is written", SOON, async || match cluster.value(cursor).await.as_deref() {
        Some("13") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert_eq!(keys(&cluster, "/subscriptions/").await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_topic_leaves_nothing_and_a_new_one_sees_nothing_of_it() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    producer.send("old").await;
    drop(consumer);
    let other = client.producer("/default/reliable_topic_2", "p", RELIABLE).await;
    client.admin().delete_topic(TopicRequest { name: TOPIC.to_owned() }).await.unwrap();
    eventually("nothing is left", SOON, async || {
        let mut left = Vec::new();
        for prefix in
            ["/topics/default/reliable_topic/", "/cluster/unassigned/", "/capstan/topics/tombstone/"]
        {
            left.extend(keys(&cluster, prefix).await);
        }
        for prefix in [
            "/capstan/topics/progress/",
            "/cluster/brokers/",
            "/capstan/logs/",
            "/namespaces/default/topics/",
        ] {
            let found = keys(&cluster, prefix).await;
            let ends = |key: &String| key.ends_with("/reliable_topic") || key.contains("reliable_topic.");
            left.extend(found.into_iter().filter(ends));
        }
        // Producers live as long as their broker's lease or a minute longer than their client.
        left.retain(|key| !key.contains("/producers/"));
        if left.is_empty() { Ok(()) } else { Err(left.join(" ")) }
    })
    .await;
    assert_eq!(json_at(&cluster, "/topics/default/reliable_topic_2").await, json!(0), "{}", other.topic);
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    producer.send("new").await;
    assert_eq!(consumer.take(1).await, ["new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_are_found_by_their_exact_names() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    for topic in ["/default/a-part-0", "/default/a-part-1", "/default/ab", "/default/a-part-2"] {
        client.producer(topic, "p", RELIABLE).await;
    }
    assert_eq!(json_at(&cluster, "/topics/default/a").await, json!(3));
    let mut discovery = client.discovery();
    let mut partitions = async |topic: &str| {
        let request =
            capstan_topics::wire::danube::TopicLookupRequest { request_id: 5, topic: topic.to_owned() };
        let found = discovery.topic_partitions(request).await.unwrap().into_inner();
        assert_eq!(found.request_id, 5);
        found.partitions
    };
    assert_eq!(
        partitions("/default/a").await,
        ["/default/a-part-0", "/default/a-part-1", "/default/a-part-2"]
    );
    assert_eq!(partitions("/default/ab").await, ["/default/ab"]);
    assert_eq!(partitions("/default/none").await, [""; 0]);
    assert!(client.try_producer("/default/a", "p", RELIABLE).await.is_err(), "the base of partitions");
    assert!(client.try_producer("/default/ab-part-0", "p", RELIABLE).await.is_err(), "a plain topic");
}
