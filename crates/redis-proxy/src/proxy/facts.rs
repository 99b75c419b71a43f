//! What does the proxy report about itself? Counters that workers update once per turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::answers::Facts;

use super::worker::Worker;

/// Counters of all workers together.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) commands: AtomicU64,
    pub(super) input: AtomicU64,
    pub(super) output: AtomicU64,
    /// Clients blocked in a node.
    pub(super) blocked: AtomicU64,
}

impl Worker {
    /// Everything that `INFO` shows.
    pub(super) fn facts(&self) -> Facts {
        let shared = &self.shared;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (resident_bytes, cpu_user, cpu_system) = usage();
        Facts {
            now: capstan_meta::clock::since_epoch(),
            uptime: self.now.duration_since(shared.started),
            run_id: shared.run_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            port: shared.address.port(),
            process_id: std::process::id(),
            clients: shared.clients.load(Ordering::Relaxed) as u64,
            blocked_clients: of(&shared.counters.blocked),
            max_clients: shared.limits.clients as u64,
            rejected_connections: of(&shared.counters.rejected),
            total_connections: of(&shared.counters.connections),
            total_commands: of(&shared.counters.commands),
            input_bytes: of(&shared.counters.input),
            output_bytes: of(&shared.counters.output),
            resident_bytes,
            cpu_system,
            cpu_user,
            idle_seconds: shared.limits.idle.as_secs(),
            max_bulk: shared.limits.argument_bytes as u64,
            max_request: shared.limits.query_bytes as u64,
            ..Facts::default()
        }
    }
}

/// Memory and CPU time of the process, as far as the system reports it.
fn usage() -> (u64, Duration, Duration) {
    let of = |time: nix::sys::time::TimeVal| {
        use nix::sys::time::TimeValLike as _;
        Duration::from_micros(u64::try_from(time.num_microseconds()).unwrap_or(0))
    };
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok()).unwrap_or(0);
    match nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF) {
        Ok(usage) => (pages * 4096, of(usage.user_time()), of(usage.system_time())),
        Err(_) => (pages * 4096, Duration::ZERO, Duration::ZERO),
    }
}
