//! Are the topics spread evenly over the brokers, and which ones should move? The load of a broker is the number of topics
//! that it serves, as it is for new topics.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::facts::Facts;
use crate::spec::TopicName;

/// How the topics are spread over the brokers that are up.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    /// Topics that each broker serves.
    pub load: BTreeMap<u64, u32>,
    /// The mean of them.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
}

/// A topic that another broker should serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The topic.
    pub topic: TopicName,
    /// The broker that serves it.
    pub from: u64,
    /// The broker that should.
    pub to: u64,
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Balance {
    /// The balance of a cluster.
    #[must_use]
    pub fn of(facts: &Facts) -> Balance {
        let load: BTreeMap<u64, u32> =
            facts.load().into_iter().map(|(id, topics)| (id, count(topics))).collect();
        let brokers = f64::from(count(load.len()).max(1));
        let mean = load.values().copied().map(f64::from).sum::<f64>() / brokers;
        let squares = load.values().map(|topics| (f64::from(*topics) - mean).powi(2));
        let deviation = (squares.sum::<f64>() / brokers).sqrt();
        Balance { load, mean, deviation }
    }

    /// The deviation as a share of the mean: 0 is even.
    #[must_use]
    pub fn variation(&self) -> f64 {
        if self.mean > 0.0 { self.deviation / self.mean } else { 0.0 }
    }

    /// Whether a broker has more topics than any would if they were spread evenly.
    #[must_use]
    pub fn is_overloaded(&self, topics: u32) -> bool {
        f64::from(topics) > self.mean.ceil()
    }

    /// Whether a broker has fewer topics than any would.
    #[must_use]
    pub fn is_underloaded(&self, topics: u32) -> bool {
        f64::from(topics) < self.mean.floor()
    }
}

/// The moves, at most so many, after which no broker serves two topics more than another one that takes some. Each move
/// makes the spread more even, so the list ends.
#[must_use]
pub fn rebalance(facts: &Facts, limit: usize) -> Vec<Move> {
    let mut served: BTreeMap<u64, Vec<&TopicName>> =
        facts.brokers.keys().map(|id| (*id, Vec::new())).collect();
    for (name, topic) in &facts.topics {
        if let Some(owner) = facts.owner(&topic.record) {
            served.entry(owner).or_default().push(name);
        }
    }
    let mut moves = Vec::new();
    while moves.len() < limit {
        let size = |id: &u64| served.get(id).map_or(0, Vec::len);
        let Some(from) = served.keys().copied().max_by_key(|id| (size(id), Reverse(*id))) else { break };
        let open = served.keys().copied().filter(|id| !facts.closed.contains(id));
        let Some(to) = open.min_by_key(|id| (size(id), *id)) else { break };
        if size(&from) < size(&to) + 2 {
            break;
        }
        let Some(topic) = served.get_mut(&from).and_then(Vec::pop) else { break };
        served.entry(to).or_default().push(topic);
        moves.push(Move { topic: topic.clone(), from, to });
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::super::assign::tests::facts;
    use super::*;

    fn moves(facts: &Facts, limit: usize) -> Vec<(String, u64, u64)> {
        let moves = rebalance(facts, limit).into_iter();
        moves.map(|step| (step.topic.to_string(), step.from, step.to)).collect()
    }

    #[test]
    fn an_even_spread_has_no_variation_and_no_moves() {
        let even = facts(2, &[("/d/a", Some(1)), ("/d/b", Some(2)), ("/d/c", Some(1))]);
        assert_eq!(moves(&even, 10), []);
        let balance = Balance::of(&even);
        assert!(!balance.is_overloaded(2) && !balance.is_underloaded(1), "{balance:?}");
        assert_eq!(Balance::of(&facts(0, &[])).variation().to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn topics_move_from_the_fullest_to_the_emptiest_that_takes_some() {
        let all =
            [("/d/a", Some(1)), ("/d/b", Some(1)), ("/d/c", Some(1)), ("/d/e", Some(1)), ("/d/f", None)];
        let mut facts = facts(3, &all);
        let balance = Balance::of(&facts);
        assert!(balance.is_overloaded(4) && balance.is_underloaded(0), "{balance:?}");
        let both = [("/d/e".to_owned(), 1, 2), ("/d/c".to_owned(), 1, 3)];
        assert_eq!(moves(&facts, 10), both);
        assert_eq!(moves(&facts, 1), both[..1]);
        facts.closed.extend([2, 3]);
        assert_eq!(moves(&facts, 10), [], "brokers that are drained take nothing");
        facts.closed.remove(&3);
        assert_eq!(moves(&facts, 10), [("/d/e".to_owned(), 1, 3), ("/d/c".to_owned(), 1, 3)]);
    }
}
