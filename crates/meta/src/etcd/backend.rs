//! The store contract on etcd, call by call.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use etcd_client::{LeaseGrantOptions, LeaseTimeToLiveOptions};
use tokio::sync::mpsc;

use super::connection::{dial, kv};
use super::errors::Failure;
use super::watch::EtcdWatch;
use super::{Etcd, answer, request};
use crate::error::{MetaError, Result};
use crate::kv::{LeaseId, Revision};
use crate::request::*;
use crate::store::{Backend, WatchStream};
use crate::task::spawn_producer;

/// Chunks of a snapshot (32 KiB each) that wait for the reader.
const SNAPSHOT_CHUNKS: usize = 16;
/// Defragmenting rewrites the whole database, while the member answers nobody.
const DEFRAGMENT_TIMEOUT: Duration = Duration::from_secs(600);

#[async_trait]
impl Backend for Etcd {
    async fn range(&self, range: Range) -> Result<RangeResult> {
        let link = &self.link;
        let (key, options) = request::range(&link.prefix, &range)?;
        let read = link.read(|client| {
            let (key, options) = (key.clone(), options.clone());
            async move { kv(&client).get(key, Some(options)).await }
        });
        Ok(answer::range(&link.prefix, link.explain(read.await).await?))
    }

    async fn put(&self, put: Put) -> Result<PutResult> {
        let link = &self.link;
        let (key, value, options) = request::put(&link.prefix, &put)?;
        let written = link.write(|client| {
            let (key, value, options) = (key.clone(), value.clone(), options.clone());
            async move { kv(&client).put(key, value, Some(options)).await }
        });
        Ok(answer::put(&link.prefix, written.await?))
    }

    async fn delete(&self, delete: Delete) -> Result<DeleteResult> {
        let link = &self.link;
        let (key, options) = request::delete(&link.prefix, &delete)?;
        let deleted = link.write(|client| {
            let (key, options) = (key.clone(), options.clone());
            async move { kv(&client).delete(key, Some(options)).await }
        });
        Ok(answer::delete(&link.prefix, deleted.await?))
    }

    async fn commit(&self, txn: Txn) -> Result<TxnResult> {
        let link = &self.link;
        let sent = request::txn(&link.prefix, &txn)?;
        let call = |client| {
            let txn = sent.clone();
            async move { kv(&client).txn(txn).await }
        };
        let committed =
            if request::only_reads(&txn) { link.read(call).await } else { link.write(call).await };
        Ok(answer::txn(&link.prefix, link.explain(committed).await?))
    }

    async fn watch(&self, watch: Watch) -> Result<Box<dyn WatchStream>> {
        Ok(Box::new(EtcdWatch::open(Arc::clone(&self.link), watch).await?))
    }

    async fn lease_grant(&self, ttl: Duration, id: LeaseId) -> Result<Lease> {
        let seconds = request::ttl_seconds(ttl);
        let options = LeaseGrantOptions::new().with_id(id.0);
        let granted = self.link.write(|client| {
            let options = options.clone();
            async move { client.lease_client().grant(seconds, Some(options)).await }
        });
        let granted = granted.await?;
        Ok(Lease { id: LeaseId(granted.id()), ttl: answer::seconds(granted.ttl()) })
    }

    async fn lease_revoke(&self, id: LeaseId) -> Result<Revision> {
        let revoked = self.link.write(|client| async move { client.lease_client().revoke(id.0).await });
        Ok(answer::revision(revoked.await?.0.header.as_ref()))
    }

    /// Renewing twice is renewing once, so that this is repeated like a read.
    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Duration> {
        let renewed = self.link.read(|client| async move {
            // The client keeps the first answer to itself; it has renewed the lease, the second one says for how long.
            let (mut keeper, mut answers) = client.lease_client().keep_alive(id.0).await?;
            keeper.keep_alive().await?;
            answers.message().await
        });
        match renewed.await? {
            Some(answer) if answer.ttl() > 0 => Ok(answer::seconds(answer.ttl())),
            Some(_) => Err(MetaError::LeaseNotFound),
            None => Err(MetaError::Unavailable("the keep-alive stream ended".to_owned())),
        }
    }

    async fn lease_info(&self, id: LeaseId) -> Result<Option<LeaseInfo>> {
        let options = LeaseTimeToLiveOptions::new().with_keys();
        let info = self.link.read(|client| {
            let options = options.clone();
            async move { client.lease_client().time_to_live(id.0, Some(options)).await }
        });
        Ok(answer::lease_info(&self.link.prefix, info.await?))
    }

    async fn leases(&self) -> Result<Vec<LeaseId>> {
        let leases = self.link.read(|client| async move { client.lease_client().leases().await }).await?;
        Ok(leases.leases().iter().map(|lease| LeaseId(lease.id())).collect())
    }

    async fn compact(&self, revision: Revision) -> Result<Revision> {
        let compacted = self.link.write(|client| async move { kv(&client).compact(revision.0, None).await });
        let compacted = self.link.explain(compacted.await).await?;
        Ok(answer::revision(compacted.0.header.as_ref()))
    }

    async fn status(&self) -> Result<StoreStatus> {
        let link = &self.link;
        let status = link.read(|client| async move { client.maintenance_client().status().await }).await?.0;
        link.version.met(&status.version);
        let header = status.header.unwrap_or_default();
        Ok(StoreStatus {
            revision: Revision(header.revision),
            compacted: link.compacted().await?,
            db_size: u64::try_from(status.db_size).unwrap_or(0),
            db_size_in_use: u64::try_from(status.db_size_in_use).unwrap_or(0),
            db_size_quota: u64::try_from(status.db_size_quota).unwrap_or(0),
            cluster_id: header.cluster_id,
            member_id: header.member_id,
            term: status.raft_term,
            version: status.version,
        })
    }

    /// A snapshot of all of etcd: its format knows no prefixes.
    async fn snapshot(&self) -> Result<mpsc::Receiver<Result<Bytes>>> {
        let options = &self.link.options();
        // On a connection of its own: it would starve whatever shares one with it.
        let client = dial(options, &options.endpoints).await?;
        let opening = async { client.maintenance_client().snapshot().await };
        let mut stream = match tokio::time::timeout(options.request_timeout, opening).await {
            Ok(opened) => opened.map_err(|error| Failure::of(error).of_read())?,
            Err(_) => return Err(MetaError::Unavailable("no snapshot within the request's time".to_owned())),
        };
        let (chunks, receiver) = mpsc::channel(SNAPSHOT_CHUNKS);
        spawn_producer(async move {
            loop {
                let chunk = match stream.message().await {
                    Ok(Some(chunk)) => Ok(Bytes::from(chunk.0.blob)),
                    Ok(None) => return,
                    Err(error) => Err(Failure::of(error).of_read()),
                };
                let last = chunk.is_err();
                if chunks.send(chunk).await.is_err() || last {
                    return;
                }
            }
        });
        Ok(receiver)
    }

    /// One member after the other: each is busy with itself for the time.
    async fn defragment(&self) -> Result<()> {
        let options = &self.link.options();
        for endpoint in &options.endpoints {
            let client = dial(options, std::slice::from_ref(endpoint)).await?;
            let defragmenting = async { client.maintenance_client().defragment().await };
            match tokio::time::timeout(DEFRAGMENT_TIMEOUT, defragmenting).await {
                Ok(done) => done.map_err(|error| Failure::of(error).of_write())?,
                Err(_) => return Err(MetaError::Unknown(format!("{endpoint} is still defragmenting"))),
            };
        }
        Ok(())
    }
}
