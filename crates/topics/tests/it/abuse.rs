//! Bad input: the right status, bounded memory, and other clients unharmed.

use std::time::Duration;

use capstan_topics::wire::capstan::topics::v1::{PublishRequest, Record, StatsRequest};
use capstan_topics::wire::danube::consumer_request::SubscriptionType;
use capstan_topics::wire::danube::consumer_service_client::ConsumerServiceClient;
use capstan_topics::wire::danube::health_check_client::HealthCheckClient;
use capstan_topics::wire::danube::producer_service_client::ProducerServiceClient;
use capstan_topics::wire::danube::{
    AckRequest, ConsumerRequest, HealthCheckRequest, MsgId, NackRequest, ProducerRequest, ReceiveRequest,
    SchemaReference, StreamMessage, TopicLookupRequest,
};
use capstan_topics::wire::danube_admin::namespace_admin_client::NamespaceAdminClient;
use capstan_topics::wire::danube_admin::{NamespaceRequest, SubscriptionRequest, TopicRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;

use crate::cluster::{Client, Cluster, NON_RELIABLE, RELIABLE, SOON, channel, text};

const TOPIC: &str = "/default/orders";

fn url(cluster: &Cluster) -> String {
    cluster.nodes["a"].broker.url().to_owned()
}

/// A client that does what it should is served.
async fn is_served(client: &Client) {
    let mut producer = client.producer("/default/others", "p", RELIABLE).await;
    let mut consumer = client.consumer("/default/others", "s", "c", SubscriptionType::Exclusive).await;
    producer.send("still here").await;
    assert_eq!(consumer.take(1).await, ["still here"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_none_are_refused() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let long = format!("/default/{}", "x".repeat(300));
    let names =
        ["", "/", "//", "orders", "/default", "/default/", "/a/b/c", "/default/a b", "/default/ä", &long];
    for name in names {
        let refused = client.try_producer(name, "p", RELIABLE).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{name:?}: {refused}");
        let refused = client.try_consumer(name, "s", "c", SubscriptionType::Shared).await.err().unwrap();
        assert_eq!(refused.code(), Code::InvalidArgument, "{name:?}: {refused}");
        let request = TopicLookupRequest { request_id: 1, topic: name.to_owned() };
        let refused = client.discovery().topic_lookup(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{name:?}: {refused}");
        let refused = client.admin().delete_topic(TopicRequest { name: name.to_owned() }).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{name:?}: {refused}");
    }
    for name in ["", &"x".repeat(300)] {
        let refused = client.try_producer(TOPIC, name, RELIABLE).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "producer {name:?}");
    }
    client.producer(TOPIC, "p", RELIABLE).await;
    for subscription in ["", "a/b", &"x".repeat(600)] {
        let refused = client.try_consumer(TOPIC, subscription, "c", SubscriptionType::Shared).await;
        assert_eq!(refused.err().unwrap().code(), Code::InvalidArgument, "{subscription:?}");
    }
    let mut namespaces = NamespaceAdminClient::new(channel(&url(&cluster)));
    assert!(namespaces.create_namespace(NamespaceRequest { name: "a/b".to_owned() }).await.is_err());
    is_served(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_is_said_to_be_missing() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let missing = "/default/missing".to_owned();
    let request = TopicLookupRequest { request_id: 1, topic: missing.clone() };
    assert_eq!(client.discovery().topic_lookup(request).await.unwrap_err().code(), Code::NotFound);
    let refused = client.try_consumer(&missing, "s", "c", SubscriptionType::Shared).await.err().unwrap();
    assert_eq!(refused.code(), Code::NotFound);
    let delete = client.admin().delete_topic(TopicRequest { name: missing.clone() }).await.unwrap_err();
    assert_eq!(delete.code(), Code::NotFound);
    let request = SubscriptionRequest { topic: missing.clone(), subscription: "s".to_owned() };
    assert_eq!(client.admin().unsubscribe(request).await.unwrap_err().code(), Code::NotFound);
    let mut producers = ProducerServiceClient::new(channel(&url(&cluster)));
    let unknown = MsgId { producer_id: 1, topic_name: missing, ..MsgId::default() };
    let message = StreamMessage { msg_id: Some(unknown), ..StreamMessage::default() };
    assert_eq!(producers.send_message(message).await.unwrap_err().code(), Code::NotFound);
    let mut consumers = ConsumerServiceClient::new(channel(&url(&cluster)));
    let unknown = ReceiveRequest { request_id: 1, consumer_id: 4 };
    let refused = consumers.receive_messages(unknown).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "a client that registers again is served");
    let mut health = HealthCheckClient::new(channel(&url(&cluster)));
    let unknown = HealthCheckRequest { request_id: 1, client: 1, id: 4 };
    assert_eq!(health.health_check(unknown).await.unwrap_err().code(), Code::NotFound);
    let schema = SchemaReference { subject: "missing".to_owned(), version_ref: None };
    let request = ProducerRequest {
        producer_name: "p".to_owned(),
        topic_name: TOPIC.to_owned(),
        schema_ref: Some(schema),
        ..ProducerRequest::default()
    };
    let refused = producers.create_producer(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_the_wrong_form_are_refused() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumers = ConsumerServiceClient::new(channel(&url(&cluster)));
    let request = ConsumerRequest {
        topic_name: TOPIC.to_owned(),
        consumer_name: "c".to_owned(),
        subscription: "s".to_owned(),
        subscription_type: 9,
        ..ConsumerRequest::default()
    };
    assert_eq!(consumers.subscribe(request.clone()).await.unwrap_err().code(), Code::InvalidArgument);
    let filters =
        ConsumerRequest { subscription_type: 3, key_filters: vec!["a*".to_owned(); 1_000], ..request };
    assert_eq!(consumers.subscribe(filters).await.unwrap_err().code(), Code::InvalidArgument);
    let nameless = StreamMessage { msg_id: None, ..producer.message("x") };
    assert_eq!(producer.try_send(nameless).await.unwrap_err().code(), Code::InvalidArgument);
    let acks = AckRequest { request_id: 1, msg_id: None, subscription_name: "s".to_owned() };
    assert_eq!(consumers.ack(acks).await.unwrap_err().code(), Code::InvalidArgument);
    let many = PublishRequest {
        topic: TOPIC.to_owned(),
        producer: "q".to_owned(),
        sequence: 1,
        records: vec![Record::default(); 20_000],
        session: 0,
    };
    let mut replies = client.own().publish(tokio_stream::iter([many])).await.unwrap().into_inner();
    assert_eq!(replies.message().await.unwrap_err().code(), Code::InvalidArgument);
    is_served(&client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_large_is_refused_and_disturbs_none() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut other = client.producer(TOPIC, "other", RELIABLE).await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    for bytes in [5 << 20, 18 << 20] {
        let large = producer.message(&"x".repeat(bytes));
        assert_eq!(producer.try_send(large).await.unwrap_err().code(), Code::OutOfRange, "{bytes}");
    }
    // It comes in, and could neither be stored nor delivered.
    let large = producer.message(&"x".repeat((4 << 20) - 1_000));
    assert_eq!(producer.try_send(large).await.unwrap_err().code(), Code::InvalidArgument);
    let attributes = [("a".to_owned(), "x".repeat((4 << 20) - 1_000))].into();
    let large = StreamMessage { attributes, ..producer.message("x") };
    assert_eq!(producer.try_send(large).await.unwrap_err().code(), Code::InvalidArgument);
    let records = vec![Record { value: Some(vec![0; (2 << 20) - 200].into()), ..Record::default() }; 2];
    let (topic, producer) = (TOPIC.to_owned(), "q".to_owned());
    let batch = PublishRequest { topic, producer, sequence: 1, records, ..PublishRequest::default() };
    let mut replies = client.own().publish(tokio_stream::iter([batch])).await.unwrap().into_inner();
    assert_eq!(replies.message().await.unwrap_err().code(), Code::InvalidArgument);
    // A consumer that was there all the time has not noticed.
    other.send("fine").await;
    assert_eq!(consumer.take(1).await, ["fine"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_message_reaches_clients_of_the_public_wire() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let (topic, subscription) = (format!("/default/{}", "t".repeat(100)), "s".repeat(200));
    let mut producer = client.producer(&topic, &"p".repeat(200), RELIABLE).await;
    let mut consumer = client.consumer(&topic, &subscription, "c", SubscriptionType::Exclusive).await;
    // Such a client takes 4 MiB, with everything that is around the payload.
    let mut bytes = 4 << 20;
    while producer.try_send(producer.message(&"x".repeat(bytes))).await.is_err() {
        bytes -= 1_000;
    }
    assert!(bytes > (4 << 20) - (12 << 10), "{bytes}");
    let message = consumer.next().await;
    assert_eq!(message.payload.len(), bytes);
    consumer.ack(&message).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_acknowledgments_change_nothing() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    let mut forger = ConsumerServiceClient::new(channel(&url(&cluster)));
    let place = |topic: &str, offset| {
        Some(MsgId { topic_name: topic.to_owned(), topic_offset: offset, ..MsgId::default() })
    };
    // What was not delivered yet, far away, or never will be.
    for offset in [0, 1, 1_000, u64::MAX] {
        let ack =
            AckRequest { request_id: 1, msg_id: place(TOPIC, offset), subscription_name: "s".to_owned() };
        forger.ack(ack).await.unwrap();
        let nack = NackRequest {
            request_id: 1,
            msg_id: place(TOPIC, offset),
            subscription_name: "s".to_owned(),
            ..NackRequest::default()
        };
        forger.nack(nack).await.unwrap();
    }
    for (topic, subscription) in [(TOPIC, "other"), ("/default/missing", "s")] {
        let ack =
            AckRequest { request_id: 1, msg_id: place(topic, 0), subscription_name: subscription.to_owned() };
        assert_eq!(forger.ack(ack).await.unwrap_err().code(), Code::NotFound);
    }
    for number in 0..5 {
        producer.send(&number.to_string()).await;
    }
    assert_eq!(consumer.take(5).await, ["0", "1", "2", "3", "4"], "all of them are delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_reads_nothing_holds_a_window_and_disturbs_none() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let _stuck = client.consumer(TOPIC, "stuck", "c", SubscriptionType::Exclusive).await;
    let mut reader = client.consumer(TOPIC, "reader", "c", SubscriptionType::Exclusive).await;
    let expected: Vec<String> = (0..600).map(|number| number.to_string()).collect();
    // Read while it is published: a message that is not acknowledged in time is delivered again.
    let publishing = async {
        for text in &expected {
            producer.send(text).await;
        }
    };
    let (taken, ()) = tokio::join!(reader.take(600), publishing);
    assert_eq!(taken, expected);
    let stats = client.own().stats(StatsRequest { topic: TOPIC.to_owned() }).await.unwrap().into_inner();
    let stuck = stats.subscriptions.iter().find(|known| known.name == "stuck").unwrap();
    assert!(stuck.in_flight <= 256 && stuck.backlog == 600, "{stuck:?}");
    // Best effort: a consumer that does not read misses messages, and they are counted.
    let mut fast = client.producer("/default/fast", "p", NON_RELIABLE).await;
    let mut slow = client.consumer("/default/fast", "s", "c", SubscriptionType::Exclusive).await;
    for number in 0..200 {
        fast.send(&number.to_string()).await;
    }
    assert_eq!(text(&slow.next().await), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_connections_and_garbage_leave_others_unharmed() {
    let cluster = Cluster::start(&["a"]).await;
    let address = url(&cluster).trim_start_matches("http://").to_owned();
    let mut idle = Vec::new();
    for number in 0..1_000 {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        if number % 2 == 0 {
            // The beginning of HTTP/2, and nothing after it.
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        }
        idle.push(stream);
    }
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4_096], b"\x16\x03\x01\x02\x00\x01"] {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "the broker closes what it does not understand");
    }
    let client = cluster.client().await;
    tokio::time::timeout(SOON, is_served(&client)).await.unwrap();
    drop(idle);
    is_served_again(&client).await;
}

async fn is_served_again(client: &Client) {
    let mut producer = client.producer("/default/others", "p", RELIABLE).await;
    producer.send("again").await;
}
