//! What is wrong with topics that only their broker can see? Subscriptions that get further behind or stand still, object
//! storage that fails, messages that do not fit a schema. Pure: what was seen and the time go in, problems come out.

use std::collections::BTreeMap;

use crate::keys::SubscriptionName;
use crate::spec::TopicName;
use crate::status::{Problem, ProblemKind};

/// A backlog that grew, and never shrank, for so long (milliseconds) is a problem ...
const GROWS_MS: u64 = 60_000;
/// ... if it has at least so many messages.
const BACKLOG: u64 = 1_000;
/// Consumers that have messages and acknowledge none for so long (milliseconds) are stuck: twice the time after which a
/// message is delivered again.
const STUCK_MS: u64 = 60_000;
/// Messages that a schema refused are mentioned for so long (milliseconds).
const REJECTED_MS: u64 = 300_000;
/// Object storage that fails for so long (milliseconds) is a problem: a single failure is tried again.
const TIER_MS: u64 = 2_000;
/// Topics and subscriptions that are watched; those beyond it are not.
const MAX_WATCHED: usize = 10_000;
/// Problems that are reported; the others come when these are solved.
const MAX_PROBLEMS: usize = 50;

/// Where a subscription stands.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) topic: TopicName,
    pub(super) subscription: SubscriptionName,
    /// Messages that are not acknowledged.
    pub(super) backlog: u64,
    /// Messages that are, since the topic began.
    pub(super) acknowledged: u64,
    /// Messages that consumers have.
    pub(super) in_flight: u64,
}

/// What is remembered. Only of subscriptions that have a backlog, and of topics with a failure.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    subscriptions: BTreeMap<(TopicName, SubscriptionName), Seen>,
    tiers: BTreeMap<TopicName, Failure>,
    schemas: BTreeMap<TopicName, Failure>,
    /// Topics that are to be compacted and cannot be, with the time since then.
    uncompacted: BTreeMap<TopicName, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    backlog: u64,
    acknowledged: u64,
    in_flight: u64,
    grows_since: Option<u64>,
    stands_since: Option<u64>,
}

#[derive(Clone, Debug)]
struct Failure {
    since: u64,
    last: u64,
    count: u64,
    cause: String,
}

impl Seen {
    fn first(sample: &Sample, now: u64) -> Seen {
        Seen {
            backlog: sample.backlog,
            acknowledged: sample.acknowledged,
            in_flight: sample.in_flight,
            grows_since: None,
            stands_since: (sample.in_flight > 0).then_some(now),
        }
    }

    fn next(self, sample: &Sample, now: u64) -> Seen {
        let grows_since = match sample.backlog {
            more if more > self.backlog => self.grows_since.or(Some(now)),
            same if same == self.backlog => self.grows_since,
            _ => None,
        };
        let stands = sample.in_flight > 0 && sample.acknowledged == self.acknowledged;
        let stands_since = if stands { self.stands_since.or(Some(now)) } else { None };
        Seen { grows_since, stands_since, ..Seen::first(sample, now) }
    }
}

impl Watchdog {
    /// Takes note of all subscriptions that have a backlog. The others are forgotten.
    pub(super) fn observe(&mut self, samples: impl IntoIterator<Item = Sample>, now: u64) {
        let mut before = std::mem::take(&mut self.subscriptions);
        for sample in samples.into_iter().filter(|sample| sample.backlog > 0).take(MAX_WATCHED) {
            let key = (sample.topic.clone(), sample.subscription.clone());
            let seen = match before.remove(&key) {
                Some(seen) => seen.next(&sample, now),
                None => Seen::first(&sample, now),
            };
            self.subscriptions.insert(key, seen);
        }
        self.schemas.retain(|_, failure| failure.last + REJECTED_MS > now);
    }

    pub(super) fn schema_rejected(&mut self, topic: &TopicName, cause: String, now: u64) {
        note(&mut self.schemas, topic, cause, now);
    }

