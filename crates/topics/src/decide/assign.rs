//! Which broker serves which topic? The one that leads the topic's log. Assignments follow the log; a topic without a log
//! gets one, led by the broker with the fewest topics.

use capstan_log::{HolderId, LogName};

use crate::facts::Facts;
use crate::spec::TopicName;
use crate::status::UnassignedReason;

/// Steps of one decision; the rest comes with the next.
const MAX_STEPS: usize = 256;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A topic has no log yet.
    CreateLog {
        /// The topic.
        topic: TopicName,
        /// Its log.
        log: LogName,
        /// How many copies it is to have.
        copies: usize,
        /// The holder that is to lead it.
        leader: Option<HolderId>,
    },
    /// A topic is served by this broker, and by no other.
    Assign {
        /// The topic.
        topic: TopicName,
        /// The broker.
        broker: u64,
    },
    /// The broker of a topic is gone, and no other one can lead its log yet.
    Unassign {
        /// The topic.
        topic: TopicName,
        /// Why.
        reason: UnassignedReason,
    },
    /// The topic is deleted: so is its log.
    DeleteLog {
        /// Its number.
        id: u64,
        /// The log.
        log: LogName,
    },
}

/// The next steps.
#[must_use]
pub fn assign(facts: &Facts) -> Vec<Step> {
    let mut load = facts.load();
    let mut steps: Vec<Step> = facts
        .tombstones
        .iter()
        .map(|(id, tombstone)| Step::DeleteLog { id: *id, log: tombstone.log.clone() })
        .collect();
    for (topic, stored) in &facts.topics {
        if steps.len() >= MAX_STEPS {
            break;
        }
        let record = &stored.record;
        if !facts.logs.contains_key(&record.log) {
            // Nothing is created while a record of a log may be one that cannot be read.
            if facts.unreadable.is_empty()
                && let Some(broker) = facts.least_loaded(&load)
            {
                *load.entry(broker).or_default() += 1;
                let leader = facts.brokers.get(&broker).map(|broker| broker.holder.clone());
                let (topic, log, copies) = (topic.clone(), record.log.clone(), record.copies);
                steps.push(Step::CreateLog { topic, log, copies, leader });
            }
            continue;
        }
        let assigned = facts.assigned.get(topic);
        match (facts.owner(record), assigned) {
            (Some(broker), Some(known)) if known.len() == 1 && known.contains(&broker) => {
                if facts.unassigned.contains_key(topic) {
                    steps.push(Step::Assign { topic: topic.clone(), broker });
                }
            }
            (Some(broker), _) => steps.push(Step::Assign { topic: topic.clone(), broker }),
            (None, Some(known)) => {
                let from_broker = known.iter().next().copied().unwrap_or_default();
                let reason = "failover".to_owned();
                let reason = UnassignedReason { reason, from_broker, extra: Default::default() };
                steps.push(Step::Unassign { topic: topic.clone(), reason });
            }
            (None, None) => {}
        }
    }
    steps
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use capstan_log::LogConfig;
    use capstan_meta::record::{Extra, Stored};

    use super::*;
    use crate::spec::{Delivery, TopicRecord};
    use crate::status::{Registration, Tombstone, Unassigned};

    fn holder(id: u64) -> HolderId {
        format!("topics.h{id}").parse().unwrap()
    }

    fn stored<T>(record: T) -> Arc<Stored<T>> {
        let (create_revision, mod_revision, lease) = Default::default();
        Arc::new(Stored { record, create_revision, mod_revision, lease })
    }

    fn topic(name: &str) -> TopicName {
        name.parse().unwrap()
    }

    /// Brokers 1..=n are up; each topic has a log led by the given broker, or none.
    pub(in crate::decide) fn facts(brokers: u64, topics: &[(&str, Option<u64>)]) -> Facts {
        let mut facts = Facts::default();
        for id in 1..=brokers {
            let text = format!("http://b{id}");
            let broker = Registration {
                admin_addr: text.clone(),
                advertised_addr: text.clone(),
                broker_addr: text.clone(),
                prom_exporter: None,
                broker_url: text.clone(),
                connect_url: text,
                holder: holder(id),
                token_hash: None,
                extra: Extra::default(),
            };
            facts.brokers.insert(id, broker);
        }
        for (name, leader) in topics {
            let log: LogName = name.replace('/', ".").parse().unwrap();
            let record = TopicRecord {
                id: 1,
                log: log.clone(),
                delivery: Delivery::Reliable,
                copies: 1,
                created_at: 0,
                storage: Default::default(),
                extra: Extra::default(),
            };
            facts.topics.insert(topic(name), stored(record));
            if let Some(leader) = leader {
                facts.logs.insert(log, stored(LogConfig::new(vec![holder(*leader)], 1).unwrap()));
            }
        }
        facts
    }

    #[test]
    fn a_new_topic_goes_to_the_broker_with_the_fewest_that_takes_some() {
        let mut facts = facts(3, &[("/d/a", Some(1)), ("/d/b", Some(3)), ("/d/c", None), ("/d/e", None)]);
        facts.closed.insert(2);
        facts.assigned.insert(topic("/d/a"), BTreeSet::from([1]));
        facts.assigned.insert(topic("/d/b"), BTreeSet::from([3]));
        let leaders: Vec<_> = assign(&facts)
            .into_iter()
            .map(|step| match step {
                Step::CreateLog { topic, leader, .. } => (topic.to_string(), leader.unwrap()),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(leaders, [("/d/c".to_owned(), holder(1)), ("/d/e".to_owned(), holder(3))]);
        facts.unreadable.push("a key".to_owned());
        assert_eq!(assign(&facts), []);
    }

    #[test]
    fn assignments_follow_the_log() {
        let mut facts = facts(2, &[("/d/a", Some(2))]);
        let moved = Step::Assign { topic: topic("/d/a"), broker: 2 };
        assert_eq!(assign(&facts), std::slice::from_ref(&moved));
        facts.assigned.insert(topic("/d/a"), BTreeSet::from([1, 2]));
        assert_eq!(assign(&facts), std::slice::from_ref(&moved), "two owners become one");
        facts.assigned.insert(topic("/d/a"), BTreeSet::from([2]));
        assert_eq!(assign(&facts), []);
        facts.unassigned.insert(topic("/d/a"), Unassigned::default());
        assert_eq!(assign(&facts), [moved], "a marker that was left is removed");
    }

    #[test]
    fn a_topic_whose_broker_is_gone_waits_and_is_never_deleted() {
        let mut facts = facts(1, &[("/d/a", Some(7))]);
        facts.assigned.insert(topic("/d/a"), BTreeSet::from([7]));
        let steps = assign(&facts);
        assert!(
            matches!(&steps[..], [Step::Unassign { reason, .. }] if reason.from_broker == 7 && reason.reason == "failover"),
            "{steps:?}"
        );
        facts.assigned.clear();
        facts.unassigned.insert(topic("/d/a"), Unassigned::default());
        assert_eq!(assign(&facts), []);
    }

    #[test]
    fn only_a_tombstone_deletes_a_log() {
        let mut facts = facts(1, &[]);
        assert_eq!(assign(&facts), []);
        let log: LogName = "d.a.1".parse().unwrap();
        facts.tombstones.insert(9, Tombstone { log: log.clone(), topic: "/d/a".to_owned() });
        assert_eq!(assign(&facts), [Step::DeleteLog { id: 9, log }]);
    }
}
