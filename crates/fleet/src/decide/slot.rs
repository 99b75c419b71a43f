//! What do hosts in their slots need? Each goes from drain to run to return to settle, or fails on the way.

use super::alarm::Alarm;
use super::rollout::{Rollout, Standing};
use super::{HOSTS_PER_MOVE, HostMove, SlotChange};
use crate::drains::{DrainWish, Emptiness, emptiness, is_ours};
use crate::keys::GroupName;
use crate::lrn::Lrn;
use crate::spec::Policy;
use crate::status::{Desired, Phase, holder_of};
use crate::world::World;

/// The next phase of every host whose phase is over.
pub(super) fn moves(world: &World, rollout: &Rollout<'_>, alarm: &Alarm) -> Vec<HostMove> {
    let mut moves = Vec::new();
    for group in &rollout.groups {
        let policy = rollout.policy(&group.group);
        for lrn in group.hosts() {
            let idle = Desired {
                generation: rollout.request.generation,
                phase: Phase::Done,
                through: 0,
                attempt: 0,
                at: world.now,
                failure: None,
            };
            let desired = rollout.desired(lrn).unwrap_or(&idle);
            let host = Host { world, rollout, alarm, policy: &policy, group: &group.group, lrn, desired };
            moves.extend(host.next());
            if moves.len() >= HOSTS_PER_MOVE {
                return moves;
            }
        }
    }
    moves
}

/// One host in its slot.
struct Host<'h, 'w> {
    world: &'h World,
    rollout: &'h Rollout<'w>,
    alarm: &'h Alarm,
    policy: &'h Policy,
    group: &'h GroupName,
    lrn: Lrn,
    desired: &'h Desired,
}

impl Host<'_, '_> {
    fn next(&self) -> Option<HostMove> {
        match &self.desired.phase {
            Phase::Drain => self.draining(),
            Phase::Run => self.running(),
            Phase::Rollback { to } => self.rolling_back(to),
            Phase::Return => self.returning(),
            Phase::Settle => self.settling(),
            Phase::Done => self.left_drained(),
            Phase::Failed => None,
        }
    }

    /// A host that an earlier request left drained. Its step was cut at a safe point, and somebody has looked since:
    /// it goes back to work, or it would keep the other replicas of what it holds from being drained.
    fn left_drained(&self) -> Option<HostMove> {
        let failed = matches!(self.rollout.standings.get(&self.lrn), Some(Standing::Failed(_)));
        (!failed && is_ours(self.world, self.lrn)).then(|| {
            self.to(Phase::Return, Some(DrainWish::Return), "was left drained by an earlier request")
        })
    }

    fn draining(&self) -> Option<HostMove> {
        if self.rollout.standings.get(&self.lrn) == Some(&Standing::Skipped) {
            return Some(self.to(Phase::Return, Some(DrainWish::Return), "is skipped"));
        }
        match emptiness(self.world, self.lrn) {
            Emptiness::Nothing => Some(self.to(Phase::Run, None, "has nothing to drain")),
            Emptiness::Empty => Some(self.to(Phase::Run, None, "is drained")),
            Emptiness::Unasked => Some(self.again(DrainWish::Ask, "is asked to drain again")),
            // A return under way is turned around.
            Emptiness::Returning(_) => Some(self.again(DrainWish::Ask, "is asked to drain again")),
            Emptiness::Draining(reasons) if self.is_late(self.policy.drain_deadline.0) => {
                let failure = format!("not drained in time: {}", reasons.join("; "));
                Some(self.failed(Phase::Return, Some(DrainWish::Return), failure))
            }
            Emptiness::Draining(_) => None,
        }
    }

    fn running(&self) -> Option<HostMove> {
        let report = self.rollout.report(self.lrn);
        if let Some(Standing::Failed(failure)) = self.rollout.standings.get(&self.lrn) {
            return Some(self.gone_wrong(failure.clone()));
        }
        let wanted = self.rollout.orders.retry.get(&self.lrn).copied().unwrap_or(0);
        if report.is_some_and(|report| report.error) && self.desired.attempt < wanted {
            return Some(self.once_more(wanted));
        }
        let through = report
            .is_some_and(|report| !report.error && (report.finished || report.step > self.desired.through));
        if through {
            let wish = is_ours(self.world, self.lrn).then_some(DrainWish::Return);
            return Some(self.to(Phase::Return, wish, "has run its steps"));
        }
        let absent = !self.world.leases.contains_key(&self.lrn);
        (absent && self.holds_slot()).then(|| HostMove {
            slot: SlotChange::Free,
            ..self.again_without_wish("is gone; its slot is free for others")
        })
    }

