//! What do all services of the wire share? The store behind them, who it says it is, and the word that it is closing.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::options::Options;
use super::proto::etcdserverpb::ResponseHeader;
use super::status::status;
use crate::error::Result;
use crate::kv::Revision;
use crate::request::{Delete, Detail, Range};
use crate::store::Backend;
use crate::task::OwnedTask;

/// Keys of callers that went away while they waited for a lock: at most so many wait to be deleted. Beyond that their
/// leases delete them.
const ABANDONED: usize = 1024;

/// One store on the wire. Every service of the wire is implemented on this type, each in its own file.
pub(super) struct Wire {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) options: Options,
    /// What the store calls itself; learned once, because it does not change while the store is open.
    pub(super) identity: Identity,
    /// Cancelled when the server begins to drain: long-lived calls end.
    pub(super) stopping: CancellationToken,
    abandoned: mpsc::Sender<Bytes>,
    _sweeper: OwnedTask,
}

/// Who answers.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) cluster_id: u64,
    pub(super) member_id: u64,
    pub(super) term: u64,
    pub(super) version: String,
}

impl Wire {
    pub(super) async fn new(backend: Arc<dyn Backend>, options: Options) -> Result<Wire> {
        let told = backend.status().await?;
        let identity = Identity {
            cluster_id: told.cluster_id,
            member_id: told.member_id,
            term: told.term,
            version: told.version,
        };
        let (abandoned, keys) = mpsc::channel(ABANDONED);
        let _sweeper = OwnedTask::spawn(sweep(backend.clone(), keys));
        Ok(Wire { backend, options, identity, stopping: CancellationToken::new(), abandoned, _sweeper })
    }

    /// The header of an answer given at this revision.
    pub(super) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        let Identity { cluster_id, member_id, term, .. } = self.identity;
        Some(ResponseHeader { cluster_id, member_id, revision: revision.0, raft_term: term })
    }

    /// The newest revision, for answers that the store gives without one.
    pub(super) async fn revision(&self) -> Result<Revision, Status> {
        let nothing = Range::one(Bytes::from_static(b"\0")).detail(Detail::CountOnly);
        Ok(self.backend.range(nothing).await.map_err(status)?.revision)
    }

    /// The header of an answer given now.
    pub(super) async fn header_now(&self) -> Result<Option<ResponseHeader>, Status> {
        Ok(self.header(self.revision().await?))
    }

    /// Deletes this key some time soon, because nobody waits for it any more.
    pub(super) fn abandon(&self, key: Bytes) {
        if self.abandoned.try_send(key).is_err() {
            tracing::warn!("too many abandoned waiters, leaving one to its lease");
        }
    }
}

/// The header of an answer inside a transaction: the revision and nothing else.
pub(super) fn inner_header(revision: Revision) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision: revision.0, ..ResponseHeader::default() })
}

async fn sweep(backend: Arc<dyn Backend>, mut keys: mpsc::Receiver<Bytes>) {
    while let Some(key) = keys.recv().await {
        if let Err(error) = backend.delete(Delete::one(key)).await {
            tracing::warn!(%error, "abandoned waiter not deleted, leaving it to its lease");
        }
    }
}