    pub(super) fn tier_failed(&mut self, topic: &TopicName, cause: String, now: u64) {
        note(&mut self.tiers, topic, cause, now);
    }

    pub(super) fn tier_works(&mut self, topic: &TopicName) {
        self.tiers.remove(topic);
    }

    /// These topics are to be compacted and cannot be, and no others.
    pub(super) fn not_compacted(&mut self, topics: impl IntoIterator<Item = TopicName>, now: u64) {
        let before = std::mem::take(&mut self.uncompacted);
        let since = |topic: TopicName| {
            let since = before.get(&topic).copied().unwrap_or(now);
            (topic, since)
        };
        self.uncompacted = topics.into_iter().take(MAX_WATCHED).map(since).collect();
    }

    /// Only what is known about these topics stays: the others are served elsewhere, or not at all.
    pub(super) fn keep(&mut self, is_served: impl Fn(&TopicName) -> bool) {
        self.tiers.retain(|topic, _| is_served(topic));
        self.schemas.retain(|topic, _| is_served(topic));
    }

    /// What is wrong now, in a fixed order.
    pub(super) fn problems(&self, now: u64) -> Vec<Problem> {
        let of_topic = |kind, topic: &TopicName, since: u64, cause: String| Problem {
            kind,
            topic: topic.to_string(),
            subscription: None,
            cause,
            since: since / 1_000,
        };
        let lasting = self.tiers.iter().filter(|(_, failure)| failure.since + TIER_MS <= now);
        let tiers = lasting.map(|(topic, failure)| {
            of_topic(ProblemKind::TierFails, topic, failure.since, failure.cause.clone())
        });
        let schemas = self.schemas.iter().map(|(topic, failure)| {
            let cause = format!("messages refused: {}; the last one: {}", failure.count, failure.cause);
            of_topic(ProblemKind::SchemaRejected, topic, failure.since, cause)
        });
        let subscriptions = self.subscriptions.iter().flat_map(|(key, seen)| seen.problems(key, now));
        let uncompacted = self.uncompacted.iter().map(|(topic, since)| {
            let cause = "it is to be compacted by key, and its broker has no object storage".to_owned();
            of_topic(ProblemKind::NotCompacted, topic, *since, cause)
        });
        tiers.chain(subscriptions).chain(schemas).chain(uncompacted).take(MAX_PROBLEMS).collect()
    }
}

impl Seen {
    fn problems(&self, key: &(TopicName, SubscriptionName), now: u64) -> impl Iterator<Item = Problem> {
        let problem = |kind, cause, since: u64| Problem {
            kind,
            topic: key.0.to_string(),
            subscription: Some(key.1.to_string()),
            cause,
            since: since / 1_000,
        };
        let grows = self.grows_since.filter(|since| since + GROWS_MS <= now && self.backlog >= BACKLOG);
        let grows = grows.map(|since| {
            let cause = format!("{} messages are not acknowledged, and the number grows", self.backlog);
            problem(ProblemKind::BacklogGrows, cause, since)
        });
        let stands = self.stands_since.filter(|since| since + STUCK_MS <= now);
        let stands = stands.map(|since| {
            let cause = format!("its consumers have {} messages and acknowledge none", self.in_flight);
            problem(ProblemKind::ConsumerStuck, cause, since)
        });
        stands.into_iter().chain(grows)
    }
}

