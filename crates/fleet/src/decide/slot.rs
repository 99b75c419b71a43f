//! What do hosts in their slots need? Each goes from drain to run to return to settle, or fails on the way.

use std::time::Duration;

use super::alarm::Alarm;
use super::grant::{has_room, has_room_to_go_back, needs_drain, shared_unit};
use super::rollout::{Rollout, Standing};
use super::{HOSTS_PER_MOVE, HostMove, SlotChange};
use crate::drain::{DrainWish, Emptiness, emptiness, is_ours};
use crate::facts::Facts;
use crate::keys::GroupName;
use crate::lrn::Lrn;
use crate::spec::Policy;
use crate::status::{Desired, Phase};

/// The next phase of every host whose phase is over.
pub(super) fn moves(facts: &Facts, rollout: &Rollout<'_>, alarm: &Alarm) -> Vec<HostMove> {
    let mut moves = Vec::new();
    for group in &rollout.groups {
        let policy = rollout.policy(&group.group);
        for lrn in group.hosts() {
            let idle = Desired {
                generation: rollout.request.generation,
                phase: Phase::Done,
                through: 0,
                attempt: 0,
                at: facts.now,
                failure: None,
            };
            let desired = rollout.desired(lrn).unwrap_or(&idle);
            let (policy, group) = (&policy, &group.group);
            let host = Host { facts, rollout, alarm, policy, group, lrn, desired, moves: &moves };
            let next = host.next();
            moves.extend(next);
            if moves.len() >= HOSTS_PER_MOVE {
                return moves;
            }
        }
    }
    moves
}

/// One host in its slot.
struct Host<'h, 'w> {
    facts: &'h Facts,
    rollout: &'h Rollout<'w>,
    alarm: &'h Alarm,
    policy: &'h Policy,
    group: &'h GroupName,
    lrn: Lrn,
    desired: &'h Desired,
    /// What is decided about other hosts together with this one.
    moves: &'h [HostMove],
}

impl Host<'_, '_> {
    fn next(&self) -> Option<HostMove> {
        if self.standing() == Some(&Standing::Left) {
            return self.given_up();
        }
        match &self.desired.phase {
            Phase::Drain => self.draining(),
            Phase::Run => self.running(),
            Phase::Rollback { to } => self.rolling_back(to),
            Phase::Return => self.returning(),
            Phase::Settle => self.settling(),
            Phase::Done => {
                self.went_away().or_else(|| self.left_drained()).or_else(|| self.became_unhealthy())
            }
            Phase::Gone => self.gone(),
            Phase::Failed => self.vouched_for(),
        }
    }

    /// A host that left keeps its slot and its drain until nothing runs there any more.
    fn given_up(&self) -> Option<HostMove> {
        let over = self.desired.phase.is_active() && !self.facts.is_leaving(self.lrn);
        over.then(|| self.to(Phase::Done, self.wish_to_return(), "has left and has stopped"))
    }

    fn is_up(&self) -> bool {
        self.facts.leases.contains_key(&self.lrn)
    }

    fn standing(&self) -> Option<&Standing> {
        self.rollout.standings.get(&self.lrn)
    }

    /// A host that was through and whose worker is gone: since when is written down.
    fn went_away(&self) -> Option<HostMove> {
        (self.standing() == Some(&Standing::Gone))
            .then(|| self.to(Phase::Gone, None, "is gone after its update"))
    }

    /// A host that was through, or is between two segments, and whose services are not healthy any more: it is watched
    /// again, and fails when they stay so. Between barriers services may be stopped on purpose.
    fn became_unhealthy(&self) -> Option<HostMove> {
        let judged = match self.standing()? {
            Standing::Finished => true,
            Standing::At(_) => self.desired.through > 0,
            Standing::Left
            | Standing::Skipped
            | Standing::Failed(_)
            | Standing::Absent
            | Standing::Silent
            | Standing::Gone => false,
        };
        let why = self.rollout.ailing(self.lrn).filter(|_| judged && !self.facts.has_ended())?;
        Some(self.to(Phase::Settle, None, &format!("is watched again: {why}")))
    }

