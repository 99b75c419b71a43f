//! What comes next? Pure: from everything that the updater knows to one move, when to look again, and why.
//!
//! The order of the questions is the whole updater: is there a request; was it stopped; must it be stopped (an order,
//! a failure beyond the budget, an impossible report, a timeout); what do hosts in their slots need; does a segment of
//! steps let somebody begin; is it complete; is there something newer. One move at a time: after it, everything is
//! looked at again.

pub mod alarm;
mod begin;
mod grant;
pub mod lock;
mod meet;
mod rollout;
mod slot;
mod stop;
pub mod why;

use capstan_control::keys::HostId;

use crate::drain::{self, DrainWish};
use crate::encoding::Moment;
use crate::facts::Facts;
use crate::history::Outcome;
use crate::keys::GroupName;
use crate::lrn::Lrn;
use crate::plan::{RolloutPlan, SegmentKind};
use crate::status::{Desired, Released, Request};

use alarm::Alarm;
pub use grant::Obstacle;
pub use rollout::{NotDone, Rollout, Standing};

/// Hosts that one move changes at most: each is up to three operations of a transaction, which holds 128.
pub const HOSTS_PER_MOVE: usize = 32;

/// What the updater does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Writes a request for all hosts that there are.
    Start(Box<Start>),
    /// Sets `stop`.
    Stop {
        /// How the request ends.
        outcome: Outcome,
        /// Why.
        reason: String,
    },
    /// Notes how a request ended that is stopped already, or is complete.
    End {
        /// How.
        outcome: Outcome,
        /// Why, or what is to be said about it.
        reason: String,
        /// Hosts that it went on without.
        without: Vec<Lrn>,
    },
    /// Lets hosts run a step together.
    Release(Released),
    /// Moves hosts in and out of their slots.
    Hosts(Vec<HostMove>),
    /// Takes back drains of hosts that the request is not about.
    TakeBack(Vec<HostId>),
}

/// A new request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The request.
    pub request: Request,
    /// The order of the hosts.
    pub plan: RolloutPlan,
    /// Why, for the history.
    pub cause: String,
    /// The origin of the request.
    pub by: String,
}

/// What changes for one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMove {
    /// The host.
    pub lrn: Lrn,
    /// Its group.
    pub group: GroupName,
    /// What is wanted of it from now on.
    pub desired: Desired,
    /// What is asked of its services.
    pub drain: Option<DrainWish>,
    /// What happens to its slot.
    pub slot: SlotChange,
    /// Why, in words for an operator.
    pub why: String,
}

/// What happens to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotChange {
    /// The host takes one.
    Take,
    /// The host keeps what it has.
    Keep,
    /// The host gives it back, if it has one.
    Free,
}

/// What comes next, when to look again, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do now.
    pub next: Option<Move>,
    /// When to look again even if nothing changes.
    pub wake_at: Option<Moment>,
    /// What was decided, or what is waited for.
    pub why: String,
}

impl Decision {
    fn wait(why: impl Into<String>) -> Decision {
        Decision { next: None, wake_at: None, why: why.into() }
    }

    fn act(next: Move, why: impl Into<String>) -> Decision {
        Decision { next: Some(next), wake_at: None, why: why.into() }
    }
}

/// Decides.
#[must_use]
pub fn decide(facts: &Facts) -> Decision {
    let alarm = Alarm::new(facts.now);
    let decision = match &facts.request {
        _ if !facts.unreadable.is_empty() => return held(facts),
        None => begin::first(facts),
        Some(request) if request.record.stop => stop::stopped(facts, &request.record),
        Some(request) => under_way(facts, &request.record, &alarm),
    };
    match decision.next {
        Some(_) => decision,
        None => take_back(facts).unwrap_or(Decision { wake_at: alarm.next(), ..decision }),
    }
}

/// A value that cannot be parsed might say anything: nothing begins and nothing ends until it is repaired. A stop needs
/// no decision.
fn held(facts: &Facts) -> Decision {
    let texts: Vec<String> = facts.unreadable.iter().take(3).map(ToString::to_string).collect();
    Decision::wait(format!("held: {}", texts.join("; ")))
}

/// Hosts of a stopped request that have not confirmed that nothing of it runs there.
#[must_use]
pub fn unconfirmed(facts: &Facts) -> Vec<Lrn> {
    let Some(request) = facts.request.as_ref().map(|seen| &seen.record) else { return Vec::new() };
    let members = request.members();
    members.into_iter().filter(|lrn| facts.registry.contains(lrn) && !facts.has_stopped(*lrn)).collect()
}

/// Clean-up when nothing else is to be done: drains that are no longer needed.
fn take_back(facts: &Facts) -> Option<Decision> {
    let mut strays = drain::strays(facts);
    strays.truncate(HOSTS_PER_MOVE);
    let names: Vec<&str> = strays.iter().map(HostId::as_str).collect();
    let why = format!("drained, and not in the request, so given back: {}", names.join(" "));
    (!strays.is_empty()).then(|| Decision::act(Move::TakeBack(strays), why))
}

