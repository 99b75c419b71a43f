//! The JSON API of identities, keys and roles: what `capstan access` does.

use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, State as Extract};
use axum::http::StatusCode;
use axum::{Extension, Json};
use capstan_access::api::{self, IssuedKey, Listed, NewIdentity, NewKey};
use capstan_access::keys::{IdentityName, KeyId, RoleName};
use capstan_access::spec::IdentityKind;
use capstan_access::{AccessError, Grant, Identity, Object, Secret, Verb, decide};
use serde::{Deserialize, Serialize};

use super::caller::Caller;
use crate::{ApiError, State};

type Answer<T> = Result<Json<T>, ApiError>;
type Body<T> = Result<Json<T>, JsonRejection>;

pub(crate) async fn list(Extract(state): Extract<State>) -> Answer<Listed> {
    Ok(Json(api::list(&state.store).await?))
}

/// A user or account that is to be. The password is hashed here: it is in no record and no log.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMember {
    name: IdentityName,
    kind: IdentityKind,
    password: Option<String>,
    #[serde(default)]
    roles: Vec<RoleName>,
    #[serde(default)]
    grants: Vec<Grant>,
}

pub(crate) async fn create(
    Extract(state): Extract<State>,
    Extension(Caller(caller)): Extension<Caller>,
    body: Body<NewMember>,
) -> Answer<Listed> {
    // What is wrong with the body could repeat the password: only what is expected is said.
    let expected =
        "send {\"name\", \"kind\": \"user\" or \"account\", \"password\", \"roles\", \"grants\"} as JSON";
    let body = body.map_err(|wrong| ApiError::with(wrong.status(), expected.to_owned()))?;
    let NewMember { name, kind, password, roles, grants } = body.0;
    let new = NewIdentity { name, kind, password: password.map(Secret::new), roles, grants };
    api::identity_create(&state.store, &new, &caller.name).await?;
    list(Extract(state)).await
}

pub(crate) async fn remove(
    Extract(state): Extract<State>,
    Extension(Caller(caller)): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    let name = IdentityName::new(name).map_err(AccessError::from)?;
    api::identity_remove(&state.store, &name, &caller.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A key that is to be.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Wanted {
    note: String,
    scope: Option<Vec<Grant>>,
    /// Seconds until it ends.
    ttl: Option<u64>,
}

/// A key, shown once.
#[derive(Serialize)]
pub(crate) struct Issued {
    id: KeyId,
    key: String,
    #[serde(with = "capstan_control::time::rfc3339_option")]
    expires_at: Option<u64>,
}

impl From<IssuedKey> for Issued {
    fn from(issued: IssuedKey) -> Issued {
        Issued { id: issued.id, key: issued.text.reveal().to_owned(), expires_at: issued.expires_at }
    }
}

pub(crate) async fn issue(
    Extract(state): Extract<State>,
    Extension(Caller(caller)): Extension<Caller>,
    Path(name): Path<String>,
    body: Body<Wanted>,
) -> Answer<Issued> {
    let Wanted { note, scope, ttl } = body?.0;
    let identity = IdentityName::new(name).map_err(AccessError::from)?;
    let new = NewKey { identity, note, scope, ttl: ttl.map(Duration::from_secs) };
    Ok(Json(api::key_create(&state.store, &new, &caller.name).await?.into()))
}

/// For how long the old key stays valid, in seconds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Overlap {
    overlap: u64,
}

pub(crate) async fn rotate(
    Extract(state): Extract<State>,
    Extension(Caller(caller)): Extension<Caller>,
    Path(id): Path<String>,
    body: Body<Overlap>,
) -> Answer<Issued> {
    let overlap = Duration::from_secs(body?.overlap);
    let id = KeyId::new(id).map_err(AccessError::from)?;
    Ok(Json(api::key_rotate(&state.store, &id, overlap, &caller.name).await?.into()))
}

pub(crate) async fn revoke(
    Extract(state): Extract<State>,
    Extension(Caller(caller)): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let id = KeyId::new(id).map_err(AccessError::from)?;
    api::key_revoke(&state.store, &id, &caller.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// What is asked about.
#[derive(Debug, Deserialize)]
pub(crate) struct Question {
    identity: String,
    verb: String,
    object: String,
}

/// Whether it is allowed, and why.
#[derive(Debug, Serialize)]
pub(crate) struct Because {
    allowed: bool,
    because: String,
}

pub(crate) async fn why(Extract(state): Extract<State>, Query(asked): Query<Question>) -> Answer<Because> {
    let name = IdentityName::new(asked.identity).map_err(AccessError::from)?;
    let verb: Verb = asked.verb.parse().map_err(AccessError::from)?;
    let object: Object = asked.object.parse().map_err(AccessError::from)?;
    let policy = state.access.policy();
    let decision = decide(&policy, &Identity::named(name), verb, &object);
    Ok(Json(Because { allowed: decision.is_allowed(), because: decision.to_string() }))
}
