//! Which host may begin? Hosts take slots one after the other, as far as waves, windows, limits and budgets allow.

use std::collections::BTreeMap;
use std::fmt;

use capstan_control::drain::FailureUnit;

use super::alarm::Alarm;
use super::rollout::{Rollout, Standing};
use super::{HOSTS_PER_MOVE, HostMove, SlotChange};
use crate::drain::{DrainWish, Emptiness, emptiness};
use crate::encoding::Moment;
use crate::facts::Facts;
use crate::keys::GroupName;
use crate::lrn::{Lrn, Lrns, go_list};
use crate::plan::{GroupPlan, Segment, SegmentKind, steps_text};
use crate::spec::Policy;
use crate::status::{Desired, Phase};

/// Why a host may not begin now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// An operator paused the rollout.
    Paused {
        /// The host.
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
        /// The hosts that are out.
        out: Vec<Lrn>,
    },
    /// Another host that is out of service holds the same shard or log.
    SharedUnit {
        /// The other host.
        other: Lrn,
        /// What both hold.
        unit: FailureUnit,
    },
    /// More hosts of its group failed or are gone than the rollout may go on without.
    Budget {
        /// The group.
        group: GroupName,
        /// The hosts that failed or are gone.
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
            Obstacle::SharedUnit { other, unit } => {
                write!(f, "host {other} is out of service and holds {unit} too")
            }
            Obstacle::Budget { group, hosts } => {
                write!(f, "the budget of group {group} is used up by hosts {}", go_list(hosts))
            }
        }
    }
}

/// The host that begins, or why none does.
pub(super) struct Granted {
    pub(super) moves: Vec<HostMove>,
    pub(super) why: String,
}

/// Room for hosts of one group to be out of service.
pub(super) struct Room {
    holders: Vec<String>,
    slots: usize,
    domains: BTreeMap<String, Domain>,
    domain_of: BTreeMap<Lrn, String>,
}

/// Room in one failure domain.
#[derive(Default)]
struct Domain {
    /// Hosts out of service, for whatever reason.
    out: Lrns,
    /// Hosts out of service by the rollout: in a slot, or not stopped since they left.
    busy: Lrns,
    /// How many may be.
    limit: usize,
}

impl Room {
    pub(super) fn of(facts: &Facts, rollout: &Rollout<'_>, group: &GroupPlan, policy: &Policy) -> Room {
        let held = facts.slots.get(&group.group).map(|seen| &seen.record.holders);
        let holders = held.into_iter().flatten().filter(|(name, holder)| facts.still_holds(name, holder));
        let mut room = Room {
            holders: holders.map(|(name, _)| name.clone()).collect(),
            slots: policy.slots(group.len()),
            domains: BTreeMap::new(),
            domain_of: BTreeMap::new(),
        };
        let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
        for lrn in group.hosts() {
            let domain = domain_of(facts, lrn, policy);
            *sizes.entry(domain.clone()).or_default() += 1;
            let hosts = room.domains.entry(domain.clone()).or_default();
            if is_out(facts, rollout, lrn) {
                hosts.out.insert(lrn);
            }
            if rollout.is_in_slot(lrn) || is_leaving(facts, rollout, lrn) {
                hosts.busy.insert(lrn);
            }
            room.domain_of.insert(lrn, domain);
        }
        for (domain, hosts) in &mut room.domains {
            hosts.limit = policy.unavailable(sizes.get(domain).copied().unwrap_or(0));
        }
        room
    }

    /// Why there is no room for a host. One that is out of service anyway has to wait only for hosts that are out by the
    /// rollout.
    pub(super) fn obstacle(&self, lrn: Lrn) -> Option<Obstacle> {
        if self.holders.len() >= self.slots {
            return Some(Obstacle::NoSlot { holders: self.holders.clone() });
        }
        let domain = self.domain_of.get(&lrn)?;
        let hosts = self.domains.get(domain)?;
        let out = if hosts.out.contains(&lrn) { &hosts.busy } else { &hosts.out };
        let others: Vec<Lrn> = out.iter().copied().filter(|other| *other != lrn).collect();
        (others.len() >= hosts.limit).then(|| Obstacle::DomainFull { domain: domain.clone(), out: others })
    }

    fn take(&mut self, lrn: Lrn) {
        self.holders.push(lrn.to_string());
        if let Some(hosts) = self.domain_of.get(&lrn).and_then(|domain| self.domains.get_mut(domain)) {
            hosts.out.insert(lrn);
            hosts.busy.insert(lrn);
        }
    }
}