    /// A host that had begun or was through and is gone: it goes on where it was when it is back, or has failed when it
    /// stays away for longer than services may take to become healthy.
    fn gone(&self) -> Option<HostMove> {
        match self.standing() {
            Some(Standing::Gone) if self.is_late(self.policy.health_deadline.0) => {
                let failure = format!("went away and was not back after {}", self.policy.health_deadline);
                Some(self.failed(Phase::Failed, None, failure))
            }
            Some(Standing::Gone | Standing::Left) | None => None,
            Some(_) if !self.is_up() => None,
            Some(Standing::Failed(failure)) => self.gone_wrong(failure.clone()),
            Some(
                Standing::Skipped
                | Standing::Absent
                | Standing::Silent
                | Standing::At(_)
                | Standing::Finished,
            ) => self.back_again(),
        }
    }

    /// A host that went away is back: it is watched again, or finishes what it had begun.
    fn back_again(&self) -> Option<HostMove> {
        if self.has_run() {
            return Some(self.to(Phase::Return, self.wish_to_return(), "is back and is watched again"));
        }
        // Others may have begun meanwhile: it waits until there is room for it again.
        if !has_room(self.facts, self.rollout, self.moves, self.group, self.policy, self.lrn) {
            return None;
        }
        // Its services may have taken up work meanwhile: they are asked again before it goes on.
        let drain = needs_drain(self.rollout, self.lrn, self.desired.through)
            && emptiness(self.facts, self.lrn) != Emptiness::Nothing;
        let next = match drain {
            true => self.to(Phase::Drain, Some(DrainWish::Ask), "is back and is drained again"),
            false => self.to(Phase::Run, None, "is back and goes on"),
        };
        Some(HostMove { slot: SlotChange::Take, ..next })
    }

    fn has_run(&self) -> bool {
        let report = self.rollout.report(self.lrn);
        report.is_some_and(|report| !report.error && (report.finished || report.step > self.desired.through))
    }

    /// An operator skipped a failed host: it is returned to service, so that it does not block other hosts.
    fn vouched_for(&self) -> Option<HostMove> {
        let skipped = self.standing() == Some(&Standing::Skipped) && self.is_up();
        (skipped && is_ours(self.facts, self.lrn))
            .then(|| self.to(Phase::Return, Some(DrainWish::Return), "failed and is skipped"))
    }

    /// A host that an earlier request left drained. Its step was cut at a safe point, and an operator has acted since:
    /// it goes back to work, or it would keep the other replicas of what it holds from being drained.
    fn left_drained(&self) -> Option<HostMove> {
        let failed = matches!(self.rollout.standings.get(&self.lrn), Some(Standing::Failed(_)));
        (!failed && is_ours(self.facts, self.lrn)).then(|| {
            self.to(Phase::Return, Some(DrainWish::Return), "was left drained by an earlier request")
        })
    }

