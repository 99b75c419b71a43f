//! A rate that slows down and never discards.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// How far ahead of its rate a sender may be: short bursts pass.
const BURST: Duration = Duration::from_millis(100);

/// Spaces events out. A rate of zero is no limit.
#[derive(Debug)]
pub(crate) struct Throttle {
    /// When the next event is due at this rate.
    due: Mutex<Instant>,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle { due: Mutex::new(Instant::now()) }
    }
}

impl Throttle {
    /// Counts so many events at this rate a second, and says when they may take place.
    pub(crate) fn take(&self, events: u32, rate: u32) -> Option<Instant> {
        if rate == 0 {
            return None;
        }
        let now = Instant::now();
        let mut due = self.due.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let floor = now.checked_sub(BURST).unwrap_or(now);
        let at = (*due).max(floor);
        *due = at + Duration::from_secs(events.into()) / rate;
        (at > now).then_some(at)
    }
}
