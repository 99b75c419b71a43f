//! The only place that reads the wall clock. Decisions are made on monotonic time; this is for records that people read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time since 1970; zero if the machine's clock is set before it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the one module that may")]
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
