//! The admin wire of the original beyond creating and deleting: balance, windows, members, segments.

use std::time::Duration;

use capstan_testkit::eventually;
use capstan_topics::spec::NamespacePolicy;
use capstan_topics::wire::danube::consumer_request::SubscriptionType;
use capstan_topics::wire::danube_admin::broker_admin_client::BrokerAdminClient;
use capstan_topics::wire::danube_admin::cluster_admin_client::ClusterAdminClient;
use capstan_topics::wire::danube_admin::{
    AddNodeRequest, ClusterBalanceRequest, ClusterBalanceResponse, Empty, NewTopicRequest,
    PartitionedTopicRequest, RebalanceRequest, SetSubscriptionDispatchConfigRequest,
    SubscriptionDispatchConfig, SubscriptionRequest, TopicRequest,
};
use capstan_topics::wire::danube_schema::schema_registry_client::SchemaRegistryClient;
use capstan_topics::wire::danube_schema::{ConfigureTopicSchemaRequest, RegisterSchemaRequest};
use capstan_topics::{check, commit};
use tonic::Code;

use crate::cluster::{Cluster, NON_RELIABLE, RELIABLE, SOON, channel, text};

const TOPIC: &str = "/default/orders";
/// How long one waits for a message that must not come.
const NOTHING: Duration = Duration::from_millis(300);

