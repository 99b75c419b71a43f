//! The JSON API of the fleet's rules: policies of groups, and settings.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State as Extract};
use capstan_fleet::FleetError;
use capstan_fleet::api::{ConfigKey, ConfigLine};
use capstan_fleet::keys::GroupName;
use capstan_fleet::spec::Policy;
use serde::{Deserialize, Serialize};

use super::Answer;
use crate::State;
use crate::list::List;

/// The rules of one group.
#[derive(Debug, Serialize)]
pub(crate) struct Rules {
    group: GroupName,
    policy: Policy,
}

/// A new value of a setting.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Value {
    value: String,
}

fn group(name: &str) -> Result<GroupName, FleetError> {
    Ok(GroupName::new(name)?)
}

pub(crate) async fn policies(Extract(state): Extract<State>) -> Answer<List<Rules>> {
    let policies = state.fleet().policies().await?;
    let rules = policies.into_iter().map(|(group, policy)| Rules { group, policy });
    Ok(List::of("policies", rules.collect()))
}

pub(crate) async fn policy(Extract(state): Extract<State>, Path(name): Path<String>) -> Answer<Policy> {
    let own = state.fleet().own_policy(&group(&name)?).await?;
    Ok(Json(own.ok_or_else(|| FleetError::NotFound(format!("policy of group {name}")))?))
}

pub(crate) async fn set_policy(
    Extract(state): Extract<State>,
    Path(name): Path<String>,
    policy: Result<Json<Policy>, JsonRejection>,
) -> Answer<Policy> {
    let policy = policy?.0;
    if let Some((field, _)) = policy.extra.iter().next() {
        return Err(FleetError::Invalid(format!("a policy has no field {field:?}")).into());
    }
    state.fleet().policy_set(&group(&name)?, &policy).await?;
    Ok(Json(policy))
}

pub(crate) async fn remove_policy(Extract(state): Extract<State>, Path(name): Path<String>) -> Answer<()> {
    state.fleet().policy_remove(&group(&name)?).await?;
    Ok(Json(()))
}

pub(crate) async fn config(Extract(state): Extract<State>) -> Answer<List<ConfigLine>> {
    Ok(List::of("settings", state.fleet().config().await?))
}

pub(crate) async fn setting(Extract(state): Extract<State>, Path(key): Path<String>) -> Answer<ConfigLine> {
    Ok(Json(state.fleet().config_get(key.parse::<ConfigKey>()?).await?))
}

pub(crate) async fn set(
    Extract(state): Extract<State>,
    Path(key): Path<String>,
    value: Result<Json<Value>, JsonRejection>,
) -> Answer<ConfigLine> {
    let (fleet, key) = (state.fleet(), key.parse::<ConfigKey>()?);
    fleet.config_set(key, &value?.value).await?;
    Ok(Json(fleet.config_get(key).await?))
}

pub(crate) async fn unset(Extract(state): Extract<State>, Path(key): Path<String>) -> Answer<ConfigLine> {
    let (fleet, key) = (state.fleet(), key.parse::<ConfigKey>()?);
    fleet.config_unset(key).await?;
    Ok(Json(fleet.config_get(key).await?))
}
