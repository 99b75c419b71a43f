//! Why is a host waiting? The rule, slot, window, drain reason or peer, from the same functions that decide.

use serde::Serialize;

use super::Obstacle;
use super::alarm::Alarm;
use super::grant::{Room, gate, open_wave, shared_unit};
use super::rollout::{Rollout, Standing};
use crate::drain::{Emptiness, emptiness};
use crate::facts::Facts;
use crate::keys::GroupName;
use crate::lrn::{Lrn, go_list};
use crate::plan::{GroupPlan, Segment, SegmentKind};
use crate::status::{Condition, Desired, Phase};

/// What a host is waiting for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Why {
    /// The host.
    pub lrn: Lrn,
    /// Where it stands, in a few words.
    pub state: String,
    /// What it waits for, one reason a line; none if it waits for nothing.
    pub reasons: Vec<String>,
}

/// Why a host is where it is.
#[must_use]
pub fn why(facts: &Facts, lrn: Lrn) -> Why {
    let alarm = Alarm::new(facts.now);
    let told = |state: &str, reasons: Vec<String>| Why { lrn, state: state.to_owned(), reasons };
    let Some(request) = facts.request.as_ref().map(|seen| &seen.record) else {
        return told("idle", vec!["there is no request".to_owned()]);
    };
    if !request.members().contains(&lrn) {
        return match facts.registry.contains(&lrn) {
            true => {
                told("joined", vec!["it joined after the request began: it is in the next one".to_owned()])
            }
            false => told("unknown", vec!["it has not joined the fleet".to_owned()]),
        };
    }
    let rollout = match Rollout::of(facts, request, &alarm) {
        Ok(rollout) => rollout,
        Err(unknown) => return told("waiting", vec![unknown]),
    };
    if request.stop {
        let state = stopped_text(facts, lrn);
        return told(&state, vec![format!("the request is stopped: {}", request.stop_reason)]);
    }
    let mut reasons = reasons(facts, &rollout, lrn, &alarm);
    reasons.extend(facts.unreadable.iter().map(|bad| format!("the rollout is held: {bad}")));
    Why { lrn, state: state(&rollout, lrn), reasons }
}

/// Where a host of a stopped request stands: whether it has confirmed that nothing runs there, and how far it was.
#[must_use]
pub fn stopped_text(facts: &Facts, lrn: Lrn) -> String {
    let request = facts.request.as_ref().map(|seen| &seen.record);
    let status = facts.statuses.get(&lrn).map(|seen| &seen.record);
    let status = status.filter(|status| request.is_some_and(|request| status.is_about(request)));
    let confirmed = facts.has_stopped(lrn);
    match status.map(|status| (status.condition(), status.step)) {
        Some((Condition::Aborted, _)) => "failed".to_owned(),
        Some((Condition::Completed, _)) => "finished".to_owned(),
        Some((Condition::Running, step @ 1..)) if confirmed => format!("stopped at step {step}"),
        Some((Condition::Running, step @ 1..)) => format!("stopping at step {step}, not confirmed"),
        Some((Condition::Running, 0)) | None if confirmed => "stopped".to_owned(),
        Some((Condition::Running, 0)) | None => "stopped, not confirmed".to_owned(),
    }
}

/// Which wave of each group is under way, counted from zero; nothing if no request is.
#[must_use]
pub fn open_waves(facts: &Facts) -> Option<Vec<(GroupName, usize)>> {
    let request = facts.request.as_ref().filter(|seen| !seen.record.stop)?;
    let rollout = Rollout::of(facts, &request.record, &Alarm::new(facts.now)).ok()?;
    let segment = rollout.open_segment()?;
    let open = rollout.groups.iter().map(|group| (group.group.clone(), open_wave(&rollout, group, segment)));
    Some(open.collect())
}

fn state(rollout: &Rollout<'_>, lrn: Lrn) -> String {
    let phase =
        rollout.desired(lrn).filter(|desired| desired.phase.is_active()).map(|desired| &desired.phase);
    match (phase, rollout.standings.get(&lrn)) {
        (Some(Phase::Drain), _) => "draining".to_owned(),
        (Some(Phase::Rollback { to }), _) => format!("going back to {to}"),
        (Some(Phase::Return), _) => "returning".to_owned(),
        (Some(Phase::Settle), _) => "settling".to_owned(),
        (_, Some(Standing::Left)) => "left".to_owned(),
        (_, Some(Standing::Gone)) => "gone after it began".to_owned(),
        (_, Some(Standing::Skipped)) => "skipped".to_owned(),
        (_, Some(Standing::Failed(why))) => format!("failed: {why}"),
        (_, Some(Standing::Absent)) => "absent".to_owned(),
        (_, Some(Standing::Silent) | None) => "not joined yet".to_owned(),
        (Some(_), Some(Standing::At(step))) => format!("running step {step}"),
        (None, Some(Standing::At(step))) => format!("at step {step}"),
        (_, Some(Standing::Finished)) => "finished".to_owned(),
    }
}

