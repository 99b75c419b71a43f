//! Who may begin? One host after the other takes a slot, as far as waves, windows, limits and budgets let it.

use std::collections::BTreeMap;
use std::fmt;

use super::alarm::Alarm;
use super::rollout::{Rollout, Standing};
use super::{HOSTS_PER_MOVE, HostMove, SlotChange};
use crate::drains::{DrainWish, Emptiness, emptiness};
use crate::encoding::Moment;
use crate::keys::GroupName;
use crate::lrn::{Lrn, Lrns, go_list};
use crate::plan::{GroupPlan, Segment, SegmentKind, steps_text};
use crate::spec::Policy;
use crate::status::{Desired, Phase};
use crate::world::World;

/// Why a host may not begin now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// An operator paused the rollout.
    Paused {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// The group's window is shut.
    Window(GroupName),
    /// A group of a lower order is not through.
    EarlierGroup(GroupName),
    /// An earlier wave is not through.
    EarlierWave {
        /// Which one, counted from one.
        wave: usize,
        /// For whom it waits.
        hosts: Vec<Lrn>,
    },
    /// The wave before is being watched.
    Baking {
        /// Until when.
        until: Moment,
    },
    /// The wave waits for an operator's word.
    Promotion {
        /// Which one, counted from one.
        wave: usize,
    },
    /// All slots of the group are taken.
    NoSlot {
        /// By whom.
        holders: Vec<String>,
    },
    /// Enough hosts of its failure domain are out of service.
    DomainFull {
        /// The domain.
        domain: String,
        /// Who is out.
        out: Vec<Lrn>,
    },
    /// More hosts of its group failed or are gone than the rollout may go on without.
    Budget {
        /// The group.
        group: GroupName,
        /// Who failed or is gone.
        hosts: Vec<Lrn>,
    },
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Paused { by, reason } => write!(f, "paused by {by}: {reason}"),
            Obstacle::Window(group) => write!(f, "the window of group {group} is shut"),
            Obstacle::EarlierGroup(group) => write!(f, "group {group} goes first and is not through"),
            Obstacle::EarlierWave { wave, hosts } => {
                write!(f, "wave {wave} is not through: hosts {}", go_list(hosts))
            }
            Obstacle::Baking { until } => {
                write!(f, "the wave before is watched until {}", until.to_seconds_text())
            }
            Obstacle::Promotion { wave } => write!(f, "wave {wave} waits for `promote`"),
            Obstacle::NoSlot { holders } => write!(f, "all slots are taken: {}", holders.join(" ")),
            Obstacle::DomainFull { domain, out } => {
                write!(f, "enough of failure domain {domain:?} is out of service: hosts {}", go_list(out))
            }
            Obstacle::Budget { group, hosts } => {
                write!(f, "the budget of group {group} is used up by hosts {}", go_list(hosts))
            }
        }
    }
}

/// Who begins, or why nobody does.
pub(super) struct Granted {
    pub(super) moves: Vec<HostMove>,
    pub(super) why: String,
}

/// Room for hosts of one group to be out of service.
pub(super) struct Room {
    holders: Vec<String>,
    slots: usize,
    /// By failure domain: who is out of service, and how many may be.
    domains: BTreeMap<String, (Lrns, usize)>,
    domain_of: BTreeMap<Lrn, String>,
}

impl Room {
    pub(super) fn of(world: &World, rollout: &Rollout<'_>, group: &GroupPlan, policy: &Policy) -> Room {
        let held = world.slots.get(&group.group).map(|seen| &seen.record.holders);
        let holders = held.into_iter().flatten().filter(|(name, holder)| world.still_holds(name, holder));
        let mut room = Room {
            holders: holders.map(|(name, _)| name.clone()).collect(),
            slots: policy.slots(group.len()),
            domains: BTreeMap::new(),
            domain_of: BTreeMap::new(),
        };
        let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
        for lrn in group.hosts() {
            let domain = domain_of(world, lrn, policy);
            *sizes.entry(domain.clone()).or_default() += 1;
            let (out, _) = room.domains.entry(domain.clone()).or_default();
            if is_out(world, rollout, lrn) {
                out.insert(lrn);
            }
            room.domain_of.insert(lrn, domain);
        }
        for (domain, (_, limit)) in &mut room.domains {
            *limit = policy.unavailable(sizes.get(domain).copied().unwrap_or(0));
        }
        room
    }

    /// Why there is no room for a host. One that is out of service anyway takes nobody's place.
    pub(super) fn obstacle(&self, lrn: Lrn) -> Option<Obstacle> {
        if self.holders.len() >= self.slots {
            return Some(Obstacle::NoSlot { holders: self.holders.clone() });
        }
        let domain = self.domain_of.get(&lrn)?;
        let (out, limit) = self.domains.get(domain)?;
        (out.len() >= *limit && !out.contains(&lrn))
            .then(|| Obstacle::DomainFull { domain: domain.clone(), out: out.iter().copied().collect() })
    }

    fn take(&mut self, lrn: Lrn) {
        self.holders.push(lrn.to_string());
        if let Some((out, _)) = self.domain_of.get(&lrn).and_then(|domain| self.domains.get_mut(domain)) {
            out.insert(lrn);
        }
    }
}

