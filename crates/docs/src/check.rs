//! Findings about the document store: what is wrong, since when, what to do.

use capstan_control::findings::{Code, Finding, Severity};
use capstan_control::keys::HostId;
use capstan_log::LogConfig;
use capstan_log::keys::LogKeys;
use capstan_meta::Store;
use capstan_meta::record::RecordError;
use capstan_steward::keys::Alive as HoldersAlive;

use crate::decide::{JobState, NodeState};
use crate::id::Token;
use crate::keys::{Alive, ClusterKey, Jobs, Nodes};
use crate::spec::ClusterSpec;
use crate::status::{Job, NodeRecord, NodeStatus};

/// Tokens have fewer complete copies than were asked for.
pub const UNDER_REPLICATED: Code = Code::new("docs-token-under-replicated");
/// A node was away, or could not follow.
pub const NEED_SYNC: Code = Code::new("docs-node-need-sync");
/// A token that moves to a node does not get on.
pub const MOVE_STUCK: Code = Code::new("docs-move-stuck");
/// A node cannot reach the queue that copies of tokens come over.
pub const QUEUE_UNREACHABLE: Code = Code::new("docs-queue-unreachable");
/// An index is not complete yet.
pub const INDEX_BUILDING: Code = Code::new("docs-index-building");
/// The disk of a node is nearly full.
pub const DISK_FILLING: Code = Code::new("docs-disk-filling");

/// A node cannot serve tokens because it has lost what they are made of.
pub const TOKEN_LOST: Code = Code::new("docs-token-lost");

/// A job that has not got on for so many seconds is stuck.
const STUCK_AFTER: u64 = 60;
/// A disk with less than this part of it free is filling.
const FREE_SHARE: u64 = 10;

/// What is known about the document store at one moment.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The cluster, once it was created.
    pub cluster: Option<ClusterSpec>,
    /// The tokens that were made.
    pub tokens: Vec<(Token, LogConfig)>,
    /// Every node, and what it reports while it runs.
    pub nodes: Vec<(HostId, NodeRecord, Option<NodeStatus>)>,
    /// Every job.
    pub jobs: Vec<Job>,
    /// Free and all bytes of the disks of nodes that run.
    pub disks: Vec<(String, u64, u64)>,
}

impl Facts {
    /// Reads everything.
    pub async fn read(store: &Store) -> Result<Facts, RecordError> {
        let cluster = store.read(&ClusterKey {}).await?.map(|found| found.record);
        if cluster.is_none() {
            return Ok(Facts::default());
        }
        let alive = store.list(&Alive {}).await?;
        let status = |node: &HostId| {
            alive.iter().find(|(key, _)| key.node == *node).map(|(_, found)| found.record.clone())
        };
        let nodes = store.list(&Nodes {}).await?;
        let nodes =
            nodes.iter().map(|(key, found)| (key.node.clone(), found.record.clone(), status(&key.node)));
        let logs = store.list(&LogKeys {}).await?;
        let tokens =
            logs.iter().filter_map(|(key, found)| Some((Token::of_log(&key.log)?, found.record.clone())));
        let jobs = store.list(&Jobs {}).await?;
        let holders = store.list(&HoldersAlive {}).await?;
        let disks = holders.iter().filter_map(|(key, found)| {
            let node = key.holder.as_str().strip_prefix("docs.")?.to_owned();
            Some((node, found.record.free_bytes, found.record.total_bytes))
        });
        Ok(Facts {
            cluster,
            nodes: nodes.collect(),
            tokens: tokens.collect(),
            jobs: jobs.iter().map(|(_, found)| found.record.clone()).collect(),
            disks: disks.collect(),
        })
    }
}

/// Everything that is wrong, or worth knowing.
#[must_use]
pub fn findings(facts: &Facts, now: u64) -> Vec<Finding> {
    let mut found: Vec<Finding> = under_replicated(facts).into_iter().collect();
    found.extend(facts.nodes.iter().filter_map(|(node, record, _)| need_sync(node, record)));
    found.extend(facts.nodes.iter().filter_map(|(node, _, status)| lost(node, status.as_ref()?)));
    found.extend(facts.jobs.iter().filter_map(|job| stuck(job, now)));
    found.extend(unreachable(facts));
    found.extend(building(facts));
    found.extend(facts.disks.iter().filter_map(|(node, free, total)| filling(node, *free, *total)));
    found
}

