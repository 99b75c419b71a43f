//! Where does every host stand? What follows from the records, worked out once per decision.

use std::collections::BTreeMap;

use super::alarm::Alarm;
use crate::keys::GroupName;
use crate::lrn::Lrn;
use crate::plan::{GroupPlan, RolloutPlan, Segment, SegmentKind, plan_groups, segments};
use crate::spec::{Orders, Policy, ReleaseRecord};
use crate::status::{Desired, HostStatus, Phase, Released, Request};
use crate::world::World;

/// Where a host stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is in the request and not in the fleet any more: nobody waits for it.
    Left,
    /// An operator goes on without it.
    Skipped,
    /// It failed, and this is what it said.
    Failed(String),
    /// Its worker is gone.
    Absent,
    /// Its worker is up, or may still come up, and has not reported.
    Silent,
    /// It has announced this step: everything before it is done.
    At(u32),
    /// It has the release.
    Finished,
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
    /// Hosts that are out of their group's budget for absence, so that they are waited for.
    awaited_absent: Vec<GroupName>,
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
    /// Works out where everybody stands; the error says what is missing.
    pub fn of(world: &'w World, request: &'w Request, alarm: &Alarm) -> Result<Rollout<'w>, String> {
        let release = known_release(world, request)?;
        let generation = request.generation;
        let plan = world.plan.as_ref().map(|seen| &seen.record);
        let groups = groups_of(world, request, plan);
        let policies = groups.iter().map(|group| {
            (group.group.clone(), world.policies.get(&group.group).cloned().unwrap_or_default())
        });
        let mut rollout = Rollout {
            request,
            segments: segments(&release.steps),
            steps: u32::try_from(release.steps.len()).unwrap_or(u32::MAX),
            policies: policies.collect(),
            groups,
            standings: BTreeMap::new(),
            awaited_absent: Vec::new(),
            released: world.released.as_ref().map(|seen| &seen.record).filter(|r| r.generation == generation),
            orders: world.orders.as_ref().map(|seen| seen.record.clone()).unwrap_or_default(),
            desired: current(&world.desired, |desired| desired.generation == generation),
            reports: current(&world.statuses, |status| status.is_about(request)),
            segments_over: 0,
        };
        rollout.stand(world, alarm);
        rollout.segments_over =
            rollout.segments.iter().take_while(|segment| rollout.is_over(segment)).count();
        Ok(rollout)
    }

    fn stand(&mut self, world: &World, alarm: &Alarm) {
        let mut standings = BTreeMap::new();
        let mut awaited = Vec::new();
        for group in &self.groups {
            let policy = &self.policies[&group.group];
            let grace_over = alarm.passed(self.request.started_at, policy.absent_grace.0);
            for lrn in group.hosts() {
                standings.insert(lrn, self.standing(world, lrn, grace_over));
            }
            let absent = group.hosts().filter(|lrn| standings.get(lrn) == Some(&Standing::Absent)).count();
            if absent > policy.absent_budget.limit_of(group.len()) {
                awaited.push(group.group.clone());
            }
        }
        (self.standings, self.awaited_absent) = (standings, awaited);
    }

    fn standing(&self, world: &World, lrn: Lrn, grace_over: bool) -> Standing {
        if !world.registry.contains(&lrn) {
            return Standing::Left;
        }
        if self.orders.skip.contains_key(&lrn) {
            return Standing::Skipped;
        }
        if let Some(failure) = self.failure_of(lrn) {
            return Standing::Failed(failure);
        }
        let report = self.reports.get(&lrn);
        if report.is_some_and(|report| report.finished && !report.error) {
            return Standing::Finished;
        }
        if !world.leases.contains_key(&lrn) && (grace_over || report.is_some()) {
            return Standing::Absent;
        }
        report.map_or(Standing::Silent, |report| Standing::At(report.step))
    }

    /// Why a host counts as failed, unless an operator had it tried again since.
    fn failure_of(&self, lrn: Lrn) -> Option<String> {
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

    /// Whether the others wait for this host. They do not for who is skipped, failed within the budget (beyond it the
    /// request is stopped) or absent within the budget, or for who left.
    #[must_use]
    pub fn is_awaited(&self, group: &GroupName, lrn: Lrn) -> bool {
        match self.standings.get(&lrn) {
            Some(Standing::Left | Standing::Skipped | Standing::Failed(_)) | None => false,
            Some(Standing::Absent) => self.awaited_absent.contains(group),
            Some(Standing::Silent | Standing::At(_) | Standing::Finished) => true,
        }
    }

    /// Every host that the others wait for, with its group.
    pub fn awaited(&self) -> impl Iterator<Item = (&GroupPlan, Lrn)> + '_ {
        self.groups.iter().flat_map(move |group| {
            group.hosts().filter(|lrn| self.is_awaited(&group.group, *lrn)).map(move |lrn| (group, lrn))
        })
    }

    /// Hosts that the request goes on without.
    pub fn left_behind(&self) -> impl Iterator<Item = Lrn> + '_ {
        let left = self.standings.iter().filter(|(_, standing)| match standing {
            Standing::Skipped | Standing::Failed(_) | Standing::Absent => true,
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
                | Standing::Silent,
            )
            | None => false,
        }
    }

    /// Whether everybody who is waited for is through a segment, and out of the slots that they took for it. A slot of
    /// a later segment does not open an earlier one again.
    #[must_use]
    pub fn is_over(&self, segment: &Segment) -> bool {
        let holds = |lrn| {
            let through = self.desired(lrn).map_or(0, |desired| desired.through);
            self.is_in_slot(lrn) && through <= segment.last
        };
        self.awaited().all(|(_, lrn)| self.has_done(lrn, segment.last) && !holds(lrn))
    }

    /// The first segment that is not over.
    #[must_use]
    pub fn open_segment(&self) -> Option<Segment> {
        self.segments.get(self.segments_over).copied()
    }

    /// The last step that every awaited host has done, or may be doing together: who lags behind may run up to it
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
            // What one host did for all is behind everybody.
            (Some(Segment { kind: SegmentKind::Once, first, .. }), Some(released))
                if released.step > first || (released.step == first && released.done) =>
            {
                done.max(first)
            }
            _ => done,
        }
    }

    /// Whether everybody who is waited for has the release.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let finished = |lrn| self.standings.get(&lrn) == Some(&Standing::Finished);
        self.awaited().all(|(_, lrn)| finished(lrn) && !self.is_in_slot(lrn))
    }

    /// Whether somebody works now, or should: nobody is held back by an order, a window or a bake alone.
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
        let waiting: Vec<Lrn> = self
            .awaited()
            .map(|(_, lrn)| lrn)
            .filter(|lrn| self.standings.get(lrn) != Some(&Standing::Finished))
            .collect();
        crate::lrn::go_list(&waiting)
    }
}

fn known_release<'w>(world: &'w World, request: &Request) -> Result<&'w ReleaseRecord, String> {
    let found = world.releases.get(&request.version).map(|seen| &seen.record);
    found
        .filter(|release| !release.steps.is_empty())
        .ok_or_else(|| format!("the steps of release {} are not known", request.version))
}

/// The plan's groups; for a request of somebody who made no plan, what the plan would have been.
fn groups_of(world: &World, request: &Request, plan: Option<&RolloutPlan>) -> Vec<GroupPlan> {
    match plan {
        Some(plan) => plan.groups.clone(),
        None => plan_groups(&request.members(), &world.labels(), &world.policies),
    }
}

fn current<R>(
    records: &BTreeMap<Lrn, crate::world::Seen<R>>,
    belongs: impl Fn(&R) -> bool,
) -> BTreeMap<Lrn, &R> {
    let found = records.iter().filter(|(_, seen)| belongs(&seen.record));
    found.map(|(lrn, seen)| (*lrn, &seen.record)).collect()
}
