//! How does a process say that it is alive? One lease, kept alive, with every ephemeral key of the process on it.
//!
//! Two clocks decide, and never the other side's: the store ends the lease when it has heard nothing for its time to
//! live; the owner must not act after [`Session::deadline`], which is counted from *sending* the last renewal that
//! worked and ends a safety margin earlier. So the owner stops before anybody else can take over.
//!
//! A lost lease is replaced by a new one, and everything that was registered is registered again under it. Whoever
//! holds something by the lease (a leadership) sees the change in [`Session::state`].

mod claim;
mod lease;
mod register;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::backoff::Backoff;
use crate::clock::{self, Moment};
use crate::error::{MetaError, Result};
use crate::kv::LeaseId;
use crate::record::Key;
use crate::store::Store;
use crate::task::OwnedTask;
pub use claim::Taken;
use lease::{Act, Heard, Keeping};
use register::{Registrar, Wishes};

/// How a session is kept.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How long the store waits for a sign of life.
    pub ttl: Duration,
    /// How much earlier the owner stops acting: more than two clocks can drift apart in one `ttl`.
    pub margin: Duration,
    /// Waits between attempts to reach the store: the first, and the longest.
    pub retry: (Duration, Duration),
    /// How often it is checked that the registered keys are still there (somebody may have deleted one by hand).
    pub verify_every: Duration,
    /// Where the jitter of the waits comes from.
    pub seed: u64,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            ttl: Duration::from_secs(10),
            margin: Duration::from_secs(2),
            retry: (Duration::from_millis(100), Duration::from_secs(2)),
            verify_every: Duration::from_secs(30),
            seed: rand::random(),
        }
    }
}

/// Whether the process is known to be alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// There is no lease, and nothing is registered.
    Lost,
    /// There is a lease. Past `until` the owner must not act, although the lease may turn out to live still.
    Live {
        /// The lease.
        lease: LeaseId,
        /// When the owner stops acting unless the lease is renewed before; earlier if the machine is suspended meanwhile.
        until: Instant,
        /// How long the machine had been suspended in all ([`clock::suspended`]) when the last renewal was sent.
        suspended: Duration,
    },
}

impl SessionState {
    /// The lease that can be acted on now.
    #[must_use]
    pub fn lease_now(self) -> Option<LeaseId> {
        // The clock that stands still in suspend is read last: what passes between the two calls counts.
        let suspended = clock::suspended();
        self.lease_at(Instant::now(), suspended)
    }

    /// The lease that can be acted on at this moment, by which the machine has been suspended for so long in all.
    fn lease_at(self, now: Instant, suspended: Duration) -> Option<LeaseId> {
        match self {
            SessionState::Live { lease, until, suspended: before }
                if now + clock::slept(before, suspended) < until =>
            {
                Some(lease)
            }
            SessionState::Live { .. } | SessionState::Lost => None,
        }
    }
}

/// A process lease that is kept alive. Clones are the same session; it ends with the last of them, and its keys with
/// its lease.
#[derive(Clone, Debug)]
pub struct Session {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    state: watch::Receiver<SessionState>,
    doubt: Arc<Notify>,
    wishes: Arc<Wishes>,
    tasks: Mutex<Vec<OwnedTask>>,
}

