//! Has every worker adopted the routing table? Until then a worker may still deliver replies under the old
//! one.
//!
//! The keeper numbers the tables that it publishes; each worker reports at the beginning of a turn which one
//! it has. What it wrote to clients before was received under an older table, and before the coordinator got
//! its reply.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// How long a worker may take to begin its next turn: a thousand times what a busy one needs.
const ADOPTED_WITHIN: Duration = Duration::from_secs(1);

/// A worker did not adopt the table in time: the coordinator retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("TRYAGAIN a thread of the proxy has not adopted the routing table yet")]
pub(super) struct NotAdopted;

/// The numbers of the published table and of each worker's table.
#[derive(Debug)]
pub(super) struct Adoption {
    published: AtomicU64,
    adopted: Vec<AtomicU64>,
    changed: Notify,
}

impl Adoption {
    pub(super) fn new(workers: usize) -> Adoption {
        let adopted = std::iter::repeat_with(AtomicU64::default).take(workers).collect();
        Adoption { published: AtomicU64::new(0), adopted, changed: Notify::new() }
    }

    /// Counts a table that was stored for the workers to load.
    pub(super) fn publish(&self) {
        self.published.fetch_add(1, Ordering::AcqRel);
    }

    /// The number of the newest table.
    #[inline]
    pub(super) fn published(&self) -> u64 {
        self.published.load(Ordering::Acquire)
    }

    /// Records that a worker has this table, or a newer one.
    #[inline]
    pub(super) fn adopted(&self, worker: usize, table: u64) {
        if let Some(known) = self.adopted.get(worker)
            && known.load(Ordering::Relaxed) != table
        {
            known.store(table, Ordering::Release);
            self.changed.notify_one();
        }
    }

    /// Waits until every worker has the newest table.
    pub(super) async fn complete(&self) -> Result<(), NotAdopted> {
        let table = self.published();
        let all = || self.adopted.iter().all(|known| known.load(Ordering::Acquire) >= table);
        let wait = async {
            while !all() {
                self.changed.notified().await;
            }
        };
        timeout(ADOPTED_WITHIN, wait).await.map_err(|_| NotAdopted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_table_is_adopted_when_the_last_worker_has_it() {
        let adoption = Adoption::new(2);
        assert_eq!(adoption.complete().await, Ok(()), "nothing was published");
        adoption.publish();
        let table = adoption.published();
        adoption.adopted(0, table);
        assert_eq!(adoption.complete().await, Err(NotAdopted));
        adoption.adopted(1, table);
        assert_eq!(adoption.complete().await, Ok(()));
        adoption.publish();
        adoption.adopted(0, adoption.published());
        let (done, ()) = tokio::join!(adoption.complete(), async { adoption.adopted(1, table + 1) });
        assert_eq!(done, Ok(()));
    }
}
