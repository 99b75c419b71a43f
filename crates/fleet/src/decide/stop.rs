//! When must a request be stopped, and what is left to do once it is?

use super::alarm::Alarm;
use super::rollout::{Rollout, Standing};
use super::{Decision, HostMove, Move, SlotChange};
use crate::drain::DrainWish;
use crate::encoding::Moment;
use crate::facts::Facts;
use crate::history::Outcome;
use crate::lrn::{Lrn, go_list};
use crate::plan::{SegmentKind, group_of};
use crate::status::{Desired, HostStatus, Phase, Request};

/// The request is stopped: nothing moves until an operator recovers. Hosts that had not begun are given back.
pub(super) fn stopped(facts: &Facts, request: &Request) -> Decision {
    if facts.history.as_ref().is_some_and(|seen| seen.record.outcome.is_none()) {
        let reason = match request.stop_reason.as_str() {
            "" => "stopped by hand".to_owned(),
            reason => reason.to_owned(),
        };
        let end = Move::End { outcome: Outcome::Stopped, reason, without: Vec::new() };
        return Decision::act(end, "note that the request was stopped");
    }
    let moves: Vec<HostMove> = facts
        .desired
        .iter()
        .filter(|(_, seen)| seen.record.generation == request.generation && seen.record.phase == Phase::Drain)
        .take(super::HOSTS_PER_MOVE)
        .map(|(lrn, seen)| give_back(facts, *lrn, &seen.record))
        .collect();
    if moves.is_empty() {
        let late = super::unconfirmed(facts);
        let waits = match late.is_empty() {
            true => String::new(),
            false => format!("; hosts {} have not confirmed", go_list(&late)),
        };
        return Decision::wait(format!("stopped: {}{waits}; recover to go on", request.stop_reason));
    }
    super::hosts(moves)
}

fn give_back(facts: &Facts, lrn: Lrn, desired: &Desired) -> HostMove {
    let none = std::collections::BTreeMap::new();
    let labels = facts.infos.get(&lrn).map_or(&none, |seen| &seen.record.labels);
    HostMove {
        lrn,
        group: group_of(&facts.policies, labels),
        desired: Desired { phase: Phase::Done, at: facts.now, ..desired.clone() },
        drain: Some(DrainWish::Return),
        slot: SlotChange::Free,
        why: format!("host {lrn} is given back: it had not begun"),
    }
}

/// An order, an impossible report, or more failures than the budget allows.
pub(super) fn must_stop(facts: &Facts, rollout: &Rollout<'_>) -> Option<Decision> {
    if let Some(order) = &rollout.orders.stopped {
        let reason = format!("stopped by {}: {}", order.by, order.reason);
        return Some(stop(Outcome::Stopped, reason));
    }
    if let Some(reason) = impossible_report(facts, rollout) {
        return Some(stop(Outcome::Failed, reason));
    }
    for group in &rollout.groups {
        let budget = rollout.policy(&group.group).failure_budget.limit_of(group.len());
        let failed: Vec<(Lrn, &String)> = group
            .hosts()
            .filter_map(|lrn| match rollout.standings.get(&lrn) {
                Some(Standing::Failed(why)) => Some((lrn, why)),
                Some(_) | None => None,
            })
            .collect();
        if failed.len() > budget
            && let Some((lrn, why)) = failed.first()
            && !failed.iter().any(|(lrn, _)| can_go_back(facts, rollout, *lrn))
        {
            let count = failed.len();
            let reason = match count {
                1 => format!("host {lrn} failed: {why}"),
                _ => format!("{count} hosts of group {} failed, first host {lrn}: {why}", group.group),
            };
            return Some(stop(Outcome::Failed, reason));
        }
    }
    None
}

/// A host that may go back to what it had does so before everything is stopped: a stop would interrupt it.
fn can_go_back(facts: &Facts, rollout: &Rollout<'_>, lrn: Lrn) -> bool {
    let Some(desired) = rollout.desired(lrn) else { return false };
    let allowed = rollout
        .groups
        .iter()
        .find(|group| group.hosts().any(|host| host == lrn))
        .is_some_and(|group| rollout.policy(&group.group).auto_rollback);
    let kept = facts.history.as_ref().is_some_and(|seen| !seen.record.from.is_empty());
    allowed && kept && !rollout.request.rollback && desired.phase.is_active() && desired.phase != Phase::Drain
}

/// A report that is impossible: a step that was not released, or an end before the last step.
fn impossible_report(facts: &Facts, rollout: &Rollout<'_>) -> Option<String> {
    let members = rollout.request.members();
    facts.statuses.iter().find_map(|(lrn, seen)| {
        let report = &seen.record;
        let left = rollout.standings.get(lrn) == Some(&Standing::Left);
        if left || !members.contains(lrn) || !report.is_about(rollout.request) || report.error {
            return None;
        }
        let allowed = allowed_step(rollout, *lrn);
        let claims = claimed_step(rollout, report);
        (claims > allowed).then(|| match report.finished {
            true => {
                format!("host {lrn} says that it is finished although only step {} was released", allowed - 1)
            }
            false => format!(
                "host {lrn} says that it is at step {claims} although only step {} was released",
                allowed - 1
            ),
        })
    })
}

/// The highest step that a host may announce: the one behind the last that it may have run.
fn allowed_step(rollout: &Rollout<'_>, lrn: Lrn) -> u32 {
    let together = rollout.released.map_or(0, |released| released.step);
    let alone = rollout.desired(lrn).map_or(0, |desired| desired.through);
    together.max(alone) + 1
}

fn claimed_step(rollout: &Rollout<'_>, report: &HostStatus) -> u32 {
    if report.finished { rollout.steps + 1 } else { report.step }
}

/// The deadline of a request whose release is not known.
pub(super) fn late(facts: &Facts, request: &Request, alarm: &Alarm) -> Option<Decision> {
    let timeout = facts.settings.worker_timeout;
    alarm.passed(request.started_at, timeout).then(|| timed_out("the release is not known", timeout))
}

/// The deadline: since the start where hosts only meet, since the last progress where they go one after the other.
pub(super) fn late_rollout(facts: &Facts, rollout: &Rollout<'_>, alarm: &Alarm) -> Option<Decision> {
    let timeout = facts.settings.worker_timeout;
    let since = last_progress(facts, rollout);
    alarm
        .passed(since, timeout)
        .then(|| timed_out(&format!("waiting for hosts {}", rollout.waiting_list()), timeout))
}

pub(super) fn last_progress(facts: &Facts, rollout: &Rollout<'_>) -> Moment {
    let resumed = rollout.orders.resumed_at.unwrap_or(rollout.request.started_at);
    let start = rollout.request.started_at.max(resumed);
    let one_by_one =
        rollout.segments.iter().any(|segment| matches!(segment.kind, SegmentKind::Rolling { .. }));
    if !one_by_one {
        return start;
    }
    let released = rollout.released.map(|released| released.at);
    let wanted = facts.desired.values().filter(|seen| seen.record.generation == rollout.request.generation);
    let reported = facts.statuses.values().filter_map(|seen| seen.record.updated_at);
    let moments = wanted.map(|seen| seen.record.at).chain(released).chain(reported);
    moments.map(|moment| moment.min(facts.now)).chain([start]).max().unwrap_or(start)
}

fn timed_out(what: &str, timeout: std::time::Duration) -> Decision {
    stop(Outcome::TimedOut, format!("timed out after {}: {what}", crate::encoding::Span(timeout)))
}

fn stop(outcome: Outcome, reason: String) -> Decision {
    Decision::act(Move::Stop { outcome, reason: reason.clone() }, format!("stop: {reason}"))
}
