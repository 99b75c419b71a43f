//! The only place that reads the system's clocks. Decisions are made on monotonic time; the wall clock is for records that
//! people read. Monotonic time stands still while a machine is suspended, and the rest of the world does not:
//! [`suspended`] says by how much.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since 1970; zero if the machine's clock is set before it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one module that may")]
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// How long the machine has been suspended since it started, in all; zero if the system cannot say.
#[must_use]
pub fn suspended() -> Duration {
    use nix::time::{ClockId, clock_gettime};
    let read = |clock| clock_gettime(clock).map(Duration::from).unwrap_or_default();
    // In this order: what passes between the two calls never looks like a suspension.
    let boot = read(ClockId::CLOCK_BOOTTIME);
    boot.saturating_sub(read(ClockId::CLOCK_MONOTONIC))
}

/// Shorter suspensions are not told from the time between reading two clocks; they are within the margin of a lease.
const LEAST_SUSPENSION: Duration = Duration::from_millis(100);

/// How long the machine was suspended between two readings of [`suspended`].
#[must_use]
pub fn slept(before: Duration, after: Duration) -> Duration {
    let since = after.saturating_sub(before);
    if since < LEAST_SUSPENSION { Duration::ZERO } else { since }
}
