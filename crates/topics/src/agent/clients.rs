//! Producers and consumers that are registered with this broker. Their numbers follow from their names, so that a client
//! that comes back after a restart or a move is known by the number that it has.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};

use crate::data::now_ms;
use crate::keys::SubscriptionName;
use crate::spec::{SubscriptionKind, TopicName};

/// A client that was not heard of for so long (milliseconds) is forgotten; clients check in every 5 seconds.
const FORGET_MS: u64 = 60_000;

/// The number of a producer.
pub(crate) fn producer_id(topic: &TopicName, producer: &str) -> u64 {
    number(&["producer", &topic.to_string(), producer])
}

/// The number of a consumer.
pub(crate) fn consumer_id(topic: &TopicName, subscription: &SubscriptionName, consumer: &str) -> u64 {
    number(&["consumer", &topic.to_string(), subscription.as_str(), consumer])
}

fn number(parts: &[&str]) -> u64 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A producer that is registered here.
#[derive(Clone, Debug)]
pub(super) struct Producer {
    pub(super) topic: TopicName,
    heard: u64,
}

/// A consumer that is registered here.
#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) topic: TopicName,
    pub(crate) subscription: SubscriptionName,
    pub(crate) name: String,
    pub(crate) kind: SubscriptionKind,
    pub(crate) filters: Vec<String>,
    pub(super) heard: u64,
}

/// Everyone who is registered here.
#[derive(Debug, Default)]
pub(super) struct Clients {
    producers: Mutex<HashMap<u64, Producer>>,
    consumers: Mutex<HashMap<u64, Consumer>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clients {
    pub(super) fn add_producer(&self, id: u64, topic: TopicName) {
        lock(&self.producers).insert(id, Producer { topic, heard: now_ms() });
    }

    /// Notes that a producer is alive; whether it is known.
    pub(super) fn heard_of_producer(&self, id: u64) -> bool {
        lock(&self.producers).get_mut(&id).map(|producer| producer.heard = now_ms()).is_some()
    }

    /// How many producers and consumers are registered.
    pub(super) fn counts(&self) -> (u64, u64) {
        (lock(&self.producers).len() as u64, lock(&self.consumers).len() as u64)
    }

    pub(super) fn producers_of(&self, topic: &TopicName) -> usize {
        lock(&self.producers).values().filter(|producer| producer.topic == *topic).count()
    }

    pub(super) fn add_consumer(&self, id: u64, consumer: Consumer) {
        lock(&self.consumers).insert(id, consumer);
    }

    pub(super) fn consumer(&self, id: u64) -> Option<Consumer> {
        let mut consumers = lock(&self.consumers);
        let consumer = consumers.get_mut(&id)?;
        consumer.heard = now_ms();
        Some(consumer.clone())
    }

    /// Forgets clients that were not heard of for long. Returns the producers.
    pub(super) fn forget_silent(&self) -> Vec<(u64, TopicName)> {
        let now = now_ms();
        let is_silent = |heard: u64| heard + FORGET_MS < now;
        lock(&self.consumers).retain(|_, consumer| !is_silent(consumer.heard));
        let mut producers = lock(&self.producers);
        let silent: Vec<_> = producers
            .iter()
            .filter(|(_, producer)| is_silent(producer.heard))
            .map(|(id, producer)| (*id, producer.topic.clone()))
            .collect();
        silent.iter().for_each(|(id, _)| drop(producers.remove(id)));
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_names_and_differ() {
        let topic = |text: &str| text.parse::<TopicName>().unwrap();
        let one = producer_id(&topic("/default/a"), "p");
        assert_eq!(one, producer_id(&topic("/default/a"), "p"));
        assert_ne!(one, producer_id(&topic("/default/a"), "q"));
        assert_ne!(one, producer_id(&topic("/default/ab"), "p"));
        let subscription = SubscriptionName::new("s").unwrap();
        assert_ne!(one, consumer_id(&topic("/default/a"), &subscription, "p"));
    }
}
