//! What do all services of the wire share? The store behind them, who it says it is, and the word that it is closing.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::auth::{Access, Permit};
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
    /// Users, roles and tokens.
    pub(super) access: Arc<Access>,
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
        let access = Arc::new(Access::load(backend.clone(), &options.tokens).await?);
        let _sweeper = OwnedTask::spawn(sweep(backend.clone(), keys));
        Ok(Wire {
            backend,
            options,
            access,
            identity,
            stopping: CancellationToken::new(),
            abandoned,
            _sweeper,
        })
    }

    /// What a call may do. It is asked before anything is done, and held while something is.
    pub(super) async fn permit(&self, metadata: &MetadataMap) -> Result<Permit<'_>, Status> {
        self.access.permit(metadata).await
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

    /// The store answers, and no alarm is raised.
    pub(super) async fn healthy(&self) -> Result<(), Status> {
        self.revision().await?;
        match self.backend.has_no_space_alarm().await.map_err(status)? {
            true => Err(Status::resource_exhausted("ALARM NOSPACE")),
            false => Ok(()),
        }
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
