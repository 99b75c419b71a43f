//! Where does every host stand? What follows from the records, worked out once per decision.

use std::collections::BTreeMap;

use super::alarm::Alarm;
use crate::drain::is_ours;
use crate::encoding::Moment;
use crate::facts::Facts;
use crate::keys::GroupName;
use crate::lrn::{Lrn, Lrns};
use crate::plan::{GroupPlan, RolloutPlan, Segment, SegmentKind, plan_groups, segments};
use crate::spec::{Amount, Orders, Policy, ReleaseRecord};
use crate::status::{Desired, HostStatus, Phase, Released, Request};

/// Where a host stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is in the request and no longer in the fleet: not waited for.
    Left,
    /// An operator goes on without it.
    Skipped,
    /// It failed, and this is what it said.
    Failed(String),
    /// Its worker is gone, and it had not begun.
    Absent,
    /// It had begun or was through, and its worker is gone: a sign of harm.
    Gone,
    /// Its worker is up, or may still come up, and has not reported.
    Silent,
    /// It has announced this step: everything before it is done.
    At(u32),
    /// It has the release, and its worker is up.
    Finished,
}

/// Why a host is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// It has not reported the step as done.
    Behind,
    /// It had, and its worker is gone.
    Gone,
    /// It is in a slot, or drained.
    OutOfService,
    /// Its services are not healthy.
    Ailing(String),
}

/// A request and everything that follows about its hosts.
#[derive(Debug)]
pub struct Rollout<'w> {
    /// The request.
    pub request: &'w Request,
    /// Its steps, in segments.
    pub segments: Vec<Segment>,
    /// How many steps there are.
    pub steps: u32,
    /// The groups, in their order.
    pub groups: Vec<GroupPlan>,
    /// The rules of each group.
    pub policies: BTreeMap<GroupName, Policy>,
    /// Where each host stands.
    pub standings: BTreeMap<Lrn, Standing>,
    /// Groups with more absent hosts than they may go on without.
    awaited_absent: Vec<GroupName>,
    /// The same at a barrier.
    awaited_at_barrier: Vec<GroupName>,
    /// Groups with more hosts that failed or are gone after they began than the failure budget allows.
    awaited_gone: Vec<GroupName>,
    /// Hosts whose services are not healthy, where that counts, and what is wrong.
    ailing: BTreeMap<Lrn, String>,
    /// Hosts that the fleet keeps drained.
    drained: Lrns,
    /// Whether the request has ended: what follows is catching up.
    ended: bool,
    /// The released step of this request.
    pub released: Option<&'w Released>,
    /// What operators want.
    pub orders: Orders,
    desired: BTreeMap<Lrn, &'w Desired>,
    reports: BTreeMap<Lrn, &'w HostStatus>,
    /// How many segments, from the first one on, are over.
    segments_over: usize,
}

