//! What keeps the keys of a process registered? A list of wishes, and a task that makes them true under the present
//! lease, again after every new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::claim::{Holder, Sight, Taken, judge};
use super::{SessionOptions, SessionState};
use crate::backoff::Backoff;
use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, KeyValue, LeaseId};
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
    /// No other process may have the key.
    exclusive: bool,
    /// The other process that has it nevertheless.
    taken: Option<Taken>,
    /// The last look at another process's lease.
    sight: Option<Sight>,
}

impl Wishes {
    pub(super) fn new() -> Wishes {
        Wishes { wishes: Mutex::default(), news: latest::Sender::new(0) }
    }

    pub(super) fn declare(&self, key: Bytes, put: Put) {
        self.set(key, Some(put), false);
    }

    pub(super) fn claim(&self, key: Bytes, put: Put) {
        self.set(key, Some(put), true);
    }

    pub(super) fn withdraw(&self, key: Bytes) {
        if self.locked().contains_key(&key) {
            self.set(key, None, false);
        }
    }

    /// Waits until a claim is settled, or lost to another process.
    pub(super) async fn claimed(&self, key: &Bytes) -> Result<(), Taken> {
        let mut news = self.news.subscribe();
        let decided =
            |_: &u64| self.locked().get(key).is_none_or(|wish| wish.settled || wish.taken.is_some());
        // The sender lives as long as `self`.
        news.wait_for(decided).await.ok();
        self.locked().get(key).and_then(|wish| wish.taken.clone()).map_or(Ok(()), Err)
    }

    /// Waits until a claimed key is another process's.
    pub(super) async fn taken(&self, key: &Bytes) -> Taken {
        let mut news = self.news.subscribe();
        loop {
            if let Some(taken) = self.locked().get(key).and_then(|wish| wish.taken.clone()) {
                return taken;
            }
            if news.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
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

    fn set(&self, key: Bytes, put: Option<Put>, exclusive: bool) {
        {
            let mut wishes = self.locked();
            let before = wishes.get(&key);
            let version = before.map_or(0, |wish| wish.version) + 1;
            // What was claimed stays claimed when its record changes.
            let exclusive = exclusive || (put.is_some() && before.is_some_and(|wish| wish.exclusive));
            let wish = Wish { put, version, done: None, settled: false, exclusive, taken: None, sight: None };
            wishes.insert(key, wish);
        }
        self.tell();
    }

    fn is_exclusive(&self, key: &Bytes) -> bool {
        self.locked().get(key).is_some_and(|wish| wish.exclusive)
    }

    /// Remembers a look at another process's lease; returns the one before.
    fn look(&self, key: &Bytes, sight: Sight) -> Option<Sight> {
        self.locked().get_mut(key).and_then(|wish| wish.sight.replace(sight))
    }

    fn lose(&self, taken: Taken) {
        if let Some(wish) = self.locked().get_mut(taken.key.as_bytes()) {
            wish.settled = false;
            if wish.taken.is_none() {
                tracing::error!(key = taken.key, holder = taken.holder, "key is in use by another process");
            }
            wish.taken = Some(taken);
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
                (wish.taken, wish.sight) = (None, None);
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

fn unchanged(kv: &KeyValue) -> Compare {
    Compare::mod_revision(kv.key.clone(), kv.mod_revision)
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
            let lease = self.state.borrow_and_update().lease_now();
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
        let claims = due.iter().filter(|(key, _, put)| put.is_some() && self.wishes.is_exclusive(key));
        let (claims, others): (Vec<_>, Vec<_>) = (claims.cloned().collect(), due.to_vec());
        let shared: Vec<_> = others.into_iter().filter(|wish| !claims.contains(wish)).collect();
        let writing = async {
            self.write(lease, &shared).await?;
            self.wishes.mark_done(&shared, lease);
            let mut waiting = false;
            for claim in claims {
                match self.claim(lease, &claim).await? {
                    true => self.wishes.mark_done(&[claim], lease),
                    false => waiting = true,
                }
            }
            Ok(waiting)
        };
        match timeout(self.options.ttl / 2, writing).await {
            Ok(Ok(false)) => return self.backoff.reset(),
            Ok(Ok(true)) => self.backoff.reset(),
            Ok(Err(MetaError::LeaseNotFound)) => self.doubt.notify_one(),
            Ok(Err(error)) => tracing::debug!(%error, %lease, "registration failed"),
            Err(_) => tracing::debug!(%lease, "registration timed out"),
        }
        sleep(self.backoff.next_wait()).await;
    }

    async fn write(&self, lease: LeaseId, due: &[(Bytes, u64, Option<Put>)]) -> Result<()> {
        let puts = due.iter().filter_map(|(_, _, put)| put.clone());
        let puts = puts.filter(|put| !self.wishes.is_exclusive(&put.key));
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

    /// Writes a key that no other process may have; `false` if one has it, or may have it.
    async fn claim(&self, lease: LeaseId, (key, _, put): &(Bytes, u64, Option<Put>)) -> Result<bool> {
        let Some(put) = put.clone() else { return Ok(true) };
        let found = self.store.get(key.clone()).await?;
        let guard = match &found {
            None => Compare::absent(key.clone()),
            Some(kv) if kv.lease == lease || kv.value == put.value => unchanged(kv),
            Some(kv) => match self.holder(key, kv).await? {
                Holder::Gone => unchanged(kv),
                Holder::Unclear => return Ok(false),
                Holder::Alive => {
                    self.wishes.lose(Taken::by(key, kv));
                    return Ok(false);
                }
            },
        };
        Ok(self.store.commit(Txn::new().when(guard).then(put.lease(lease))).await?.succeeded)
    }

    async fn holder(&self, key: &Bytes, kv: &KeyValue) -> Result<Holder> {
        let info = if kv.lease == LeaseId::NONE { None } else { self.store.lease_info(kv.lease).await? };
        Ok(info.map_or(Holder::Gone, |info| {
            let now = Sight::new(kv.lease, &info);
            judge(self.wishes.look(key, now), now)
        }))
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
