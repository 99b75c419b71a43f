//! When does a step run that hosts run together? When everybody who is waited for has announced it.

use super::alarm::Alarm;
use super::rollout::Rollout;
use super::{Decision, Move};
use crate::lrn::Lrn;
use crate::plan::Segment;
use crate::status::Released;
use crate::world::World;

/// Everybody runs the step at the same time.
pub(super) fn barrier(world: &World, rollout: &Rollout<'_>, segment: Segment, alarm: &Alarm) -> Decision {
    let step = segment.first;
    if rollout.released.is_some_and(|released| released.step >= step) {
        return waiting(rollout, step, |lrn| !rollout.has_done(lrn, step), "run");
    }
    match held_back(rollout, step, alarm) {
        Some(wait) => wait,
        None => release(world, rollout, step, None),
    }
}

/// One host runs the step; the others go on when it is done.
pub(super) fn once(world: &World, rollout: &Rollout<'_>, segment: Segment, alarm: &Alarm) -> Decision {
    let step = segment.first;
    // What one host did for all stays done: who comes back from before it does not make it begin again.
    let over = |released: &Released| released.step > step || (released.step == step && released.done);
    if rollout.released.is_some_and(over) {
        return waiting(rollout, step, |lrn| !rollout.has_done(lrn, step), "go on behind");
    }
    let chosen = rollout.released.filter(|released| released.step == step).and_then(|released| released.only);
    let Some(host) = chosen else {
        return match (held_back(rollout, step, alarm), first_awaited(rollout)) {
            (Some(wait), _) => wait,
            (None, Some(host)) => release(world, rollout, step, Some(host)),
            (None, None) => Decision::wait("nobody is left to do what is done once"),
        };
    };
    // What somebody has done counts, even if it was believed to be gone before it could say so, is gone by now, or has
    // failed at a later step since.
    let has_done = |lrn: &Lrn| {
        rollout.report(*lrn).is_some_and(|report| report.step > step || (report.finished && !report.error))
    };
    if let Some(did) = rollout.standings.keys().copied().find(has_done) {
        let released = Released { done: true, ..released(world, rollout, step, Some(did)) };
        return Decision::act(Move::Release(released), format!("host {did} has done step {step} for all"));
    }
    let gone = !rollout.awaited().any(|(_, lrn)| lrn == host);
    match first_awaited(rollout).filter(|_| gone) {
        Some(other) => release(world, rollout, step, Some(other)),
        None => Decision::wait(format!("host {host} does step {step} for all")),
    }
}

/// Why a step may not begin yet, if it may not.
fn held_back(rollout: &Rollout<'_>, step: u32, alarm: &Alarm) -> Option<Decision> {
    if rollout.awaited().any(|(_, lrn)| !rollout.has_announced(lrn, step)) {
        return Some(waiting(rollout, step, |lrn| !rollout.has_announced(lrn, step), "announce"));
    }
    if let Some(order) = &rollout.orders.paused {
        return Some(Decision::wait(format!("step {step} waits: paused by {} ({})", order.by, order.reason)));
    }
    let shut = rollout.groups.iter().find(|group| !rollout.policy(&group.group).is_open(alarm.now()))?;
    alarm.next_minute();
    Some(Decision::wait(format!("step {step} waits for the window of group {}", shut.group)))
}

fn waiting(rollout: &Rollout<'_>, step: u32, not_yet: impl Fn(Lrn) -> bool, what: &str) -> Decision {
    let list: Vec<Lrn> = rollout.awaited().map(|(_, lrn)| lrn).filter(|lrn| not_yet(*lrn)).collect();
    Decision::wait(format!("waiting for hosts {} to {what} step {step}", crate::lrn::go_list(&list)))
}

fn first_awaited(rollout: &Rollout<'_>) -> Option<Lrn> {
    rollout.awaited().map(|(_, lrn)| lrn).min()
}

fn release(world: &World, rollout: &Rollout<'_>, step: u32, only: Option<Lrn>) -> Decision {
    let released = released(world, rollout, step, only);
    let whom = only.map_or_else(|| "everybody".to_owned(), |lrn| format!("host {lrn} alone"));
    Decision::act(Move::Release(released), format!("step {step} may run on {whom}"))
}

fn released(world: &World, rollout: &Rollout<'_>, step: u32, only: Option<Lrn>) -> Released {
    Released {
        generation: rollout.request.generation,
        step,
        only,
        done: false,
        at: world.now,
        extra: capstan_meta::record::Extra::default(),
    }
}
