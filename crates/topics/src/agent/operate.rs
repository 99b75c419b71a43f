//! What operators and clients ask a broker about topics: where they are, their partitions, unloading, deleting.

use std::sync::Arc;
use std::time::Duration;

use capstan_log::keys::LogKey;
use capstan_log::{HolderId, LogConfig};
use capstan_meta::Txn;
use capstan_meta::record::{Extra, Key};

use super::broker::{Inner, Whereabouts, progress_at};
use crate::commit::{self, Begin};
use crate::data::partition::Partition;
use crate::data::subscription::Subscription;
use crate::error::TopicsError;
use crate::facts::Facts;
use crate::keys::{BrokerStateKey, LeaderKey, SealedKey, SubscriptionName};
use crate::spec::{BrokerMode, FailurePolicy, SubscriptionKind, TopicName, TopicRecord};
use crate::status::{Sealed, Unassigned, UnassignedReason};
use crate::wire::capstan::topics::v1::StatsRequest;
use crate::wire::capstan::topics::v1::topics_client::TopicsClient;

/// How long a view may take to show what was written.
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// How long a topic may take to be served by another broker.
const MOVED_WITHIN: Duration = Duration::from_secs(20);
/// How long a handover may take.
const HANDOVER_WITHIN: Duration = Duration::from_secs(5);
/// How often a move is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl Inner {
    /// Where a topic ends that another broker serves.
    async fn end_at(&self, url: &str, name: &TopicName) -> Result<u64, TopicsError> {
        let mut broker = TopicsClient::new(self.peer(url).await?);
        let stats = broker.stats(StatsRequest { topic: name.to_string() }).await;
        let failed = |status: tonic::Status| {
            TopicsError::NotReady(format!("the broker at {url} does not answer: {}", status.message()))
        };
        Ok(stats.map_err(failed)?.into_inner().end)
    }

    /// Waits until the view shows everything that was written.
    pub(crate) async fn caught_up(&self) -> Result<(), TopicsError> {
        self.view().catch_up(SEEN_WITHIN).await?;
        Ok(())
    }

    /// The record of a topic that must be there. One that the view does not show may have been created a moment ago.
    pub(super) async fn existing(&self, name: &TopicName) -> Result<TopicRecord, TopicsError> {
        if let Some(known) = self.record(name)? {
            return Ok(known);
        }
        self.caught_up().await?;
        self.record(name)?.ok_or_else(|| TopicsError::NoSuchTopic(name.to_string()))
    }

    /// Where clients find a topic. One that the view does not show may have been created elsewhere a moment ago.
    pub(crate) async fn locate(&self, name: &TopicName) -> Result<String, TopicsError> {
        if self.record(name)?.is_none() {
            self.caught_up().await?;
        }
        match self.whereabouts(name)? {
            Whereabouts::Here => Ok(self.url().to_owned()),
            Whereabouts::At(broker) => Ok(broker.connect_url),
            Whereabouts::Nowhere => Err(TopicsError::NotHere { topic: name.to_string(), at: None }),
        }
    }

    /// The topics behind a name: itself, its partitions, or none.
    pub(crate) async fn partition_names(&self, name: &TopicName) -> Result<Vec<TopicName>, TopicsError> {
        if self.record(name)?.is_some() {
            return Ok(vec![name.clone()]);
        }
        self.caught_up().await?;
        if self.record(name)?.is_some() {
            return Ok(vec![name.clone()]);
        }
        let root = self.view().snapshot().get(&name.root_key());
        let root = root.map_err(|bad| TopicsError::Corrupt(bad.to_string()))?;
        let count = root.map_or(0, |root| root.record.0);
        let mut found = Vec::new();
        for number in 0..count {
            let partition = name.partition(number)?;
            if self.record(&partition)?.is_some() {
                found.push(partition);
            }
        }
        Ok(found)
    }

    pub(crate) async fn subscription_names(&self, name: &TopicName) -> Result<Vec<String>, TopicsError> {
        if self.record(name)?.is_none() {
            return Err(TopicsError::NoSuchTopic(name.to_string()));
        }
        let listed = self.store().list(&name.subscriptions()).await?;
        Ok(listed.iter().map(|(key, _)| key.subscription.to_string()).collect())
    }

    /// The broker that leads the load manager.
    pub(crate) async fn leader(&self) -> Result<Option<u64>, TopicsError> {
        Ok(self.store().read(&LeaderKey {}).await?.map(|stored| stored.record))
    }

    pub(crate) fn broker_mode(&self, broker: u64) -> Result<String, TopicsError> {
        let state = self.view().snapshot().get(&BrokerStateKey { broker });
        let state = state.map_err(|bad| TopicsError::Corrupt(bad.to_string()))?;
        let mode = state.map_or(BrokerMode::Active, |state| state.record.mode);
        Ok(match mode {
            BrokerMode::Active => "active",
            BrokerMode::Draining => "draining",
            BrokerMode::Drained => "drained",
        }
        .to_owned())
    }

    /// Deletes a topic and waits until the view does not show it.
    pub(crate) async fn delete(&self, name: &TopicName) -> Result<(), TopicsError> {
        let schema = self.schema_of(name)?;
        commit::delete_topic(self.store(), name).await?;
        if let Some(schema) = schema {
            self.unbind_schema(name, &schema).await?;
        }
        if let Some(partition) = self.partitions().into_iter().find(|partition| partition.name == *name) {
            partition.end_now();
        }
        self.forget(name);
        self.caught_up().await
    }

    /// A subscription that an operator configures. One that is not there begins now, so that its first consumer finds the
    /// settings; the type is that consumer's to choose.
    async fn begun(
        self: &Arc<Inner>,
        topic: &TopicName,
        name: &SubscriptionName,
    ) -> Result<(Arc<Partition>, Arc<Subscription>), TopicsError> {
        match self.subscription(topic, name).await {
            Err(TopicsError::NoSuchSubscription { .. }) => {}
            found => return found,
        }
        let partition = self.partition(topic).await?;
        let begin = Begin {
            consumer: String::new(),
            kind: SubscriptionKind::Exclusive,
            progress: progress_at(&partition, partition.end()),
            limit: self.policy(topic).max_subscriptions_per_topic,
        };
        let subscription = self.subscribe(&partition, name, &begin).await?;
        Ok((partition, subscription))
    }

    pub(crate) async fn set_failure_policy(
        self: &Arc<Inner>,
        topic: &TopicName,
        name: &SubscriptionName,
        policy: FailurePolicy,
    ) -> Result<(), TopicsError> {
        if !self.partition(topic).await?.is_reliable() {
            let why = format!("topic {topic} is not reliable: nothing is delivered again");
            return Err(TopicsError::Mismatch(why));
        }
        let (partition, subscription) = self.begun(topic, name).await?;
        subscription.set_policy(policy);
        self.save_now(&partition, &subscription).await
    }

    pub(crate) async fn set_max_unacked(
        self: &Arc<Inner>,
        topic: &TopicName,
        name: &SubscriptionName,
        limit: u32,
    ) -> Result<(), TopicsError> {
        let (partition, subscription) = self.begun(topic, name).await?;
        subscription.set_max_unacked(limit);
        self.save_now(&partition, &subscription).await
    }

    async fn save_now(&self, partition: &Partition, subscription: &Subscription) -> Result<(), TopicsError> {
        if commit::save(self.store(), &subscription.checkpoint(partition)).await? {
            return Ok(());
        }
        Err(TopicsError::NotReady(format!("subscription {} was changed", subscription.name)))
    }

    /// Has another broker serve a topic. Nothing is lost: the log is handed over to a holder that has all of it, or is
    /// copied first. Resolves when the other broker serves.
    pub(crate) async fn unload(&self, name: &TopicName) -> Result<(), TopicsError> {
        self.move_topic(name, "unload", None).await
    }

    /// The same to a certain broker, or to the one with the fewest topics.
    pub(crate) async fn move_topic(
        &self,
        name: &TopicName,
        reason: &str,
        wanted: Option<u64>,
    ) -> Result<(), TopicsError> {
        let snapshot = self.view().catch_up(SEEN_WITHIN).await?;
        let facts = Facts::of(&snapshot);
        let record = facts.topics.get(name).ok_or_else(|| TopicsError::NoSuchTopic(name.to_string()))?;
        let record = &record.record;
        let from =
            facts.owner(record).ok_or_else(|| TopicsError::NotHere { topic: name.to_string(), at: None })?;
        let mut load = facts.load();
        load.remove(&from);
        let Some(config) = facts.logs.get(&record.log) else {
            return Err(TopicsError::NotReady(format!("topic {name} has no log yet")));
        };
        let in_sync =
            |id: &u64| facts.brokers.get(id).is_some_and(|b| config.record.in_sync.contains(&b.holder));
        let ready = load.iter().filter(|(id, _)| in_sync(id)).map(|(id, topics)| (*id, *topics)).collect();
        let to = match wanted {
            Some(to) => Some(to).filter(|to| load.contains_key(to) && !facts.closed.contains(to)),
            None => facts.least_loaded(&ready).or_else(|| facts.least_loaded(&load)),
        };
        let Some(to) = to.and_then(|id| facts.brokers.get(&id)) else {
            let why = format!("there is no other broker that takes topic {name}");
            return Err(TopicsError::Mismatch(why));
        };
        self.mark_unloaded(name, reason, from).await?;
        self.note_end(name, from).await?;
        let (old, to) = (config.record.primary.clone(), to.holder.clone());
        if config.record.in_sync.contains(&to) {
            self.hand_over(record, &to).await?;
        } else if let Err(error) = self.logs().relocate(&record.log, &old, &to).await {
            // A repair may be making it a copy: then it is one soon.
            if !self.becomes_copy(name, &to).await? {
                return Err(error.into());
            }
            self.hand_over(record, &to).await?;
        }
        self.moved(name, &old).await
    }

    /// Waits for a holder that is not in sync; whether it is then. One that is no holder never will be.
    async fn becomes_copy(&self, name: &TopicName, to: &HolderId) -> Result<bool, TopicsError> {
        let until = tokio::time::Instant::now() + MOVED_WITHIN;
        while tokio::time::Instant::now() < until {
            self.view().catch_up(SEEN_WITHIN).await?;
            let Some(config) = self.log_of(name)? else { return Ok(false) };
            if config.in_sync.contains(to) {
                return Ok(true);
            }
            if !config.holders.contains(to) && config.learner.as_ref() != Some(to) {
                return Ok(false);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        Ok(false)
    }

    /// Says where the topic ends, for tools: the log itself carries it over.
    async fn note_end(&self, name: &TopicName, from: u64) -> Result<(), TopicsError> {
        let end = match self.partition(name).await {
            Ok(partition) => partition.end(),
            Err(TopicsError::NotHere { at: Some(url), .. }) => self.end_at(&url, name).await?,
            Err(_) => return Ok(()),
        };
        let sealed = Sealed {
            sealed: true,
            last_committed_offset: end.checked_sub(1),
            broker_id: from,
            timestamp: capstan_meta::clock::since_epoch().as_secs(),
            next_offset: end,
        };
        let key = SealedKey { namespace: name.namespace.clone(), topic: name.local.clone() };
        self.store().commit(Txn::new().when(name.record_key().present()).then(key.put(&sealed))).await?;
        Ok(())
    }

    async fn mark_unloaded(
        &self,
        name: &TopicName,
        reason: &str,
        from_broker: u64,
    ) -> Result<(), TopicsError> {
        let reason = UnassignedReason { reason: reason.to_owned(), from_broker, extra: Extra::default() };
        let put = name.unassigned_key().put(&Unassigned(Some(reason)));
        self.store().commit(Txn::new().when(name.record_key().present()).then(put)).await?;
        Ok(())
    }

    async fn hand_over(&self, record: &TopicRecord, to: &HolderId) -> Result<(), TopicsError> {
        // The primary waits until the other one has everything. Whether it did or not, the other one is preferred from
        // now on, so that the steward leaves it there.
        if let Some(log) = self.leading(record)
            && let Err(error) = log.hand_over(to, HANDOVER_WITHIN).await
        {
            tracing::debug!(log = %record.log, %error, "handover failed; electing instead");
        }
        self.logs().elect(&record.log, to).await?;
        Ok(())
    }

    /// The record of a topic's log, as last seen.
    fn log_of(&self, name: &TopicName) -> Result<Option<LogConfig>, TopicsError> {
        let record = self.record(name)?.ok_or_else(|| TopicsError::NoSuchTopic(name.to_string()))?;
        let config = self.view().snapshot().get(&LogKey { log: record.log });
        let config = config.map_err(|bad| TopicsError::Corrupt(bad.to_string()))?;
        Ok(config.map(|config| config.record.clone()))
    }

    async fn moved(&self, name: &TopicName, old: &HolderId) -> Result<(), TopicsError> {
        let until = tokio::time::Instant::now() + MOVED_WITHIN;
        loop {
            if self.log_of(name)?.is_some_and(|config| config.primary != *old) {
                return Ok(());
            }
            if tokio::time::Instant::now() >= until {
                return Err(TopicsError::NotReady(format!("topic {name} is still being moved")));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}
