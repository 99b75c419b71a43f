//! The Lock service: a lock is held by whoever is first in the line under its name.

use std::sync::Arc;

use bytes::Bytes;
use tonic::{Request, Response, Status};

use super::proto::v3lockpb as pb;
use super::proto::v3lockpb::lock_server::Lock;
use super::queue::line;
use super::service::Wire;
use super::status::status;
use crate::kv::KeyRange;
use crate::request::{Delete, Range};

#[tonic::async_trait]
impl Lock for Wire {
    async fn lock(
        self: Arc<Self>,
        request: Request<pb::LockRequest>,
    ) -> Result<Response<pb::LockResponse>, Status> {
        let (metadata, _, pb::LockRequest { name, lease }) = request.into_parts();
        let line = line(&name);
        self.permit_line(&metadata, &line, lease).await?;
        let place = self.line_up(&line, lease, Bytes::new()).await?;
        self.wait_first(&line, &place).await?;
        // The lease may have ended while the caller stood in line: then there is no key, and so no lock.
        let own = self.backend.range(Range::one(place.key.clone())).await.map_err(status)?;
        if own.kvs.first().is_none_or(|kv| kv.create_revision != place.revision) {
            return Err(Status::unknown("mutex: session is expired"));
        }
        Ok(Response::new(pb::LockResponse { header: self.header(own.revision), key: place.key }))
    }

    async fn unlock(
        self: Arc<Self>,
        request: Request<pb::UnlockRequest>,
    ) -> Result<Response<pb::UnlockResponse>, Status> {
        let (metadata, _, pb::UnlockRequest { key }) = request.into_parts();
        let permit = self.permit(&metadata).await?;
        permit.write(&KeyRange::one(key.clone()))?;
        let result = self.backend.delete(Delete::one(key)).await.map_err(status)?;
        Ok(Response::new(pb::UnlockResponse { header: self.header(result.revision) }))
    }
}
