//! How far may readers of a log read? A gauge that its copy advances. Reading it costs one atomic load, and readers can
//! wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use capstan_meta::LeaseId;
use tokio::sync::Notify;

use crate::entry::Offset;

/// How readers must treat the committed offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// A follower, or a copy without a role: its committed offset is valid.
    Follower,
    /// A primary whose epoch has not begun: entries acknowledged earlier may not be visible yet.
    Beginning,
    /// A primary: valid only under the lease.
    Primary,
}

/// The state that readers wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) committed: Offset,
    pub(super) duty: Duty,
}

impl Progress {
    /// Packed into one word, so that readers see a change atomically. No log reaches a quarter of all offsets.
    fn word(self) -> u64 {
        let duty = match self.duty {
            Duty::Follower => 0,
            Duty::Beginning => 1,
            Duty::Primary => 2,
        };
        self.committed.0 << 2 | duty
    }

    fn of(word: u64) -> Progress {
        let duty = match word & 3 {
            0 => Duty::Follower,
            1 => Duty::Beginning,
            _ => Duty::Primary,
        };
        Progress { committed: Offset(word >> 2), duty }
    }
}

/// The reader's end of the gauge.
#[derive(Debug)]
pub(super) struct Gauge {
    word: AtomicU64,
    /// The lease under which the copy acts: it has read the configuration since that was granted.
    lease: AtomicI64,
    closed: AtomicBool,
    moved: Notify,
}

impl Gauge {
    /// The current progress.
    pub(super) fn read(&self) -> Progress {
        Progress::of(self.word.load(Ordering::Acquire))
    }

    /// The lease under which the copy acts.
    pub(super) fn lease(&self) -> LeaseId {
        LeaseId(self.lease.load(Ordering::Acquire))
    }

    /// Waits until entries after this offset are committed and readable; false if they never will be here. Cancel-safe.
    pub(super) async fn passes(&self, offset: Offset) -> bool {
        self.reaches(|progress| progress.committed > offset && progress.duty != Duty::Beginning).await
    }

    /// Waits until this copy serves or is not the primary; false if the log is closed first. Cancel-safe.
    pub(super) async fn begins(&self) -> bool {
        self.reaches(|progress| progress.duty != Duty::Beginning).await
    }

    async fn reaches(&self, there: impl Fn(Progress) -> bool) -> bool {
        loop {
            // Registered before the check, so that no change in between is missed.
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if there(self.read()) {
                return true;
            }
            if self.closed.load(Ordering::Acquire) {
                return false;
            }
            moved.await;
        }
    }
}

/// The writer's end of the gauge; readers are notified when it is dropped.
#[derive(Debug)]
pub(super) struct Needle {
    gauge: Arc<Gauge>,
    shown: Progress,
}

impl Needle {
    pub(super) fn at(shown: Progress) -> Needle {
        let gauge = Gauge {
            word: AtomicU64::new(shown.word()),
            lease: AtomicI64::new(LeaseId::NONE.0),
            closed: AtomicBool::new(false),
            moved: Notify::new(),
        };
        Needle { gauge: Arc::new(gauge), shown }
    }

    pub(super) fn gauge(&self) -> Arc<Gauge> {
        Arc::clone(&self.gauge)
    }

    /// Sets the lease under which the copy acts.
    pub(super) fn lease(&self, lease: LeaseId) {
        self.gauge.lease.store(lease.0, Ordering::Release);
    }

    /// The progress that was published last.
    pub(super) fn shown(&self) -> Progress {
        self.shown
    }

    /// Publishes the progress. The committed offset never decreases.
    pub(super) fn move_to(&mut self, committed: Offset, duty: Duty) {
        let next = Progress { committed: committed.max(self.shown.committed), duty };
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

    fn progress(committed: u64, duty: Duty) -> Progress {
        Progress { committed: Offset(committed), duty }
    }

    #[tokio::test]
    async fn readers_wait_for_movement_and_for_the_end() {
        let mut needle = Needle::at(progress(3, Duty::Follower));
        let gauge = needle.gauge();
        assert_eq!(gauge.read(), progress(3, Duty::Follower));
        let waiting = {
            let gauge = needle.gauge();
            async move { gauge.passes(Offset(3)).await }
        };
        let moving = async {
            tokio::task::yield_now().await;
            needle.move_to(Offset(2), Duty::Primary);
            assert_eq!(gauge.read(), progress(3, Duty::Primary));
            tokio::task::yield_now().await;
            needle.move_to(Offset(4), Duty::Beginning);
            tokio::task::yield_now().await;
            needle.move_to(Offset(4), Duty::Primary);
        };
        assert!(tokio::join!(waiting, moving).0);
        let gauge = needle.gauge();
        let (passed, ()) = tokio::join!(gauge.passes(Offset(4)), async { drop(needle) });
        assert!(!passed);
    }
}
