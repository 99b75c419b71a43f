//! The Lease service: grant, renew, inspect, revoke.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use tonic::{Request, Response, Status, Streaming};

use super::auth::KeyAccess;
use super::kv::Answers;
use super::proto::etcdserverpb as pb;
use super::proto::etcdserverpb::lease_server::Lease;
use super::service::Wire;
use super::status::{status, stopped};
use crate::error::MetaError;
use crate::kv::LeaseId;

#[tonic::async_trait]
impl Lease for Wire {
    async fn lease_grant(
        self: Arc<Self>,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let permit = self.permit(request.metadata()).await?;
        permit.user()?;
        let pb::LeaseGrantRequest { ttl, id } = *request.get_ref();
        // A time to live of nothing or less is raised by the store to its minimum.
        let ttl = Duration::from_secs(u64::try_from(ttl).unwrap_or(0));
        let granted = self.backend.lease_grant(ttl, LeaseId(id)).await.map_err(status)?;
        Ok(Response::new(pb::LeaseGrantResponse {
            header: self.header_now().await?,
            id: granted.id.0,
            ttl: seconds(granted.ttl),
            error: String::new(),
        }))
    }

    async fn lease_revoke(
        self: Arc<Self>,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let id = LeaseId(request.get_ref().id);
        let permit = self.permit(request.metadata()).await?;
        permit.lease(id, KeyAccess::Write, &*self.backend).await?;
        let revision = self.backend.lease_revoke(id).await.map_err(status)?;
        Ok(Response::new(pb::LeaseRevokeResponse { header: self.header(revision) }))
    }

    type LeaseKeepAliveStream = Answers<pb::LeaseKeepAliveResponse>;

    async fn lease_keep_alive(
        self: Arc<Self>,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        self.permit(request.metadata()).await?.user()?;
        // One answer for each request, made when the client has room for it: nothing queues up here.
        let renewals = stream::try_unfold((self, request.into_inner()), |(wire, mut requests)| async {
            let request = tokio::select! {
                request = requests.message() => request?,
                () = wire.stopping.cancelled() => return Err(stopped()),
            };
            let Some(request) = request else { return Ok(None) };
            let answer = renew(&wire, LeaseId(request.id)).await?;
            Ok(Some((answer, (wire, requests))))
        });
        Ok(Response::new(Box::pin(renewals)))
    }

    async fn lease_time_to_live(
        self: Arc<Self>,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let pb::LeaseTimeToLiveRequest { id, keys } = *request.get_ref();
        let permit = self.permit(request.metadata()).await?;
        permit.user()?;
        if keys {
            permit.lease(LeaseId(id), KeyAccess::Read, &*self.backend).await?;
        }
        let info = self.backend.lease_info(LeaseId(id)).await.map_err(status)?;
        let header = self.header_now().await?;
        Ok(Response::new(match info {
            Some(info) => pb::LeaseTimeToLiveResponse {
                header,
                id,
                ttl: seconds(info.remaining),
                granted_ttl: seconds(info.granted_ttl),
                keys: if keys { info.keys } else { Vec::new() },
            },
            None => pb::LeaseTimeToLiveResponse { header, id, ttl: -1, granted_ttl: 0, keys: Vec::new() },
        }))
    }

    async fn lease_leases(
        self: Arc<Self>,
        request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        self.permit(request.metadata()).await?.user()?;
        let leases = self.backend.leases().await.map_err(status)?;
        Ok(Response::new(pb::LeaseLeasesResponse {
            header: self.header_now().await?,
            leases: leases.into_iter().map(|id| pb::LeaseStatus { id: id.0 }).collect(),
        }))
    }
}

/// A lease that is gone is not an error but a time to live of zero. The header is older than the renewal.
async fn renew(wire: &Wire, id: LeaseId) -> Result<pb::LeaseKeepAliveResponse, Status> {
    let header = wire.header_now().await?;
    let ttl = match wire.backend.lease_keep_alive(id).await {
        Ok(ttl) => seconds(ttl),
        Err(MetaError::LeaseNotFound) => 0,
        Err(error) => return Err(status(error)),
    };
    Ok(pb::LeaseKeepAliveResponse { header, id: id.0, ttl })
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
