//! The objects of one topic that this broker leads: which there are, and how messages are read from them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capstan_meta::Store;
use object_store::path::Path;

use super::chain::{Chain, Gap};
use super::object;
use super::store::Tier;
use crate::data::message::Message;
use crate::error::TopicsError;
use crate::keys::TierObjects;
use crate::spec::TopicName;
use crate::status::TierObject;

/// Stretches of objects that are kept in memory for the next read.
const KEPT: usize = 4;

/// A topic's part of the tier.
#[derive(Debug)]
pub(crate) struct TierOfTopic {
    pub(crate) tier: Tier,
    pub(crate) at: Path,
    chain: Mutex<Chain>,
    /// What is before this offset was compacted since the topic was loaded.
    compacted_before: AtomicU64,
    stretches: Mutex<VecDeque<Stretch>>,
}

/// A part of an object, as it was read.
#[derive(Clone, Debug)]
struct Stretch {
    object: String,
    from: u64,
    messages: Arc<[Arc<Message>]>,
}

/// What was found at an offset.
#[derive(Debug)]
pub(crate) enum InTier {
    /// Consecutive messages from the offset on.
    Messages(Vec<Arc<Message>>),
    /// It is not there; this is the next that is.
    Next(u64),
    /// Compaction has removed it, and everything up to this offset.
    Compacted(u64),
    /// Nothing is there from this offset on.
    Behind,
}

impl TierOfTopic {
    /// Reads the descriptors of a topic.
    pub(crate) async fn load(
        tier: &Tier,
        store: &Store,
        topic: &TopicName,
        id: u64,
    ) -> Result<TierOfTopic, TopicsError> {
        let place = TierOfTopic {
            at: tier.place(topic, id),
            tier: tier.clone(),
            chain: Mutex::default(),
            compacted_before: AtomicU64::new(0),
            stretches: Mutex::default(),
        };
        *place.chain() = described(store, topic).await?;
        Ok(place)
    }

    pub(crate) fn chain(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stretches(&self) -> MutexGuard<'_, VecDeque<Stretch>> {
        self.stretches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first offset.
    pub(crate) fn start(&self) -> Option<u64> {
        self.chain().start()
    }

    /// What is missing between objects, or between them and the log.
    pub(crate) fn gaps(&self, log_start: Option<u64>) -> Vec<Gap> {
        self.chain().gaps(log_start)
    }

    pub(crate) fn path(&self, object: &TierObject) -> Path {
        self.at.clone().join(object.object_id.as_str())
    }

    pub(crate) fn compacted_before(&self) -> u64 {
        self.compacted_before.load(Ordering::Relaxed)
    }

    pub(crate) fn set_compacted_before(&self, offset: u64) {
        self.compacted_before.store(offset, Ordering::Relaxed);
    }

    /// Messages from this offset on, up to the end of a stretch.
    pub(crate) async fn read(&self, from: u64, count: usize) -> Result<InTier, TopicsError> {
        let Some(object) = self.chain().find(from).cloned() else { return Ok(InTier::Behind) };
        match self.read_object(&object, from, count).await {
            // Compaction has replaced it since.
            Err(TopicsError::Tier(_)) if self.is_replaced(&object) => {
                let Some(object) = self.chain().find(from).cloned() else { return Ok(InTier::Behind) };
                self.read_object(&object, from, count).await
            }
            read => read,
        }
    }

    fn is_replaced(&self, object: &TierObject) -> bool {
        self.chain().find(object.start_offset).is_none_or(|now| now.object_id != object.object_id)
    }

    async fn read_object(&self, object: &TierObject, from: u64, count: usize) -> Result<InTier, TopicsError> {
        if object.start_offset > from {
            return Ok(InTier::Next(object.start_offset));
        }
        if object.compacted.is_some() {
            return self.read_compacted(object, from, count).await;
        }
        let messages = self.stretch(object, object::stretch(object, from)).await?;
        let wanted = messages.iter().filter(|message| message.offset >= from).take(count);
        let wanted: Vec<_> = wanted.cloned().collect();
        match wanted.first() {
            Some(first) if first.offset == from => Ok(InTier::Messages(wanted)),
            Some(_) | None => {
                Err(TopicsError::Corrupt(format!("message {from} is not in object {}", object.object_id)))
            }
        }
    }

    /// The messages that follow each other from this offset on, or where the next ones are.
    async fn read_compacted(
        &self,
        object: &TierObject,
        from: u64,
        count: usize,
    ) -> Result<InTier, TopicsError> {
        for bytes in object::stretches_from(object, from) {
            let messages = self.stretch(object, bytes).await?;
            let left = messages.iter().skip_while(|message| message.offset < from);
            let run: Vec<_> =
                (from..).zip(left.clone()).take_while(|(at, left)| left.offset == *at).collect();
            match left.clone().next() {
                None => {}
                Some(next) if run.is_empty() => return Ok(InTier::Compacted(next.offset)),
                Some(_) => {
                    let run = run.into_iter().take(count).map(|(_, message)| message.clone());
                    return Ok(InTier::Messages(run.collect()));
                }
            }
        }
        Ok(InTier::Compacted(object.end_offset + 1))
    }

    /// All messages of an object.
    pub(crate) async fn messages_of(&self, object: &TierObject) -> Result<Vec<Arc<Message>>, TopicsError> {
        if object.size == 0 {
            return Ok(Vec::new());
        }
        object::decode(self.tier.get(&self.path(object), 0, object.size).await?)
    }

    async fn stretch(
        &self,
        object: &TierObject,
        (from, to): (u64, u64),
    ) -> Result<Arc<[Arc<Message>]>, TopicsError> {
        let is_it = |kept: &&Stretch| kept.object == object.object_id && kept.from == from;
        if let Some(kept) = self.stretches().iter().find(is_it) {
            return Ok(kept.messages.clone());
        }
        let read = self.tier.get(&self.path(object), from, to).await;
        let bytes = read.map_err(|error| match error {
            TopicsError::NoSuchObject(path) => TopicsError::Tier(format!("object {path} is missing")),
            error => error,
        })?;
        let messages: Arc<[Arc<Message>]> = object::decode(bytes)?.into();
        let mut stretches = self.stretches();
        stretches.push_back(Stretch { object: object.object_id.clone(), from, messages: messages.clone() });
        if stretches.len() > KEPT {
            stretches.pop_front();
        }
        Ok(messages)
    }

    /// The first message that was taken at this time (milliseconds since 1970) or later.
    pub(crate) async fn offset_at(&self, time: u64) -> Result<Option<u64>, TopicsError> {
        let Some(object) = self.chain().at(time).cloned() else { return Ok(None) };
        for bytes in object::stretches_from(&object, object.start_offset) {
            let messages = self.stretch(&object, bytes).await?;
            if let Some(found) = messages.iter().find(|message| message.append_time >= time) {
                return Ok(Some(found.offset));
            }
        }
        Ok(None)
    }
}

/// The descriptors of a topic, as they are stored now.
pub(crate) async fn described(store: &Store, topic: &TopicName) -> Result<Chain, TopicsError> {
    let key = TierObjects { namespace: topic.namespace.clone(), topic: topic.local.clone() };
    let listed = store.list(&key).await?;
    if let Some(bad) = listed.bad.first() {
        // An object that is not known would be deleted as an orphan.
        return Err(TopicsError::Corrupt(bad.to_string()));
    }
    Ok(Chain::new(listed.iter().map(|(_, stored)| stored.record.clone())))
}
