//! Every key of the logs and the record that it leads to. The only place of this crate with key text.

use capstan_meta::{keys, names};

use crate::config::LogConfig;

names! {
    /// Names a log, among all logs of the cluster.
    pub struct LogName;

    /// Names a holder of logs: the host that keeps a copy.
    pub struct HolderId;
}

keys! {
    /// Every key of the logs.
    pub const CATALOGUE;

    /// Who holds a log, who is its primary and which copies are complete: the one record that decides.
    pub struct LogKey { log: LogName } at "/capstan/logs/{log}" => LogConfig {
        writer: "the controller of the log's service (epochs, learners, leaving); the primary (the in-sync set)",
        lifetime: Durable,
        prefixes: [
            /// Every log.
            pub struct LogKeys {} at "/capstan/logs/",
        ],
    }
}
