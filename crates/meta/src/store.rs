//! The contract that every metadata store fulfils, and the handle that everyone holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::error::Result;
use crate::kv::{KeyValue, LeaseId, Revision};
use crate::request::*;

/// A metadata store: etcd's model and nothing less. Implemented by [`crate::etcd`], [`crate::embedded`] and by
/// wrappers that inject faults.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Reads. Linearizable: sees every write acknowledged before the call.
    async fn range(&self, range: Range) -> Result<RangeResult>;
    /// Writes one key; durable when it returns.
    async fn put(&self, put: Put) -> Result<PutResult>;
    /// Deletes keys; durable when it returns.
    async fn delete(&self, delete: Delete) -> Result<DeleteResult>;
    /// Commits a transaction; durable when it returns.
    async fn commit(&self, txn: Txn) -> Result<TxnResult>;
    /// Begins a watch. An error here or from the stream ends it; resume with the last revision + 1.
    async fn watch(&self, watch: Watch) -> Result<Box<dyn WatchStream>>;
    /// Grants a lease, with an id of the caller's choice or (`LeaseId::NONE`) of the store's.
    async fn lease_grant(&self, ttl: Duration, id: LeaseId) -> Result<Lease>;
    /// Ends a lease and deletes its keys in one revision; answers with the store's revision after it.
    async fn lease_revoke(&self, id: LeaseId) -> Result<Revision>;
    /// Renews a lease and says for how long; `LeaseNotFound` once it is gone.
    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Duration>;
    /// What is known about a lease; `None` if there is no such lease.
    async fn lease_info(&self, id: LeaseId) -> Result<Option<LeaseInfo>>;
    /// All leases, the one that expires first first.
    async fn leases(&self) -> Result<Vec<LeaseId>>;
    /// Drops history before this revision.
    async fn compact(&self, revision: Revision) -> Result<Revision>;
    /// What the store says about itself.
    async fn status(&self) -> Result<StoreStatus>;
    /// A copy of everything at one revision, in the store's own format, in chunks.
    async fn snapshot(&self) -> Result<mpsc::Receiver<Result<Bytes>>>;
    /// Gives unused space on disk back.
    async fn defragment(&self) -> Result<()>;
    /// Whether etcd's alarm `NOSPACE` is raised: nothing is put until it is ended.
    async fn has_no_space_alarm(&self) -> Result<bool> {
        Ok(false)
    }
    /// Raises or ends that alarm.
    async fn set_no_space_alarm(&self, _raised: bool) -> Result<()> {
        Err(crate::error::MetaError::Rejected("this store has no alarms of ours".into()))
    }
    /// The record of etcd's users and roles, which is kept beside the keys; empty if there never was one.
    async fn users(&self) -> Result<Bytes> {
        Ok(Bytes::new())
    }
    /// Replaces that record; durable when it returns.
    async fn set_users(&self, _record: Bytes) -> Result<()> {
        Err(crate::error::MetaError::Rejected("this store keeps no users of ours".into()))
    }
}

/// An open watch. Dropping it cancels it.
#[async_trait]
pub trait WatchStream: Send {
    /// The next message. Cancel-safe: a dropped call loses nothing.
    async fn next(&mut self) -> Result<WatchMessage>;
    /// Asks for a [`WatchMessage::Progress`] (or events) as soon as the stream has caught up with the store.
    async fn request_progress(&mut self) -> Result<()>;
}

/// The handle to the metadata store. Cheap to clone; typed access is in [`crate::record`].
#[derive(Clone)]
pub struct Store {
    backend: Arc<dyn Backend>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

impl Store {
    /// A handle on this implementation.
    pub fn new(backend: impl Backend) -> Store {
        Store { backend: Arc::new(backend) }
    }

    /// A handle on an implementation that is shared already.
    #[must_use]
    pub fn shared(backend: Arc<dyn Backend>) -> Store {
        Store { backend }
    }

    /// Reads one key at the newest revision.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Arc<KeyValue>>> {
        Ok(self.backend.range(Range::one(key)).await?.kvs.pop())
    }
}

impl std::ops::Deref for Store {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        &*self.backend
    }
}
