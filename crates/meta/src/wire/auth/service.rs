//! The Auth service: users, roles, permissions, and tokens for users that show their password.

use std::sync::Arc;

use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::record::{Allowed, Change, Permission, ROOT, Refusal};
use crate::wire::proto::authpb;
use crate::wire::proto::authpb::permission::Type;
use crate::wire::proto::etcdserverpb as pb;
use crate::wire::proto::etcdserverpb::auth_server::Auth;
use crate::wire::service::Wire;
use crate::wire::status::refused;

impl Wire {
    async fn change_users(
        &self,
        metadata: MetadataMap,
        change: Change,
    ) -> Result<Option<pb::ResponseHeader>, Status> {
        self.access.change(metadata, change).await?;
        self.header_now().await
    }

    /// The hash of a password that root sets.
    async fn hashed(&self, metadata: &MetadataMap, password: String) -> Result<String, Status> {
        // First who asks: a hash is expensive.
        self.access.permit(metadata).await?.root()?;
        self.access.hashing.hash(password).await.map_err(refused)
    }
}

#[tonic::async_trait]
impl Auth for Wire {
    async fn auth_status(
        self: Arc<Self>,
        request: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        self.access.permit(request.metadata()).await?.root()?;
        let header = self.header_now().await?;
        let rules = self.access.rules();
        let (enabled, auth_revision) = (rules.record.enabled, rules.record.revision);
        Ok(Response::new(pb::AuthStatusResponse { header, enabled, auth_revision }))
    }

    async fn authenticate(
        self: Arc<Self>,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        let pb::AuthenticateRequest { name, password } = request.into_inner();
        let token = self.access.sign_in(name, password).await.map_err(refused)?;
        Ok(Response::new(pb::AuthenticateResponse { header: self.header_now().await?, token }))
    }

    async fn auth_enable(
        self: Arc<Self>,
        request: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        let (metadata, _, _) = request.into_parts();
        let header = self.change_users(metadata, Change::Enable).await?;
        Ok(Response::new(pb::AuthEnableResponse { header }))
    }

    async fn auth_disable(
        self: Arc<Self>,
        request: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        let (metadata, _, _) = request.into_parts();
        let header = self.change_users(metadata, Change::Disable).await?;
        Ok(Response::new(pb::AuthDisableResponse { header }))
    }

    async fn user_add(
        self: Arc<Self>,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        let (metadata, _, pb::AuthUserAddRequest { name, password, options, .. }) = request.into_parts();
        if name.is_empty() {
            return Err(refused(Refusal::UserEmpty));
        }
        let password = match options.is_some_and(|options| options.no_password) {
            true => None,
            false => Some(self.hashed(&metadata, password).await?),
        };
        let header = self.change_users(metadata, Change::AddUser { name, password }).await?;
        Ok(Response::new(pb::AuthUserAddResponse { header }))
    }

    async fn user_get(
        self: Arc<Self>,
        request: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        let name = &request.get_ref().name;
        self.access.permit(request.metadata()).await?.user_or_root(name)?;
        let rules = self.access.rules();
        let user = rules.record.users.get(name).ok_or(Refusal::UserNotFound).map_err(refused)?;
        let roles = user.roles.iter().cloned().collect();
        Ok(Response::new(pb::AuthUserGetResponse { header: self.header_now().await?, roles }))
    }

    async fn user_list(
        self: Arc<Self>,
        request: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        self.access.permit(request.metadata()).await?.root()?;
        let users = self.access.rules().record.users.keys().cloned().collect();
        Ok(Response::new(pb::AuthUserListResponse { header: self.header_now().await?, users }))
    }