/// A machine that was suspended finds out this soon after it resumes, although its timers stood still.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Session {
    /// Begins a session. It has no lease until the store grants one; see [`Session::live`].
    #[must_use]
    pub fn start(store: Store, options: SessionOptions) -> Session {
        let (publish, state) = watch::channel(SessionState::Lost);
        let doubt = Arc::new(Notify::new());
        let wishes = Arc::new(Wishes::new());
        let keeper = Keeper::new(store.clone(), options.clone(), publish, doubt.clone());
        let registrar = Registrar::new(store.clone(), options, state.clone(), doubt.clone(), wishes.clone());
        let tasks = vec![OwnedTask::spawn(keeper.run()), OwnedTask::spawn(registrar.run())];
        Session { inner: Arc::new(Inner { store, state, doubt, wishes, tasks: Mutex::new(tasks) }) }
    }

    /// Where the session stands; a receiver sees every renewal and loss.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<SessionState> {
        self.inner.state.clone()
    }

    /// The instant after which the owner must not act; nothing while there is no lease.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        match *self.inner.state.borrow() {
            SessionState::Live { until, .. } => Some(until),
            SessionState::Lost => None,
        }
    }

    /// The lease that can be acted on now.
    #[must_use]
    pub fn lease(&self) -> Option<LeaseId> {
        self.inner.state.borrow().lease_now()
    }

    /// The instant after which the owner must not act on this lease; nothing if it must not act now.
    #[must_use]
    pub fn valid_until(&self, lease: LeaseId) -> Option<Instant> {
        self.deadline().filter(|_| self.lease() == Some(lease))
    }

    /// Waits for a lease that can be acted on; nothing once the session is closed.
    pub async fn live(&self) -> Option<LeaseId> {
        let mut state = self.state();
        let found = state.wait_for(|state| state.lease_now().is_some()).await.ok()?;
        found.lease_now()
    }

    /// Waits until this lease can no longer be acted on.
    pub async fn ended(&self, lease: LeaseId) {
        let mut state = self.state();
        loop {
            let seen = *state.borrow_and_update();
            match seen {
                SessionState::Live { until, .. } if seen.lease_now() == Some(lease) => {
                    tokio::select! {
                        biased;
                        changed = state.changed() => if changed.is_err() { return },
                        () = sleep_until(until.min(Instant::now() + LOOK_AGAIN)) => {}
                    }
                }
                SessionState::Live { .. } | SessionState::Lost => return,
            }
        }
    }

    /// Somebody was told that the lease is gone: look now instead of at the next renewal.
    pub fn doubt(&self) {
        self.inner.doubt.notify_one();
    }

    /// Keeps this record registered from now on, under whatever lease the session has. Does not wait.
    pub fn declare<K: Key>(&self, key: &K, record: &K::Record) {
        self.inner.wishes.declare(key.bytes(), key.put(record));
    }

    /// Keeps this record registered, and waits until it is for the first time.
    pub async fn register<K: Key>(&self, key: &K, record: &K::Record) {
        self.declare(key, record);
        self.settled(&key.bytes()).await;
    }

    /// Keeps this record registered, and lets no other process have the key: waits until it is registered for the first
    /// time. What a process left behind that is gone is taken over, as soon as it is clear that it does not renew its
    /// lease; if it does, that is an error.
    pub async fn claim<K: Key>(&self, key: &K, record: &K::Record) -> Result<(), Taken> {
        self.inner.wishes.claim(key.bytes(), key.put(record));
        self.inner.wishes.claimed(&key.bytes()).await
    }

    /// Waits until another process has taken a claimed key: while this one was cut off, say.
    pub async fn taken<K: Key>(&self, key: &K) -> Taken {
        self.inner.wishes.taken(&key.bytes()).await
    }

    /// Takes a registered key back and waits until it is gone. A key that somebody else has taken over stays.
    pub async fn withdraw<K: Key>(&self, key: &K) {
        self.inner.wishes.withdraw(key.bytes());
        self.settled(&key.bytes()).await;
    }

    async fn settled(&self, key: &Bytes) {
        self.inner.wishes.settled(key).await;
    }

    /// Ends the session: the lease is revoked and its keys are gone when this returns without an error.
    pub async fn close(&self) -> Result<()> {
        let lease = match *self.inner.state.borrow() {
            SessionState::Live { lease, .. } => Some(lease),
            SessionState::Lost => None,
        };
        self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.inner.wishes.close();
        match lease {
            None => Ok(()),
            Some(lease) => match self.inner.store.lease_revoke(lease).await {
                Ok(_) | Err(MetaError::LeaseNotFound) => Ok(()),
                Err(error) => Err(error),
            },
        }
    }
}

/// The task that gets a lease and keeps it.
struct Keeper {
    store: Store,
    options: SessionOptions,
    state: watch::Sender<SessionState>,
    doubt: Arc<Notify>,
    backoff: Backoff,
}

impl Keeper {
    fn new(
        store: Store,
        options: SessionOptions,
        state: watch::Sender<SessionState>,
        doubt: Arc<Notify>,
    ) -> Keeper {
        let backoff = Backoff::new(options.retry.0, options.retry.1, options.seed);
        Keeper { store, options, state, doubt, backoff }
    }

    async fn run(mut self) {
        let mut keeping = Keeping::Nothing;
        loop {
            let act = keeping.act();
            if let Act::Renew { at, .. } = act {
                tokio::select! {
                    biased;
                    () = sleep_until(at) => {}
                    () = self.doubt.notified() => {}
                }
            }
            let heard = match act {
                Act::Grant => self.grant().await,
                Act::Renew { lease, .. } => self.renew(lease).await,
            };
            let failed = heard == Heard::Nothing;
            keeping = keeping.step(heard);
            self.state.send_replace(keeping.state(self.options.margin));
            if failed {
                sleep(self.backoff.next_wait()).await;
            } else {
                self.backoff.reset();
            }
        }
    }

    async fn grant(&self) -> Heard {
        let sent_at = Moment::now();
        match self.within(self.store.lease_grant(self.options.ttl, LeaseId::NONE)).await {
            Ok(lease) => Heard::Granted { lease: lease.id, ttl: lease.ttl, sent_at },
            Err(error) => {
                tracing::warn!(%error, "no lease yet");
                Heard::Nothing
            }
        }
    }

    async fn renew(&self, lease: LeaseId) -> Heard {
        let sent_at = Moment::now();
        match self.within(self.store.lease_keep_alive(lease)).await {
            Ok(ttl) => Heard::Renewed { ttl, sent_at },
            Err(MetaError::LeaseNotFound) => {
                tracing::warn!(%lease, "lease is gone");
                Heard::Gone
            }
            Err(error) => {
                tracing::debug!(%error, %lease, "lease was not renewed");
                Heard::Nothing
            }
        }
    }

    /// A call that hangs must leave time for another one before the deadline.
    async fn within<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let given_up = |_| MetaError::Unknown("no answer in time".to_owned());
        timeout(self.options.ttl / 4, call).await.map_err(given_up)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S15: a machine that slept finds its lease in doubt, whatever its monotonic clock says.
    #[test]
    fn time_asleep_counts() {
        let (start, suspended) = (Instant::now(), Duration::from_secs(50));
        let state =
            SessionState::Live { lease: LeaseId(7), until: start + Duration::from_secs(8), suspended };
        let lease = |suspended| state.lease_at(start, suspended);
        assert_eq!(lease(Duration::from_secs(50)), Some(LeaseId(7)));
        assert_eq!(lease(Duration::from_millis(50_020)), Some(LeaseId(7)));
        assert_eq!(lease(Duration::from_secs(57)), Some(LeaseId(7)));
        assert_eq!(lease(Duration::from_secs(58)), None);
    }
}