/// Whether every host of the request has its release: nothing is left to do, not even for one that was away.
#[must_use]
pub fn is_over(facts: &Facts) -> bool {
    let Some(request) = &facts.request else { return true };
    let rollout = Rollout::of(facts, &request.record, &Alarm::new(facts.now));
    rollout.is_ok_and(|rollout| rollout.is_complete() && rollout.left_behind().next().is_none())
}

/// Nothing moves for longer than this: an operator should look. Longer than most steps take.
const STUCK_AFTER: std::time::Duration = std::time::Duration::from_secs(900);

/// Why the rollout does not go on by itself and since when, in seconds since 1970; nothing while it does, or while an
/// operator holds it.
#[must_use]
pub fn stuck(facts: &Facts) -> Option<(String, u64)> {
    let request = facts.request.as_ref().map(|seen| &seen.record).filter(|request| !request.stop)?;
    let alarm = Alarm::new(facts.now);
    let rollout = Rollout::of(facts, request, &alarm).ok()?;
    if rollout.orders.paused.is_some() || facts.has_ended() || decide(facts).next.is_some() {
        return None;
    }
    let since = stop::last_progress(facts, &rollout);
    let awaited: Vec<Lrn> = rollout.waits_in_vain_for();
    if !awaited.is_empty() {
        let hosts = crate::lrn::go_list(&awaited);
        return Some((
            format!("it waits for hosts {hosts}, whose workers are gone"),
            since.as_epoch().as_secs(),
        ));
    }
    let quiet = rollout.awaits_workers() && alarm.passed(since, STUCK_AFTER);
    let text = || format!("nothing has happened for {}", crate::encoding::Span(STUCK_AFTER));
    quiet.then(|| (text(), since.as_epoch().as_secs()))
}

/// Where every host of the request stands; nothing if there is none, or its release is not known.
#[must_use]
pub fn standings(facts: &Facts) -> Option<std::collections::BTreeMap<Lrn, Standing>> {
    let request = facts.request.as_ref()?;
    let rollout = Rollout::of(facts, &request.record, &Alarm::new(facts.now)).ok()?;
    Some(rollout.standings)
}

fn under_way(facts: &Facts, request: &Request, alarm: &Alarm) -> Decision {
    let rollout = match Rollout::of(facts, request, alarm) {
        Ok(rollout) => rollout,
        Err(unknown) => {
            return stop::late(facts, request, alarm).unwrap_or_else(|| Decision::wait(unknown));
        }
    };
    if let Some(stop) = stop::must_stop(facts, &rollout) {
        return stop;
    }
    let moves = slot::moves(facts, &rollout, alarm);
    if !moves.is_empty() {
        return hosts(moves);
    }
    if rollout.is_complete() {
        return complete(facts, &rollout, alarm);
    }
    let progress = progress(facts, &rollout, alarm);
    match progress.next {
        None if rollout.awaits_workers() => stop::late_rollout(facts, &rollout, alarm).unwrap_or(progress),
        Some(_) | None => progress,
    }
}

/// Every host that the rollout waits for is through.
fn complete(facts: &Facts, rollout: &Rollout<'_>, alarm: &Alarm) -> Decision {
    if !facts.has_ended() {
        let bake = rollout.last_bake();
        let since = rollout.complete_since(facts.now);
        if !alarm.passed(since, bake) {
            let until = since.plus(bake).to_seconds_text();
            return Decision::wait(format!("every host is through; the last wave is watched until {until}"));
        }
        let without: Vec<Lrn> = rollout.left_behind().collect();
        let reason = match without.len() {
            0 => String::new(),
            count => format!("without {count} hosts"),
        };
        let why = match without.is_empty() {
            true => format!("{} is on every host", rollout.request.version),
            false => format!("{} is complete {reason}", rollout.request.version),
        };
        return Decision::act(Move::End { outcome: Outcome::Succeeded, reason, without }, why);
    }
    let moves = grant::catch_up(facts, rollout, alarm);
    if !moves.is_empty() {
        return hosts(moves);
    }
    begin::next(facts, rollout)
}

/// The first segment that is not over decides which hosts may begin.
fn progress(facts: &Facts, rollout: &Rollout<'_>, alarm: &Alarm) -> Decision {
    let moves = grant::catch_up(facts, rollout, alarm);
    if !moves.is_empty() {
        return hosts(moves);
    }
    let Some(segment) = rollout.open_segment() else {
        return Decision::wait(format!("waiting for hosts to finish: {}", rollout.waiting_list()));
    };
    match segment.kind {
        SegmentKind::Barrier => meet::barrier(facts, rollout, segment, alarm),
        SegmentKind::Once => meet::once(facts, rollout, segment, alarm),
        SegmentKind::Rolling { .. } => {
            let granted = grant::grants(facts, rollout, segment, alarm);
            match granted.moves.is_empty() {
                false => hosts(granted.moves),
                true => Decision::wait(granted.why),
            }
        }
    }
}

fn hosts(moves: Vec<HostMove>) -> Decision {
    let why: Vec<String> = moves.iter().take(5).map(|host| host.why.clone()).collect();
    let more = match moves.len().saturating_sub(5) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Decision::act(Move::Hosts(moves), format!("{}{more}", why.join("; ")))
}