    async fn user_delete(
        self: Arc<Self>,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        let (metadata, _, pb::AuthUserDeleteRequest { name }) = request.into_parts();
        let header = self.change_users(metadata, Change::DeleteUser { name }).await?;
        Ok(Response::new(pb::AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        self: Arc<Self>,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        let (metadata, _, pb::AuthUserChangePasswordRequest { name, password, .. }) = request.into_parts();
        let password = self.hashed(&metadata, password).await?;
        let header = self.change_users(metadata, Change::SetPassword { name, password }).await?;
        Ok(Response::new(pb::AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        self: Arc<Self>,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        let (metadata, _, pb::AuthUserGrantRoleRequest { user, role }) = request.into_parts();
        let header = self.change_users(metadata, Change::GrantRole { user, role }).await?;
        Ok(Response::new(pb::AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        self: Arc<Self>,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        let (metadata, _, pb::AuthUserRevokeRoleRequest { name, role }) = request.into_parts();
        let header = self.change_users(metadata, Change::RevokeRole { user: name, role }).await?;
        Ok(Response::new(pb::AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        self: Arc<Self>,
        request: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        let (metadata, _, pb::AuthRoleAddRequest { name }) = request.into_parts();
        let header = self.change_users(metadata, Change::AddRole { name }).await?;
        Ok(Response::new(pb::AuthRoleAddResponse { header }))
    }

    async fn role_get(
        self: Arc<Self>,
        request: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        let role = &request.get_ref().role;
        self.access.permit(request.metadata()).await?.role_or_root(role)?;
        let rules = self.access.rules();
        let permissions = rules.record.roles.get(role).ok_or(Refusal::RoleNotFound).map_err(refused)?;
        let perm = if role == ROOT { vec![everything()] } else { permissions.iter().map(shown).collect() };
        Ok(Response::new(pb::AuthRoleGetResponse { header: self.header_now().await?, perm }))
    }

    async fn role_list(
        self: Arc<Self>,
        request: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        self.access.permit(request.metadata()).await?.root()?;
        let roles = self.access.rules().record.roles.keys().cloned().collect();
        Ok(Response::new(pb::AuthRoleListResponse { header: self.header_now().await?, roles }))
    }

    async fn role_delete(
        self: Arc<Self>,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        let (metadata, _, pb::AuthRoleDeleteRequest { role }) = request.into_parts();
        let header = self.change_users(metadata, Change::DeleteRole { name: role }).await?;
        Ok(Response::new(pb::AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        self: Arc<Self>,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        let (metadata, _, pb::AuthRoleGrantPermissionRequest { name, perm }) = request.into_parts();
        let permission = perm.and_then(granted).ok_or(Refusal::PermissionNotGiven).map_err(refused)?;
        let header = self.change_users(metadata, Change::GrantPermission { role: name, permission }).await?;
        Ok(Response::new(pb::AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        self: Arc<Self>,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        let (metadata, _, pb::AuthRoleRevokePermissionRequest { role, key, range_end }) =
            request.into_parts();
        let change = Change::RevokePermission { role, start: key.to_vec(), end: range_end.to_vec() };
        let header = self.change_users(metadata, change).await?;
        Ok(Response::new(pb::AuthRoleRevokePermissionResponse { header }))
    }
}

/// A permission as clients send it.
fn granted(permission: authpb::Permission) -> Option<Permission> {
    let access = match Type::try_from(permission.perm_type).ok()? {
        Type::Read => Allowed::Read,
        Type::Write => Allowed::Write,
        Type::Readwrite => Allowed::ReadWrite,
    };
    Some(Permission { start: permission.key.to_vec(), end: permission.range_end.to_vec(), access })
}

/// A permission as clients see it.
fn shown(permission: &Permission) -> authpb::Permission {
    let perm_type = match permission.access {
        Allowed::Read => Type::Read,
        Allowed::Write => Type::Write,
        Allowed::ReadWrite => Type::Readwrite,
    };
    let (key, range_end) = (permission.start.clone().into(), permission.end.clone().into());
    authpb::Permission { perm_type: perm_type.into(), key, range_end }
}

/// What the role `root` may do.
fn everything() -> authpb::Permission {
    let (key, range_end) = (bytes::Bytes::new(), bytes::Bytes::from_static(b"\0"));
    authpb::Permission { perm_type: Type::Readwrite.into(), key, range_end }
}