fn under_replicated(facts: &Facts) -> Option<Finding> {
    let cluster = facts.cluster.as_ref()?;
    let lacking: Vec<_> = facts.tokens.iter().filter(|(_, log)| log.in_sync.len() < cluster.copies).collect();
    let fewest = lacking.iter().map(|(_, log)| log.in_sync.len()).min()?;
    let refuses = lacking.iter().any(|(_, log)| log.in_sync.len() < log.min_copies);
    let (severity, writes) =
        if refuses { (Severity::Critical, "; some of them refuse writes") } else { (Severity::Degraded, "") };
    let cause = format!(
        "{} of {} tokens have fewer than {} complete copies, one of them {fewest}{writes}",
        lacking.len(),
        facts.tokens.len(),
        cluster.copies
    );
    let action =
        "start the nodes that are down (capstan docs nodes), or add one; copies are made again by themselves";
    Some(Finding::new(UNDER_REPLICATED, severity, "docs tokens", cause, action))
}

fn need_sync(node: &HostId, record: &NodeRecord) -> Option<Finding> {
    (record.state == NodeState::NeedSync).then(|| {
        let cause = "it is away, or cannot follow its tokens; it is not asked for what it may not have";
        let action = format!("start it, or retire it for good: capstan docs retire {node}");
        Finding::new(NEED_SYNC, Severity::Degraded, format!("docs node {node}"), cause, action)
    })
}

fn lost(node: &HostId, status: &NodeStatus) -> Option<Finding> {
    let count = status.unusable;
    (count > 0).then(|| {
        let cause = format!(
            "{count} of its tokens cannot be served: docs.dir or the directory of its logs was lost or damaged, and no \
             other node is complete"
        );
        let action = format!(
            "bring back its disk or another node that holds these tokens (the log of node {node} says why); without any, \
             restore a backup (capstan docs restore)"
        );
        Finding::new(TOKEN_LOST, Severity::Critical, format!("docs node {node}"), cause, action)
    })
}

fn stuck(job: &Job, now: u64) -> Option<Finding> {
    let waits = now.saturating_sub(job.updated_at);
    let is_stuck = job.progress.state != JobState::Completed && waits > STUCK_AFTER;
    is_stuck.then(|| {
        let (object, to) = (format!("docs token {}", job.token), &job.to);
        let cause =
            format!("its copy on node {to} has not got on for {waits} s ({} of {})", job.cursor, job.total);
        let action = format!("see `capstan docs moves` and the log of node {to}");
        Finding::new(MOVE_STUCK, Severity::Degraded, object, cause, action).since(job.updated_at)
    })
}

fn unreachable(facts: &Facts) -> Option<Finding> {
    let reports =
        facts.nodes.iter().filter_map(|(node, _, status)| Some((node, status.as_ref()?.queue.as_ref()?)));
    let cut_off: Vec<_> = reports.filter(|(_, queue)| !queue.reachable).collect();
    let (_, first) = cut_off.iter().min_by_key(|(_, queue)| queue.since)?;
    let nodes: Vec<&str> = cut_off.iter().map(|(node, _)| node.as_str()).collect();
    let cause = format!(
        "no connection from {}: {}; tokens that move to a node wait, everything else goes on",
        nodes.join(", "),
        first.error
    );
    let action = "start RabbitMQ, or correct docs.queue of these nodes; moves go on by themselves";
    let found = Finding::new(QUEUE_UNREACHABLE, Severity::Degraded, "docs queue", cause, action);
    Some(found.since(first.since))
}

fn building(facts: &Facts) -> Option<Finding> {
    let built: usize =
        facts.nodes.iter().filter_map(|(_, _, status)| status.as_ref()).map(|s| s.building).sum();
    (built > 0).then(|| {
        let cause = format!("{built} tokens are building indexes; until then queries look at all documents");
        Finding::new(INDEX_BUILDING, Severity::Notice, "docs indexes", cause, "nothing: it ends by itself")
    })
}

fn filling(node: &str, free: u64, total: u64) -> Option<Finding> {
    (total > 0 && free < total / FREE_SHARE).then(|| {
        let cause = format!("{} % of its disk are left", free * 100 / total);
        let action = "make room on its disk, or add a node";
        Finding::new(DISK_FILLING, Severity::Degraded, format!("docs node {node}"), cause, action)
    })
}