async fn balance(cluster: &Cluster) -> ClusterBalanceResponse {
    let mut admin = BrokerAdminClient::new(channel(cluster.nodes["a"].broker.url()));
    admin.get_cluster_balance(ClusterBalanceRequest {}).await.unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_spread_evenly_on_request() {
    let mut cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    for number in 0..4 {
        let mut producer = client.producer(&format!("/default/t{number}"), "p", RELIABLE).await;
        producer.send("before").await;
    }
    let alone = balance(&cluster).await;
    assert_eq!((alone.broker_count, alone.max_load, alone.assignment_strategy.as_str()), (1, 4.0, "fair"));
    cluster.begin("b").await;
    let mut admin = BrokerAdminClient::new(channel(cluster.nodes["a"].broker.url()));
    // The steward balances by itself as well: whoever is first, the end is the same.
    eventually("topics are spread evenly", SOON, async || {
        let plan = RebalanceRequest { dry_run: true, max_moves: None };
        let plan = admin.clone().trigger_rebalance(plan).await.unwrap().into_inner();
        assert!(plan.success && plan.moves_executed == 0 && plan.proposed_moves.len() <= 2, "{plan:?}");
        let request = RebalanceRequest { dry_run: false, max_moves: Some(10) };
        let done = admin.trigger_rebalance(request).await.unwrap().into_inner();
        let now = balance(&cluster).await;
        let even = now.broker_count == 2 && now.coefficient_of_variation == 0.0;
        if even { Ok(()) } else { Err(format!("{done:?} {now:?}")) }
    })
    .await;
    let now = balance(&cluster).await;
    assert!(now.brokers.iter().all(|broker| !broker.is_overloaded && !broker.is_underloaded), "{now:?}");
    for number in 0..4 {
        let topic = format!("/default/t{number}");
        let mut producer = client.producer(&topic, "p", RELIABLE).await;
        producer.send("after").await;
        assert_eq!(cluster.own_client().stats(&topic).await.unwrap().end, 2, "{topic}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_has_the_window_that_it_is_given() {
    let mut cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Shared).await;
    let named = || SubscriptionRequest { topic: TOPIC.to_owned(), subscription: "s".to_owned() };
    let window = |max_unacked_messages| SetSubscriptionDispatchConfigRequest {
        topic: TOPIC.to_owned(),
        subscription: "s".to_owned(),
        dispatch_config: Some(SubscriptionDispatchConfig { max_unacked_messages }),
    };
    let unset = client.admin().get_subscription_dispatch_config(named()).await.unwrap().into_inner();
    assert_eq!(unset.dispatch_config, None);
    for wrong in [0, 10_001] {
        let refused = client.admin().set_subscription_dispatch_config(window(wrong)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{wrong}");
    }
    client.admin().set_subscription_dispatch_config(window(2)).await.unwrap();
    for number in 0..4 {
        producer.send(&number.to_string()).await;
    }
    let first = consumer.next().await;
    assert_eq!([text(&first), text(&consumer.next().await)], ["0", "1"]);
    assert!(consumer.try_next(NOTHING).await.is_none(), "a third one without an acknowledgment");
    consumer.ack(&first).await;
    assert_eq!(text(&consumer.next().await), "2");
    drop(consumer);
    cluster.end("a").await;
    cluster.begin("a").await;
    let client = cluster.client().await;
    client.locate(TOPIC).await;
    let kept = client.admin().get_subscription_dispatch_config(named()).await.unwrap().into_inner();
    assert_eq!(kept.dispatch_config.map(|config| config.max_unacked_messages), Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_cluster_are_its_brokers() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let broker = &cluster.nodes["b"].broker;
    let mut admin = ClusterAdminClient::new(channel(broker.url()));
    let ids: Vec<u64> = cluster.nodes.values().map(|node| node.broker.id()).collect();
    let status = eventually("a leader is elected", SOON, async || {
        let status = admin.clone().cluster_status(Empty {}).await.unwrap().into_inner();
        if ids.contains(&status.leader_id) && status.current_term > 0 && status.voters == ids {
            Ok(status)
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    assert_eq!((status.self_node_id, status.voters), (broker.id(), ids));
    let refused =
        admin.add_node(AddNodeRequest { addr: "http://h:1".to_owned(), node_id: 0 }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_create_no_topics_where_the_namespace_forbids_it() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let namespace = "default".parse().unwrap();
    let set = |forbid_auto_create| {
        let change = move |policy: &NamespacePolicy| NamespacePolicy { forbid_auto_create, ..policy.clone() };
        commit::set_policy(&cluster.store, &namespace, change)
    };
    let before = cluster.value("/namespaces/default/policy").await;
    set(1).await.unwrap();
    eventually("producers are refused", SOON, async || {
        // The policy is in effect when the broker's view shows it: each attempt has a topic of its own until then.
        let name = format!("/default/t{}", capstan_meta::clock::since_epoch().as_nanos());
        match client.try_producer(&name, "p", RELIABLE).await {
            Err(status) if status.code() == Code::NotFound => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let request =
        NewTopicRequest { name: TOPIC.to_owned(), schema_subject: None, dispatch_strategy: RELIABLE };
    client.admin().create_topic(request).await.unwrap();
    client.producer(TOPIC, "p", RELIABLE).await.send("by an operator").await;
    let other = client.try_producer(TOPIC, "q", NON_RELIABLE).await.unwrap_err();
    assert_eq!(other.code(), Code::FailedPrecondition);
    set(0).await.unwrap();
    assert_eq!(cluster.value("/namespaces/default/policy").await, before, "the document's value again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_a_schema_refuses_are_found() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut registry = SchemaRegistryClient::new(channel(cluster.nodes["a"].broker.url()));
    let schema = RegisterSchemaRequest {
        subject: "order".to_owned(),
        schema_type: "string".to_owned(),
        ..RegisterSchemaRequest::default()
    };
    registry.register_schema(schema).await.unwrap();
    let binding = ConfigureTopicSchemaRequest {
        topic_name: TOPIC.to_owned(),
        schema_subject: "order".to_owned(),
        validation_policy: "enforce".to_owned(),
        enable_payload_validation: false,
    };
    registry.configure_topic_schema(binding).await.unwrap();
    let refused = producer.try_send(producer.message("no schema")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let found = eventually("the refusal is found", SOON, async || {
        let findings = cluster.findings().await;
        let found = findings.iter().find(|finding| finding.code == check::SCHEMA_REJECTED);
        found.cloned().ok_or(format!("{findings:?}"))
    })
    .await;
    assert_eq!(found.object, format!("topic {TOPIC}"));
    assert!(found.since.is_some() && found.cause.contains("messages refused: 1"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_is_deleted_with_its_topic_only() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let request = PartitionedTopicRequest {
        base_name: TOPIC.to_owned(),
        partitions: 2,
        schema_subject: None,
        dispatch_strategy: RELIABLE,
    };
    client.admin().create_partitioned_topic(request).await.unwrap();
    let delete = |name: &str| TopicRequest { name: name.to_owned() };
    let refused = client.admin().delete_topic(delete("/default/orders-part-0")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    client.admin().delete_topic(delete(TOPIC)).await.unwrap();
    let gone = client.admin().delete_topic(delete(TOPIC)).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_is_known_to_every_broker_as_soon_as_it_is_created() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let (maker, reader) = (cluster.client_of("a").await, cluster.client_of("b").await);
    for number in 0..20 {
        let name = format!("/default/new{number}");
        let request =
            NewTopicRequest { name: name.clone(), schema_subject: None, dispatch_strategy: RELIABLE };
        maker.admin().create_topic(request).await.unwrap();
        // Served there or elsewhere, but there: the public client does not try again after "not found".
        if let Err(status) = reader.try_consumer(&name, "s", "c", SubscriptionType::Shared).await {
            assert_eq!(status.code(), Code::Unavailable, "{name}: {status}");
        }
    }
}
