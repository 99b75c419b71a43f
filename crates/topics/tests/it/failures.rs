//! What becomes of messages that consumers refuse, by the policies that operators set.

use std::time::Duration;

use capstan_testkit::eventually;
use capstan_topics::wire::danube::consumer_request::SubscriptionType;
use capstan_topics::wire::danube_admin::subscription_failure_policy::PoisonPolicy;
use capstan_topics::wire::danube_admin::{
    NewTopicRequest, SetSubscriptionDispatchConfigRequest, SetSubscriptionFailurePolicyRequest,
    SubscriptionDispatchConfig, SubscriptionFailurePolicy, SubscriptionRequest,
};
use tonic::Code;

use crate::cluster::{Client, Cluster, NON_RELIABLE, RELIABLE, SOON, text};

const TOPIC: &str = "/default/orders";
const DEAD: &str = "/default/dead";
/// How long one waits for a message that must not come.
const NOTHING: Duration = Duration::from_millis(500);

/// The first failure is one too many.
fn policy(poison: PoisonPolicy) -> SubscriptionFailurePolicy {
    SubscriptionFailurePolicy {
        max_redelivery_count: 0,
        ack_timeout_ms: 60_000,
        base_redelivery_delay_ms: 10,
        max_redelivery_delay_ms: 10,
        dead_letter_topic: Some(DEAD.to_owned()),
        poison_policy: poison.into(),
        ..SubscriptionFailurePolicy::default()
    }
}

fn set(policy: &SubscriptionFailurePolicy) -> SetSubscriptionFailurePolicyRequest {
    let (topic, subscription) = (TOPIC.to_owned(), "s".to_owned());
    SetSubscriptionFailurePolicyRequest { topic, subscription, failure_policy: Some(policy.clone()) }
}

fn named() -> SubscriptionRequest {
    SubscriptionRequest { topic: TOPIC.to_owned(), subscription: "s".to_owned() }
}

async fn create(client: &Client, topic: &str, strategy: i32) {
    let request =
        NewTopicRequest { name: topic.to_owned(), dispatch_strategy: strategy, ..NewTopicRequest::default() };
    client.admin().create_topic(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_broker_takes_settings_of_a_subscription_that_is_not_there_yet() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    create(&cluster.client().await, TOPIC, RELIABLE).await;
    let owner = cluster.owner(TOPIC).await;
    let others: Vec<_> = cluster.nodes.keys().filter(|name| **name != owner).cloned().collect();
    let (one, two) = (cluster.client_of(&others[0]).await, cluster.client_of(&others[1]).await);
    let unset = one.admin().get_subscription_failure_policy(named()).await.unwrap().into_inner();
    assert_eq!((unset.failure_policy, unset.subscription_type), (None, 0));
    let wanted = policy(PoisonPolicy::Drop);
    one.admin().set_subscription_failure_policy(set(&wanted)).await.unwrap();
    let config = SetSubscriptionDispatchConfigRequest {
        topic: TOPIC.to_owned(),
        subscription: "s".to_owned(),
        dispatch_config: Some(SubscriptionDispatchConfig { max_unacked_messages: 1 }),
    };
    one.admin().set_subscription_dispatch_config(config).await.unwrap();
    let stored = two.admin().get_subscription_failure_policy(named()).await.unwrap().into_inner();
    assert_eq!(stored.failure_policy, Some(wanted));
    let stored = two.admin().get_subscription_dispatch_config(named()).await.unwrap().into_inner();
    assert_eq!(stored.dispatch_config, Some(SubscriptionDispatchConfig { max_unacked_messages: 1 }));
    // The first consumer chooses the type, and finds the settings.
    let mut producer = one.producer(TOPIC, "p", RELIABLE).await;
    let mut consumer = one.consumer(TOPIC, "s", "c", SubscriptionType::Shared).await;
    producer.send("bad").await;
    producer.send("good").await;
    let bad = consumer.next().await;
    assert!(consumer.try_next(NOTHING).await.is_none(), "one message at a time");
    consumer.nack(&bad, Some(0)).await;
    assert_eq!(consumer.take(1).await, ["good"], "dropped after the first failure");
    drop(consumer);
    // The broker learns a moment later that the consumer is gone.
    eventually("the subscription is removed", SOON, async || two.admin().unsubscribe(named()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_blocks_holds_up_the_subscription() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    create(&client, TOPIC, RELIABLE).await;
    client.admin().set_subscription_failure_policy(set(&policy(PoisonPolicy::Block))).await.unwrap();
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    producer.send("bad").await;
    let bad = consumer.next().await;
    consumer.nack(&bad, Some(0)).await;
    producer.send("behind").await;
    assert!(consumer.try_next(NOTHING).await.is_none());
    consumer.ack(&bad).await;
    assert_eq!(consumer.take(1).await, ["behind"], "an acknowledgment lets it go");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_say_why_and_go_to_topics_of_either_delivery() {
    for strategy in [RELIABLE, NON_RELIABLE] {
        let cluster = Cluster::start(&["a"]).await;
        let client = cluster.client().await;
        create(&client, TOPIC, RELIABLE).await;
        create(&client, DEAD, strategy).await;
        client.admin().set_subscription_failure_policy(set(&policy(PoisonPolicy::DeadLetter))).await.unwrap();
        let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
        let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
        let mut dead = client.consumer(DEAD, "s", "c", SubscriptionType::Exclusive).await;
        producer.send("bad").await;
        let bad = consumer.next().await;
        consumer.nack_because(&bad, Some(0), Some(&"why ".repeat(1_000))).await;
        let letter = dead.next().await;
        assert_eq!(text(&letter), "bad");
        assert_eq!(letter.msg_id.as_ref().unwrap().topic_name, DEAD);
        assert_eq!(letter.attributes["x-original-subscription"], "s");
        assert_eq!(letter.attributes["x-poison-policy"], "dead_letter");
        assert_eq!(letter.attributes["x-failure-reason"], "why ".repeat(64), "as much of it as is kept");
        producer.send("next").await;
        assert_eq!(consumer.take(1).await, ["next"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_delivers_nothing_again_has_no_failure_policy() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    create(&client, TOPIC, NON_RELIABLE).await;
    let refused = client.admin().set_subscription_failure_policy(set(&policy(PoisonPolicy::Drop))).await;
    assert_eq!(refused.unwrap_err().code(), Code::FailedPrecondition);
    let stored = client.admin().get_subscription_failure_policy(named()).await.unwrap().into_inner();
    assert_eq!(stored.failure_policy, None, "nothing is left of a request that was refused");
}
