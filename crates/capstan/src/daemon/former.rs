//! How does a killed process restart without waiting for its leases? It revokes the leases of its former run.
//!
//! After a kill a lease lives on for its full TTL, and everything registered under it looks alive until then. The lock
//! on a file of the directory proves that the former owner is dead, so the leases listed in that file can be revoked at
//! once.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use capstan_meta::request::{
    Delete, DeleteResult, Lease, LeaseInfo, Put, PutResult, Range, RangeResult, StoreStatus, Txn, TxnResult,
    Watch,
};
use capstan_meta::store::{Backend, WatchStream};
use capstan_meta::{LeaseId, MetaError, Revision, Store};
use tokio::sync::mpsc;

/// The file in the directory.
const FILE: &str = "leases";

/// Another process uses the directory.
#[derive(Debug, thiserror::Error)]
#[error("{} is in use by another process{}", .dir.display(), .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default())]
pub(crate) struct InUse {
    dir: PathBuf,
    pid: Option<u32>,
}

/// Revokes the leases of the former run in this directory, and returns a store that records the next ones.
pub(crate) async fn succeed(dir: &Path, store: Store) -> Result<Store> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let path = dir.join(FILE);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let pid = text.lines().next().and_then(|line| line.strip_prefix("pid ")?.parse().ok());
            return Err(InUse { dir: dir.to_owned(), pid }.into());
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    for lease in text.lines().filter_map(|line| i64::from_str_radix(line, 16).ok()).map(LeaseId) {
        match store.lease_revoke(lease).await {
            Ok(_) => tracing::debug!(%lease, "lease of the former run revoked"),
            Err(MetaError::LeaseNotFound) => {}
            // It expires a little later.
            Err(error) => tracing::info!(%error, %lease, "cannot revoke lease of the former run"),
        }
    }
    file.rewind()?;
    file.set_len(0)?;
    writeln!(file, "pid {}", std::process::id())?;
    Ok(Store::new(Remembering { store, file: Arc::new(Mutex::new(file)) }))
}

/// A store that writes down every lease that it grants. Every other call passes.
struct Remembering {
    store: Store,
    file: Arc<Mutex<File>>,
}

impl Remembering {
    /// A lease that cannot be written down only costs time after a crash.
    fn remember(&self, lease: LeaseId) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writeln!(file, "{:x}", lease.0) {
            tracing::info!(%error, "lease was not written down");
        }
    }
}

type Answer<T> = Result<T, MetaError>;

#[async_trait::async_trait]
impl Backend for Remembering {
    async fn range(&self, range: Range) -> Answer<RangeResult> {
        self.store.range(range).await
    }

    async fn put(&self, put: Put) -> Answer<PutResult> {
        self.store.put(put).await
    }

    async fn delete(&self, delete: Delete) -> Answer<DeleteResult> {
        self.store.delete(delete).await
    }

    async fn commit(&self, txn: Txn) -> Answer<TxnResult> {
        self.store.commit(txn).await
    }

    async fn watch(&self, watch: Watch) -> Answer<Box<dyn WatchStream>> {
        self.store.watch(watch).await
    }

    async fn lease_grant(&self, ttl: Duration, id: LeaseId) -> Answer<Lease> {
        let lease = self.store.lease_grant(ttl, id).await?;
        self.remember(lease.id);
        Ok(lease)
    }

    async fn lease_revoke(&self, id: LeaseId) -> Answer<Revision> {
        self.store.lease_revoke(id).await
    }

    async fn lease_keep_alive(&self, id: LeaseId) -> Answer<Duration> {
        self.store.lease_keep_alive(id).await
    }

    async fn lease_info(&self, id: LeaseId) -> Answer<Option<LeaseInfo>> {
        self.store.lease_info(id).await
    }

    async fn leases(&self) -> Answer<Vec<LeaseId>> {
        self.store.leases().await
    }

    async fn compact(&self, revision: Revision) -> Answer<Revision> {
        self.store.compact(revision).await
    }

    async fn status(&self) -> Answer<StoreStatus> {
        self.store.status().await
    }

    async fn snapshot(&self) -> Answer<mpsc::Receiver<Answer<Bytes>>> {
        self.store.snapshot().await
    }

    async fn defragment(&self) -> Answer<()> {
        self.store.defragment().await
    }
}

#[cfg(test)]
mod tests {
    use capstan_meta::embedded::{Embedded, Options};

    use super::*;

    #[tokio::test]
    async fn leases_of_the_former_run_end_and_a_second_process_is_named() {
        let dir = capstan_testkit::TempDir::new("former").unwrap();
        let store = Store::new(Embedded::in_memory(Options::default()));
        let first = succeed(dir.path(), store.clone()).await.unwrap();
        let ttl = Duration::from_secs(100);
        let lease = first.lease_grant(ttl, LeaseId::NONE).await.unwrap();
        let others = store.lease_grant(ttl, LeaseId::NONE).await.unwrap();
        let second = succeed(dir.path(), store.clone()).await.unwrap_err();
        assert!(second.to_string().contains(&format!("pid {}", std::process::id())), "{second}");
        assert_eq!(store.leases().await.unwrap().len(), 2, "nothing is ended while the owner lives");
        drop(first);
        let _again = succeed(dir.path(), store.clone()).await.unwrap();
        assert_eq!(store.leases().await.unwrap(), [others.id], "{:?} lives", lease.id);
    }
}
