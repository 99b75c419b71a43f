//! How does a decision become a transaction? Guarded by everything that it was made from; the leader's own guard is
//! added by the loop that commits it.
//!
//! A guard that does not hold means "read again and decide again", never an error.

use std::collections::BTreeMap;

use capstan_control::events::Event;
use capstan_meta::Txn;
use capstan_meta::record::{Key, Prefix, Stored};

use crate::decide::{HostMove, Move, SlotChange, Start};
use crate::drain;
use crate::facts::Facts;
use crate::history::{HistoryRecord, Outcome};
use crate::keys::{GroupName, Tree};
use crate::lrn::Lrn;
use crate::outbox::{MAX_WAITING, Notice, NoticeKind};
use crate::status::{Holder, Phase, Request, Slots, holder_of};

/// Groups whose slots guard a host that begins, besides those of the hosts that are moved: a transaction holds 128
/// comparisons, and the hosts of one move take up to 64.
const MAX_GROUPS: usize = 32;

/// The actor of decisions that no operator asked for.
const UPDATER: &str = "fleet updater";

/// The transaction of a move.
#[must_use]
pub fn txn(tree: &Tree, facts: &Facts, next: &Move) -> Txn {
    match next {
        Move::Start(start) => begin(tree, facts, start),
        Move::Stop { outcome, reason } => stop(tree, facts, *outcome, reason),
        Move::End { outcome, reason, without } => end(tree, facts, *outcome, reason, without),
        Move::Release(released) => {
            let key = tree.released();
            let seen = facts.released.as_deref();
            on_request(tree, facts).when(key.as_seen(seen)).then(key.put(released))
        }
        Move::Hosts(moves) => hosts(tree, facts, moves),
        Move::TakeBack(strays) => strays
            .iter()
            .filter_map(|host| drain::take_back(facts, host))
            .fold(on_request(tree, facts), |txn, (guard, put)| txn.when(guard).then(put)),
    }
}

/// Holds as long as the request is exactly as it was read.
fn on_request(tree: &Tree, facts: &Facts) -> Txn {
    Txn::new().when(tree.current().as_seen(facts.request.as_deref()))
}

fn begin(tree: &Tree, facts: &Facts, start: &Start) -> Txn {
    let Start { request, plan, cause, by } = start;
    let generation = request.generation;
    let from = facts.request.as_ref().map(|seen| seen.record.version.clone());
    let from = from.or_else(|| facts.last_success.clone()).unwrap_or_default();
    // A host list that changes leaves the version: what hosts keep is then what was before it.
    let from = match &facts.history {
        Some(seen) if from == request.version => seen.record.from.clone(),
        Some(_) | None => from,
    };
    let history = HistoryRecord {
        version: request.version.clone(),
        from,
        cause: cause.clone(),
        by: by.clone(),
        started_at: request.started_at,
        ..HistoryRecord::default()
    };
    let key = tree.history(generation);
    let txn = on_request(tree, facts)
        .when(key.absent())
        .then(tree.current().put(request))
        .then(tree.host_statuses().delete_all())
        .then(tree.released().delete())
        .then(tree.plan(generation).put(plan))
        .then(key.put(&history));
    let event = event(facts, by, format!("began rollout {generation} of"), request, cause);
    tell(tree, facts, txn, request, NoticeKind::Start, cause)
        .then(event.put_as(&format!("fleet-{generation}-began")))
}

fn stop(tree: &Tree, facts: &Facts, outcome: Outcome, reason: &str) -> Txn {
    let Some(seen) = &facts.request else { return Txn::new() };
    let request = Request { stop: true, stop_reason: reason.to_owned(), ..seen.record.clone() };
    let txn = on_request(tree, facts).then(tree.current().replace(seen, &request));
    note_end(tree, facts, txn, outcome, reason, &[])
}

fn end(tree: &Tree, facts: &Facts, outcome: Outcome, reason: &str, without: &[Lrn]) -> Txn {
    note_end(tree, facts, on_request(tree, facts), outcome, reason, without)
}

