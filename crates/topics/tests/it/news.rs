//! The internal topic that announces changes of the metadata: it may bring them sooner, and everything works without it.

use std::time::Duration;

use capstan_meta::Put;
use capstan_testkit::eventually;
use capstan_topics::wire::capstan::topics::v1::{Position, ReadRequest, position};
use capstan_topics::wire::danube::StreamMessage;
use capstan_topics::wire::danube_admin::TopicRequest;
use serde_json::Value;
use tonic::Streaming;

use crate::cluster::{Client, Cluster, NON_RELIABLE, RELIABLE, SOON, text};

const NEWS: &str = "/system/_events_topic";

/// What brokers announce from now on.
struct News {
    messages: Streaming<StreamMessage>,
    /// The revision of the last announcement.
    newest: i64,
}

impl News {
    async fn follow(cluster: &Cluster) -> News {
        let client = cluster.client().await;
        let messages = eventually("the topic is followed", SOON, async || {
            let there = Client::connect(&client.locate(NEWS).await).await;
            let from = Some(Position { at: Some(position::At::Latest(true)) });
            let request = ReadRequest { topic: NEWS.to_owned(), from, count: 0, follow: true };
            there.own().read(request).await.map_err(|status| status.to_string())
        })
        .await
        .into_inner();
        let mut news = News { messages, newest: 0 };
        news.begin(cluster).await;
        news
    }

    /// Announcing begins a moment after the topic is served: changes something until that is announced.
    async fn begin(&mut self, cluster: &Cluster) {
        for number in 0..60 {
            let key = format!("/namespaces/n{number}/policy");
            cluster.store.put(Put::new(key.clone(), "{}")).await.unwrap();
            if tokio::time::timeout(Duration::from_secs(1), self.of(&key)).await.is_ok() {
                return;
            }
        }
        panic!("nothing is announced");
    }

    /// The next announcement of a broker, which is newer than the one before.
    async fn next(&mut self) -> Value {
        loop {
            let message = self.messages.message().await.unwrap().expect("the topic is there");
            if message.producer_name.starts_with("broker-") {
                let news: Value = serde_json::from_str(&text(&message)).unwrap();
                let revision = news["revision"].as_i64().unwrap();
                assert!(revision > self.newest, "{news} after {}", self.newest);
                self.newest = revision;
                return news;
            }
        }
    }

    /// The revision of the announcement that names a key.
    async fn of(&mut self, key: &str) -> i64 {
        loop {
            let news = self.next().await;
            if news["keys"].as_array().unwrap().iter().any(|named| named == key) {
                return news["revision"].as_i64().unwrap();
            }
        }
    }
}

/// Creates a topic through one broker and finds it through the other.
async fn create_and_find(cluster: &Cluster, topic: &str) {
    cluster.client_of("a").await.producer(topic, "p", RELIABLE).await.send("0").await;
    cluster.client_of("b").await.locate(topic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_announced_by_revision_and_the_loss_of_the_topic_changes_nothing() {
    let cluster = Cluster::start(&["a", "b"]).await;
    create_and_find(&cluster, "/default/before").await;
    let client = cluster.client().await;
    let mut forger = client.producer(NEWS, "forger", NON_RELIABLE).await;
    let mut news = News::follow(&cluster).await;
    for number in 0..3 {
        create_and_find(&cluster, &format!("/default/orders-{number}")).await;
        let key = format!("/capstan/topics/topic/default/orders-{number}");
        let announced = tokio::time::timeout(SOON, news.of(&key)).await.expect("a topic is announced");
        let stored = cluster.store.get(key).await.unwrap().unwrap();
        assert!(announced >= stored.mod_revision.0, "{announced}");
    }
    // What is no announcement, old, doubled, or of a revision that never was.
    for forged in ["news", r#"{"revision":1,"keys":["/x"]}"#, r#"{"revision":9223372036854775807,"keys":[]}"#]
    {
        forger.send(forged).await;
        forger.send(forged).await;
    }
    create_and_find(&cluster, "/default/forged").await;
    let key = "/capstan/topics/topic/default/forged";
    tokio::time::timeout(SOON, news.of(key)).await.expect("a topic is announced");
    client.admin().delete_topic(TopicRequest { name: NEWS.to_owned() }).await.unwrap();
    create_and_find(&cluster, "/default/after").await;
    client.producer(NEWS, "p", NON_RELIABLE).await;
    News::follow(&cluster).await;
}
