//! Which facts does the proxy report about itself?

use std::time::Duration;

/// The values behind `INFO`, `TIME` and `CONFIG GET`, gathered by the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The wall clock, since 1970.
    pub now: Duration,
    /// How long the proxy has been running.
    pub uptime: Duration,
    /// Forty hex digits, new at every start.
    pub run_id: String,
    /// Version of the proxy.
    pub version: String,
    /// Port for clients.
    pub port: u16,
    /// Id of the process.
    pub process_id: u32,
    /// Connected clients.
    pub clients: u64,
    /// Clients waiting in a blocking command.
    pub blocked_clients: u64,
    /// Most clients that may be connected.
    pub max_clients: u64,
    /// Refused clients.
    pub rejected_connections: u64,
    /// Accepted clients since the start.
    pub total_connections: u64,
    /// Commands answered since the start.
    pub total_commands: u64,
    /// Error replies since the start.
    pub total_errors: u64,
    /// Commands in the last second.
    pub commands_per_second: u64,
    /// Bytes received from clients.
    pub input_bytes: u64,
    /// Bytes sent to clients.
    pub output_bytes: u64,
    /// Memory of the process in bytes.
    pub resident_bytes: u64,
    /// CPU time in the kernel.
    pub cpu_system: Duration,
    /// CPU time in user mode.
    pub cpu_user: Duration,
    /// Channels with subscribers on this proxy.
    pub channels: u64,
    /// Patterns with subscribers on this proxy.
    pub patterns: u64,
    /// Idle seconds after which a client is closed; zero: never.
    pub idle_seconds: u64,
    /// Longest argument in bytes.
    pub max_bulk: u64,
    /// Longest request in bytes.
    pub max_request: u64,
}