fn reasons(facts: &Facts, rollout: &Rollout<'_>, lrn: Lrn, alarm: &Alarm) -> Vec<String> {
    if let Some(desired) = rollout.desired(lrn).filter(|desired| desired.phase.is_active()) {
        return in_slot(facts, rollout, lrn, desired);
    }
    match rollout.standings.get(&lrn) {
        Some(Standing::Finished) => ailing(rollout, lrn),
        Some(Standing::Left) if facts.is_leaving(lrn) => {
            vec!["it left the fleet, and its worker has not confirmed that it has stopped".to_owned()]
        }
        Some(Standing::Left) => vec!["it left the fleet after the request began".to_owned()],
        Some(Standing::Gone) => {
            let text = "its worker had begun and has no lease: no further host begins beyond the failure budget; start it, \
                        or `skip` or `leave` it";
            vec![text.to_owned()]
        }
        Some(Standing::Skipped) => {
            let order = rollout.orders.skip.get(&lrn);
            order.map(|order| format!("skipped by {}: {}", order.by, order.reason)).into_iter().collect()
        }
        Some(Standing::Failed(_)) => vec!["`retry` has it tried again, `skip` goes on without it".to_owned()],
        Some(Standing::Absent) => vec!["its worker has no lease: it catches up when it is back".to_owned()],
        Some(Standing::Silent) | None => vec!["its worker has not announced the first step".to_owned()],
        Some(Standing::At(_)) => waiting(facts, rollout, lrn, alarm),
    }
}

fn ailing(rollout: &Rollout<'_>, lrn: Lrn) -> Vec<String> {
    rollout.ailing(lrn).map(|why| format!("its services are not healthy: {why}")).into_iter().collect()
}

fn in_slot(facts: &Facts, rollout: &Rollout<'_>, lrn: Lrn, desired: &Desired) -> Vec<String> {
    let services = |reasons: Vec<String>, plain: &str| match reasons.is_empty() {
        true => vec![plain.to_owned()],
        false => reasons,
    };
    match (&desired.phase, emptiness(facts, lrn)) {
        (Phase::Drain, Emptiness::Empty) => {
            let held = shared_unit(facts, rollout, lrn).map(|obstacle| obstacle.to_string());
            vec![held.unwrap_or_else(|| "it is drained and about to run".to_owned())]
        }
        (Phase::Drain, Emptiness::Draining(reasons)) => {
            services(reasons, "its services move their work away")
        }
        (Phase::Drain, _) => vec!["its services are asked to move their work away".to_owned()],
        (Phase::Return, Emptiness::Returning(reasons)) => {
            services(reasons, "its services take up work again")
        }
        (Phase::Return, _) => vec!["its services are asked to take up work again".to_owned()],
        (Phase::Settle, _) => {
            let mut reasons = vec!["it is watched before its slot goes to the next".to_owned()];
            reasons.extend(ailing(rollout, lrn));
            reasons
        }
        (Phase::Run, _) => {
            let step = rollout.next_step(lrn);
            vec![format!("it runs step {step} of {}", desired.through)]
        }
        (Phase::Rollback { to }, _) => vec![format!("it installs {to} again")],
        (Phase::Done | Phase::Gone | Phase::Failed, _) => Vec::new(),
    }
}

fn waiting(facts: &Facts, rollout: &Rollout<'_>, lrn: Lrn, alarm: &Alarm) -> Vec<String> {
    let Some(segment) = rollout.open_segment() else { return vec!["it finishes".to_owned()] };
    let Some(group) = rollout.groups.iter().find(|group| group.hosts().any(|host| host == lrn)) else {
        return Vec::new();
    };
    match segment.kind {
        SegmentKind::Barrier | SegmentKind::Once => peers(rollout, segment, alarm, lrn),
        SegmentKind::Rolling { .. } => obstacle(facts, rollout, group, lrn, segment, alarm)
            .map(|found| found.to_string())
            .into_iter()
            .collect(),
    }
}

/// Whom a host waits for at a step that all run together.
fn peers(rollout: &Rollout<'_>, segment: Segment, alarm: &Alarm, lrn: Lrn) -> Vec<String> {
    let step = segment.first;
    if let Some(released) = rollout.released.filter(|released| released.step >= step) {
        return match released.only {
            Some(only) if only != lrn && !released.done => {
                vec![format!("host {only} does step {step} for all")]
            }
            Some(_) | None => vec![format!("it runs step {step}")],
        };
    }
    let missing = rollout.awaited_in(segment.kind).filter(|other| !rollout.has_announced(*other, step));
    let missing: Vec<Lrn> = missing.collect();
    let mut reasons = Vec::new();
    if !missing.is_empty() {
        reasons.push(format!("hosts {} have not announced step {step}", go_list(&missing)));
    }
    if let Some(order) = &rollout.orders.paused {
        reasons.push(Obstacle::Paused { by: order.by.clone(), reason: order.reason.clone() }.to_string());
    }
    let shut = rollout.groups.iter().filter(|group| !rollout.policy(&group.group).is_open(alarm.now()));
    reasons.extend(shut.map(|group| Obstacle::Window(group.group.clone()).to_string()));
    reasons
}

fn obstacle(
    facts: &Facts,
    rollout: &Rollout<'_>,
    group: &GroupPlan,
    lrn: Lrn,
    segment: Segment,
    alarm: &Alarm,
) -> Option<Obstacle> {
    let policy = rollout.policy(&group.group);
    if let Some(found) = gate(rollout, group, &policy, segment, alarm) {
        return Some(found);
    }
    let open = open_wave(rollout, group, segment);
    let own = group.waves.iter().position(|wave| wave.contains(&lrn))?;
    if own > open {
        let hosts = group.waves[open]
            .iter()
            .copied()
            .filter(|host| rollout.is_awaited(&group.group, *host))
            .filter(|host| !rollout.is_done(*host, segment.last))
            .collect();
        return Some(Obstacle::EarlierWave { wave: open + 1, hosts });
    }
    Room::of(facts, rollout, group, &policy).obstacle(lrn)
}
