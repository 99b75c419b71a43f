//! What subscriptions need from their broker: checkpoints, dead letters, limits.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::broker::Inner;
use super::clients::producer_id;
use crate::commit;
use crate::data::dispatch::Poison;
use crate::data::message::{Header, Record};
use crate::data::partition::Partition;
use crate::data::publish::Publication;
use crate::data::subscription::{Checkpoint, Surroundings};
use crate::error::TopicsError;
use crate::spec::{Delivery, TopicName};
use crate::wire::danube::producer_service_client::ProducerServiceClient;
use crate::wire::danube::{DispatchStrategy, MsgId, ProducerRequest};

/// The name under which dead letters are published.
const PRODUCER: &str = "dead-letters";

impl Surroundings for Inner {
    fn save(&self, checkpoint: Checkpoint) -> BoxFuture<'static, Result<bool, TopicsError>> {
        let store = self.store.clone();
        Box::pin(async move { commit::save(&store, &checkpoint).await })
    }

    fn bury(
        &self,
        topic: String,
        partition: Arc<Partition>,
        poison: Poison,
        subscription: String,
    ) -> BoxFuture<'static, Result<(), TopicsError>> {
        let record = letter(&partition, poison, subscription);
        let parsed = topic.parse::<TopicName>();
        let target = parsed.map(|name| self.letter_box(name));
        Box::pin(async move { target?.publish(record).await })
    }

    fn dispatch_rate(&self, partition: &Partition) -> u32 {
        self.policy(&partition.name).max_subscription_dispatch_rate
    }

    fn message_ttl(&self, partition: &Partition) -> u64 {
        // A record that cannot be read expires nothing; a finding says so.
        let storage = self.storage_of(&partition.name).unwrap_or_default();
        storage.message_ttl_seconds.unwrap_or_default().saturating_mul(1_000)
    }
}

/// The message with what is known about its failure. Key, headers and schema stay.
fn letter(partition: &Partition, poison: Poison, subscription: String) -> Record {
    let message = &poison.message;
    let mut facts = vec![
        ("x-original-topic", partition.text.clone()),
        ("x-original-subscription", subscription),
        ("x-original-topic-offset", message.offset.to_string()),
        ("x-original-producer-id", message.producer_id.to_string()),
        ("x-original-broker-addr", partition.broker_url.clone()),
        ("x-poison-policy", "dead_letter".to_owned()),
        ("x-delivery-attempt", poison.attempts.to_string()),
    ];
    facts.extend(poison.reason.map(|reason| ("x-failure-reason", reason)));
    let mut record = message.record.clone();
    let header = |(name, value): (&str, String)| Header { name: name.to_owned(), value: Some(value.into()) };
    record.headers.extend(facts.into_iter().map(header));
    record.deliver_at = 0;
    record
}

/// Where dead letters of a topic go.
struct LetterBox {
    inner: std::sync::Weak<Inner>,
    topic: TopicName,
}

impl Inner {
    fn letter_box(&self, topic: TopicName) -> LetterBox {
        LetterBox { inner: self.me.clone(), topic }
    }
}

impl LetterBox {
    async fn publish(self, record: Record) -> Result<(), TopicsError> {
        let Some(inner) = self.inner.upgrade() else {
            return Err(TopicsError::NotReady("the broker stops".to_owned()));
        };
        // A topic that is there keeps its delivery.
        let delivery = inner.record(&self.topic)?.map_or(Delivery::Reliable, |known| known.delivery);
        inner.create(&self.topic, delivery).await?;
        match inner.served(&self.topic).await {
            Ok(partition) => {
                let producer_id = producer_id(&self.topic, PRODUCER);
                let publication =
                    Publication { producer_id, session: 0, sequence: -1, records: vec![record] };
                partition.publish(publication).await.map(drop)
            }
            Err(TopicsError::NotHere { at: Some(at), .. }) => {
                self.forward(&inner, &at, delivery, record).await
            }
            Err(error) => Err(error),
        }
    }

    /// Another broker leads the dead letter topic.
    async fn forward(
        &self,
        inner: &Inner,
        at: &str,
        delivery: Delivery,
        record: Record,
    ) -> Result<(), TopicsError> {
        let failed = |error: &dyn std::fmt::Display| TopicsError::NotReady(format!("broker {at}: {error}"));
        let mut client = ProducerServiceClient::new(inner.peer(at).await?);
        let request = ProducerRequest {
            producer_name: PRODUCER.to_owned(),
            topic_name: self.topic.to_string(),
            dispatch_strategy: match delivery {
                Delivery::NonReliable => DispatchStrategy::NonReliable.into(),
                Delivery::Reliable => DispatchStrategy::Reliable.into(),
            },
            ..ProducerRequest::default()
        };
        let producer = client.create_producer(request).await.map_err(|error| failed(&error))?.into_inner();
        let text = self.topic.to_string();
        let message = crate::data::message::Message { offset: 0, producer_id: 0, append_time: 0, record };
        let mut message = message.to_wire(&text, at, "");
        message.producer_name = PRODUCER.to_owned();
        message.msg_id = Some(MsgId {
            producer_id: producer.producer_id,
            topic_name: text,
            broker_addr: at.to_owned(),
            topic_offset: 0,
        });
        client.send_message(message).await.map(drop).map_err(|error| failed(&error))
    }
}
