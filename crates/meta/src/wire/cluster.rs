//! The Cluster service: there is one member, and there will be no other.

use std::sync::Arc;

use tonic::{Code, Request, Response, Status};

use super::proto::etcdserverpb as pb;
use super::proto::etcdserverpb::cluster_server::Cluster;
use super::service::Wire;
use super::status::refuse;
use crate::kv::Revision;

impl Wire {
    fn member(&self) -> pb::Member {
        let url: Vec<_> = self.options.advertise_url.iter().cloned().collect();
        pb::Member {
            id: self.identity.member_id,
            name: self.options.name.clone(),
            peer_ur_ls: url.clone(),
            client_ur_ls: url,
            is_learner: false,
        }
    }

    /// Why a change of this member is refused.
    fn refuse_change(&self, id: u64, why: &str) -> Status {
        if id == self.identity.member_id {
            refuse(Code::FailedPrecondition, why)
        } else {
            refuse(Code::NotFound, "member not found")
        }
    }
}

#[tonic::async_trait]
impl Cluster for Wire {
    async fn member_list(
        self: Arc<Self>,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        self.permit(request.metadata()).await?.user()?;
        Ok(Response::new(pb::MemberListResponse {
            header: self.header(Revision::ZERO),
            members: vec![self.member()],
        }))
    }

    async fn member_add(
        self: Arc<Self>,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        self.permit(request.metadata()).await?.root()?;
        Err(refuse(Code::FailedPrecondition, "the embedded store has one member and takes no other"))
    }

    async fn member_remove(
        self: Arc<Self>,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        self.permit(request.metadata()).await?.root()?;
        let why = "re-configuration failed due to not enough started members";
        Err(self.refuse_change(request.into_inner().id, why))
    }

    async fn member_update(
        self: Arc<Self>,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        self.permit(request.metadata()).await?.root()?;
        let why = "the embedded store has no peers, so no peer addresses";
        Err(self.refuse_change(request.into_inner().id, why))
    }

    async fn member_promote(
        self: Arc<Self>,
        request: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        self.permit(request.metadata()).await?.root()?;
        Err(self.refuse_change(request.into_inner().id, "can only promote a learner member"))
    }
}
