//! Publishing: what is acknowledged is there, whatever happens to the broker.

use capstan_client::wire::capstan::topics::v1 as own;
use capstan_topics::wire::capstan::topics::v1::{
    Position, PublishRequest, ReadRequest, Record, SeekRequest, position,
};
use capstan_topics::wire::danube::consumer_request::SubscriptionType;
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::cluster::{Cluster, NON_RELIABLE, RELIABLE, offset, text};
use crate::retention;

const TOPIC: &str = "/default/orders";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_delivered_in_order_with_all_that_they_carry() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    let mut message = producer.message("first");
    message.attributes = [("colour".to_owned(), "blue".to_owned())].into();
    (message.schema_id, message.schema_version, message.routing_key) =
        (Some(7), Some(2), Some("k".to_owned()));
    producer.try_send(message.clone()).await.unwrap();
    for at in 1..50 {
        producer.send(&format!("m{at}")).await;
    }
    let first = consumer.next().await;
    assert_eq!((text(&first).as_str(), offset(&first), first.producer_name.as_str()), ("first", 0, "p"));
    assert_eq!((&first.attributes, &first.routing_key), (&message.attributes, &message.routing_key));
    assert_eq!((first.schema_id, first.schema_version, first.publish_time), (Some(7), Some(2), 1));
    assert_eq!(first.msg_id.as_ref().unwrap().topic_name, TOPIC);
    consumer.ack(&first).await;
    for at in 1..50 {
        let message = consumer.next().await;
        assert_eq!((text(&message), offset(&message)), (format!("m{at}"), at));
        consumer.ack(&message).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_go_on_after_a_restart_and_nothing_acknowledged_is_lost() {
    let mut cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    for at in 0..30 {
        producer.send(&format!("m{at}")).await;
    }
    assert_eq!(consumer.take(10).await.len(), 10);
    for life in 0..3_u64 {
        cluster.end("a").await;
        cluster.begin("a").await;
        let client = cluster.client().await;
        let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
        producer.send(&format!("after {life}")).await;
    }
    let client = cluster.client().await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    let mut seen = Vec::new();
    while seen.last() != Some(&(32, "after 2".to_owned())) {
        let message = consumer.next().await;
        consumer.ack(&message).await;
        seen.push((offset(&message), text(&message)));
    }
    let from = seen[0].0;
    assert!(from <= 10, "resumes at the cursor or before it: {from}");
    for (at, (found, content)) in (from..).zip(&seen) {
        let expected = if at < 30 { format!("m{at}") } else { format!("after {}", at - 30) };
        assert_eq!((*found, content), (at, &expected));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_batch_is_published_once() {
    let mut cluster = Cluster::start(&["a"]).await;
    let request = |sequence: u64, texts: &[&str]| PublishRequest {
        topic: TOPIC.to_owned(),
        producer: "p".to_owned(),
        sequence,
        session: 0,
        records: texts
            .iter()
            .map(|text| Record { value: Some((*text).to_owned().into()), ..Record::default() })
            .collect(),
    };
    let publish = async |cluster: &Cluster, requests: Vec<PublishRequest>| {
        let mut own = cluster.client().await.own();
        let replies = own.publish(tokio_stream::iter(requests)).await?.into_inner();
        replies
            .map(|reply| reply.map(|reply| (reply.offset, reply.duplicate)))
            .collect::<Result<Vec<_>, _>>()
            .await
    };
    // Returns when the topic is served.
    cluster.client().await.producer(TOPIC, "other", RELIABLE).await;
    let first = publish(&cluster, vec![request(1, &["a", "b"]), request(3, &["c"])]).await.unwrap();
    assert_eq!(first, [(0, false), (2, false)]);
    let again = publish(&cluster, vec![request(3, &["c"]), request(4, &["d"])]).await.unwrap();
    assert_eq!(again, [(2, true), (3, false)]);
    cluster.end("a").await;
    cluster.begin("a").await;
    cluster.client().await.producer(TOPIC, "other", RELIABLE).await;
    let after = publish(&cluster, vec![request(3, &["c"]), request(5, &["e"])]).await.unwrap();
    assert_eq!(after, [(2, true), (4, false)], "the state of producers is in the log");
    let gap = publish(&cluster, vec![request(9, &["x"])]).await.unwrap_err();
    assert_eq!(gap.code(), Code::FailedPrecondition);
    let read = ReadRequest {
        topic: TOPIC.to_owned(),
        from: Some(capstan_topics::wire::capstan::topics::v1::Position {
            at: Some(position::At::Earliest(true)),
        }),
        count: 0,
        follow: false,
    };
    let messages = cluster.client().await.own().read(read).await.unwrap().into_inner();
    let texts: Vec<String> = messages.map(|message| text(&message.unwrap())).collect().await;
    assert_eq!(texts, ["a", "b", "c", "d", "e"]);
}

/// An entry of the log has many messages, of which a reader may have room for some only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_is_read_from_the_log_in_any_portions() {
    const MESSAGES: u64 = 9_000;
    let mut cluster = Cluster::start(&["a"]).await;
    let client = cluster.own_client();
    let mut producer = client.producer(TOPIC, "p");
    let mut sent = 0;
    for batch in [1, 7, 100, 1_500].into_iter().cycle() {
        let numbers = sent..MESSAGES.min(sent + batch);
        sent = numbers.end;
        let record =
            |number: u64| own::Record { value: Some(number.to_string().into()), ..Default::default() };
        producer.send(numbers.map(record).collect()).await.unwrap();
        if sent == MESSAGES {
            break;
        }
    }
    producer.flush().await.unwrap();
    // What is in memory is gone with the broker.
    cluster.end("a").await;
    cluster.begin("a").await;
    let client = cluster.own_client();
    assert_eq!(retention::read_all(&client, TOPIC).await, (0, MESSAGES));
    for (from, count) in [(0, 1), (5, 3), (50, 1_100), (1_607, 2), (3_000, 1_030), (MESSAGES - 1, 9)] {
        let from_offset = own::Position { at: Some(own::position::At::Offset(from)) };
        let mut messages = client.read(TOPIC, from_offset, count).await.unwrap();
        for expected in from..MESSAGES.min(from + count) {
            let message = messages.message().await.unwrap().unwrap();
            assert_eq!((retention::offset(&message), retention::number(&message)), (expected, expected));
        }
        assert!(messages.message().await.unwrap().is_none(), "{count} from {from}");
    }
    // A consumer that acknowledges a few at a time makes room for a few at a time.
    let client = cluster.client().await;
    let mut consumer = client.consumer(TOPIC, "s", "c", SubscriptionType::Exclusive).await;
    client.own().seek(seek_to(0)).await.unwrap();
    for expected in 0..2_500 {
        let message = consumer.next().await;
        assert_eq!((offset(&message), text(&message)), (expected, expected.to_string()));
        consumer.ack(&message).await;
    }
}

fn seek_to(offset: u64) -> SeekRequest {
    SeekRequest {
        topic: TOPIC.to_owned(),
        subscription: "s".to_owned(),
        to: Some(Position { at: Some(position::At::Offset(offset)) }),
        r#type: SubscriptionType::Exclusive.into(),
        only_if_new: false,
    }
}

/// A program that is started again under its name counts from the beginning: nothing of it is a repetition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_that_is_started_again_under_its_name_loses_nothing() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.own_client();
    for (start, texts) in [(0, ["a", "b"]), (2, ["c", "d"])] {
        let mut producer = client.producer(TOPIC, "orders");
        for text in texts {
            let record = own::Record { value: Some(text.into()), ..Default::default() };
            assert_eq!(producer.send(vec![record]).await.unwrap(), []);
        }
        let offsets: Vec<u64> = producer.flush().await.unwrap().iter().map(|done| done.offset).collect();
        assert_eq!(offsets, [start, start + 1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_get_the_status_that_clients_expect() {
    let cluster = Cluster::start(&["a"]).await;
    let client = cluster.client().await;
    let code = |result: Result<u64, tonic::Status>| result.unwrap_err().code();
    assert_eq!(code(client.try_producer("orders", "p", RELIABLE).await), Code::InvalidArgument);
    assert_eq!(code(client.try_producer("/nowhere/orders", "p", RELIABLE).await), Code::Unavailable);
    let mut producer = client.producer(TOPIC, "p", RELIABLE).await;
    assert_eq!(code(client.try_producer(TOPIC, "q", NON_RELIABLE).await), Code::FailedPrecondition);
    assert_eq!(client.try_producer(TOPIC, "p", RELIABLE).await.unwrap(), producer.id, "the same number");
    let missing = client.try_consumer("/default/missing", "s", "c", SubscriptionType::Shared).await;
    assert_eq!(missing.err().unwrap().code(), Code::NotFound);
    let mut unknown = producer.message("x");
    unknown.msg_id.as_mut().unwrap().producer_id = 4;
    assert_eq!(producer.try_send(unknown).await.unwrap_err().code(), Code::Unavailable);
    let large = "x".repeat((4 << 20) - 1_000);
    assert_eq!(producer.try_send(producer.message(&large)).await.unwrap_err().code(), Code::InvalidArgument);
    let _taken = client.consumer(TOPIC, "s", "one", SubscriptionType::Exclusive).await;
    let second = client.try_consumer(TOPIC, "s", "two", SubscriptionType::Exclusive).await;
    assert_eq!(second.err().unwrap().code(), Code::PermissionDenied);
}
