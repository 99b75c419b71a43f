//! What may be published? The producer is registered, the message fits the namespace's limits and the topic's schema.

use super::broker::Inner;
use super::clients::producer_id;
use crate::data::now_ms;
use crate::data::partition::Partition;
use crate::data::publish::{Publication, Published};
use crate::error::TopicsError;
use crate::spec::TopicName;

/// The largest message, whatever a namespace allows: an entry of the log has to hold it.
const MAX_MESSAGE_BYTES: usize = 15 << 20;

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
            Ok(0) | Err(_) => MAX_MESSAGE_BYTES,
            Ok(limit) => limit.min(MAX_MESSAGE_BYTES),
        };
        if let Some(large) = publication.records.iter().map(|record| record.size()).find(|size| *size > limit)
        {
            let why = format!("a message of {large} bytes is too large: the limit is {limit}");
            return Err(TopicsError::Invalid(why));
        }
        let count = u32::try_from(publication.records.len()).unwrap_or(u32::MAX);
        self.check_schema(&partition.name, &publication.records).await?;
        partition.pace(count, policy.max_publish_rate).await;
        Ok(())
    }
}
