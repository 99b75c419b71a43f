//! The Auth service: there are no users and no roles, and every call says so truthfully.

use std::sync::Arc;

use tonic::{Code, Request, Response, Status};

use super::proto::etcdserverpb as pb;
use super::proto::etcdserverpb::auth_server::Auth;
use super::service::Wire;
use super::status::refuse;

/// Refusal of whatever would create a user or a role.
fn no_users() -> Status {
    refuse(Code::Unimplemented, "the embedded store has no users and roles")
}

fn no_such_user() -> Status {
    refuse(Code::FailedPrecondition, "user name not found")
}

fn no_such_role() -> Status {
    refuse(Code::FailedPrecondition, "role name not found")
}

#[tonic::async_trait]
impl Auth for Wire {
    async fn auth_status(
        self: Arc<Self>,
        _: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        let header = self.header_now().await?;
        Ok(Response::new(pb::AuthStatusResponse { header, enabled: false, auth_revision: 1 }))
    }

    async fn authenticate(
        self: Arc<Self>,
        _: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        Err(refuse(Code::FailedPrecondition, "authentication is not enabled"))
    }

    async fn auth_enable(
        self: Arc<Self>,
        _: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        Err(refuse(Code::FailedPrecondition, "root user does not exist"))
    }

    async fn auth_disable(
        self: Arc<Self>,
        _: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        // It is disabled already, which is what was asked for.
        Ok(Response::new(pb::AuthDisableResponse { header: self.header_now().await? }))
    }

    async fn user_add(
        self: Arc<Self>,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        if request.into_inner().name.is_empty() {
            return Err(refuse(Code::InvalidArgument, "user name is empty"));
        }
        Err(no_users())
    }

    async fn user_get(
        self: Arc<Self>,
        _: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        Err(no_such_user())
    }

    async fn user_list(
        self: Arc<Self>,
        _: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        Ok(Response::new(pb::AuthUserListResponse { header: self.header_now().await?, users: Vec::new() }))
    }

    async fn user_delete(
        self: Arc<Self>,
        _: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        Err(no_such_user())
    }

    async fn user_change_password(
        self: Arc<Self>,
        _: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        Err(no_such_user())
    }

    async fn user_grant_role(
        self: Arc<Self>,
        _: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        Err(no_such_user())
    }

    async fn user_revoke_role(
        self: Arc<Self>,
        _: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        Err(no_such_user())
    }

    async fn role_add(
        self: Arc<Self>,
        _: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        Err(no_users())
    }

    async fn role_get(
        self: Arc<Self>,
        _: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        Err(no_such_role())
    }

    async fn role_list(
        self: Arc<Self>,
        _: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        Ok(Response::new(pb::AuthRoleListResponse { header: self.header_now().await?, roles: Vec::new() }))
    }

    async fn role_delete(
        self: Arc<Self>,
        _: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        Err(no_such_role())
    }

    async fn role_grant_permission(
        self: Arc<Self>,
        _: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        Err(no_such_role())
    }

    async fn role_revoke_permission(
        self: Arc<Self>,
        _: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        Err(no_such_role())
    }
}
