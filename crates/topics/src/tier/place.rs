//! The objects of one topic that this broker leads: which there are, and how messages are read from them.

use std::collections::VecDeque;
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

    /// Messages from this offset on, up to the end of a stretch.
    pub(crate) async fn read(&self, from: u64, count: usize) -> Result<InTier, TopicsError> {
        let Some(object) = self.chain().find(from).cloned() else { return Ok(InTier::Behind) };
        if object.start_offset > from {
            return Ok(InTier::Next(object.start_offset));
        }
        let messages = self.stretch(&object, from).await?;
        let wanted = messages.iter().filter(|message| message.offset >= from).take(count);
        let wanted: Vec<_> = wanted.cloned().collect();
        match wanted.first() {
            Some(first) if first.offset == from => Ok(InTier::Messages(wanted)),
            Some(_) | None => {
                Err(TopicsError::Corrupt(format!("message {from} is not in object {}", object.object_id)))
            }
        }
    }

    async fn stretch(&self, object: &TierObject, offset: u64) -> Result<Arc<[Arc<Message>]>, TopicsError> {
        let (from, to) = object::stretch(object, offset);
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
        let mut at = object.start_offset;
        while at <= object.end_offset {
            let messages = self.stretch(&object, at).await?;
            if let Some(found) = messages.iter().find(|message| message.append_time >= time) {
                return Ok(Some(found.offset));
            }
            match messages.last() {
                Some(last) if last.offset >= at => at = last.offset + 1,
                Some(_) | None => break,
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
