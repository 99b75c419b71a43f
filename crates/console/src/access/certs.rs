//! The JSON API of certificates: tokens for new hosts, first certificates, renewals.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{ConnectInfo, Path, State as Extract};
use axum::http::StatusCode;
use axum::{Extension, Json};
use capstan_access::certs::describe_der;
use capstan_access::enroll::{self, NewHost, Signer, TICKET_LIFE};
use capstan_access::{AccessError, Refused};
use capstan_control::events;
use capstan_control::keys::HostId;
use serde::{Deserialize, Serialize};

use super::caller::Caller;
use crate::{ApiError, Peer, State};

type Answer<T> = Result<Json<T>, ApiError>;
type Body<T> = Result<Json<T>, JsonRejection>;

/// A host that is to join.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    host: HostId,
    addresses: Vec<IpAddr>,
    #[serde(default)]
    roles: Vec<String>,
    /// Seconds until the token ends.
    ttl: Option<u64>,
}

/// A token, shown once.
#[derive(Serialize)]
pub(crate) struct Made {
    token: String,
}

pub(crate) async fn create_token(
    Extract(state): Extract<State>,
    Extension(Caller(caller)): Extension<Caller>,
    body: Body<Wanted>,
) -> Answer<Made> {
    let Wanted { host, addresses, roles, ttl } = body?.0;
    let ttl = ttl.map_or(TICKET_LIFE, Duration::from_secs);
    let new = NewHost { host, addresses, roles, ttl };
    let ticket = enroll::ticket_create(&state.store, &new, &caller.name).await?;
    Ok(Json(Made { token: ticket.text().reveal().to_owned() }))
}

pub(crate) async fn revoke(
    Extract(state): Extract<State>,
    Extension(Caller(caller)): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let host = HostId::new(id).map_err(AccessError::from)?;
    match enroll::host_revoke(&state.store, &host, &caller.name).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error @ AccessError::Unenrolled(_)) => Err(ApiError::not_found(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// A machine that wants to be a host. The token is never shown.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Join {
    token: String,
    request: String,
}

/// What a new host is given.
#[derive(Serialize)]
pub(crate) struct Welcomed {
    host: HostId,
    addresses: Vec<IpAddr>,
    roles: Vec<String>,
    chain: String,
    settings: BTreeMap<String, String>,
    meta_authority: Option<String>,
}

pub(crate) async fn join(Extract(state): Extract<State>, body: Body<Join>) -> Answer<Welcomed> {
    // What is wrong with the body could repeat the token: only what is expected is said.
    let expected = "send {\"token\", \"request\"} as JSON";
    let Json(body) = body.map_err(|wrong| ApiError::with(wrong.status(), expected.to_owned()))?;
    let admitted = signer(&state)?.admit(&state.store, &body.token, &body.request).await?;
    tracing::info!(host = %admitted.host, "host joined with a token");
    let settings = admitted.settings.iter().map(|(name, value)| (name.clone(), value.reveal().to_owned()));
    Ok(Json(Welcomed {
        settings: settings.collect(),
        host: admitted.host,
        addresses: admitted.addresses,
        roles: admitted.roles,
        chain: admitted.chain,
        meta_authority: admitted.meta_authority,
    }))
}

/// A host that wants its next certificate.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Renew {
    request: String,
}

/// The next certificate.
#[derive(Debug, Serialize)]
pub(crate) struct Renewed {
    chain: String,
}

pub(crate) async fn renew(
    Extract(state): Extract<State>,
    Extension(ConnectInfo(peer)): Extension<ConnectInfo<Peer>>,
    body: Body<Renew>,
) -> Answer<Renewed> {
    let signer = signer(&state)?;
    let Json(Renew { request }) = body?;
    let shown = peer.certificate.ok_or(AccessError::Refused(Refused::Missing))?;
    let shown = describe_der(&shown).map_err(AccessError::from)?;
    let (host, chain) = signer.renew(&state.store, &shown, &request).await?;
    let actor = format!("host {host}");
    events::record(&state.store, &actor, "renewed", "its certificate", "").await;
    Ok(Json(Renewed { chain }))
}

fn signer(state: &State) -> Result<Arc<Signer>, ApiError> {
    let missing = || {
        let text = "this process does not have the key of the authority; ask one whose `tls.dir` has ca.key";
        ApiError::with(StatusCode::CONFLICT, text.to_owned())
    };
    state.signer.clone().ok_or_else(missing)
}