impl<'w> Rollout<'w> {
    /// Works out the standing of every host; the error says what is missing.
    pub fn of(facts: &'w Facts, request: &'w Request, alarm: &Alarm) -> Result<Rollout<'w>, String> {
        let release = known_release(facts, request)?;
        let generation = request.generation;
        let plan = facts.plan.as_ref().map(|seen| &seen.record);
        let groups = groups_of(facts, request, plan);
        let policies = groups.iter().map(|group| {
            (group.group.clone(), facts.policies.get(&group.group).cloned().unwrap_or_default())
        });
        let mut rollout = Rollout {
            request,
            segments: segments(&release.steps),
            steps: u32::try_from(release.steps.len()).unwrap_or(u32::MAX),
            policies: policies.collect(),
            groups,
            standings: BTreeMap::new(),
            awaited_absent: Vec::new(),
            awaited_at_barrier: Vec::new(),
            awaited_gone: Vec::new(),
            ailing: BTreeMap::new(),
            drained: Lrns::new(),
            ended: facts.has_ended(),
            released: facts.released.as_ref().map(|seen| &seen.record).filter(|r| r.generation == generation),
            orders: facts.orders.as_ref().map(|seen| seen.record.clone()).unwrap_or_default(),
            desired: current(&facts.desired, |desired| desired.generation == generation),
            reports: current(&facts.statuses, |status| status.is_about(request)),
            segments_over: 0,
        };
        rollout.stand(facts, alarm);
        rollout.see_services(facts, release);
        rollout.segments_over =
            rollout.segments.iter().take_while(|segment| rollout.is_over(segment)).count();
        Ok(rollout)
    }

    fn stand(&mut self, facts: &Facts, alarm: &Alarm) {
        let mut standings = BTreeMap::new();
        let (mut absent_groups, mut barrier_groups, mut gone_groups) = (Vec::new(), Vec::new(), Vec::new());
        for group in &self.groups {
            let policy = &self.policies[&group.group];
            let grace_over = alarm.passed(self.request.started_at, policy.absent_grace.0);
            let (mut absent, mut harmed, mut gone) = (0, 0, 0);
            for lrn in group.hosts() {
                let standing = self.standing(facts, lrn, grace_over);
                match standing {
                    Standing::Absent => absent += 1,
                    Standing::Failed(_) => harmed += 1,
                    Standing::Gone => gone += 1,
                    Standing::Left
                    | Standing::Skipped
                    | Standing::Silent
                    | Standing::At(_)
                    | Standing::Finished => {}
                }
                standings.insert(lrn, standing);
            }
            let exceeds = |count: usize, budget: Amount| count > budget.limit_of(group.len());
            let name = |exceeded: bool| exceeded.then(|| group.group.clone());
            absent_groups.extend(name(exceeds(absent, policy.absent_budget)));
            barrier_groups.extend(name(exceeds(absent + gone, policy.barrier_budget)));
            gone_groups.extend(name(exceeds(harmed + gone, policy.failure_budget)));
        }
        self.standings = standings;
        self.awaited_absent = absent_groups;
        self.awaited_at_barrier = barrier_groups;
        self.awaited_gone = gone_groups;
    }

    fn standing(&self, facts: &Facts, lrn: Lrn, grace_over: bool) -> Standing {
        if !facts.registry.contains(&lrn) {
            return Standing::Left;
        }
        let (up, ended) = (facts.leases.contains_key(&lrn), facts.has_ended());
        let failure = self.failure_of(lrn);
        let report = self.reports.get(&lrn);
        let finished = failure.is_none() && report.is_some_and(|report| report.finished && !report.error);
        // Behind the end of the request a host that is down is a matter of its own health.
        if finished && (up || ended) {
            return Standing::Finished;
        }
        if self.orders.skip.contains_key(&lrn) && !ended {
            return Standing::Skipped;
        }
        if let Some(failure) = failure {
            return Standing::Failed(failure);
        }
        if !up && !ended && (finished || self.has_begun(lrn)) {
            return Standing::Gone;
        }
        if !up && (grace_over || report.is_some()) {
            return Standing::Absent;
        }
        report.map_or(Standing::Silent, |report| Standing::At(report.continues_at()))
    }

    /// Whether this request has let the host run something by itself.
    fn has_begun(&self, lrn: Lrn) -> bool {
        self.desired.get(&lrn).is_some_and(|desired| {
            desired.through > 0
                && match desired.phase {
                    Phase::Drain | Phase::Failed => false,
                    Phase::Run
                    | Phase::Rollback { .. }
                    | Phase::Return
                    | Phase::Settle
                    | Phase::Done
                    | Phase::Gone => true,
                }
        })
    }

    /// Whose services are not healthy, where that counts, and which hosts the fleet keeps drained.
    fn see_services(&mut self, facts: &Facts, release: &ReleaseRecord) {
        let asked = release.steps.iter().any(|step| step.services);
        for group in &self.groups {
            let counts = asked || self.policies[&group.group].services;
            for lrn in group.hosts() {
                let ailing = facts.host_id(lrn).and_then(|host| facts.ailing.get(host)).filter(|_| counts);
                self.ailing.extend(ailing.map(|why| (lrn, why.clone())));
                if !facts.drains.is_empty() && is_ours(facts, lrn) {
                    self.drained.insert(lrn);
                }
            }
        }
    }

    /// The one question of canary, bake, wave, limits and completion: is this host done with everything up to a step?
    /// It has reported so, its worker is up, its services are healthy, and it is back in service.
    pub fn done(&self, lrn: Lrn, step: u32) -> Result<(), NotDone> {
        match self.standings.get(&lrn) {
            Some(Standing::Gone) => return Err(NotDone::Gone),
            Some(_) if self.has_done(lrn, step) => {}
            Some(_) | None => return Err(NotDone::Behind),
        }
        if self.is_in_slot(lrn) || self.drained.contains(&lrn) {
            return Err(NotDone::OutOfService);
        }
        match self.ailing.get(&lrn) {
            Some(why) => Err(NotDone::Ailing(why.clone())),
            None => Ok(()),
        }
    }

    /// The same as a yes or no.
    #[must_use]
    pub fn is_done(&self, lrn: Lrn, step: u32) -> bool {
        self.done(lrn, step).is_ok()
    }

    /// What is wrong with the services of a host, where that counts.
    #[must_use]
    pub fn ailing(&self, lrn: Lrn) -> Option<&String> {
        self.ailing.get(&lrn)
    }

    /// Why a host counts as failed, unless an operator had it tried again since.
    pub(super) fn failure_of(&self, lrn: Lrn) -> Option<String> {
        let wanted = self.orders.retry.get(&lrn).copied().unwrap_or(0);
        let given_up = self.desired.get(&lrn).filter(|desired| desired.attempt >= wanted);
        if let Some(desired) = given_up
            && let Some(failure) = &desired.failure
        {
            return Some(failure.clone());
        }
        let report = self.reports.get(&lrn).filter(|report| report.error && report.attempt >= wanted)?;
        Some(if report.message.is_empty() { "no reason given".to_owned() } else { report.message.clone() })
    }

    /// What the host reports about this request.
    #[must_use]
    pub fn report(&self, lrn: Lrn) -> Option<&'w HostStatus> {
        self.reports.get(&lrn).copied()
    }

    /// What is wanted of the host in this request.
    #[must_use]
    pub fn desired(&self, lrn: Lrn) -> Option<&'w Desired> {
        self.desired.get(&lrn).copied()
    }

    /// The step that a host continues with; the first one if it has not reported.
    #[must_use]
    pub fn next_step(&self, lrn: Lrn) -> u32 {
        self.report(lrn).map_or(1, HostStatus::continues_at)
    }

    /// Whether a host has failed and its worker has not taken up the order to try again.
    #[must_use]
    pub fn is_to_retry(&self, lrn: Lrn) -> bool {
        let failed = self.report(lrn).is_some_and(|report| report.error);
        failed && matches!(self.standings.get(&lrn), Some(Standing::At(_)))
    }

    /// Whether all hosts meet at a step, to run it together or to have one host run it.
    #[must_use]
    pub fn is_meeting(&self, step: u32) -> bool {
        self.segments.iter().any(|segment| match segment.kind {
            SegmentKind::Barrier | SegmentKind::Once => segment.first == step,
            SegmentKind::Rolling { .. } => false,
        })
    }

    /// Whether more hosts of a group failed, or are gone after they began, than may: no host begins.
    #[must_use]
    pub fn is_harmed(&self, group: &GroupName) -> bool {
        self.awaited_gone.contains(group)
    }

    /// Hosts that are in a slot, and where they are in it.
    pub fn in_slots(&self) -> impl Iterator<Item = (Lrn, &'w Desired)> + '_ {
        self.desired
            .iter()
            .filter(|(_, desired)| desired.phase.is_active())
            .map(|(lrn, desired)| (*lrn, *desired))
    }

    /// Whether the host is in a slot.
    #[must_use]
    pub fn is_in_slot(&self, lrn: Lrn) -> bool {
        self.desired.get(&lrn).is_some_and(|desired| desired.phase.is_active())
    }

    /// The rules of a group.
    #[must_use]
    pub fn policy(&self, group: &GroupName) -> Policy {
        self.policies.get(group).cloned().unwrap_or_default()
    }

    /// Whether the others wait for this host: not for one that is skipped, failed, absent or gone within its budget,
    /// or left. Beyond the failure budget the request is stopped.
    #[must_use]
    pub fn is_awaited(&self, group: &GroupName, lrn: Lrn) -> bool {
        match self.standings.get(&lrn) {
            Some(Standing::Left | Standing::Skipped | Standing::Failed(_)) | None => false,
            Some(Standing::Absent) => self.awaited_absent.contains(group),
            Some(Standing::Gone) => self.awaited_gone.contains(group),
            Some(Standing::Silent | Standing::At(_) | Standing::Finished) => true,
        }
    }

    /// The same where all run a step together: by default no host may be missing.
    fn is_awaited_at_barrier(&self, group: &GroupName, lrn: Lrn) -> bool {
        match self.standings.get(&lrn) {
            Some(Standing::Absent | Standing::Gone) => self.awaited_at_barrier.contains(group),
            Some(
                Standing::Left
                | Standing::Skipped
                | Standing::Failed(_)
                | Standing::Silent
                | Standing::At(_)
                | Standing::Finished,
            )
            | None => self.is_awaited(group, lrn),
        }
    }

    /// Every host that the others wait for, with its group.
    pub fn awaited(&self) -> impl Iterator<Item = (&GroupPlan, Lrn)> + '_ {
        self.groups.iter().flat_map(move |group| {
            group.hosts().filter(|lrn| self.is_awaited(&group.group, *lrn)).map(move |lrn| (group, lrn))
        })
    }

    /// Hosts that the others wait for and whose workers are gone.
    #[must_use]
    pub fn waits_in_vain_for(&self) -> Vec<Lrn> {
        let kind = self.open_segment().map(|segment| segment.kind);
        let awaited: Vec<Lrn> = match kind {
            Some(kind) => self.awaited_in(kind).collect(),
            None => self.awaited().map(|(_, lrn)| lrn).collect(),
        };
        let gone = |lrn: &Lrn| matches!(self.standings.get(lrn), Some(Standing::Absent | Standing::Gone));
        awaited.into_iter().filter(gone).collect()
    }

    /// Every host that the others wait for in a segment of this kind.
    pub fn awaited_in(&self, kind: SegmentKind) -> impl Iterator<Item = Lrn> + '_ {
        let awaits = move |group: &GroupName, lrn: Lrn| match kind {
            SegmentKind::Barrier | SegmentKind::Once => self.is_awaited_at_barrier(group, lrn),
            SegmentKind::Rolling { .. } => self.is_awaited(group, lrn),
        };
        self.groups.iter().flat_map(move |group| group.hosts().filter(move |lrn| awaits(&group.group, *lrn)))
    }

    /// Hosts that the request goes on without.
    pub fn left_behind(&self) -> impl Iterator<Item = Lrn> + '_ {
        let left = self.standings.iter().filter(|(_, standing)| match standing {
            Standing::Skipped | Standing::Failed(_) | Standing::Absent | Standing::Gone => true,
            Standing::Left | Standing::Silent | Standing::At(_) | Standing::Finished => false,
        });
        left.map(|(lrn, _)| *lrn)
    }

    /// Whether a host has done a step.
    #[must_use]
    pub fn has_done(&self, lrn: Lrn, step: u32) -> bool {
        self.has_announced(lrn, step.saturating_add(1))
    }

    /// Whether a host has announced a step, or is past it.
    #[must_use]
    pub fn has_announced(&self, lrn: Lrn, step: u32) -> bool {
        match self.standings.get(&lrn) {
            Some(Standing::Finished) => true,
            Some(Standing::At(at)) => *at >= step,
            Some(
                Standing::Left
                | Standing::Skipped
                | Standing::Failed(_)
                | Standing::Absent
                | Standing::Gone
                | Standing::Silent,
            )
            | None => false,
        }
    }

    /// Whether every awaited host is through a segment, and out of the slot that it took for it. A slot of
    /// a later segment does not open an earlier one again.
    #[must_use]
    pub fn is_over(&self, segment: &Segment) -> bool {
        let holds = |lrn| {
            let through = self.desired(lrn).map_or(0, |desired| desired.through);
            self.is_in_slot(lrn) && through <= segment.last
        };
        self.awaited_in(segment.kind).all(|lrn| self.has_done(lrn, segment.last) && !holds(lrn))
    }

    /// The first segment that is not over.
    #[must_use]
    pub fn open_segment(&self) -> Option<Segment> {
        self.segments.get(self.segments_over).copied()
    }

    /// The last step that every awaited host has done, or may be doing together: a host that lags behind may run up to it
    /// alone.
    #[must_use]
    pub fn safe_alone(&self) -> u32 {
        let done = self.segments[..self.segments_over].last().map_or(0, |segment| segment.last);
        match (self.open_segment(), self.released) {
            (Some(Segment { kind: SegmentKind::Barrier, first, .. }), Some(released))
                if released.step >= first =>
            {
                done.max(first)
            }
            // A once step that is done is done for every host.
            (Some(Segment { kind: SegmentKind::Once, first, .. }), Some(released))
                if released.step > first || (released.step == first && released.done) =>
            {
                done.max(first)
            }
            _ => done,
        }
    }

    /// Whether every awaited host has the release and is in service.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let through =
            |lrn: Lrn| self.standings.get(&lrn) == Some(&Standing::Finished) && !self.is_in_slot(lrn);
        // Behind its end a request asks no more than that every host has the release.
        self.awaited().all(|(_, lrn)| if self.ended { through(lrn) } else { self.is_done(lrn, self.steps) })
    }

    /// Since when all hosts are through, by what hosts and the updater have written.
    #[must_use]
    pub fn complete_since(&self, now: Moment) -> Moment {
        let settled = self.desired.values().map(|desired| desired.at);
        let reported = self.reports.values().filter_map(|report| report.updated_at);
        let last = settled.chain(reported).map(|at| at.min(now)).max();
        last.unwrap_or(self.request.started_at)
    }

    /// How long the last wave is watched before the request counts as complete: the longest bake of its groups.
    #[must_use]
    pub fn last_bake(&self) -> std::time::Duration {
        self.policies.values().map(|policy| policy.bake.0).max().unwrap_or_default()
    }

    /// Whether a host works now, or should: an order, a window or a bake alone holds none back.
    #[must_use]
    pub fn awaits_workers(&self) -> bool {
        let met = self.open_segment().is_none_or(|segment| match segment.kind {
            SegmentKind::Barrier | SegmentKind::Once => true,
            SegmentKind::Rolling { .. } => {
                self.awaited().any(|(_, lrn)| !self.has_announced(lrn, segment.first))
            }
        });
        self.orders.paused.is_none()
            && (met || self.in_slots().any(|(_, desired)| desired.phase == Phase::Run))
    }

    /// Hosts that are not through, shortened.
    #[must_use]
    pub fn waiting_list(&self) -> String {
        let waiting: Vec<Lrn> =
            self.awaited().map(|(_, lrn)| lrn).filter(|lrn| !self.is_done(*lrn, self.steps)).collect();
        crate::lrn::go_list(&waiting)
    }
}

fn known_release<'w>(facts: &'w Facts, request: &Request) -> Result<&'w ReleaseRecord, String> {
    let found = facts.releases.get(&request.version).map(|seen| &seen.record);
    found
        .filter(|release| !release.steps.is_empty())
        .ok_or_else(|| format!("the steps of release {} are not known", request.version))
}

/// The plan's groups; for a request without a plan, what the plan would have been.
fn groups_of(facts: &Facts, request: &Request, plan: Option<&RolloutPlan>) -> Vec<GroupPlan> {
    match plan {
        Some(plan) => plan.groups.clone(),
        None => plan_groups(&request.members(), &facts.labels(), &facts.policies),
    }
}

fn current<R>(
    records: &BTreeMap<Lrn, crate::facts::Seen<R>>,
    belongs: impl Fn(&R) -> bool,
) -> BTreeMap<Lrn, &R> {
    let found = records.iter().filter(|(_, seen)| belongs(&seen.record));
    found.map(|(lrn, seen)| (*lrn, &seen.record)).collect()
}