pub(super) fn domain_of(facts: &Facts, lrn: Lrn, policy: &Policy) -> String {
    let label = policy.failure_domain.as_ref();
    let value = label.and_then(|label| facts.infos.get(&lrn)?.record.labels.get(label));
    value.cloned().unwrap_or_default()
}

/// Whether a host left and has not stopped. The standing comes first: the rest is a search in the request.
fn is_leaving(facts: &Facts, rollout: &Rollout<'_>, lrn: Lrn) -> bool {
    rollout.standings.get(&lrn) == Some(&Standing::Left) && facts.is_leaving(lrn)
}

/// Whether a host is out of service, by the rollout's doing or not: its worker is gone, it failed and did not go back,
/// its services are not healthy, or it is drained. A host that left is out until it has stopped.
pub(super) fn is_out(facts: &Facts, rollout: &Rollout<'_>, lrn: Lrn) -> bool {
    let standing = match rollout.standings.get(&lrn) {
        Some(Standing::Left) => return facts.is_leaving(lrn),
        Some(Standing::Absent | Standing::Gone) => true,
        Some(Standing::Failed(_)) => {
            rollout.report(lrn).is_none_or(|report| report.rolled_back_to.is_empty())
        }
        // An operator has looked at it: what counts is whether it serves.
        Some(Standing::Skipped) => !facts.leases.contains_key(&lrn),
        Some(Standing::Silent | Standing::At(_) | Standing::Finished) | None => false,
    };
    let drained = match emptiness(facts, lrn) {
        Emptiness::Nothing | Emptiness::Unasked => false,
        Emptiness::Draining(_) | Emptiness::Empty | Emptiness::Returning(_) => true,
    };
    standing || drained || rollout.ailing(lrn).is_some() || rollout.is_in_slot(lrn)
}

/// Why a drained host may not be worked on: another one that is out of service holds the same shard or log. Of two that
/// wait for each other the lower number goes first.
pub(super) fn shared_unit(facts: &Facts, rollout: &Rollout<'_>, lrn: Lrn) -> Option<Obstacle> {
    let units =
        |lrn: Lrn| facts.host_id(lrn).and_then(|host| facts.drains.get(host)).map(|drain| &drain.units);
    let own = units(lrn).filter(|units| !units.is_empty())?;
    let ahead = |other: Lrn| match rollout.desired(other).map(|desired| &desired.phase) {
        Some(Phase::Drain) => other < lrn && emptiness(facts, other) == Emptiness::Empty,
        Some(_) | None => true,
    };
    let others = facts.infos.keys().copied().filter(|other| *other != lrn && ahead(*other));
    let mut shared = others.filter_map(|other| {
        let unit = units(other)?.intersection(own).next()?.clone();
        Some(Obstacle::SharedUnit { other, unit })
    });
    shared.next()
}

