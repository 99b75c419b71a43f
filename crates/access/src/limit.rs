//! How often may a sign-in fail? A pure limiter: failures of one name, and of one address, are answered more and more
//! slowly, and everything is bounded.

use std::collections::HashMap;
use std::time::Duration;

/// Failures in a row that cost nothing: typing errors.
const FREE: u32 = 5;
/// The pause after the first failure beyond those; every further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A name without a failure for so long begins anew.
const FORGET_AFTER: Duration = Duration::from_secs(900);
/// Names and addresses that are remembered. When there are more, those that are not paused are forgotten first.
const REMEMBERED: usize = 10_000;

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Duration,
}

impl Failures {
    fn pause(self) -> Duration {
        let beyond = self.count.saturating_sub(FREE);
        if beyond == 0 {
            return Duration::ZERO;
        }
        FIRST_PAUSE.saturating_mul(1_u32.checked_shl(beyond - 1).unwrap_or(u32::MAX)).min(LONGEST_PAUSE)
    }

    fn until(self) -> Duration {
        self.last + self.pause()
    }
}

/// The failed attempts of every name. Times are those of one monotonic clock of the caller.
#[derive(Debug, Default)]
pub struct Limiter {
    failures: HashMap<String, Failures>,
}

impl Limiter {
    /// How long this name has to wait; nothing if it may try now.
    #[must_use]
    pub fn wait(&self, name: &str, now: Duration) -> Option<Duration> {
        let failures = self.failures.get(name)?;
        failures.until().checked_sub(now).filter(|left| !left.is_zero())
    }

    /// An attempt of this name failed.
    pub fn failed(&mut self, name: &str, now: Duration) {
        self.forget(now);
        let failures = self.failures.entry(name.to_owned()).or_insert(Failures { count: 0, last: now });
        *failures = Failures { count: failures.count.saturating_add(1), last: now };
    }

    /// An attempt of this name succeeded.
    pub fn succeeded(&mut self, name: &str) {
        self.failures.remove(name);
    }

    fn forget(&mut self, now: Duration) {
        if self.failures.len() < REMEMBERED {
            return;
        }
        self.failures.retain(|_, failures| now.saturating_sub(failures.last) < FORGET_AFTER);
        if self.failures.len() >= REMEMBERED {
            self.failures.retain(|_, failures| failures.until() > now);
        }
        if self.failures.len() >= REMEMBERED
            && let Some(oldest) =
                self.failures.iter().min_by_key(|(_, failures)| failures.last).map(|(name, _)| name.clone())
        {
            self.failures.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_slow_a_name_down_and_a_success_forgives() {
        let (mut limiter, mut now) = (Limiter::default(), Duration::ZERO);
        for _ in 0..FREE {
            assert_eq!(limiter.wait("ann", now), None);
            limiter.failed("ann", now);
        }
        assert_eq!(limiter.wait("ann", now), None);
        for pause in [1, 2, 4, 8] {
            limiter.failed("ann", now);
            assert_eq!(limiter.wait("ann", now), Some(Duration::from_secs(pause)));
            assert_eq!(limiter.wait("bob", now), None, "others are not slowed down");
            now += Duration::from_secs(pause);
            assert_eq!(limiter.wait("ann", now), None);
        }
        for _ in 0..100 {
            limiter.failed("ann", now);
        }
        assert_eq!(limiter.wait("ann", now), Some(LONGEST_PAUSE));
        limiter.succeeded("ann");
        assert_eq!(limiter.wait("ann", now), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut limiter = Limiter::default();
        for number in 0..REMEMBERED + 500 {
            limiter.failed(&number.to_string(), Duration::from_millis(number as u64));
        }
        assert!(limiter.failures.len() <= REMEMBERED);
    }
}
