//! How far may readers of a log read? A gauge that its copy moves, that costs one atomic word to look at, and that
//! readers can wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

use crate::entry::Offset;

/// How readers must treat what is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Only under the lease.
    Primary,
    Other,
}

/// What readers wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) committed: Offset,
    pub(super) standing: Standing,
}

impl Progress {
    /// One word, so that no reader sees the one half of a change without the other. No log reaches half of all offsets.
    fn word(self) -> u64 {
        self.committed.0 << 1 | u64::from(self.standing == Standing::Primary)
    }

    fn of(word: u64) -> Progress {
        let standing = if word & 1 == 1 { Standing::Primary } else { Standing::Other };
        Progress { committed: Offset(word >> 1), standing }
    }
}

/// What readers see.
#[derive(Debug)]
pub(super) struct Gauge {
    word: AtomicU64,
    closed: AtomicBool,
    moved: Notify,
}

impl Gauge {
    /// Where the log stands.
    pub(super) fn read(&self) -> Progress {
        Progress::of(self.word.load(Ordering::Acquire))
    }

    /// Waits until entries behind this offset are committed; false if they never will be here. Cancel-safe.
    pub(super) async fn passes(&self, offset: Offset) -> bool {
        loop {
            // Registered before looking, so that no movement in between is missed.
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.read().committed > offset {
                return true;
            }
            if self.closed.load(Ordering::Acquire) {
                return false;
            }
            moved.await;
        }
    }
}

/// The end that moves; readers are told when it is gone.
#[derive(Debug)]
pub(super) struct Needle {
    gauge: Arc<Gauge>,
    shown: Progress,
}

impl Needle {
    pub(super) fn at(shown: Progress) -> Needle {
        let gauge = Gauge {
            word: AtomicU64::new(shown.word()),
            closed: AtomicBool::new(false),
            moved: Notify::new(),
        };
        Needle { gauge: Arc::new(gauge), shown }
    }

    pub(super) fn gauge(&self) -> Arc<Gauge> {
        Arc::clone(&self.gauge)
    }

    /// What readers were shown last.
    pub(super) fn shown(&self) -> Progress {
        self.shown
    }

    /// Shows this from now on. What is committed never falls.
    pub(super) fn move_to(&mut self, committed: Offset, standing: Standing) {
        let next = Progress { committed: committed.max(self.shown.committed), standing };
        if next != self.shown {
            self.shown = next;
            self.gauge.word.store(next.word(), Ordering::Release);
            self.gauge.moved.notify_waiters();
        }
    }
}

impl Drop for Needle {
    fn drop(&mut self) {
        self.gauge.closed.store(true, Ordering::Release);
        self.gauge.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(committed: u64, standing: Standing) -> Progress {
        Progress { committed: Offset(committed), standing }
    }

    #[tokio::test]
    async fn readers_wait_for_movement_and_for_the_end() {
        let mut needle = Needle::at(progress(3, Standing::Other));
        let gauge = needle.gauge();
        assert_eq!(gauge.read(), progress(3, Standing::Other));
        let waiting = {
            let gauge = needle.gauge();
            async move { gauge.passes(Offset(3)).await }
        };
        let moving = async {
            tokio::task::yield_now().await;
            needle.move_to(Offset(2), Standing::Primary);
            assert_eq!(gauge.read(), progress(3, Standing::Primary));
            tokio::task::yield_now().await;
            needle.move_to(Offset(4), Standing::Primary);
        };
        assert!(tokio::join!(waiting, moving).0);
        let gauge = needle.gauge();
        let (passed, ()) = tokio::join!(gauge.passes(Offset(4)), async { drop(needle) });
        assert!(!passed);
    }
}
