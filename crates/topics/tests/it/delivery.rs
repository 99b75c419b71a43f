//! Subscriptions of all types: who gets what, and what comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use capstan_testkit::eventually;
use capstan_topics::wire::danube::consumer_request::SubscriptionType;
use capstan_topics::wire::danube_admin::{
    SetSubscriptionFailurePolicyRequest, SubscriptionFailurePolicy, subscription_failure_policy,
};

use crate::cluster::{Cluster, NON_RELIABLE, RELIABLE, SOON, offset, text};

const TOPIC: &str = "/default/orders";
/// Long enough for a message that must not come.
const NOTHING: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_consumers_share_and_what_one_leaves_another_gets() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut one = client.consumer(TOPIC, "s", "one", SubscriptionType::Shared).await;
    let mut two = client.consumer(TOPIC, "s", "two", SubscriptionType::Shared).await;
    for at in 0..20 {
        producer.send(&at.to_string()).await;
    }
    let mut seen: BTreeSet<String> = one.take(5).await.into_iter().collect();
    seen.extend(two.take(5).await);
    assert_eq!(seen.len(), 10);
    drop(one);
    seen.extend(two.take(10).await);
    assert_eq!(seen.len(), 20, "what the first had and did not acknowledge comes to the second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_over_in_order() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut active = client.consumer(TOPIC, "s", "active", SubscriptionType::Failover).await;
    let mut standby = client.consumer(TOPIC, "s", "standby", SubscriptionType::Failover).await;
    for at in 0..10 {
        producer.send(&at.to_string()).await;
    }
    assert_eq!(active.take(4).await, ["0", "1", "2", "3"]);
    assert!(standby.try_next(NOTHING).await.is_none());
    drop(active);
    assert_eq!(standby.take(6).await, ["4", "5", "6", "7", "8", "9"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_stay_with_one_consumer_and_in_order() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumers = Vec::new();
    for name in ["one", "two", "three"] {
        consumers.push(client.consumer(TOPIC, "s", name, SubscriptionType::KeyShared).await);
    }
    for at in 0..60 {
        producer.send_keyed(&at.to_string(), &format!("key-{}", at % 12)).await;
    }
    let mut of_key: BTreeMap<String, (usize, Vec<u64>)> = BTreeMap::new();
    let mut count = 0;
    while count < 60 {
        for (number, consumer) in consumers.iter_mut().enumerate() {
            while let Some(message) = consumer.try_next(NOTHING).await {
                consumer.ack(&message).await;
                let key = message.routing_key.clone().unwrap();
                let (owner, offsets) = of_key.entry(key).or_insert((number, Vec::new()));
                assert_eq!(*owner, number);
                offsets.push(offset(&message));
                count += 1;
            }
        }
    }
    assert!(of_key.values().all(|(_, offsets)| offsets.is_sorted() && offsets.len() == 5), "{of_key:?}");
    assert!(of_key.values().map(|(owner, _)| owner).collect::<BTreeSet<_>>().len() > 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_message_comes_back_without_another_publish() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Shared).await;
    for at in 0..5 {
        producer.send(&at.to_string()).await;
    }
    let first = consumer.next().await;
    assert_eq!(consumer.take(4).await, ["1", "2", "3", "4"]);
    consumer.nack(&first, Some(200)).await;
    assert_eq!(consumer.take(1).await, ["0"]);
    assert!(consumer.try_next(NOTHING).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_goes_to_the_dead_letter_topic_with_all_that_is_known() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Shared).await;
    let _letters = client.producer("/default/dead", "p", RELIABLE).await;
    let mut dead = client.consumer("/default/dead", "s", "c", SubscriptionType::Shared).await;
    let policy = SubscriptionFailurePolicy {
        max_redelivery_count: 2,
        ack_timeout_ms: 60_000,
        base_redelivery_delay_ms: 10,
        max_redelivery_delay_ms: 20,
        dead_letter_topic: Some("/default/dead".to_owned()),
        poison_policy: subscription_failure_policy::PoisonPolicy::DeadLetter.into(),
        ..SubscriptionFailurePolicy::default()
    };
    let request = SetSubscriptionFailurePolicyRequest {
        topic: TOPIC.to_owned(),
        subscription: "s".to_owned(),
        failure_policy: Some(policy),
    };
    assert!(client.admin().set_subscription_failure_policy(request).await.unwrap().into_inner().success);
    producer.send_keyed("poison", "k").await;
    producer.send("fine").await;
    let mut refused = 0;
    while refused < 3 {
        let message = consumer.next().await;
        if text(&message) == "poison" {
            refused += 1;
            consumer.nack(&message, None).await;
        } else {
            consumer.ack(&message).await;
        }
    }
    let letter = dead.next().await;
    assert_eq!((text(&letter).as_str(), letter.routing_key.as_deref()), ("poison", Some("k")));
    assert_eq!(letter.attributes["x-original-topic"], TOPIC);
    assert_eq!(letter.attributes["x-original-topic-offset"], "0");
    assert_eq!(letter.attributes["x-delivery-attempt"], "3");
    eventually("the cursor passes the poison", SOON, async || {
        drop(consumer.try_next(Duration::from_millis(50)).await);
        match cluster.value("/topics/default/orders/subscriptions/s/cursor").await.as_deref() {
            Some("1") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn best_effort_delivers_and_keeps_nothing() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer("/default/fast", "p", NON_RELIABLE).await;
    producer.send("before anyone listens").await;
    let mut consumer = client.consumer("/default/fast", "s", "c", SubscriptionType::Exclusive).await;
    for at in 0..100 {
        producer.send(&at.to_string()).await;
    }
    let mut seen = Vec::new();
    for _ in 0..100 {
        let message = consumer.next().await;
        consumer.ack(&message).await;
        seen.push(text(&message));
    }
    assert_eq!(seen, (0..100).map(|at| at.to_string()).collect::<Vec<_>>());
}