/// Hosts of a segment that begin now.
pub(super) fn grants(facts: &Facts, rollout: &Rollout<'_>, segment: Segment, alarm: &Alarm) -> Granted {
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
        let mut room = Room::of(facts, rollout, group, &policy);
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
                    moves.push(begin(facts, rollout, group, lrn, segment.last, alarm));
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

/// Hosts that lag behind what all others have done, and may run up to there alone; and hosts that are to try a step again
/// at which all meet.
pub(super) fn catch_up(facts: &Facts, rollout: &Rollout<'_>, alarm: &Alarm) -> Vec<HostMove> {
    let safe = rollout.safe_alone();
    let mut moves = Vec::new();
    if (safe == 0 && rollout.orders.retry.is_empty()) || rollout.orders.paused.is_some() {
        return moves;
    }
    for group in &rollout.groups {
        let alone = |lrn| match lags(rollout, lrn, safe) {
            true => Some((lrn, safe)),
            false => announces_again(rollout, lrn, safe).map(|through| (lrn, through)),
        };
        let lagging: Vec<(Lrn, u32)> = group.hosts().filter_map(alone).take(HOSTS_PER_MOVE).collect();
        let policy = rollout.policy(&group.group);
        // After a sign of harm no host begins, not even one that lags.
        if lagging.is_empty() || !policy.is_open(alarm.now()) || rollout.is_harmed(&group.group) {
            continue;
        }
        let mut room = Room::of(facts, rollout, group, &policy);
        for (lrn, through) in lagging {
            if moves.len() < HOSTS_PER_MOVE && room.obstacle(lrn).is_none() {
                room.take(lrn);
                moves.push(begin(facts, rollout, group, lrn, through, alarm));
            }
        }
    }
    moves
}

/// The steps that a host has behind it that is to try a step again at which all meet. It takes a slot in which it runs
/// none of them: its worker takes up the order and announces the step, which it then runs like every other host.
/// Without that, a host that is to run a `once` step for all would neither run it nor count as failed.
fn announces_again(rollout: &Rollout<'_>, lrn: Lrn, safe: u32) -> Option<u32> {
    let step = rollout.next_step(lrn);
    let waits = rollout.is_to_retry(lrn) && !rollout.is_in_slot(lrn);
    (waits && step > safe && rollout.is_meeting(step)).then(|| step - 1)
}

fn lags(rollout: &Rollout<'_>, lrn: Lrn, through: u32) -> bool {
    let Some(Standing::At(step)) = rollout.standings.get(&lrn) else { return false };
    // A released barrier needs no slot: hosts that have announced it run it, and a once step that is done is passed.
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
            | Standing::Gone
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
        .all(|lrn| rollout.is_done(lrn, segment.last))
}

/// The first wave with an awaited host that is not through; the last one if there is none.
pub(super) fn open_wave(rollout: &Rollout<'_>, group: &GroupPlan, segment: Segment) -> usize {
    let open = group.waves.iter().position(|wave| {
        let mut awaited = wave.iter().filter(|lrn| rollout.is_awaited(&group.group, **lrn));
        awaited.any(|lrn| !rollout.is_done(*lrn, segment.last))
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

/// Whether a host that was out of service and goes on finds room: fewer others of its failure domain are being worked on
/// than may be.
pub(super) fn has_room(
    facts: &Facts,
    rollout: &Rollout<'_>,
    moves: &[HostMove],
    group: &GroupName,
    policy: &Policy,
    lrn: Lrn,
) -> bool {
    let Some(plan) = rollout.groups.iter().find(|plan| plan.group == *group) else { return false };
    let domain = domain_of(facts, lrn, policy);
    let peers: Vec<Lrn> = plan.hosts().filter(|peer| domain_of(facts, *peer, policy) == domain).collect();
    // Of several that are back at the same moment the lower number goes first.
    let is_back = |peer: Lrn| {
        let gone = rollout.desired(peer).is_some_and(|desired| desired.phase == Phase::Gone);
        peer < lrn && gone && facts.leases.contains_key(&peer)
    };
    let begins = |peer: Lrn| moves.iter().any(|host| host.lrn == peer && host.desired.phase.is_active());
    let is_busy = |peer: &Lrn| *peer != lrn && (rollout.is_in_slot(*peer) || is_back(*peer) || begins(*peer));
    let busy = peers.iter().copied().filter(is_busy).count();
    busy < policy.unavailable(peers.len())
}

/// Whether a host may be taken back: fewer others of its failure domain are being worked on, or will be by the moves that
/// are decided together with this one, than may be.
pub(super) fn has_room_to_go_back(
    facts: &Facts,
    rollout: &Rollout<'_>,
    moves: &[HostMove],
    policy: &Policy,
    lrn: Lrn,
) -> bool {
    let domain = domain_of(facts, lrn, policy);
    let Some(plan) = rollout.groups.iter().find(|plan| plan.hosts().any(|host| host == lrn)) else {
        return false;
    };
    let peers: Vec<Lrn> = plan.hosts().filter(|peer| domain_of(facts, *peer, policy) == domain).collect();
    let moved = |peer: Lrn| moves.iter().find(|host| host.lrn == peer).map(|host| &host.desired);
    let is_busy = |peer: &Lrn| {
        let works = |desired: &Desired| match desired.phase {
            Phase::Drain | Phase::Run | Phase::Rollback { .. } => true,
            Phase::Return | Phase::Settle | Phase::Done | Phase::Gone | Phase::Failed => false,
        };
        *peer != lrn
            && (rollout.desired(*peer).is_some_and(works)
                || moved(*peer).is_some_and(works)
                || is_leaving(facts, rollout, *peer))
    };
    peers.iter().copied().filter(is_busy).count() < policy.unavailable(peers.len())
}

/// Whether the steps that a host has before it, up to one, ask for a drain.
pub(super) fn needs_drain(rollout: &Rollout<'_>, lrn: Lrn, through: u32) -> bool {
    let from = rollout.next_step(lrn);
    rollout.segments.iter().any(|segment| {
        segment.kind == SegmentKind::Rolling { drain: true }
            && segment.last >= from
            && segment.first <= through
    })
}

/// A host takes a slot: drained first, if what it runs asks for it.
fn begin(
    facts: &Facts,
    rollout: &Rollout<'_>,
    group: &GroupPlan,
    lrn: Lrn,
    through: u32,
    alarm: &Alarm,
) -> HostMove {
    let from = rollout.next_step(lrn);
    let drain = needs_drain(rollout, lrn, through) && emptiness(facts, lrn) != Emptiness::Nothing;
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
