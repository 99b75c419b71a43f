//! What if the store is replaced by another one, restored from an older snapshot, say?

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::error::{MetaError, Result};
use crate::kv::{LeaseId, Revision};
use crate::request::*;
use crate::store::{Backend, WatchStream};

/// The address of a store: clients keep it, and another store can answer behind it. Clones are the same address.
#[derive(Clone, Debug)]
pub struct Replaceable<B> {
    present: Arc<Mutex<B>>,
}

impl<B: Backend + Clone> Replaceable<B> {
    /// This store answers first.
    pub fn new(store: B) -> Replaceable<B> {
        Replaceable { present: Arc::new(Mutex::new(store)) }
    }

    /// The store that answers now.
    #[must_use]
    pub fn present(&self) -> B {
        self.present.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on this store answers. Returns the former one; when that is closed, the connections to it break.
    pub fn replace(&self, store: B) -> B {
        std::mem::replace(&mut *self.present.lock().unwrap_or_else(PoisonError::into_inner), store)
    }
}

/// The connection to a store that ends: what was sent may have happened.
fn broken(error: MetaError) -> MetaError {
    match error {
        MetaError::Stopped => MetaError::Unknown("connection lost".to_owned()),
        error => error,
    }
}

#[async_trait]
impl<B: Backend + Clone> Backend for Replaceable<B> {
    async fn range(&self, range: Range) -> Result<RangeResult> {
        self.present().range(range).await.map_err(broken)
    }

    async fn put(&self, put: Put) -> Result<PutResult> {
        self.present().put(put).await.map_err(broken)
    }

    async fn delete(&self, delete: Delete) -> Result<DeleteResult> {
        self.present().delete(delete).await.map_err(broken)
    }

    async fn commit(&self, txn: Txn) -> Result<TxnResult> {
        self.present().commit(txn).await.map_err(broken)
    }

    async fn watch(&self, watch: Watch) -> Result<Box<dyn WatchStream>> {
        let stream = self.present().watch(watch).await.map_err(broken)?;
        Ok(Box::new(BreakingWatch { stream }))
    }

    async fn lease_grant(&self, ttl: Duration, id: LeaseId) -> Result<Lease> {
        self.present().lease_grant(ttl, id).await.map_err(broken)
    }

    async fn lease_revoke(&self, id: LeaseId) -> Result<Revision> {
        self.present().lease_revoke(id).await.map_err(broken)
    }

    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Duration> {
        self.present().lease_keep_alive(id).await.map_err(broken)
    }

    async fn lease_info(&self, id: LeaseId) -> Result<Option<LeaseInfo>> {
        self.present().lease_info(id).await.map_err(broken)
    }

    async fn leases(&self) -> Result<Vec<LeaseId>> {
        self.present().leases().await.map_err(broken)
    }

    async fn compact(&self, revision: Revision) -> Result<Revision> {
        self.present().compact(revision).await.map_err(broken)
    }

    async fn status(&self) -> Result<StoreStatus> {
        self.present().status().await.map_err(broken)
    }

    async fn snapshot(&self) -> Result<mpsc::Receiver<Result<Bytes>>> {
        self.present().snapshot().await.map_err(broken)
    }

    async fn defragment(&self) -> Result<()> {
        self.present().defragment().await.map_err(broken)
    }
}

struct BreakingWatch {
    stream: Box<dyn WatchStream>,
}

#[async_trait]
impl WatchStream for BreakingWatch {
    async fn next(&mut self) -> Result<WatchMessage> {
        self.stream.next().await.map_err(broken)
    }

    async fn request_progress(&mut self) -> Result<()> {
        self.stream.request_progress().await.map_err(broken)
    }
}
