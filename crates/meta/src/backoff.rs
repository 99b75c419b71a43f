//! How long to wait before trying again? Twice as long each time up to a cap, with jitter from a seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Waiting times of one activity. The same seed gives the same times, so simulations replay.
#[derive(Debug)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    failures: u32,
    rng: StdRng,
}

impl Backoff {
    /// Waits about `base` after the first failure and never longer than `cap`.
    #[must_use]
    pub fn new(base: Duration, cap: Duration, seed: u64) -> Backoff {
        Backoff { base, cap, failures: 0, rng: StdRng::seed_from_u64(seed) }
    }

    /// How long to wait now: between half and the whole of the present step, so that many do not come back at once.
    pub fn next_wait(&mut self) -> Duration {
        let step = self.base.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.cap);
        self.failures = self.failures.saturating_add(1);
        step.mul_f64(self.rng.random_range(0.5..=1.0))
    }

    /// It worked: the next failure is a first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures since the last success.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_begin_again_after_a_success() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 5 * second, 7);
        for step in [1, 2, 4, 5, 5, 5] {
            let wait = backoff.next_wait();
            assert!(wait >= step * second / 2 && wait <= step * second, "{wait:?} for a step of {step} s");
        }
        backoff.reset();
        assert!(backoff.next_wait() <= second);
    }
}
