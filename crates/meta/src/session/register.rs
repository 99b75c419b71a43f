//! What keeps the keys of a process registered? A list of wishes, and a task that makes them true under the present
//! lease, again after every new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{SessionOptions, SessionState};
use crate::backoff::Backoff;
use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, LeaseId};
use crate::latest;
use crate::request::{Compare, CompareTarget, Delete, Put, Relation, Txn};
use crate::store::Store;

/// Keys written in one transaction; well below the store's limit of 128 operations.
const BATCH: usize = 64;

/// What the owner wants, by key.
#[derive(Debug)]
pub(super) struct Wishes {
    wishes: Mutex<BTreeMap<Bytes, Wish>>,
    /// Counts changes of wishes and of what is done about them.
    news: latest::Sender<u64>,
}

#[derive(Clone, Debug)]
struct Wish {
    /// What is to be written; nothing: the key is to go.
    put: Option<Put>,
    /// Grows with every wish for this key.
    version: u64,
    /// The lease under which this very version was written.
    done: Option<LeaseId>,
    /// Whether this version was ever made true.
    settled: bool,
}

impl Wishes {
    pub(super) fn new() -> Wishes {
        Wishes { wishes: Mutex::default(), news: latest::Sender::new(0) }
    }

    pub(super) fn declare(&self, key: Bytes, put: Put) {
        self.set(key, Some(put));
    }

    pub(super) fn withdraw(&self, key: Bytes) {
        if self.locked().contains_key(&key) {
            self.set(key, None);
        }
    }

    /// Waits until the present wish for the key has been made true once (or there is none).
    pub(super) async fn settled(&self, key: &Bytes) {
        let mut news = self.news.subscribe();
        let settled = |_: &u64| self.locked().get(key).is_none_or(|wish| wish.settled);
        // The sender lives as long as `self`.
        news.wait_for(settled).await.ok();
    }

    /// Nothing is wanted any more; nobody waits any longer.
    pub(super) fn close(&self) {
        self.locked().clear();
        self.tell();
    }

    fn set(&self, key: Bytes, put: Option<Put>) {
        {
            let mut wishes = self.locked();
            let version = wishes.get(&key).map_or(0, |wish| wish.version) + 1;
            wishes.insert(key, Wish { put, version, done: None, settled: false });
        }
        self.tell();
    }

    fn tell(&self) {
        self.news.set_if(|count| {
            *count += 1;
            true
        });
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<Bytes, Wish>> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Some keys that are not yet as wanted under this lease, with the version of the wish.
    fn due(&self, lease: LeaseId) -> Vec<(Bytes, u64, Option<Put>)> {
        let wishes = self.locked();
        let due = wishes.iter().filter(|(_, wish)| wish.done != Some(lease));
        due.take(BATCH).map(|(key, wish)| (key.clone(), wish.version, wish.put.clone())).collect()
    }

    /// These versions are true under this lease.
    fn mark_done(&self, made_true: &[(Bytes, u64, Option<Put>)], lease: LeaseId) {
        {
            let mut wishes = self.locked();
            for (key, version, _) in made_true {
                let Some(wish) = wishes.get_mut(key).filter(|wish| wish.version == *version) else {
                    continue;
                };
                wish.done = Some(lease);
                wish.settled = true;
                if wish.put.is_none() {
                    wishes.remove(key);
                }
            }
        }
        self.tell();
    }

    /// Keys that are not on the lease any more must be written again.
    fn verify(&self, on_lease: &[Bytes]) {
        let mut wishes = self.locked();
        for (key, wish) in wishes.iter_mut() {
            if wish.done.is_some() && !on_lease.contains(key) {
                tracing::warn!(key = %String::from_utf8_lossy(key), "registration was removed; registering again");
                wish.done = None;
            }
        }
    }
}

/// The task that makes wishes true.
pub(super) struct Registrar {
    store: Store,
    options: SessionOptions,
    state: watch::Receiver<SessionState>,
    doubt: Arc<Notify>,
    wishes: Arc<Wishes>,
    backoff: Backoff,
}

impl Registrar {
    pub(super) fn new(
        store: Store,
        options: SessionOptions,
        state: watch::Receiver<SessionState>,
        doubt: Arc<Notify>,
        wishes: Arc<Wishes>,
    ) -> Registrar {
        let backoff = Backoff::new(options.retry.0, options.retry.1, options.seed.wrapping_add(1));
        Registrar { store, options, state, doubt, wishes, backoff }
    }

    pub(super) async fn run(mut self) {
        let mut news = self.wishes.news.subscribe();
        let mut verify_at = Instant::now() + self.options.verify_every;
        loop {
            news.see();
            let lease = self.state.borrow_and_update().lease_at(Instant::now());
            let due = lease.map_or_else(Vec::new, |lease| self.wishes.due(lease));
            if let (Some(lease), false) = (lease, due.is_empty()) {
                self.make_true(lease, &due).await;
                continue;
            }
            tokio::select! {
                biased;
                changed = self.state.changed() => if changed.is_err() { return },
                changed = news.changed() => if changed.is_err() { return },
                () = sleep_until(verify_at) => {
                    verify_at = Instant::now() + self.options.verify_every;
                    self.verify(lease).await;
                }
            }
        }
    }

    async fn make_true(&mut self, lease: LeaseId, due: &[(Bytes, u64, Option<Put>)]) {
        // Writing the same again is harmless, so an unknown outcome is simply tried again.
        match timeout(self.options.ttl / 2, self.write(lease, due)).await {
            Ok(Ok(())) => {
                self.backoff.reset();
                self.wishes.mark_done(due, lease);
                return;
            }
            Ok(Err(MetaError::LeaseNotFound)) => self.doubt.notify_one(),
            Ok(Err(error)) => tracing::debug!(%error, %lease, "registration failed"),
            Err(_) => tracing::debug!(%lease, "registration timed out"),
        }
        sleep(self.backoff.next_wait()).await;
    }

    async fn write(&self, lease: LeaseId, due: &[(Bytes, u64, Option<Put>)]) -> Result<()> {
        let puts = due.iter().filter_map(|(_, _, put)| put.clone());
        let txn = puts.fold(Txn::new(), |txn, put| txn.then(put.lease(lease)));
        if !txn.success.is_empty() {
            self.store.commit(txn).await?;
        }
        for (key, _, _) in due.iter().filter(|(_, _, put)| put.is_none()) {
            let ours = Compare {
                keys: KeyRange::one(key.clone()),
                target: CompareTarget::Lease(lease),
                relation: Relation::Equal,
            };
            self.store.commit(Txn::new().when(ours).then(Delete::one(key.clone()))).await?;
        }
        Ok(())
    }

    async fn verify(&self, lease: Option<LeaseId>) {
        let Some(lease) = lease else { return };
        let Ok(Ok(info)) = timeout(self.options.ttl / 2, self.store.lease_info(lease)).await else { return };
        match info {
            Some(info) => self.wishes.verify(&info.keys),
            None => self.doubt.notify_one(),
        }
    }
}