#[cfg(test)]
mod tests {
    use capstan_log::LogConfig;
    use capstan_meta::record::Extra;

    use super::*;
    use crate::decide::JobProgress;
    use crate::status::QueueReport;

    fn token(in_sync: usize) -> (Token, LogConfig) {
        let holders: Vec<String> = (1..=3).map(|number| format!("docs.n{number}")).collect();
        let config = serde_json::json!({
            "epoch": 1, "primary": "docs.n1", "holders": holders, "in_sync": holders[..in_sync], "min_copies": 2,
        });
        ("7".parse().unwrap(), serde_json::from_value(config).unwrap())
    }

    fn node(state: NodeState, building: usize) -> (HostId, NodeRecord, Option<NodeStatus>) {
        let record = NodeRecord { state, since: 0, extra: Extra::default() };
        let http = "127.0.0.1:1".parse().unwrap();
        (
            "n1".parse().unwrap(),
            record,
            Some(NodeStatus { http, building, unusable: 0, queue: None, extra: Extra::default() }),
        )
    }

    fn job(state: JobState) -> Job {
        Job {
            token: "7".to_owned(),
            from: "n1".to_owned(),
            to: "n4".to_owned(),
            progress: JobProgress { state, ..JobProgress::started() },
            cursor: 5,
            copied: 0,
            batch: 0,
            total: 9,
            epoch: 1,
            started_at: 0,
            updated_at: 100,
            extra: Extra::default(),
        }
    }

    fn codes(facts: &Facts, now: u64) -> Vec<(String, Severity)> {
        findings(facts, now).into_iter().map(|found| (found.code.to_string(), found.severity)).collect()
    }

    #[test]
    fn a_healthy_cluster_has_no_findings() {
        let facts = Facts {
            cluster: Some(ClusterSpec::default()),
            tokens: vec![token(3)],
            nodes: vec![node(NodeState::Ok, 0)],
            jobs: vec![job(JobState::Completed)],
            disks: vec![("n1".to_owned(), 50, 100)],
        };
        assert_eq!(codes(&facts, 1_000), []);
        assert_eq!(codes(&Facts::default(), 0), []);
    }

    #[test]
    fn every_fault_has_its_finding() {
        let mut facts = Facts {
            cluster: Some(ClusterSpec::default()),
            tokens: vec![token(3), token(2)],
            nodes: vec![node(NodeState::NeedSync, 2)],
            jobs: vec![job(JobState::RequestNextBatch)],
            disks: vec![("n1".to_owned(), 5, 100)],
        };
        let expected = [
            ("docs-token-under-replicated".to_owned(), Severity::Degraded),
            ("docs-node-need-sync".to_owned(), Severity::Degraded),
            ("docs-move-stuck".to_owned(), Severity::Degraded),
            ("docs-index-building".to_owned(), Severity::Notice),
            ("docs-disk-filling".to_owned(), Severity::Degraded),
        ];
        assert_eq!(codes(&facts, 161), expected);
        // A queue that cannot be reached.
        let error = "connection refused".to_owned();
        let (_, _, status) = &mut facts.nodes[0];
        status.as_mut().unwrap().queue = Some(QueueReport { reachable: false, since: 90, error });
        let found = findings(&facts, 161);
        let queue = found.iter().find(|found| found.code == QUEUE_UNREACHABLE).unwrap();
        assert_eq!((queue.severity, queue.since), (Severity::Degraded, Some(90)));
        assert!(queue.cause.contains("no connection from n1: connection refused"), "{}", queue.cause);
        let (_, _, status) = &mut facts.nodes[0];
        status.as_mut().unwrap().queue =
            Some(QueueReport { reachable: true, since: 95, error: String::new() });
        assert_eq!(codes(&facts, 161), expected);
        let (_, _, status) = &mut facts.nodes[0];
        status.as_mut().unwrap().unusable = 3;
        let found = codes(&facts, 161);
        assert_eq!((found[2].0.as_str(), found[2].1), ("docs-token-lost", Severity::Critical));
        let (_, _, status) = &mut facts.nodes[0];
        status.as_mut().unwrap().unusable = 0;
        // A job that got on a minute ago is not stuck; fewer copies than a write needs are critical.
        facts.tokens.push(token(1));
        let found = codes(&facts, 160);
        assert_eq!((found.len(), found[0].1), (4, Severity::Critical));
    }
}