    fn draining(&self) -> Option<HostMove> {
        if !self.is_up() {
            return Some(self.had_not_begun());
        }
        if self.rollout.standings.get(&self.lrn) == Some(&Standing::Skipped) {
            return Some(self.to(Phase::Return, Some(DrainWish::Return), "is skipped"));
        }
        match emptiness(self.facts, self.lrn) {
            Emptiness::Nothing => Some(self.to(Phase::Run, None, "has nothing to drain")),
            Emptiness::Empty if shared_unit(self.facts, self.rollout, self.lrn).is_some() => None,
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

    /// A host that went away before it was drained: it is given back as if it had never been asked.
    fn had_not_begun(&self) -> HostMove {
        let mut next = self.to(Phase::Done, self.wish_to_return(), "is gone and had not begun");
        next.desired.through = 0;
        next
    }

    fn running(&self) -> Option<HostMove> {
        let report = self.rollout.report(self.lrn);
        let wanted = self.rollout.orders.retry.get(&self.lrn).copied().unwrap_or(0);
        if report.is_some_and(|report| report.error) && self.desired.attempt < wanted {
            return Some(self.once_more(wanted));
        }
        // Whether it is skipped or not: what it reports ends its slot.
        if let Some(failure) = self.rollout.failure_of(self.lrn) {
            return self.gone_wrong(failure);
        }
        if self.has_run() {
            let wish = is_ours(self.facts, self.lrn).then_some(DrainWish::Return);
            return Some(self.to(Phase::Return, wish, "has run its steps"));
        }
        (!self.is_up()).then(|| self.to(Phase::Gone, None, "is gone; its slot is free for others"))
    }

    fn rolling_back(&self, to: &str) -> Option<HostMove> {
        let report = self.rollout.report(self.lrn)?;
        if report.rolled_back_to == to {
            let wish = is_ours(self.facts, self.lrn).then_some(DrainWish::Return);
            return Some(self.to(Phase::Return, wish, "is back on the version that it kept"));
        }
        let given_up = report.rollback_failed || self.is_late(self.facts.settings.worker_timeout);
        given_up.then(|| self.to(Phase::Failed, None, "could not go back"))
    }

    fn returning(&self) -> Option<HostMove> {
        if let (Some(why), None) = (self.rollout.ailing(self.lrn), self.wish_to_return()) {
            let late = self.is_late(self.policy.health_deadline.0);
            return late.then(|| self.gone_wrong(format!("not healthy in time: {why}"))).flatten();
        }
        match emptiness(self.facts, self.lrn) {
            Emptiness::Nothing | Emptiness::Unasked => Some(self.to(Phase::Settle, None, "is back")),
            Emptiness::Returning(reasons) if reasons.is_empty() => {
                Some(self.to(Phase::Settle, None, "is back"))
            }
            Emptiness::Empty | Emptiness::Draining(_) if is_ours(self.facts, self.lrn) => {
                Some(self.again(DrainWish::Return, "is asked to return again"))
            }
            // Another drain is in place as well: for the fleet the host is through.
            Emptiness::Empty | Emptiness::Draining(_) => {
                Some(self.to(Phase::Settle, None, "is drained by another request"))
            }
            Emptiness::Returning(reasons) if self.is_late(self.policy.health_deadline.0) => {
                self.gone_wrong(format!("not healthy in time: {}", reasons.join("; ")))
            }
            Emptiness::Returning(_) => None,
        }
    }

    /// The wish for its return that was lost on the way, if it was.
    fn wish_to_return(&self) -> Option<DrainWish> {
        is_ours(self.facts, self.lrn).then_some(DrainWish::Return)
    }

    fn settling(&self) -> Option<HostMove> {
        if !self.is_up() {
            // Without room for a rollback it counts as gone: it is watched again from the start when it is back.
            let failed = self.gone_wrong("went away right after the update".to_owned());
            return failed.or_else(|| Some(self.to(Phase::Gone, None, "is gone after its update")));
        }
        if let Some(why) = self.rollout.ailing(self.lrn) {
            let late = self.is_late(self.policy.health_deadline.0.max(self.watch()));
            return late.then(|| self.gone_wrong(format!("not healthy after the update: {why}"))).flatten();
        }
        let settled = self.alarm.passed(self.desired.at, self.watch());
        settled.then(|| match self.desired.failure {
            Some(_) => self.to(Phase::Failed, None, "failed and is back in service"),
            None => self.to(Phase::Done, None, "is through"),
        })
    }

    /// How long it is watched: at least one and a half leases, unless watching is switched off. The end of a
    /// worker shows when its lease is over, and not before.
    fn watch(&self) -> Duration {
        let wanted = self.policy.min_healthy.0;
        let lease = self.facts.leases.get(&self.lrn).map_or(0, |seen| seen.record.ttl_seconds);
        if wanted.is_zero() { wanted } else { wanted.max(Duration::from_secs(lease) * 3 / 2) }
    }

    /// A retry was ordered before its failure was seen here: it keeps its slot for that.
    fn once_more(&self, attempt: u32) -> HostMove {
        let mut next = self.to(Phase::Run, None, "is tried again");
        next.desired.attempt = attempt;
        next
    }

    /// A host that does not work after a step: back to what it had, if it may, else it stays out of service. It goes back
    /// as soon as its failure domain has room for that; a host that is only watched does not have it by itself.
    fn gone_wrong(&self, failure: String) -> Option<HostMove> {
        let kept = self.facts.history.as_ref().map(|seen| seen.record.from.clone()).unwrap_or_default();
        let may = self.policy.auto_rollback && !self.rollout.request.rollback && !kept.is_empty();
        if !may || self.desired.failure.is_some() {
            return Some(self.failed(Phase::Failed, None, failure));
        }
        has_room_to_go_back(self.facts, self.rollout, self.moves, self.policy, self.lrn)
            .then(|| self.failed(Phase::Rollback { to: kept }, None, failure))
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
            desired: Desired { phase, at: self.facts.now, ..self.desired.clone() },
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

    fn is_late(&self, deadline: Duration) -> bool {
        self.alarm.passed(self.desired.at, deadline)
    }
}