fn domain_of(world: &World, lrn: Lrn, policy: &Policy) -> String {
    let label = policy.failure_domain.as_ref();
    let value = label.and_then(|label| world.infos.get(&lrn)?.record.labels.get(label));
    value.cloned().unwrap_or_default()
}

/// Whether a host is out of service, by the rollout's doing or not. One that failed and went back to the version that it
/// kept is not.
fn is_out(world: &World, rollout: &Rollout<'_>, lrn: Lrn) -> bool {
    let went_back = rollout.report(lrn).is_some_and(|report| !report.rolled_back_to.is_empty());
    let standing = match rollout.standings.get(&lrn) {
        Some(Standing::Absent) => true,
        Some(Standing::Failed(_)) => !went_back,
        Some(
            Standing::Left | Standing::Skipped | Standing::Silent | Standing::At(_) | Standing::Finished,
        )
        | None => false,
    };
    let drained = match emptiness(world, lrn) {
        Emptiness::Nothing | Emptiness::Unasked => false,
        Emptiness::Draining(_) | Emptiness::Empty | Emptiness::Returning(_) => true,
    };
    standing || drained || rollout.is_in_slot(lrn)
}

/// Hosts of a segment that begin now.
pub(super) fn grants(world: &World, rollout: &Rollout<'_>, segment: Segment, alarm: &Alarm) -> Granted {
    let mut moves = Vec::new();
    let mut reasons: Vec<String> = Vec::new();
    for group in &rollout.groups {
        let policy = rollout.policy(&group.group);
        if is_through(rollout, group, segment) {
            continue;
        }
        if let Some(obstacle) = gate(rollout, group, &policy, segment, alarm) {
            reasons.push(format!("group {}: {obstacle}", group.group));
            continue;
        }
        let wave = open_wave(rollout, group, segment);
        let mut room = Room::of(world, rollout, group, &policy);
        for lrn in group.waves.iter().take(wave + 1).flatten().copied() {
            if !is_ready(rollout, lrn, segment) {
                continue;
            }
            if moves.len() >= HOSTS_PER_MOVE {
                break;
            }
            match room.obstacle(lrn) {
                Some(obstacle) => {
                    let full = matches!(obstacle, Obstacle::NoSlot { .. });
                    reasons.push(format!("host {lrn}: {obstacle}"));
                    if full {
                        break;
                    }
                }
                None => {
                    room.take(lrn);
                    moves.push(begin(world, rollout, group, lrn, segment.last, alarm));
                }
            }
        }
    }
    reasons.truncate(4);
    let why = match reasons.is_empty() {
        true => format!(
            "waiting for hosts {} in {}",
            rollout.waiting_list(),
            steps_text(segment.first, segment.last)
        ),
        false => reasons.join("; "),
    };
    Granted { moves, why }
}

/// Hosts that lag behind what all others have done, and may run up to there alone.
pub(super) fn catch_up(world: &World, rollout: &Rollout<'_>, alarm: &Alarm) -> Vec<HostMove> {
    let through = rollout.safe_alone();
    let mut moves = Vec::new();
    if through == 0 || rollout.orders.paused.is_some() {
        return moves;
    }
    for group in &rollout.groups {
        let lagging: Vec<Lrn> =
            group.hosts().filter(|lrn| lags(rollout, *lrn, through)).take(HOSTS_PER_MOVE).collect();
        let policy = rollout.policy(&group.group);
        if lagging.is_empty() || !policy.is_open(alarm.now()) {
            continue;
        }
        let mut room = Room::of(world, rollout, group, &policy);
        for lrn in lagging {
            if moves.len() < HOSTS_PER_MOVE && room.obstacle(lrn).is_none() {
                room.take(lrn);
                moves.push(begin(world, rollout, group, lrn, through, alarm));
            }
        }
    }
    moves
}

fn lags(rollout: &Rollout<'_>, lrn: Lrn, through: u32) -> bool {
    let Some(Standing::At(step)) = rollout.standings.get(&lrn) else { return false };
    // A barrier that is released lets who has announced it run by itself, and what was done once lets it pass.
    let runs_anyway = rollout
        .released
        .is_some_and(|released| (released.only.is_none() || released.done) && released.step == *step);
    let wanted = rollout.orders.retry.get(&lrn).copied().unwrap_or(0);
    let granted = rollout.desired(lrn).is_some_and(|desired| {
        desired.through >= *step && desired.attempt >= wanted && desired.failure.is_none()
    });
    let retries = rollout.report(lrn).is_some_and(|report| report.error);
    *step <= through && !granted && (retries || !runs_anyway) && !rollout.is_in_slot(lrn)
}

/// Whether a host has announced a step of the segment and has not been let in.
fn is_ready(rollout: &Rollout<'_>, lrn: Lrn, segment: Segment) -> bool {
    let at = match rollout.standings.get(&lrn) {
        Some(Standing::At(step)) => *step,
        Some(
            Standing::Left
            | Standing::Skipped
            | Standing::Failed(_)
            | Standing::Absent
            | Standing::Silent
            | Standing::Finished,
        )
        | None => return false,
    };
    (segment.first..=segment.last).contains(&at) && !rollout.is_in_slot(lrn)
}

