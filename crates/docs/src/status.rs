//! What nodes report, and what is known about them.

use std::net::SocketAddr;

use capstan_control::keys::HostId;
use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::decide::{JobProgress, NodeState};
use crate::spec::{BackupScope, Retention};

/// A node, up or down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Its state.
    pub state: NodeState,
    /// When it appeared first, in seconds since 1970.
    pub since: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A node that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Where it serves the API, to clients and to other nodes.
    pub http: SocketAddr,
    /// Tokens that it leads and that build an index.
    #[serde(default)]
    pub building: usize,
    /// Tokens that its records give it and that it cannot open, or whose logs have lost entries.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unusable: usize,
    /// The queue that its copies come over; none: they come directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueReport>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Whether a node reaches the queue that it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueReport {
    /// Whether it is connected.
    pub reachable: bool,
    /// Since when, in seconds since 1970.
    pub since: u64,
    /// Why it is not connected.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
}

/// A collection that was dropped while its data may still be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropping {
    /// Its database.
    pub database: String,
    /// Its name.
    pub collection: String,
    /// The revision at which its record was last changed.
    pub version: u64,
}

/// A token that moves to another node, as its receiver sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The token.
    pub token: String,
    /// The master that sends it.
    pub from: String,
    /// The node that receives it.
    pub to: String,
    /// Its state, with the fields of the specification.
    #[serde(flatten)]
    pub progress: JobProgress,
    /// The position in the token's log up to which the receiver has everything.
    pub cursor: u64,
    /// Pairs that came over a queue, in batches of the copy that the receiver began with.
    #[serde(default)]
    pub copied: u64,
    /// Entries of the batch that has just ended.
    pub batch: u64,
    /// The position that the master is at.
    pub total: u64,
    /// The epoch of the token in which the job was last seen.
    pub epoch: u64,
    /// When it began, in seconds since 1970.
    pub started_at: u64,
    /// When it got on last, in seconds since 1970.
    pub updated_at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What became of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BackupState {
    /// It is being made.
    Started,
    /// It is complete.
    #[serde(rename = "OK")]
    Complete,
    /// It was not made; its record says why.
    #[serde(rename = "ERROR")]
    Failed,
}

/// A backup in a directory of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRecord {
    /// What was saved.
    #[serde(flatten)]
    pub scope: BackupScope,
    /// The minute in which it was begun, in UTC: `YYYYMMDDTHHMM`.
    pub date: String,
    /// When it was begun, in seconds since 1970.
    pub created_at: u64,
    /// The node that keeps it.
    pub node: HostId,
    /// Its directory on that node.
    pub location: String,
    /// Bytes of its files.
    #[serde(default)]
    pub size: u64,
    /// What became of it.
    pub status: BackupState,
    /// Why it was not made.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// How long it is kept; nothing means for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// What became of the last restore from it: its collections, or why there are none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub restore: String,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

json_records!(Job, NodeRecord, NodeStatus, Dropping, BackupRecord);
