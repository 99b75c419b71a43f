//! Does a request begin? Which release, for whom, and what is refused.

use super::rollout::Rollout;
use super::{Decision, Move, Start};
use crate::facts::Facts;
use crate::lrn::{Lrn, go_list};
use crate::plan::{RolloutPlan, plan_groups};
use crate::release::Version;
use crate::spec::Target;
use crate::status::Request;

/// There is no request: one begins as soon as there is a release to have.
pub(super) fn first(facts: &Facts) -> Decision {
    let Some(target) = &facts.target else {
        return Decision::wait("no release is asked for yet");
    };
    let before = facts.last_success.clone().unwrap_or_default();
    match refusal(&before, &target.record) {
        Some(refused) => Decision::wait(refused),
        None => start(facts, &target.record, &before, "first request"),
    }
}

/// The request is complete: another host list or another release begins the next one.
pub(super) fn next(facts: &Facts, rollout: &Rollout<'_>) -> Decision {
    let request = rollout.request;
    let version = &request.version;
    if let Some(target) = &facts.target
        && target.record.version != *version
    {
        return match refusal(version, &target.record) {
            Some(refused) => Decision::wait(refused),
            None => start(facts, &target.record, version, "another release"),
        };
    }
    if facts.registry != request.members() {
        let same = facts.target.as_ref().map_or_else(Target::default, |seen| seen.record.clone());
        let target = Target { version: version.clone(), ..same };
        return start(facts, &target, version, "hosts joined or left");
    }
    let without: Vec<Lrn> = rollout.left_behind().collect();
    let down =
        rollout.standings.keys().filter(|lrn| !facts.leases.contains_key(lrn) && !without.contains(lrn));
    let down: Vec<Lrn> = down.filter(|lrn| facts.registry.contains(lrn)).copied().collect();
    let mut text = match without.is_empty() {
        true => format!("{version} is on every host"),
        false => format!("{version} is complete without hosts {}", go_list(&without)),
    };
    if !down.is_empty() {
        text.push_str(&format!("; the workers of hosts {} are not up", go_list(&down)));
    }
    Decision::wait(text)
}

/// Why a release is not begun, if it is not.
fn refusal(before: &str, target: &Target) -> Option<String> {
    let wanted = match target.version.parse::<Version>() {
        Ok(wanted) => wanted,
        Err(error) => return Some(format!("release refused: {error}")),
    };
    let older = before.parse::<Version>().is_ok_and(|before| wanted < before);
    (older && !target.rollback).then(|| {
        format!("release {wanted} refused: it is older than {before}; `rollback` goes back on purpose")
    })
}

fn start(facts: &Facts, target: &Target, before: &str, cause: &str) -> Decision {
    if !facts.releases.contains_key(&target.version) {
        return Decision::wait(format!("release {} is not known yet", target.version));
    }
    if facts.registry.is_empty() {
        return Decision::wait(format!("release {} waits: no host has joined the fleet", target.version));
    }
    let generation = facts.last_generation + 1;
    let servers: Vec<Lrn> = facts.registry.iter().copied().collect();
    let request = Request {
        version: target.version.clone(),
        servers,
        started_at: facts.now,
        generation,
        update_id: format!("{}-{generation}", target.version),
        rollback: target.rollback,
        ..Request::default()
    };
    let plan = RolloutPlan {
        generation,
        parent: facts.request.as_ref().map_or(0, |seen| seen.record.generation),
        version: target.version.clone(),
        groups: plan_groups(&facts.registry, &facts.labels(), &facts.policies),
        ..RolloutPlan::default()
    };
    let cause = if before.is_empty() { cause.to_owned() } else { format!("{cause}, from {before}") };
    let why = format!("begin {} on {} hosts: {cause}", target.version, request.servers.len());
    let start = Start { request, plan, cause, by: target.by.clone() };
    Decision::act(Move::Start(Box::new(start)), why)
}
