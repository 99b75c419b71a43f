//! The only place that reads the system's clocks. Decisions are made on monotonic time; the wall clock is for records that
//! people read. Monotonic time stands still while a machine is suspended, and the rest of the world does not:
//! [`suspended`] says by how much.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

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

/// A moment whose age counts the time in suspend too. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    /// How long the machine had been suspended by then, in all.
    pub(crate) suspended: Duration,
}

impl Moment {
    pub(crate) fn now() -> Moment {
        // In this order: a suspension between the two counts as one after them.
        let suspended = suspended();
        Moment { at: Instant::now(), suspended }
    }

    /// The time since.
    pub(crate) fn elapsed(self) -> Duration {
        // The clock that stands still in suspend is read last: what passes between the two calls counts.
        let suspended = suspended();
        self.age(Instant::now(), suspended)
    }

    /// How old it is now that the machine has been suspended for so long in all.
    fn age(self, now: Instant, suspended: Duration) -> Duration {
        now.saturating_duration_since(self.at) + slept(self.suspended, suspended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_moment_counts_time_asleep() {
        let (start, seconds) = (Instant::now(), Duration::from_secs);
        let moment = Moment { at: start, suspended: seconds(50) };
        assert_eq!(moment.age(start + seconds(3), seconds(50)), seconds(3));
        assert_eq!(moment.age(start + seconds(3), seconds(90)), seconds(43));
        assert_eq!(moment.age(start + seconds(3), Duration::from_millis(50_020)), seconds(3), "two clocks");
        assert!(Moment::now().elapsed() < seconds(60));
    }
}
