//! Tasks that live exactly as long as the value that owns them. The store is below the supervisor of `control`, so it
//! brings its own: nothing here outlives its owner.

use std::future::Future;

/// A running task that is aborted when this is dropped.
#[derive(Debug)]
pub struct OwnedTask(tokio::task::JoinHandle<()>);

impl OwnedTask {
    /// Runs a future until it ends or the returned value is dropped.
    #[expect(clippy::disallowed_methods, reason = "owned: it cannot outlive its owner")]
    pub fn spawn(future: impl Future<Output = ()> + Send + 'static) -> OwnedTask {
        OwnedTask(tokio::spawn(future))
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs a future that feeds a channel and ends by itself when nobody receives any more.
#[expect(clippy::disallowed_methods, reason = "it ends with its receiver")]
pub(crate) fn spawn_producer(future: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(future);
}
