//! How fast may keys be copied? A limit that an operator can change while moves run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A limit in keys per second for all moves of a proxy; zero is unlimited.
#[derive(Debug)]
pub(super) struct Pace {
    limit: AtomicU64,
    /// When the budget used so far is available again.
    free: Mutex<Instant>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { limit: AtomicU64::new(0), free: Mutex::new(Instant::now()) }
    }
}

impl Pace {
    pub(super) fn set(&self, keys_per_second: u64) {
        self.limit.store(keys_per_second, Ordering::Relaxed);
    }

    /// Waits until this many keys may be copied.
    pub(super) async fn take(&self, keys: u64) {
        if let Some(when) = self.slot(keys) {
            sleep_until(when).await;
        }
    }

    fn slot(&self, keys: u64) -> Option<Instant> {
        let limit = self.limit.load(Ordering::Relaxed);
        if limit == 0 || keys == 0 {
            return None;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = (*free).max(Instant::now());
        *free = begin + Duration::from_secs_f64(keys as f64 / limit as f64);
        Some(begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn keys_wait_for_their_turn() {
        let pace = Pace::default();
        let start = Instant::now();
        pace.take(1_000_000).await;
        assert_eq!(start.elapsed(), Duration::ZERO, "no limit");
        pace.set(100);
        for _ in 0..4 {
            pace.take(50).await;
        }
        assert!((1.49..1.6).contains(&start.elapsed().as_secs_f64()), "{:?}", start.elapsed());
    }
}
