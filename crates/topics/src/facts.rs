//! What is known at one revision, assembled from a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_log::keys::{LogKey, LogKeys};
use capstan_log::{HolderId, LogConfig, LogName};
use capstan_meta::Store;
use capstan_meta::record::{Listing, RecordError, Stored};
use capstan_meta::view::{Ranges, Snapshot};

use crate::keys::{
    AssignmentKey, Assignments, BrokerStateKey, BrokerStates, HealthKey, Healths, Loads, Policies,
    RegisterKey, Registrations, Roots, TombstoneKey, Tombstones, TopicKey, Topics, UnassignedKey,
    UnassignedTopics,
};
use crate::spec::{BrokerMode, TopicName, TopicRecord};
use crate::status::{Problem, Registration, Tombstone, Unassigned};

/// Everything that a decision looks at.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The topics.
    pub topics: BTreeMap<TopicName, Arc<Stored<TopicRecord>>>,
    /// The logs of all services.
    pub logs: BTreeMap<LogName, Arc<Stored<LogConfig>>>,
    /// The brokers that are up.
    pub brokers: BTreeMap<u64, Registration>,
    /// Brokers that take no topics.
    pub closed: BTreeSet<u64>,
    /// The brokers that are said to serve a topic.
    pub assigned: BTreeMap<TopicName, BTreeSet<u64>>,
    /// Topics that are said to have no broker.
    pub unassigned: BTreeMap<TopicName, Unassigned>,
    /// Deleted topics whose log may still be there.
    pub tombstones: BTreeMap<u64, Tombstone>,
    /// What brokers see that is wrong with their topics.
    pub problems: Vec<Problem>,
    /// Keys whose value cannot be parsed. Nothing is decided about them.
    pub unreadable: Vec<String>,
}

/// What facts are assembled from.
struct Listings {
    topics: Listing<TopicKey>,
    logs: Listing<LogKey>,
    brokers: Listing<RegisterKey>,
    states: Listing<BrokerStateKey>,
    assignments: Listing<AssignmentKey>,
    unassigned: Listing<UnassignedKey>,
    tombstones: Listing<TombstoneKey>,
    healths: Listing<HealthKey>,
}

impl Facts {
    /// What a view must cover.
    #[must_use]
    pub fn ranges() -> Ranges {
        Ranges::new()
            .with(&Topics {})
            .with(&Tombstones {})
            .with(&Registrations {})
            .with(&BrokerStates {})
            .with(&UnassignedTopics {})
            .with(&Loads {})
            .with(&Healths {})
            .with(&Policies {})
            .with(&Roots {})
            .with(&LogKeys {})
    }

    /// Reads a snapshot that covers [`Facts::ranges`].
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Facts {
        Facts::assemble(Listings {
            topics: snapshot.list(&Topics {}),
            logs: snapshot.list(&LogKeys {}),
            brokers: snapshot.list(&Registrations {}),
            states: snapshot.list(&BrokerStates {}),
            assignments: snapshot.list(&Assignments {}),
            unassigned: snapshot.list(&UnassignedTopics {}),
            tombstones: snapshot.list(&Tombstones {}),
            healths: snapshot.list(&Healths {}),
        })
    }

    /// Reads the store once, for a process that keeps no view. Topics come first: what they refer to is there then, or
    /// has been removed since.
    pub async fn read(store: &Store) -> Result<Facts, RecordError> {
        let topics = store.list(&Topics {}).await?;
        Ok(Facts::assemble(Listings {
            topics,
            logs: store.list(&LogKeys {}).await?,
            brokers: store.list(&Registrations {}).await?,
            states: store.list(&BrokerStates {}).await?,
            assignments: store.list(&Assignments {}).await?,
            unassigned: store.list(&UnassignedTopics {}).await?,
            tombstones: store.list(&Tombstones {}).await?,
            healths: store.list(&Healths {}).await?,
        }))
    }

    fn assemble(listings: Listings) -> Facts {
        let mut facts = Facts::default();
        let name = |namespace, local| TopicName { namespace, local };
        let topics = facts.check(listings.topics);
        facts.topics = topics
            .entries
            .into_iter()
            .map(|(key, stored)| (name(key.namespace, key.topic), stored))
            .collect();
        let logs = facts.check(listings.logs);
        facts.logs = logs.entries.into_iter().map(|(key, stored)| (key.log, stored)).collect();
        let brokers = facts.check(listings.brokers);
        facts.brokers = brokers.iter().map(|(key, stored)| (key.broker, stored.record.clone())).collect();
        let states = facts.check(listings.states);
        let closed = states.iter().filter(|(_, stored)| stored.record.mode != BrokerMode::Active);
        facts.closed = closed.map(|(key, _)| key.broker).collect();
        for (key, _) in listings.assignments.iter() {
            let topic = name(key.namespace.clone(), key.topic.clone());
            facts.assigned.entry(topic).or_default().insert(key.broker);
        }
        let unassigned = facts.check(listings.unassigned);
        facts.unassigned = unassigned
            .iter()
            .map(|(key, stored)| (name(key.namespace.clone(), key.topic.clone()), stored.record.clone()))
            .collect();
        let tombstones = facts.check(listings.tombstones);
        facts.tombstones = tombstones.iter().map(|(key, stored)| (key.id, stored.record.clone())).collect();
        let healths = facts.check(listings.healths);
        facts.problems = healths.iter().flat_map(|(_, stored)| stored.record.problems.clone()).collect();
        facts
    }

    fn check<K: capstan_meta::record::Key>(&mut self, listing: Listing<K>) -> Listing<K> {
        self.unreadable.extend(listing.bad.iter().map(|bad| bad.key.clone()));
        listing
    }

    /// The broker that is up and has this holder.
    #[must_use]
    pub fn broker_of(&self, holder: &HolderId) -> Option<u64> {
        self.brokers.iter().find(|(_, broker)| broker.holder == *holder).map(|(id, _)| *id)
    }

    /// The broker that leads a topic's log and is up.
    #[must_use]
    pub fn owner(&self, record: &TopicRecord) -> Option<u64> {
        self.logs.get(&record.log).and_then(|log| self.broker_of(&log.record.primary))
    }

    /// Topics that each broker serves.
    #[must_use]
    pub fn load(&self) -> BTreeMap<u64, usize> {
        let mut load: BTreeMap<u64, usize> = self.brokers.keys().map(|id| (*id, 0)).collect();
        for owner in self.topics.values().filter_map(|topic| self.owner(&topic.record)) {
            *load.entry(owner).or_default() += 1;
        }
        load
    }

    /// The broker with the fewest topics that takes some.
    #[must_use]
    pub fn least_loaded(&self, load: &BTreeMap<u64, usize>) -> Option<u64> {
        let open = load.iter().filter(|(id, _)| self.brokers.contains_key(id) && !self.closed.contains(id));
        open.min_by_key(|(id, topics)| (**topics, **id)).map(|(id, _)| *id)
    }
}
