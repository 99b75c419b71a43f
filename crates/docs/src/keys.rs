//! Every key of the document store and the record that it leads to. The only place of this crate with key text.
//!
//! A token's holders, its primary and its epoch are the record of its log (`/capstan/logs/docs-<token>`), which is not
//! repeated here.

use capstan_control::keys::HostId;
use capstan_meta::{keys, names};

use crate::spec::{AccessKey, BackupSchedule, ClusterSpec, CollectionSpec, DatabaseSpec, User};
use crate::status::{BackupRecord, Dropping, Job, NodeRecord, NodeStatus};

names! {
    /// Names a database.
    pub struct DatabaseName;

    /// Names a collection in its database.
    pub struct CollectionName;

    /// Names an access key.
    pub struct AccessId;

    /// Names a user.
    pub struct UserName;

    /// The id of a collection as text.
    pub struct CollectionKeyId;

    /// A token as text.
    pub struct TokenName;

    /// Names a backup, or a schedule of backups.
    pub struct BackupId;
}

keys! {
    /// Every key of the document store, in the order of the path.
    pub const CATALOGUE;

    /// A node that runs: where it serves the API.
    pub struct AliveKey { node: HostId } at "/docs/alive/{node}" => NodeStatus {
        writer: "the node, under the lease of its host",
        lifetime: Leased,
        prefixes: [
            /// Every node that runs.
            pub struct Alive {} at "/docs/alive/",
        ],
    }

    /// When backups are made by themselves.
    pub struct BackupScheduleKey { id: BackupId } at "/docs/backup-schedules/{id}" => BackupSchedule {
        writer: "operators, through a node; the node that begins a backup of the schedule",
        lifetime: Durable,
        prefixes: [
            /// Every schedule.
            pub struct BackupSchedules {} at "/docs/backup-schedules/",
        ],
    }

    /// A backup that a node keeps.
    pub struct BackupKey { id: BackupId } at "/docs/backups/{id}" => BackupRecord {
        writer: "the node that makes it and keeps it; removed with its files when its retention is over",
        lifetime: Durable,
        prefixes: [
            /// Every backup.
            pub struct Backups {} at "/docs/backups/",
        ],
    }

    /// How many tokens there are and how many copies each has. Written once.
    pub struct ClusterKey {} at "/docs/cluster" => ClusterSpec {
        writer: "the first node",
        lifetime: Durable,
    }

    /// A collection: its id, its primary key, its indexes.
    pub struct CollectionKey { database: DatabaseName, collection: CollectionName }
        at "/docs/collections/{database}/{collection}" => CollectionSpec {
        writer: "the node that serves the request",
        lifetime: Durable,
        prefixes: [
            /// Every collection.
            pub struct Collections {} at "/docs/collections/",
            /// Every collection of one database.
            pub struct CollectionsOf { database: DatabaseName } at "/docs/collections/{database}/",
        ],
    }

    /// A database.
    pub struct DatabaseKey { database: DatabaseName } at "/docs/databases/{database}" => DatabaseSpec {
        writer: "the node that serves the request",
        lifetime: Durable,
        prefixes: [
            /// Every database.
            pub struct Databases {} at "/docs/databases/",
        ],
    }

    /// A collection that was dropped and whose documents some token may still have.
    pub struct DroppingKey { id: CollectionKeyId } at "/docs/dropping/{id}" => Dropping {
        writer: "the node that serves the request; removed when every token has dropped the documents",
        lifetime: Durable,
        prefixes: [
            /// Every collection that is being dropped.
            pub struct DroppingAll {} at "/docs/dropping/",
        ],
    }

    /// A token that moves to a node: how far it is.
    pub struct JobKey { token: TokenName } at "/docs/jobs/{token}" => Job {
        writer: "the node that receives the token; removed a while after it has ended",
        lifetime: Durable,
        prefixes: [
            /// Every job.
            pub struct Jobs {} at "/docs/jobs/",
        ],
    }

    /// An access key, as a hash.
    pub struct AccessKeyKey { id: AccessId } at "/docs/keys/{id}" => AccessKey {
        writer: "operators, through a node or the command line",
        lifetime: Durable,
        secrecy: Secret,
        prefixes: [
            /// Every access key.
            pub struct AccessKeys {} at "/docs/keys/",
        ],
    }

    /// A node, up or down, and its state.
    pub struct NodeKey { node: HostId } at "/docs/nodes/{node}" => NodeRecord {
        writer: "the node at its first start; every node, when its state changes",
        lifetime: Durable,
        prefixes: [
            /// Every node.
            pub struct Nodes {} at "/docs/nodes/",
        ],
    }

    /// What nodes present to each other. Made by the first one.
    pub struct SecretKey {} at "/docs/secret" => String {
        writer: "the first node",
        lifetime: Durable,
        secrecy: Secret,
    }

    /// A user of the administration.
    pub struct UserKey { user: UserName } at "/docs/users/{user}" => User {
        writer: "operators, through a node",
        lifetime: Durable,
        secrecy: Secret,
        prefixes: [
            /// Every user.
            pub struct Users {} at "/docs/users/",
        ],
    }
}
