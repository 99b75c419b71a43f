//! What is there to know about the proxy itself?

use std::time::Duration;

/// The numbers behind `INFO`, `TIME` and `CONFIG GET`, gathered by the one who answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The wall clock, since 1970.
    pub now: Duration,
    /// How long the proxy has been running.
    pub uptime: Duration,
    /// Forty hex digits, new with every start.
    pub run_id: String,
    /// Version of the proxy.
    pub version: String,
    /// Port for clients.
    pub port: u16,
    /// Id of the process.
    pub process_id: u32,
    /// Clients that are connected.
    pub clients: u64,
    /// Clients that wait in a blocking command.
    pub blocked_clients: u64,
    /// Clients that may be connected.
    pub max_clients: u64,
    /// Clients that were refused.
    pub rejected_connections: u64,
    /// Clients that ever connected.
    pub total_connections: u64,
    /// Commands that were ever answered.
    pub total_commands: u64,
    /// Error replies that were ever given.
    pub total_errors: u64,
    /// Commands in the last second.
    pub commands_per_second: u64,
    /// Bytes that came from clients.
    pub input_bytes: u64,
    /// Bytes that went to clients.
    pub output_bytes: u64,
    /// Memory of the process in bytes.
    pub resident_bytes: u64,
    /// CPU time in the kernel.
    pub cpu_system: Duration,
    /// CPU time in user mode.
    pub cpu_user: Duration,
    /// Channels that somebody here has subscribed to.
    pub channels: u64,
    /// Patterns that somebody here has subscribed to.
    pub patterns: u64,
    /// After how many idle seconds a client is closed; zero: never.
    pub idle_seconds: u64,
    /// Longest argument in bytes.
    pub max_bulk: u64,
    /// Longest request in bytes.
    pub max_request: u64,
}