/// Records how a request ended, once: a second call finds it recorded.
fn note_end(tree: &Tree, facts: &Facts, txn: Txn, outcome: Outcome, reason: &str, without: &[Lrn]) -> Txn {
    let Some(request) = facts.request.as_ref().map(|seen| &seen.record) else { return txn };
    let key = tree.history(request.generation);
    let before = facts.history.as_ref().map(|seen| seen.record.clone()).unwrap_or_else(|| HistoryRecord {
        version: request.version.clone(),
        started_at: request.started_at,
        ..HistoryRecord::default()
    });
    let history = HistoryRecord {
        outcome: Some(outcome),
        ended_at: Some(facts.now),
        reason: reason.to_owned(),
        without: without.to_vec(),
        ..before
    };
    let (kind, verb) = match outcome {
        Outcome::Succeeded => (NoticeKind::Success, "completed"),
        Outcome::Failed => (NoticeKind::Failure, "aborted"),
        Outcome::Stopped => (NoticeKind::Failure, "stopped"),
        Outcome::TimedOut => (NoticeKind::Timeout, "timed out in"),
    };
    let txn = txn.when(key.as_seen(facts.history.as_deref())).then(key.put(&history));
    let generation = request.generation;
    let event = event(facts, UPDATER, format!("{verb} rollout {generation} of"), request, reason);
    tell(tree, facts, txn, request, kind, reason).then(event.put_as(&format!("fleet-{generation}-ended")))
}

/// What the record of events says about a request. A request is begun and ended once, so its number makes the id.
fn event(facts: &Facts, actor: &str, action: String, request: &Request, reason: &str) -> Event {
    let actor = if actor.is_empty() { UPDATER } else { actor };
    Event::new(facts.now.as_epoch(), actor, action, format!("release {}", request.version), reason)
}

/// The message about an event goes into the event's own transaction.
fn tell(tree: &Tree, facts: &Facts, txn: Txn, request: &Request, kind: NoticeKind, detail: &str) -> Txn {
    if facts.settings.slack.is_none() || facts.waiting_notices >= MAX_WAITING {
        return txn;
    }
    let notice = Notice::about(request, kind, detail, facts.now);
    txn.then(tree.notice(notice.id()).put(&notice))
}

fn hosts(tree: &Tree, facts: &Facts, moves: &[HostMove]) -> Txn {
    let mut txn = on_request(tree, facts);
    let mut slots: BTreeMap<GroupName, Slots> = BTreeMap::new();
    for host in moves {
        let key = tree.desired(host.lrn);
        txn = txn
            .when(key.as_seen(facts.desired.get(&host.lrn).map(|seen| &**seen)))
            .then(key.put(&host.desired));
        let reason = facts.request.as_ref().map(|seen| format!("update to {}", seen.record.version));
        let wish = host
            .drain
            .and_then(|wish| drain::wish(facts, host.lrn, wish, reason.as_deref().unwrap_or("update")));
        if let Some((guard, put)) = wish {
            txn = txn.when(guard).then(put);
        }
        change_slot(facts, host, &mut slots);
    }
    let begins = moves.iter().any(|host| match host.desired.phase {
        Phase::Run => !facts.drains.is_empty(),
        Phase::Rollback { .. } => true,
        Phase::Drain | Phase::Return | Phase::Settle | Phase::Done | Phase::Gone | Phase::Failed => false,
    });
    if begins {
        // Whether a drained host may begin, or one may go back, depends on all others, and an earlier decision may still
        // be on its way to the store. Each that lets a host begin writes the slots of its group and is guarded by all slots, so that only one
        // of two made from the same state is committed.
        for host in moves {
            slots.entry(host.group.clone()).or_insert_with(|| slots_of(facts, &host.group));
        }
        let others = facts.slots.iter().filter(|(group, _)| !slots.contains_key(*group)).take(MAX_GROUPS);
        for (group, seen) in others {
            txn = txn.when(tree.slots(group.clone()).unchanged(seen));
        }
    }
    for (group, record) in &slots {
        let seen: Option<&Stored<Slots>> = facts.slots.get(group).map(|seen| &**seen);
        let key = tree.slots(group.clone());
        txn = txn.when(key.as_seen(seen)).then(key.put(record));
    }
    txn
}

/// The slots of a group, without those that are no longer held.
fn slots_of(facts: &Facts, group: &GroupName) -> Slots {
    let mut slots = facts.slots.get(group).map(|seen| seen.record.clone()).unwrap_or_default();
    slots.holders.retain(|name, holder| facts.still_holds(name, holder));
    slots
}

fn change_slot(facts: &Facts, host: &HostMove, slots: &mut BTreeMap<GroupName, Slots>) {
    let generation = host.desired.generation;
    let record = || slots_of(facts, &host.group);
    match host.slot {
        SlotChange::Keep => {}
        SlotChange::Take => {
            let holder = Holder { generation: Some(generation), since: facts.now };
            slots
                .entry(host.group.clone())
                .or_insert_with(record)
                .holders
                .insert(holder_of(host.lrn), holder);
        }
        SlotChange::Free => {
            slots.entry(host.group.clone()).or_insert_with(record).holders.remove(&holder_of(host.lrn));
        }
    }
}