fn is_through(rollout: &Rollout<'_>, group: &GroupPlan, segment: Segment) -> bool {
    group
        .hosts()
        .filter(|lrn| rollout.is_awaited(&group.group, *lrn))
        .all(|lrn| rollout.has_done(lrn, segment.last) && !rollout.is_in_slot(lrn))
}

/// The first wave with somebody who is waited for and not through; the last one if there is none.
pub(super) fn open_wave(rollout: &Rollout<'_>, group: &GroupPlan, segment: Segment) -> usize {
    let open = group.waves.iter().position(|wave| {
        let mut awaited = wave.iter().filter(|lrn| rollout.is_awaited(&group.group, **lrn));
        awaited.any(|lrn| !rollout.has_done(*lrn, segment.last) || rollout.is_in_slot(*lrn))
    });
    open.unwrap_or(group.waves.len().saturating_sub(1))
}

/// What keeps a whole group from going on.
pub(super) fn gate(
    rollout: &Rollout<'_>,
    group: &GroupPlan,
    policy: &Policy,
    segment: Segment,
    alarm: &Alarm,
) -> Option<Obstacle> {
    if let Some(order) = &rollout.orders.paused {
        return Some(Obstacle::Paused { by: order.by.clone(), reason: order.reason.clone() });
    }
    let earlier = rollout.groups.iter().filter(|other| other.order < group.order);
    if let Some(open) = earlier.into_iter().find(|other| !is_through(rollout, other, segment)) {
        return Some(Obstacle::EarlierGroup(open.group.clone()));
    }
    if let Some(spent) = spent_budget(rollout, group, policy) {
        return Some(spent);
    }
    if !policy.is_open(alarm.now()) {
        alarm.next_minute();
        return Some(Obstacle::Window(group.group.clone()));
    }
    match open_wave(rollout, group, segment) {
        0 => None,
        wave => between_waves(rollout, group, policy, segment, wave, alarm),
    }
}

fn spent_budget(rollout: &Rollout<'_>, group: &GroupPlan, policy: &Policy) -> Option<Obstacle> {
    let of = |wanted: fn(&Standing) -> bool| -> Vec<Lrn> {
        group.hosts().filter(|lrn| rollout.standings.get(lrn).is_some_and(wanted)).collect()
    };
    let failed = of(|standing| matches!(standing, Standing::Failed(_)));
    let absent = of(|standing| *standing == Standing::Absent);
    let hosts = if failed.len() > policy.failure_budget.limit_of(group.len()) {
        failed
    } else if absent.len() > policy.absent_budget.limit_of(group.len()) {
        absent
    } else {
        return None;
    };
    Some(Obstacle::Budget { group: group.group.clone(), hosts })
}

fn between_waves(
    rollout: &Rollout<'_>,
    group: &GroupPlan,
    policy: &Policy,
    segment: Segment,
    wave: usize,
    alarm: &Alarm,
) -> Option<Obstacle> {
    let begun = group.waves[wave].iter().any(|lrn| {
        rollout.has_done(*lrn, segment.last)
            || rollout.desired(*lrn).is_some_and(|desired| desired.through >= segment.last)
    });
    let promoted = rollout.orders.promoted as usize > wave;
    if begun || promoted {
        return None;
    }
    if !policy.auto_promote {
        return Some(Obstacle::Promotion { wave: wave + 1 });
    }
    let before = group.waves[..wave].iter().flatten();
    let settled = before
        .filter_map(|lrn| rollout.desired(*lrn))
        .filter(|desired| !desired.phase.is_active() && desired.through >= segment.last)
        .map(|desired| desired.at)
        .max()?;
    (!alarm.passed(settled, policy.bake.0)).then(|| Obstacle::Baking { until: settled.plus(policy.bake.0) })
}

/// A host takes a slot: drained first, if what it runs asks for it.
fn begin(
    world: &World,
    rollout: &Rollout<'_>,
    group: &GroupPlan,
    lrn: Lrn,
    through: u32,
    alarm: &Alarm,
) -> HostMove {
    let from = rollout.report(lrn).map_or(1, |report| report.step);
    let needs_drain = rollout.segments.iter().any(|segment| {
        segment.kind == SegmentKind::Rolling { drain: true }
            && segment.last >= from
            && segment.first <= through
    });
    let drain = needs_drain && emptiness(world, lrn) != Emptiness::Nothing;
    let attempt = rollout.orders.retry.get(&lrn).copied().unwrap_or(0);
    HostMove {
        lrn,
        group: group.group.clone(),
        desired: Desired {
            generation: rollout.request.generation,
            phase: if drain { Phase::Drain } else { Phase::Run },
            through,
            attempt,
            at: alarm.now(),
            failure: None,
        },
        drain: drain.then_some(DrainWish::Ask),
        slot: SlotChange::Take,
        why: format!("host {lrn} begins {}", steps_text(from, through)),
    }
}