fn note(failures: &mut BTreeMap<TopicName, Failure>, topic: &TopicName, cause: String, now: u64) {
    if let Some(known) = failures.get_mut(topic) {
        (known.last, known.cause) = (now, cause);
        known.count += 1;
    } else if failures.len() < MAX_WATCHED {
        failures.insert(topic.clone(), Failure { since: now, last: now, count: 1, cause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic() -> TopicName {
        "/default/orders".parse().unwrap()
    }

    fn sample(backlog: u64, acknowledged: u64, in_flight: u64) -> Sample {
        let subscription = SubscriptionName::new("s").unwrap();
        Sample { topic: topic(), subscription, backlog, acknowledged, in_flight }
    }

    /// The problems after one sample every 5 seconds.
    fn after(samples: impl IntoIterator<Item = Sample>) -> Vec<ProblemKind> {
        let mut watchdog = Watchdog::default();
        let mut now = 0;
        for sample in samples {
            now += 5_000;
            watchdog.observe([sample], now);
        }
        watchdog.problems(now).into_iter().map(|problem| problem.kind).collect()
    }

    #[test]
    fn a_backlog_is_a_problem_when_it_grows_for_a_minute_and_is_large() {
        let grows = |from: u64, count: u64| (0..count).map(move |at| sample(from + at * 100, at, 0));
        assert_eq!(after(grows(1_000, 14)), [ProblemKind::BacklogGrows]);
        assert_eq!(after(grows(1_000, 12)), [], "not for long enough");
        assert_eq!(after((0..20).map(|at| sample(100 + at, at, 0))), [], "too small to mention");
        assert_eq!(after((0..20).map(|_| sample(50_000, 0, 0))), [], "large, but it does not grow");
        let shrinks_once = grows(1_000, 13).chain([sample(1_500, 99, 0), sample(1_600, 99, 0)]);
        assert_eq!(after(shrinks_once), []);
    }

    #[test]
    fn consumers_are_stuck_when_they_have_messages_and_acknowledge_none() {
        assert_eq!(after((0..14).map(|_| sample(10, 5, 3))), [ProblemKind::ConsumerStuck]);
        assert_eq!(after((0..14).map(|at| sample(10, at, 3))), [], "they acknowledge");
        assert_eq!(after((0..14).map(|_| sample(10, 5, 0))), [], "there is no consumer");
        let goes_on = (0..14).map(|_| sample(10, 5, 3)).chain([sample(9, 6, 3)]);
        assert_eq!(after(goes_on), []);
        let gone = (0..14).map(|_| sample(10, 5, 3)).chain([sample(0, 15, 0)]);
        assert_eq!(after(gone), []);
    }

    #[test]
    fn failures_of_topics_last_until_they_are_mended_or_old() {
        let mut watchdog = Watchdog::default();
        watchdog.tier_failed(&topic(), "no route".to_owned(), 1_000);
        assert_eq!(watchdog.problems(1_500), [], "one failure is tried again");
        watchdog.tier_failed(&topic(), "timed out".to_owned(), 3_000);
        watchdog.schema_rejected(&topic(), "a field is missing".to_owned(), 4_000);
        watchdog.schema_rejected(&topic(), "a field is missing".to_owned(), 5_000);
        let problems = watchdog.problems(5_000);
        let kinds: Vec<_> = problems.iter().map(|problem| (problem.kind, problem.since)).collect();
        assert_eq!(kinds, [(ProblemKind::TierFails, 1), (ProblemKind::SchemaRejected, 4)]);
        assert_eq!(problems[0].cause, "timed out");
        assert_eq!(problems[1].cause, "messages refused: 2; the last one: a field is missing");
        watchdog.tier_works(&topic());
        watchdog.observe([], 5_000 + REJECTED_MS);
        assert_eq!(watchdog.problems(5_000 + REJECTED_MS), []);
        watchdog.not_compacted([topic()], 6_000);
        watchdog.not_compacted([topic()], 9_000);
        let [problem] = &watchdog.problems(9_000)[..] else { panic!("{:?}", watchdog.problems(9_000)) };
        assert_eq!((problem.kind, problem.since), (ProblemKind::NotCompacted, 6));
        watchdog.not_compacted([], 9_000);
        assert_eq!(watchdog.problems(9_000), []);
        watchdog.tier_failed(&topic(), "no route".to_owned(), 0);
        watchdog.keep(|_| false);
        assert_eq!(watchdog.problems(10_000), [], "the topic is served elsewhere");
    }
}
