//! How often does a log at rest need attention? A host with thousands of logs cannot send a heartbeat for each of them
//! five times per second, so the intervals double while nothing happens, up to a limit that the host sets.
//!
//! A log is at rest when everything is committed, every copy is complete and was told so. A follower adapts to the
//! intervals it sees. Silence is counted from the first message that was not answered, so that a long interval is not
//! taken for a lagging copy.

use std::time::Duration;

use super::{Moment, Replica, Role};

/// The maximum interval between heartbeats, whatever the host sets: a dead copy of a log at rest is noticed after it.
const LONGEST: Duration = Duration::from_secs(10);
/// The tick of a copy without a part in the log.
const IDLE: Duration = Duration::from_secs(1);

impl Replica {
    /// Sets the maximum interval between heartbeats of a log at rest.
    pub fn rest_up_to(&mut self, limit: Duration) {
        self.rest = limit;
    }

    pub(super) fn longest_pause(&self) -> Duration {
        self.rest.min(LONGEST).max(self.timing.heartbeat)
    }

    /// How long a primary may be silent whose last two messages were this far apart. Intervals at most double.
    pub(super) fn patience_after(&self, gap: Duration) -> Duration {
        self.timing.resend + gap.min(LONGEST) * 2
    }

    /// How long this copy can go without a tick, unless something else happens.
    #[must_use]
    pub fn pause(&self, now: Moment) -> Duration {
        let least = self.timing.heartbeat / 2;
        let due = match &self.role {
            Role::Primary(primary) => match &self.known {
                Some(known) => {
                    primary.next_heartbeat(self.local.history.end(), self.committed, &known.config)
                }
                None => None,
            },
            Role::Follower(follower) => Some(follower.impatient_at(self.patience(follower))),
            Role::Claiming => None,
            Role::Idle | Role::Halted => Some(now + IDLE),
        };
        due.map_or(least, |due| due.saturating_sub(now).max(least))
    }
}
