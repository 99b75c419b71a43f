//! Topics that move: brokers that die, unloading under load.

use std::time::Duration;

use capstan_testkit::eventually;
use capstan_topics::wire::danube::consumer_request::SubscriptionType;
use capstan_topics::wire::danube_admin::TopicRequest;
use tonic::Code;

use crate::cluster::{Cluster, RELIABLE, SOON, offset, text};

const TOPIC: &str = "/default/orders";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_broker_takes_over_with_everything_that_was_acknowledged() {
    let mut cluster = Cluster::start(&["a", "b", "c"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    for at in 0..40 {
        producer.send(&at.to_string()).await;
    }
    assert_eq!(consumer.take(5).await.len(), 5);
    let owner = cluster.owner(TOPIC).await;
    cluster.end(&owner).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    producer.send("40").await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    let first = consumer.next().await;
    assert!(offset(&first) <= 5);
    let mut next = offset(&first);
    assert_eq!(text(&first), next.to_string());
    consumer.ack(&first).await;
    while next < 40 {
        let message = consumer.next().await;
        next += 1;
        assert_eq!((offset(&message), text(&message)), (next, next.to_string()));
        consumer.ack(&message).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unloading_under_load_loses_nothing_and_keeps_the_order() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    drop(consumer);
    let admin = client.clone();
    let rounds = capstan_testkit::seed::soak(4, 100);
    let unloading = async move {
        for _ in 0..rounds {
            eventually("a topic is unloaded", SOON, async || {
                let request = TopicRequest { name: TOPIC.to_owned() };
                admin.admin().unload_topic(request).await.map(drop).map_err(|status| status.to_string())
            })
            .await;
            // tidy: allow, because this is the pace of the unloads
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (stop, mut stopped) = tokio::sync::oneshot::channel();
    let publishing = async move {
        let mut sent = 0;
        while stopped.try_recv().is_err() {
            producer.send(&sent.to_string()).await;
            sent += 1;
        }
        sent
    };
    let (sent, ()) = tokio::join!(publishing, async {
        unloading.await;
        stop.send(()).unwrap();
    });
    let client = cluster.client().await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    let (mut newest, mut next) = (None, 0_u64);
    while newest != Some(sent - 1) {
        let message = consumer.next().await;
        assert_eq!(offset(&message), next, "offsets have no gaps and are not used again");
        next += 1;
        let number: u64 = text(&message).parse().unwrap();
        // A message whose acknowledgment was lost may be there twice, in its place.
        assert!(newest.is_none_or(|newest| number == newest + 1 || number == newest), "{newest:?} {number}");
        newest = Some(number);
        consumer.ack(&message).await;
    }
    assert!(next <= sent + 2 * rounds, "{next} messages for {sent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_not_the_owner_redirects_and_ends_streams() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    let client = cluster.client().await;
    client.producer(TOPIC, "p", RELIABLE).await;
    let owner = cluster.owner(TOPIC).await;
    let other = cluster.nodes.keys().find(|name| **name != owner).unwrap();
    let there = cluster.client_of(other).await;
    assert_eq!(there.locate(TOPIC).await, cluster.nodes[&owner].broker.url());
    let refused = there.try_producer(TOPIC, "p", RELIABLE).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.metadata().get_bin("error-message-bin").is_some());
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    eventually("the topic is unloaded", SOON, async || {
        client.admin().unload_topic(TopicRequest { name: TOPIC.to_owned() }).await
    })
    .await;
    assert_eq!(consumer.end().await.code(), Code::Unavailable);
    eventually("the topic is served elsewhere", SOON, async || {
        let now = cluster.owner(TOPIC).await;
        if now == owner { Err(now) } else { Ok(()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_copy_waits_for_its_broker_and_never_starts_over() {
    let mut cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    producer.send("0").await;
    cluster.begin("b").await;
    cluster.end("a").await;
    let marker = "/cluster/unassigned/default/orders";
    eventually("the topic waits", SOON, async || match cluster.value(marker).await {
        Some(text) if text.contains("failover") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let refused = cluster.client().await.try_producer(TOPIC, "p", RELIABLE).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    cluster.begin("a").await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    producer.send("1").await;
    let stats = capstan_topics::wire::capstan::topics::v1::StatsRequest { topic: TOPIC.to_owned() };
    let stats = client.own().stats(stats).await.unwrap().into_inner();
    assert_eq!((stats.start, stats.end), (0, 2));
}
