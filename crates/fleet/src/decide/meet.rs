//! When does a step run that hosts run together? When every awaited host has announced it.

use super::alarm::Alarm;
use super::rollout::{Rollout, Standing};
use super::{Decision, Move};
use crate::facts::Facts;
use crate::lrn::Lrn;
use crate::plan::Segment;
use crate::status::Released;

/// All hosts run the step at the same time.
pub(super) fn barrier(facts: &Facts, rollout: &Rollout<'_>, segment: Segment, alarm: &Alarm) -> Decision {
    let step = segment.first;
    if rollout.released.is_some_and(|released| released.step >= step) {
        return waiting(rollout, segment, |lrn| !rollout.has_done(lrn, step), "run");
    }
    match held_back(rollout, segment, alarm) {
        Some(wait) => wait,
        None => release(facts, rollout, step, None),
    }
}

/// One host runs the step; the others go on when it is done.
pub(super) fn once(facts: &Facts, rollout: &Rollout<'_>, segment: Segment, alarm: &Alarm) -> Decision {
    let step = segment.first;
    // A once step stays done: a host that comes back from before it does not run it again.
    let over = |released: &Released| released.step > step || (released.step == step && released.done);
    if rollout.released.is_some_and(over) {
        return waiting(rollout, segment, |lrn| !rollout.has_done(lrn, step), "go on behind");
    }
    let chosen = rollout.released.filter(|released| released.step == step).and_then(|released| released.only);
    let Some(host) = chosen else {
        return match (held_back(rollout, segment, alarm), first_awaited(rollout)) {
            (Some(wait), _) => wait,
            (None, Some(host)) => release(facts, rollout, step, Some(host)),
            (None, None) => Decision::wait("nobody is left to do what is done once"),
        };
    };
    // A once step that a host has done counts, even if the host was taken for gone before it reported, is gone by now, or has
    // failed at a later step since.
    let has_done = |lrn: &Lrn| {
        rollout.report(*lrn).is_some_and(|report| report.step > step || (report.finished && !report.error))
    };
    if let Some(did) = rollout.standings.keys().copied().find(has_done) {
        let released = Released { done: true, ..released(facts, rollout, step, Some(did)) };
        return Decision::act(Move::Release(released), format!("host {did} has done step {step} for all"));
    }
    let gone = match rollout.standings.get(&host) {
        Some(Standing::At(_) | Standing::Finished | Standing::Silent) => false,
        Some(
            Standing::Left | Standing::Skipped | Standing::Failed(_) | Standing::Absent | Standing::Gone,
        )
        | None => true,
    };
    match first_awaited(rollout).filter(|_| gone) {
        Some(other) => release(facts, rollout, step, Some(other)),
        None => Decision::wait(format!("host {host} does step {step} for all")),
    }
}

/// Why a step may not begin yet, if it may not.
fn held_back(rollout: &Rollout<'_>, segment: Segment, alarm: &Alarm) -> Option<Decision> {
    let step = segment.first;
    if rollout.awaited_in(segment.kind).any(|lrn| !rollout.has_announced(lrn, step)) {
        return Some(waiting(rollout, segment, |lrn| !rollout.has_announced(lrn, step), "announce"));
    }
    if let Some(order) = &rollout.orders.paused {
        return Some(Decision::wait(format!("step {step} waits: paused by {} ({})", order.by, order.reason)));
    }
    let shut = rollout.groups.iter().find(|group| !rollout.policy(&group.group).is_open(alarm.now()))?;
    alarm.next_minute();
    Some(Decision::wait(format!("step {step} waits for the window of group {}", shut.group)))
}

fn waiting(rollout: &Rollout<'_>, segment: Segment, not_yet: impl Fn(Lrn) -> bool, what: &str) -> Decision {
    let list: Vec<Lrn> = rollout.awaited_in(segment.kind).filter(|lrn| not_yet(*lrn)).collect();
    let hosts = crate::lrn::go_list(&list);
    Decision::wait(format!("waiting for hosts {hosts} to {what} step {}", segment.first))
}

/// The host that does a step for all: one that is there and is not about to try again what failed.
fn first_awaited(rollout: &Rollout<'_>) -> Option<Lrn> {
    let there = |lrn: &Lrn| matches!(rollout.standings.get(lrn), Some(Standing::At(_) | Standing::Finished));
    let able = |lrn: &Lrn| there(lrn) && !rollout.is_to_retry(*lrn);
    rollout.awaited().map(|(_, lrn)| lrn).filter(able).min()
}

fn release(facts: &Facts, rollout: &Rollout<'_>, step: u32, only: Option<Lrn>) -> Decision {
    let released = released(facts, rollout, step, only);
    let whom = only.map_or_else(|| "everybody".to_owned(), |lrn| format!("host {lrn} alone"));
    Decision::act(Move::Release(released), format!("step {step} may run on {whom}"))
}

fn released(facts: &Facts, rollout: &Rollout<'_>, step: u32, only: Option<Lrn>) -> Released {
    Released {
        generation: rollout.request.generation,
        step,
        only,
        done: false,
        at: facts.now,
        extra: capstan_meta::record::Extra::default(),
    }
}
