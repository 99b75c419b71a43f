//! A store whose user can be stopped between any two of its transactions: killed, or left without a reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use capstan_meta::*;
use tokio::sync::{Notify, mpsc};

/// What happens at one of the transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The process dies before it is sent.
    KilledBefore,
    /// The process dies after it is committed.
    KilledAfter,
    /// It is not committed, with an unknown outcome.
    LostRequest,
    /// It is committed, with an unknown outcome.
    LostAnswer,
    /// It waits until the others are done.
    Paused,
}

/// The store as one user sees it.
#[derive(Clone)]
pub struct Tap {
    store: Store,
    cut: Option<(u32, Cut)>,
    commits: Arc<AtomicU32>,
    dead: Arc<AtomicBool>,
    pub reached: Arc<Notify>,
    pub go_on: Arc<Notify>,
}

impl Tap {
    /// Without a cut.
    pub fn open(store: &Store) -> Tap {
        Tap {
            store: store.clone(),
            cut: None,
            commits: Arc::default(),
            dead: Arc::default(),
            reached: Arc::default(),
            go_on: Arc::default(),
        }
    }

    /// With this cut at the n-th transaction, counted from one.
    pub fn cut(store: &Store, at: u32, cut: Cut) -> Tap {
        Tap { cut: Some((at, cut)), ..Tap::open(store) }
    }

    pub fn store(&self) -> Store {
        Store::new(self.clone())
    }

    /// The number of started transactions.
    pub fn commits(&self) -> u32 {
        self.commits.load(Ordering::Relaxed)
    }

    fn alive(&self) -> Result<()> {
        let dead = self.dead.load(Ordering::Relaxed);
        if dead { Err(MetaError::Unavailable("killed".to_owned())) } else { Ok(()) }
    }
}

#[async_trait]
impl Backend for Tap {
    async fn range(&self, range: Range) -> Result<RangeResult> {
        self.alive()?;
        self.store.range(range).await
    }

    async fn put(&self, put: Put) -> Result<PutResult> {
        self.alive()?;
        self.store.put(put).await
    }

    async fn delete(&self, delete: Delete) -> Result<DeleteResult> {
        self.alive()?;
        self.store.delete(delete).await
    }

    async fn commit(&self, txn: Txn) -> Result<TxnResult> {
        self.alive()?;
        let count = self.commits.fetch_add(1, Ordering::Relaxed) + 1;
        let Some((_, cut)) = self.cut.filter(|(at, _)| *at == count) else {
            return self.store.commit(txn).await;
        };
        match cut {
            Cut::KilledBefore => {
                self.dead.store(true, Ordering::Relaxed);
                Err(MetaError::Unavailable("killed".to_owned()))
            }
            Cut::KilledAfter => {
                self.store.commit(txn).await?;
                self.dead.store(true, Ordering::Relaxed);
                Err(MetaError::Unavailable("killed".to_owned()))
            }
            Cut::LostRequest => Err(MetaError::Unknown("lost request".to_owned())),
            Cut::LostAnswer => {
                self.store.commit(txn).await?;
                Err(MetaError::Unknown("lost answer".to_owned()))
            }
            Cut::Paused => {
                self.reached.notify_one();
                self.go_on.notified().await;
                self.store.commit(txn).await
            }
        }
    }

    async fn watch(&self, watch: Watch) -> Result<Box<dyn WatchStream>> {
        self.store.watch(watch).await
    }

    async fn lease_grant(&self, ttl: Duration, id: LeaseId) -> Result<Lease> {
        self.store.lease_grant(ttl, id).await
    }

    async fn lease_revoke(&self, id: LeaseId) -> Result<Revision> {
        self.store.lease_revoke(id).await
    }

    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Duration> {
        self.store.lease_keep_alive(id).await
    }

    async fn lease_info(&self, id: LeaseId) -> Result<Option<LeaseInfo>> {
        self.store.lease_info(id).await
    }

    async fn leases(&self) -> Result<Vec<LeaseId>> {
        self.store.leases().await
    }

    async fn compact(&self, revision: Revision) -> Result<Revision> {
        self.store.compact(revision).await
    }

    async fn status(&self) -> Result<StoreStatus> {
        self.store.status().await
    }

    async fn snapshot(&self) -> Result<mpsc::Receiver<Result<Bytes>>> {
        self.store.snapshot().await
    }

    async fn defragment(&self) -> Result<()> {
        self.store.defragment().await
    }
}
