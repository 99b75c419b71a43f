//! Findings about topics: what is wrong and what to do about it.

use capstan_control::findings::{Code, Finding, Severity};

use crate::facts::Facts;
use crate::spec::{Delivery, TopicName, TopicRecord};
use crate::status::{Problem, ProblemKind};

/// No broker serves a topic.
pub const WITHOUT_BROKER: Code = Code::new("topics-without-broker");
/// Fewer copies of a topic are complete than were asked for.
pub const UNDER_REPLICATED: Code = Code::new("topics-under-replicated");
/// No broker is up.
pub const NO_BROKER: Code = Code::new("topics-no-broker");
/// A key cannot be parsed.
pub const UNREADABLE: Code = Code::new("topics-key-unreadable");

/// A subscription gets further behind.
pub const BACKLOG_GROWS: Code = Code::new("topics-backlog-grows");
/// Consumers have messages and acknowledge none.
pub const CONSUMER_STUCK: Code = Code::new("topics-consumer-stuck");
/// Messages were refused because of the topic's schema.
pub const SCHEMA_REJECTED: Code = Code::new("topics-schema-rejected");
/// Old messages do not get into object storage.
pub const TIER_FAILS: Code = Code::new("topics-tier-fails");
/// A topic is to be compacted, and cannot be.
pub const NOT_COMPACTED: Code = Code::new("topics-not-compacted");

/// Findings of one kind that are listed one by one; the others are counted in one more.
const LISTED: usize = 20;

/// A topic that was created so many seconds ago must have a log.
const LOG_WITHIN: u64 = 15;

/// What is wrong at a moment, in seconds since 1970.
#[must_use]
pub fn findings(facts: &Facts, now: u64) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        facts.unreadable.iter().take(LISTED).map(|key| unreadable(key)).collect();
    if facts.brokers.is_empty() && !facts.topics.is_empty() {
        findings.push(Finding::new(
            NO_BROKER,
            Severity::Critical,
            "topics",
            format!("no broker is up, and there are {} topics", facts.topics.len()),
            "start hosts with the role topics (capstan hosts list)",
        ));
        return findings;
    }
    for kind in [without_broker, under_replicated] {
        let old = facts.topics.iter().filter(|(_, topic)| topic.record.created_at + LOG_WITHIN < now);
        let mut of_kind = old.filter_map(|(name, topic)| kind(facts, name, &topic.record));
        let listed: Vec<Finding> = of_kind.by_ref().take(LISTED).collect();
        let more = of_kind.count();
        if let Some(first) = listed.first().filter(|_| more > 0) {
            let action = "run `capstan topics list` for all of them";
            let object = format!("{more} more topics");
            let same = "the same is true of them";
            findings.push(Finding::new(first.code.clone(), first.severity, object, same, action));
        }
        findings.extend(listed);
    }
    findings.extend(facts.problems.iter().map(problem));
    findings
}

/// What a broker sees, and what to do about it.
fn problem(problem: &Problem) -> Finding {
    let topic = &problem.topic;
    let object = match &problem.subscription {
        Some(subscription) => format!("subscription {subscription} of topic {topic}"),
        None => format!("topic {topic}"),
    };
    let (code, severity, action) = match problem.kind {
        ProblemKind::BacklogGrows => {
            let action = format!(
                "add consumers, or remove the subscription if it is not needed (capstan topics show {topic})"
            );
            (BACKLOG_GROWS, Severity::Degraded, action)
        }
        ProblemKind::ConsumerStuck => {
            let action = format!("look at its consumers (capstan topics show {topic}) and start them again");
            (CONSUMER_STUCK, Severity::Degraded, action)
        }
        ProblemKind::SchemaRejected => {
            let action =
                format!("mend the producers, or register their schema (capstan topics show {topic})");
            (SCHEMA_REJECTED, Severity::Notice, action)
        }
        ProblemKind::TierFails => {
            let action = "look at the object storage (topics.tier); messages stay in the log until it works";
            (TIER_FAILS, Severity::Degraded, action.to_owned())
        }
        ProblemKind::NotCompacted => {
            let action = format!(
                "give the brokers object storage (topics.tier), or take the policy back \
                 (capstan topics set {topic} compact_by_key=0)"
            );
            (NOT_COMPACTED, Severity::Notice, action)
        }
    };
    Finding::new(code, severity, object, problem.cause.clone(), action).since(problem.since)
}

fn unreadable(key: &str) -> Finding {
    let action = format!("read it (capstan meta get {key}), then write a valid value or delete the key");
    Finding::new(UNREADABLE, Severity::Critical, key.to_owned(), "the value cannot be parsed", action)
}

fn without_broker(facts: &Facts, name: &TopicName, record: &TopicRecord) -> Option<Finding> {
    if facts.owner(record).is_some() {
        return None;
    }
    let (what, action) = match facts.logs.get(&record.log) {
        None => (
            "it has no log yet".to_owned(),
            "wait a moment; if it stays, look at the log of the leading broker",
        ),
        Some(log) => {
            let what = format!("holder {} leads its log, and no broker is up there", log.record.primary);
            (what, "start that host; its messages are there (capstan hosts list)")
        }
    };
    Some(Finding::new(WITHOUT_BROKER, Severity::Critical, format!("topic {name}"), what, action))
}

fn under_replicated(facts: &Facts, name: &TopicName, record: &TopicRecord) -> Option<Finding> {
    let in_sync = facts.logs.get(&record.log)?.record.in_sync.len();
    if in_sync >= record.copies || record.delivery == Delivery::NonReliable {
        return None;
    }
    let what = format!("{in_sync} of {} copies are complete", record.copies);
    let action = "start more hosts, or wait until the copies are made (capstan hosts list)";
    Some(Finding::new(UNDER_REPLICATED, Severity::Degraded, format!("topic {name}"), what, action))
}
