//! What may be published? The producer is registered, the message fits the namespace's limits and the topic's schema.

use super::broker::Inner;
use super::clients::producer_id;
use crate::data::message::{self, Record};
use crate::data::now_ms;
use crate::data::partition::Partition;
use crate::data::publish::{MAX_PUBLICATION_BYTES, Publication, Published};
use crate::error::TopicsError;
use crate::spec::TopicName;

impl Inner {
    /// Publishes for a producer that is registered, or would be under this name.
    pub(crate) async fn publish(
        &self,
        topic: &TopicName,
        producer: &str,
        publication: Publication,
    ) -> Result<Published, TopicsError> {
        let begun = tokio::time::Instant::now();
        let partition = self.partition(topic).await?;
        self.admit(&partition, producer, &publication).await?;
        let published = partition.publish(publication).await?;
        self.options.counters.published(begun.elapsed());
        Ok(published)
    }

    /// Checks a publication against the namespace's policy, and waits where it is too fast.
    pub(crate) async fn admit(
        &self,
        partition: &Partition,
        producer: &str,
        publication: &Publication,
    ) -> Result<(), TopicsError> {
        let admitted = self.check_publication(partition, producer, publication).await;
        match &admitted {
            Ok(()) => {
                let bytes = publication.records.iter().map(|record| record.size()).sum();
                self.options.counters.took(publication.records.len(), bytes);
            }
            Err(error) => {
                self.options.counters.refused(error.reason());
                if let TopicsError::Schema(why) = error {
                    self.watchdog().schema_rejected(&partition.name, why.clone(), now_ms());
                }
            }
        }
        admitted
    }

    async fn check_publication(
        &self,
        partition: &Partition,
        producer: &str,
        publication: &Publication,
    ) -> Result<(), TopicsError> {
        let id = publication.producer_id;
        if !self.clients.heard_of_producer(id) {
            if producer_id(&partition.name, producer) != id {
                return Err(TopicsError::NotRegistered(format!("producer {id}")));
            }
            self.enlist(partition, id, producer)?;
        }
        let policy = self.policy(&partition.name);
        let limit = match usize::try_from(policy.max_message_size) {
            Ok(0) | Err(_) => usize::MAX,
            Ok(limit) => limit,
        };
        if let Some(large) = publication.records.iter().map(Record::size).find(|size| *size > limit) {
            let why =
                format!("a message of {large} bytes is too large: the limit of its namespace is {limit}");
            return Err(TopicsError::Invalid(why));
        }
        let stored = message::payload_size(&publication.records);
        if stored > MAX_PUBLICATION_BYTES {
            let why = format!(
                "{stored} bytes, attributes included, are too large: the limit is {MAX_PUBLICATION_BYTES}"
            );
            return Err(TopicsError::Invalid(why));
        }
        let count = u32::try_from(publication.records.len()).unwrap_or(u32::MAX);
        self.check_schema(&partition.name, &publication.records).await?;
        partition.pace(count, policy.max_publish_rate).await;
        Ok(())
    }
}
