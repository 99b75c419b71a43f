//! How does a decision become a transaction? Guarded by everything that it was made from; the leader's own guard is
//! added by the loop that commits it.
//!
//! A guard that does not hold means "read again and decide again", never an error.

use std::collections::BTreeMap;

use capstan_meta::Txn;
use capstan_meta::record::{Key, Prefix, Stored};

use crate::decide::{HostMove, Move, SlotChange, Start};
use crate::drains;
use crate::history::{HistoryRecord, Outcome};
use crate::keys::{GroupName, Tree};
use crate::lrn::Lrn;
use crate::outbox::{MAX_WAITING, Notice, NoticeKind};
use crate::status::{Holder, Phase, Request, Slots, holder_of};
use crate::world::World;

/// Groups whose slots guard a host that begins, besides those of the hosts that are moved: a transaction holds 128
/// comparisons, and the hosts of one move take up to 64.
const MAX_GROUPS: usize = 32;

/// The transaction of a move.
#[must_use]
pub fn txn(tree: &Tree, world: &World, next: &Move) -> Txn {
    match next {
        Move::Start(start) => begin(tree, world, start),
        Move::Stop { outcome, reason } => stop(tree, world, *outcome, reason),
        Move::End { outcome, reason, without } => end(tree, world, *outcome, reason, without),
        Move::Release(released) => {
            let key = tree.released();
            let seen = world.released.as_deref();
            on_request(tree, world).when(key.as_seen(seen)).then(key.put(released))
        }
        Move::Hosts(moves) => hosts(tree, world, moves),
        Move::TakeBack(strays) => strays
            .iter()
            .filter_map(|host| drains::take_back(world, host))
            .fold(on_request(tree, world), |txn, (guard, put)| txn.when(guard).then(put)),
    }
}

/// Holds as long as the request is exactly as it was read.
fn on_request(tree: &Tree, world: &World) -> Txn {
    Txn::new().when(tree.current().as_seen(world.request.as_deref()))
}

fn begin(tree: &Tree, world: &World, start: &Start) -> Txn {
    let Start { request, plan, cause, by } = start;
    let generation = request.generation;
    let from = world.request.as_ref().map(|seen| seen.record.version.clone());
    let from = from.or_else(|| world.last_success.clone()).unwrap_or_default();
    // A host list that changes leaves the version: what hosts keep is then what was before it.
    let from = match &world.history {
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
    let txn = on_request(tree, world)
        .when(key.absent())
        .then(tree.current().put(request))
        .then(tree.host_statuses().delete_all())
        .then(tree.released().delete())
        .then(tree.plan(generation).put(plan))
        .then(key.put(&history));
    tell(tree, world, txn, request, NoticeKind::Start, cause)
}

fn stop(tree: &Tree, world: &World, outcome: Outcome, reason: &str) -> Txn {
    let Some(seen) = &world.request else { return Txn::new() };
    let request = Request { stop: true, stop_reason: reason.to_owned(), ..seen.record.clone() };
    let txn = on_request(tree, world).then(tree.current().replace(seen, &request));
    note_end(tree, world, txn, outcome, reason, &[])
}

fn end(tree: &Tree, world: &World, outcome: Outcome, reason: &str, without: &[Lrn]) -> Txn {
    note_end(tree, world, on_request(tree, world), outcome, reason, without)
}

/// Records how a request ended, once: a second call finds it recorded.
fn note_end(tree: &Tree, world: &World, txn: Txn, outcome: Outcome, reason: &str, without: &[Lrn]) -> Txn {
    let Some(request) = world.request.as_ref().map(|seen| &seen.record) else { return txn };
    let key = tree.history(request.generation);
    let before = world.history.as_ref().map(|seen| seen.record.clone()).unwrap_or_else(|| HistoryRecord {
        version: request.version.clone(),
        started_at: request.started_at,
        ..HistoryRecord::default()
    });
    let history = HistoryRecord {
        outcome: Some(outcome),
        ended_at: Some(world.now),
        reason: reason.to_owned(),
        without: without.to_vec(),
        ..before
    };
    let kind = match outcome {
        Outcome::Succeeded => NoticeKind::Success,
        Outcome::Failed | Outcome::Stopped => NoticeKind::Failure,
        Outcome::TimedOut => NoticeKind::Timeout,
    };
    let txn = txn.when(key.as_seen(world.history.as_deref())).then(key.put(&history));
    tell(tree, world, txn, request, kind, reason)
}

/// The message about an event goes into the event's own transaction.
fn tell(tree: &Tree, world: &World, txn: Txn, request: &Request, kind: NoticeKind, detail: &str) -> Txn {
    if world.settings.slack.is_none() || world.waiting_notices >= MAX_WAITING {
        return txn;
    }
    let notice = Notice::about(request, kind, detail, world.now);
    txn.then(tree.notice(notice.id()).put(&notice))
}

fn hosts(tree: &Tree, world: &World, moves: &[HostMove]) -> Txn {
    let mut txn = on_request(tree, world);
    let mut slots: BTreeMap<GroupName, Slots> = BTreeMap::new();
    for host in moves {
        let key = tree.desired(host.lrn);
        txn = txn
            .when(key.as_seen(world.desired.get(&host.lrn).map(|seen| &**seen)))
            .then(key.put(&host.desired));
        let reason = world.request.as_ref().map(|seen| format!("update to {}", seen.record.version));
        let wish = host
            .drain
            .and_then(|wish| drains::wish(world, host.lrn, wish, reason.as_deref().unwrap_or("update")));
        if let Some((guard, put)) = wish {
            txn = txn.when(guard).then(put);
        }
        change_slot(world, host, &mut slots);
    }
    let begins = moves.iter().any(|host| match host.desired.phase {
        Phase::Run => !world.drains.is_empty(),
        Phase::Rollback { .. } => true,
        Phase::Drain | Phase::Return | Phase::Settle | Phase::Done | Phase::Gone | Phase::Failed => false,
    });
    if begins {
        // Whether a drained host may begin, or one may go back, depends on all others, and an earlier decision may still
        // be on its way to the store. Each that lets a host begin writes the slots of its group and is guarded by all slots, so that only one
        // of two made from the same state is committed.
        for host in moves {
            slots.entry(host.group.clone()).or_insert_with(|| slots_of(world, &host.group));
        }
        let others = world.slots.iter().filter(|(group, _)| !slots.contains_key(*group)).take(MAX_GROUPS);
        for (group, seen) in others {
            txn = txn.when(tree.slots(group.clone()).unchanged(seen));
        }
    }
    for (group, record) in &slots {
        let seen: Option<&Stored<Slots>> = world.slots.get(group).map(|seen| &**seen);
        let key = tree.slots(group.clone());
        txn = txn.when(key.as_seen(seen)).then(key.put(record));
    }
    txn
}

/// The slots of a group, without those that are no longer held.
fn slots_of(world: &World, group: &GroupName) -> Slots {
    let mut slots = world.slots.get(group).map(|seen| seen.record.clone()).unwrap_or_default();
    slots.holders.retain(|name, holder| world.still_holds(name, holder));
    slots
}

fn change_slot(world: &World, host: &HostMove, slots: &mut BTreeMap<GroupName, Slots>) {
    let generation = host.desired.generation;
    let record = || slots_of(world, &host.group);
    match host.slot {
        SlotChange::Keep => {}
        SlotChange::Take => {
            let holder = Holder { generation: Some(generation), since: world.now };
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
