//! How do many wait for the newest value of something? Like tokio's `watch` channel, but waiters wake in the order in
//! which they began to wait. Tokio's own wakes them in a random order, and a simulation could not be repeated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A value and who waits for the next one.
#[derive(Debug)]
struct Shared<T> {
    value: Mutex<Versioned<T>>,
    changed: Notify,
    closed: AtomicBool,
}

#[derive(Debug)]
struct Versioned<T> {
    version: u64,
    value: T,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Versioned<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Nobody can send a newer value any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no sender is left")]
pub struct Closed;

/// Begins with a value.
pub fn channel<T: Clone>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

/// Sets the value.
#[derive(Debug)]
pub struct Sender<T>(Arc<Shared<T>>);

impl<T: Clone> Sender<T> {
    /// Begins with a value that nobody waits for yet.
    pub fn new(value: T) -> Sender<T> {
        let value = Mutex::new(Versioned { version: 0, value });
        Sender(Arc::new(Shared { value, changed: Notify::new(), closed: AtomicBool::new(false) }))
    }

    /// Someone who waits for values after this one.
    #[must_use]
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver { seen: self.0.lock().version, shared: self.0.clone() }
    }

    /// The newest value.
    #[must_use]
    pub fn get(&self) -> T {
        self.0.lock().value.clone()
    }

    /// Sets the value and wakes everyone who waits.
    pub fn set(&self, value: T) {
        self.set_if(|present| {
            *present = value;
            true
        });
    }

    /// Changes the value in place; wakes everyone if the change says that there was one.
    pub fn set_if(&self, change: impl FnOnce(&mut T) -> bool) {
        let mut present = self.0.lock();
        if change(&mut present.value) {
            present.version += 1;
            drop(present);
            self.0.changed.notify_waiters();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.changed.notify_waiters();
    }
}

/// Reads the value and waits for newer ones.
#[derive(Clone, Debug)]
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

impl<T: Clone> Receiver<T> {
    /// The newest value; it still counts as unseen.
    #[must_use]
    pub fn get(&self) -> T {
        self.shared.lock().value.clone()
    }

    /// The newest value; from here on it counts as seen.
    pub fn see(&mut self) -> T {
        let present = self.shared.lock();
        self.seen = present.version;
        present.value.clone()
    }

    /// Waits for a value that was not seen, which then counts as seen. Cancel-safe.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        let shared = self.shared.clone();
        loop {
            let mut changed = std::pin::pin!(shared.changed.notified());
            changed.as_mut().enable();
            let version = shared.lock().version;
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if shared.closed.load(Ordering::Acquire) {
                return Err(Closed);
            }
            changed.await;
        }
    }

    /// Waits until the newest value is as wanted. Cancel-safe.
    pub async fn wait_for(&mut self, mut wanted: impl FnMut(&T) -> bool) -> Result<T, Closed> {
        loop {
            let value = self.see();
            if wanted(&value) {
                return Ok(value);
            }
            self.changed().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Few enough for all of them to begin to wait in one turn of the runtime.
    const WAITERS: usize = 20;

    #[tokio::test]
    async fn a_receiver_sees_the_newest_value_and_the_end() {
        let (sender, mut receiver) = channel(1);
        sender.set(2);
        sender.set(3);
        assert_eq!(receiver.changed().await, Ok(()));
        assert_eq!(receiver.see(), 3);
        sender.set_if(|_| false);
        drop(sender);
        assert_eq!(receiver.changed().await, Err(Closed));
        assert_eq!(receiver.wait_for(|value| *value == 3).await, Ok(3));
        assert_eq!(receiver.wait_for(|value| *value == 4).await, Err(Closed));
    }

    #[tokio::test]
    async fn waiters_wake_in_the_order_in_which_they_began_to_wait() {
        let sender = Sender::new(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..WAITERS {
            let (mut receiver, order) = (sender.subscribe(), order.clone());
            tasks.spawn(async move {
                receiver.changed().await.unwrap();
                order.lock().unwrap().push(n);
            });
        }
        tokio::task::yield_now().await;
        sender.set(1);
        tasks.join_all().await;
        assert_eq!(*order.lock().unwrap(), (0..WAITERS).collect::<Vec<_>>());
    }
}
