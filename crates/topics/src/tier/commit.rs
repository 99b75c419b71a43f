//! Descriptors become guarded transactions: only the broker that leads the topic writes them, in its epoch.

use capstan_log::keys::LogKey;
use capstan_log::{HolderId, LogConfig, LogEpoch};
use capstan_meta::record::{Key, Stored};
use capstan_meta::settle::{Next, settle};
use capstan_meta::{Store, Txn};

use crate::error::TopicsError;
use crate::keys::{Padded, TierCursorKey, TierObjectKey};
use crate::spec::{TopicName, TopicRecord};
use crate::status::{TierCursor, TierObject};

/// Descriptors that one transaction deletes.
const BATCH: usize = 64;

/// The topic, and the right to change its descriptors.
#[derive(Clone, Debug)]
pub(crate) struct Right {
    pub(crate) topic: TopicName,
    pub(crate) record: TopicRecord,
    pub(crate) holder: HolderId,
    pub(crate) epoch: LogEpoch,
}

struct Seen {
    topic: Option<Stored<TopicRecord>>,
    log: Option<Stored<LogConfig>>,
    object: Option<Stored<TierObject>>,
}

impl Right {
    fn key(&self, start: u64) -> TierObjectKey {
        let (namespace, topic) = (self.topic.namespace.clone(), self.topic.local.clone());
        TierObjectKey { namespace, topic, start: Padded(start) }
    }

    fn cursor(&self) -> TierCursorKey {
        TierCursorKey { namespace: self.topic.namespace.clone(), topic: self.topic.local.clone() }
    }

    async fn look(&self, store: &Store, start: u64) -> Result<Seen, TopicsError> {
        Ok(Seen {
            topic: store.read(&self.topic.record_key()).await?,
            log: store.read(&LogKey { log: self.record.log.clone() }).await?,
            object: store.read(&self.key(start)).await?,
        })
    }

    /// A transaction that takes place only while this right holds.
    fn guarded(&self, seen: &Seen) -> Result<Txn, TopicsError> {
        let lost = || TopicsError::NotHere { topic: self.topic.to_string(), at: None };
        let topic = seen.topic.as_ref().filter(|topic| topic.record.id == self.record.id).ok_or_else(lost)?;
        let log = seen.log.as_ref().ok_or_else(lost)?;
        if log.record.epoch != self.epoch || log.record.primary != self.holder {
            return Err(lost());
        }
        let key = LogKey { log: self.record.log.clone() };
        Ok(Txn::new().when(self.topic.record_key().unchanged(topic)).when(key.unchanged(log)))
    }

    /// Stores a descriptor. Its object is complete.
    pub(crate) async fn describe(&self, store: &Store, object: &TierObject) -> Result<(), TopicsError> {
        let what = format!("objects of topic {}", self.topic);
        let key = self.key(object.start_offset);
        settle(
            store,
            &what,
            || self.look(store, object.start_offset),
            |seen, _| {
                if let Some(known) = &seen.object {
                    return if known.record.object_id == object.object_id {
                        Ok(Next::Done(()))
                    } else {
                        let why = format!("topic {} has an object at {}", self.topic, object.start_offset);
                        Err(TopicsError::NotReady(why))
                    };
                }
                let cursor = TierCursor { start: Padded(object.start_offset).to_string() };
                let txn = self.guarded(seen)?.when(key.absent());
                Ok(Next::Commit(txn.then(key.put(object)).then(self.cursor().put(&cursor))))
            },
        )
        .await
    }

    /// Describes another object with the same offsets. The one before is an orphan from then on.
    pub(crate) async fn replace(
        &self,
        store: &Store,
        old: &TierObject,
        new: &TierObject,
    ) -> Result<(), TopicsError> {
        let what = format!("objects of topic {}", self.topic);
        let key = self.key(old.start_offset);
        settle(
            store,
            &what,
            || self.look(store, old.start_offset),
            |seen, _| {
                let why = || format!("topic {} has another object at {}", self.topic, old.start_offset);
                let known = seen.object.as_ref().ok_or_else(|| TopicsError::NotReady(why()))?;
                if known.record.object_id == new.object_id {
                    return Ok(Next::Done(()));
                }
                if known.record != *old {
                    return Err(TopicsError::NotReady(why()));
                }
                Ok(Next::Commit(self.guarded(seen)?.when(key.unchanged(known)).then(key.put(new))))
            },
        )
        .await
    }

    /// Removes descriptors. Their objects are orphans from then on.
    pub(crate) async fn expire(&self, store: &Store, starts: &[u64]) -> Result<(), TopicsError> {
        let what = format!("objects of topic {}", self.topic);
        for batch in starts.chunks(BATCH) {
            let Some(last) = batch.last() else { continue };
            settle(
                store,
                &what,
                || self.look(store, *last),
                |seen, _| {
                    if seen.object.is_none() {
                        return Ok(Next::Done(()));
                    }
                    let txn = self.guarded(seen)?;
                    Ok(Next::Commit(batch.iter().fold(txn, |txn, start| txn.then(self.key(*start).delete()))))
                },
            )
            .await?;
        }
        Ok(())
    }
}
