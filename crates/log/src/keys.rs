//! Every key of the logs and its record type. The only file of this crate with key text.

use capstan_meta::{keys, names};

use crate::config::{Directory, Grave, LogConfig};

names! {
    /// Names a log, among all logs of the cluster.
    pub struct LogName;

    /// Names a holder of logs: the host that keeps a copy.
    pub struct HolderId;
}

keys! {
    /// Every key of the logs.
    pub const CATALOGUE;

    /// The holders of a log, its primary and its in-sync set: the record that defines every holder's role.
    pub struct LogKey { log: LogName } at "/capstan/logs/{log}" => LogConfig {
        writer: "the controller of the log's service (epochs, learners, leaving); the primary (the in-sync set)",
        lifetime: Durable,
        prefixes: [
            /// Every log.
            pub struct LogKeys {} at "/capstan/logs/",
        ],
    }

    /// The tombstone of a deleted log with the hosts that may still have a copy. Copies without one are never deleted.
    pub struct GraveKey { log: LogName } at "/capstan/log-graves/{log}" => Grave {
        writer: "the controller that deletes a log; each holder takes itself out, the last one deletes the record",
        lifetime: Durable,
        prefixes: [
            /// Every log that is being deleted.
            pub struct GraveKeys {} at "/capstan/log-graves/",
        ],
    }

    /// The directory in which a holder keeps its logs, and its number of starts.
    pub struct DirectoryKey { holder: HolderId } at "/capstan/log-directories/{holder}" => Directory {
        writer: "the holder, when it starts",
        lifetime: Durable,
        prefixes: [
            /// Every holder.
            pub struct DirectoryKeys {} at "/capstan/log-directories/",
        ],
    }
}
