//! How much memory may uncommitted appends and received packets use? Each has one limit per log and one per host.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of an append besides its data: ticket, reply, queue entries.
const PER_APPEND: usize = 256;
/// Bytes of an entry besides its data: its record's header, twice.
const PER_ENTRY: usize = 96;

/// The limits of one log and of all logs of the host, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    log: Arc<Semaphore>,
    host: Arc<Semaphore>,
    /// The maximum of one append: the smaller of both limits.
    most: u32,
}

/// A reservation: of an append until it is committed or has failed, of a packet until it is processed.
#[derive(Debug)]
pub(super) struct Room {
    _log: OwnedSemaphorePermit,
    _host: OwnedSemaphorePermit,
}

/// The limit for all logs of a host.
pub(super) fn host(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)))
}

impl Budget {
    /// The limit for one log, within the host's.
    pub(super) fn new(log_bytes: usize, host_bytes: usize, host: &Arc<Semaphore>) -> Budget {
        let log_bytes = log_bytes.min(Semaphore::MAX_PERMITS);
        let most = u32::try_from(log_bytes.min(host_bytes)).unwrap_or(u32::MAX);
        Budget { log: Arc::new(Semaphore::new(log_bytes)), host: Arc::clone(host), most }
    }

    /// Waits for a reservation; the log's own first, so that a busy log does not block the others. `None` if the log
    /// was closed.
    pub(super) async fn room(&self, batch: &[Bytes]) -> Option<Room> {
        let bytes = batch.iter().map(|data| data.len() + PER_ENTRY).sum::<usize>() + PER_APPEND;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(self.most);
        let log = Arc::clone(&self.log).acquire_many_owned(bytes).await.ok()?;
        let host = Arc::clone(&self.host).acquire_many_owned(bytes).await.ok()?;
        Some(Room { _log: log, _host: host })
    }

    /// A reservation for a packet with this many bytes, if there is space now.
    pub(super) fn room_now(&self, bytes: usize) -> Option<Room> {
        let bytes = u32::try_from(bytes + PER_APPEND).unwrap_or(u32::MAX).min(self.most);
        let log = Arc::clone(&self.log).try_acquire_many_owned(bytes).ok()?;
        let host = Arc::clone(&self.host).try_acquire_many_owned(bytes).ok()?;
        Some(Room { _log: log, _host: host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_log_that_waits_leaves_room_for_the_others() {
        let shared = host(10_000);
        let (one, other) = (Budget::new(2_000, 10_000, &shared), Budget::new(2_000, 10_000, &shared));
        let batch = [Bytes::from(vec![0; 1_500])];
        let held = one.room(&batch).await.unwrap();
        let waits = tokio::time::timeout(Duration::from_secs(1), one.room(&batch)).await;
        assert!(waits.is_err());
        assert!(other.room(&batch).await.is_some());
        drop(held);
        assert!(one.room(&batch).await.is_some());
        // An append above the limit waits until it is alone.
        assert!(one.room(&[Bytes::from(vec![0; 50_000])]).await.is_some());
    }

    #[test]
    fn a_log_that_does_not_take_its_packets_gets_no_more_of_them() {
        let shared = host(10_000);
        let (one, other) = (Budget::new(4_000, 10_000, &shared), Budget::new(4_000, 10_000, &shared));
        let held: Vec<Room> = std::iter::from_fn(|| one.room_now(1_000)).collect();
        assert_eq!(held.len(), 3);
        let others: Vec<Room> = std::iter::from_fn(|| other.room_now(1_000)).collect();
        assert_eq!(others.len(), 3);
        drop(held);
        assert!(one.room_now(100_000).is_some(), "a packet above the limit when it is alone");
    }
}
