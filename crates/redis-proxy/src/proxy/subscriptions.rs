//! What has a client subscribed to, and which connections deliver it?
//!
//! A channel belongs to the slot of its name, like a key: subscriptions and messages go to the node that owns
//! the slot, wherever the client is connected, so that a subscriber on any proxy receives the messages of a
//! publisher on any other. Patterns are subscribed to on every node. Each subscriber has *feeds*: dedicated
//! connections to the nodes (or, for nodes of other hosts, to their proxies) that deliver to it, so that
//! counts are the nodes' own and a slow subscriber affects no other.
//!
//! If a feed is lost, the subscriber's connection is closed, as it would be if the client were connected to
//! the node: messages may have been missed, and the client's library subscribes again.

use std::collections::{HashMap, HashSet};

use super::arena::Key;
use super::link::Remote;
use super::replies::Sequence;

/// The three kinds of subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Topic {
    /// `SUBSCRIBE`
    Channel,
    /// `PSUBSCRIBE`
    Pattern,
    /// `SSUBSCRIBE`
    Shard,
}

impl Topic {
    /// The word in its commands and confirmations.
    pub(super) fn subscribe(self) -> &'static str {
        match self {
            Topic::Channel => "subscribe",
            Topic::Pattern => "psubscribe",
            Topic::Shard => "ssubscribe",
        }
    }

    /// The word in commands and confirmations that end it.
    pub(super) fn unsubscribe(self) -> &'static str {
        match self {
            Topic::Channel => "unsubscribe",
            Topic::Pattern => "punsubscribe",
            Topic::Shard => "sunsubscribe",
        }
    }

    /// The topic and kind of a push message, by its first word.
    pub(super) fn of_push(word: &[u8]) -> Option<(Topic, Push)> {
        Some(match word {
            b"message" => (Topic::Channel, Push::Message),
            b"pmessage" => (Topic::Pattern, Push::Message),
            b"smessage" => (Topic::Shard, Push::Message),
            b"subscribe" => (Topic::Channel, Push::Confirmed),
            b"psubscribe" => (Topic::Pattern, Push::Confirmed),
            b"ssubscribe" => (Topic::Shard, Push::Confirmed),
            b"unsubscribe" => (Topic::Channel, Push::Ended),
            b"punsubscribe" => (Topic::Pattern, Push::Ended),
            b"sunsubscribe" => (Topic::Shard, Push::Ended),
            _ => return None,
        })
    }
}

/// The kind of a push message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Push {
    /// A published message.
    Message,
    /// A subscription is in force.
    Confirmed,
    /// A subscription has ended.
    Ended,
}

/// One subscription.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    /// The feeds that deliver it.
    pub(super) feeds: Vec<Key>,
    /// Feeds that have not confirmed it yet.
    pub(super) unconfirmed: usize,
    /// The request to answer when all have.
    pub(super) asked_by: Option<Sequence>,
    /// The number of subscriptions including this one, for its confirmation.
    pub(super) count: usize,
}

/// All subscriptions of one client.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    topics: HashMap<(Topic, Box<[u8]>), Subscription>,
    /// The client's feeds, by remote.
    pub(super) feeds: HashMap<Remote, Key>,
    /// Messages that arrived while a reply was partly sent or a confirmation was missing; they follow it.
    pub(super) deferred: Vec<u8>,
    /// Missing confirmations.
    pub(super) unconfirmed: usize,
    channels: usize,
    shards: usize,
}

impl Subscriptions {
    /// The number in confirmations: channels and patterns together, shard channels separately.
    pub(super) fn count(&self, topic: Topic) -> usize {
        match topic {
            Topic::Channel | Topic::Pattern => self.channels,
            Topic::Shard => self.shards,
        }
    }

    /// What the client has subscribed to.
    pub(super) fn topics(&self) -> impl Iterator<Item = (Topic, &[u8])> {
        self.topics.keys().map(|(topic, name)| (*topic, &**name))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    pub(super) fn get_mut(&mut self, topic: Topic, name: &[u8]) -> Option<&mut Subscription> {
        self.topics.get_mut(&(topic, name.into()))
    }

    /// Whether this feed delivers this subscription.
    pub(super) fn is_fed_by(&self, topic: Topic, name: &[u8], feed: Key) -> bool {
        self.topics.get(&(topic, name.into())).is_some_and(|known| known.feeds.contains(&feed))
    }

    /// Adds a subscription; `None` if it exists.
    pub(super) fn add(&mut self, topic: Topic, name: &[u8]) -> Option<&mut Subscription> {
        let key = (topic, name.into());
        if self.topics.contains_key(&key) {
            return None;
        }
        match topic {
            Topic::Channel | Topic::Pattern => self.channels += 1,
            Topic::Shard => self.shards += 1,
        }
        Some(self.topics.entry(key).or_default())
    }

    /// Removes a subscription and returns it.
    pub(super) fn remove(&mut self, topic: Topic, name: &[u8]) -> Option<Subscription> {
        let gone = self.topics.remove(&(topic, name.into()))?;
        match topic {
            Topic::Channel | Topic::Pattern => self.channels -= 1,
            Topic::Shard => self.shards -= 1,
        }
        self.unconfirmed -= gone.unconfirmed.min(1);
        Some(gone)
    }

    /// The names of one kind.
    pub(super) fn names(&self, topic: Topic) -> Vec<Box<[u8]>> {
        let of_topic = self.topics.keys().filter(|(kind, _)| *kind == topic);
        of_topic.map(|(_, name)| name.clone()).collect()
    }

    /// All of them.
    pub(super) fn everything(&self) -> Vec<(Topic, Box<[u8]>)> {
        self.topics.keys().cloned().collect()
    }

    /// Feeds without subscriptions.
    pub(super) fn idle_feeds(&mut self) -> Vec<Key> {
        let busy: HashSet<Key> = self.topics.values().flat_map(|known| known.feeds.iter().copied()).collect();
        let idle: Vec<Key> = self.feeds.values().copied().filter(|feed| !busy.contains(feed)).collect();
        self.feeds.retain(|_, feed| busy.contains(feed));
        idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_and_patterns_are_counted_together() {
        let mut all = Subscriptions::default();
        assert!(all.add(Topic::Channel, b"a").is_some());
        assert!(all.add(Topic::Channel, b"a").is_none());
        assert!(all.add(Topic::Pattern, b"a").is_some());
        assert!(all.add(Topic::Shard, b"a").is_some());
        assert_eq!((all.count(Topic::Channel), all.count(Topic::Shard)), (2, 1));
        assert!(all.remove(Topic::Channel, b"a").is_some());
        assert!(all.remove(Topic::Channel, b"a").is_none());
        assert_eq!((all.count(Topic::Pattern), all.count(Topic::Shard)), (1, 1));
    }
}