    fn rolling_back(&self, to: &str) -> Option<HostMove> {
        let report = self.rollout.report(self.lrn)?;
        if report.rolled_back_to == to {
            let wish = is_ours(self.world, self.lrn).then_some(DrainWish::Return);
            return Some(self.to(Phase::Return, wish, "is back on the version that it kept"));
        }
        let given_up = report.rollback_failed || self.is_late(self.world.settings.worker_timeout);
        given_up.then(|| self.to(Phase::Failed, None, "could not go back"))
    }

    fn returning(&self) -> Option<HostMove> {
        match emptiness(self.world, self.lrn) {
            Emptiness::Nothing | Emptiness::Unasked => Some(self.to(Phase::Settle, None, "is back")),
            Emptiness::Returning(reasons) if reasons.is_empty() => {
                Some(self.to(Phase::Settle, None, "is back"))
            }
            Emptiness::Empty | Emptiness::Draining(_) if is_ours(self.world, self.lrn) => {
                Some(self.again(DrainWish::Return, "is asked to return again"))
            }
            // Somebody else drains it as well: it is through as far as the fleet goes.
            Emptiness::Empty | Emptiness::Draining(_) => {
                Some(self.to(Phase::Settle, None, "is drained by somebody else"))
            }
            Emptiness::Returning(reasons) if self.is_late(self.policy.health_deadline.0) => {
                Some(self.gone_wrong(format!("not healthy in time: {}", reasons.join("; "))))
            }
            Emptiness::Returning(_) => None,
        }
    }

    fn settling(&self) -> Option<HostMove> {
        if self.rollout.standings.get(&self.lrn) == Some(&Standing::Absent) {
            return Some(self.gone_wrong("went away right after the update".to_owned()));
        }
        let settled = self.alarm.passed(self.desired.at, self.policy.min_healthy.0);
        settled.then(|| match self.desired.failure {
            Some(_) => self.to(Phase::Failed, None, "failed and is back in service"),
            None => self.to(Phase::Done, None, "is through"),
        })
    }

    /// Somebody had it tried again before its failure was seen here: it keeps its slot for that.
    fn once_more(&self, attempt: u32) -> HostMove {
        let mut next = self.to(Phase::Run, None, "is tried again");
        next.desired.attempt = attempt;
        next
    }

    /// A host that does not work after a step: back to what it had, if it may, else it stays out of service.
    fn gone_wrong(&self, failure: String) -> HostMove {
        let kept = self.world.history.as_ref().map(|seen| seen.record.from.clone()).unwrap_or_default();
        let may = self.policy.auto_rollback && !self.rollout.request.rollback && !kept.is_empty();
        if may && self.desired.failure.is_none() {
            return self.failed(Phase::Rollback { to: kept }, None, failure);
        }
        self.failed(Phase::Failed, None, failure)
    }

    fn failed(&self, phase: Phase, drain: Option<DrainWish>, failure: String) -> HostMove {
        let first = self.desired.failure.clone().unwrap_or(failure);
        let mut next = self.to(phase, drain, &first);
        next.desired.failure = Some(first);
        next
    }

    fn to(&self, phase: Phase, drain: Option<DrainWish>, why: &str) -> HostMove {
        let slot = if phase.is_active() { SlotChange::Keep } else { SlotChange::Free };
        HostMove {
            lrn: self.lrn,
            group: self.group.clone(),
            desired: Desired { phase, at: self.world.now, ..self.desired.clone() },
            drain,
            slot,
            why: format!("host {} {why}", self.lrn),
        }
    }

    /// The same phase, with a wish that was lost on the way.
    fn again(&self, wish: DrainWish, why: &str) -> HostMove {
        HostMove { drain: Some(wish), ..self.again_without_wish(why) }
    }

    fn again_without_wish(&self, why: &str) -> HostMove {
        HostMove {
            desired: self.desired.clone(),
            slot: SlotChange::Keep,
            ..self.to(self.desired.phase.clone(), None, why)
        }
    }

    fn is_late(&self, deadline: std::time::Duration) -> bool {
        self.alarm.passed(self.desired.at, deadline)
    }

    fn holds_slot(&self) -> bool {
        let slots = self.world.slots.get(self.group);
        slots.is_some_and(|slots| slots.record.holders.contains_key(&holder_of(self.lrn)))
    }
}
