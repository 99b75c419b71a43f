//! Migrate Slots: begin, commit, cancel, retarget.
//!
//! A move is recorded first and tagged when neither of its ends is busy with another one. From then on the
//! source copies; it stays the owner until one transaction, guarded by the record of the move and the epoch
//! of the cluster, assigns the slots to the target. A transaction that loses the race changes nothing.

use capstan_control::epoch::Epoch;

use super::draft::Draft;
use super::edit::Edit;
use super::entries::{cut, join, take_move, tidy};
use crate::address::Address;
use crate::error::BrokerError;
use crate::facts::Tree;
use crate::keys::ClusterName;
use crate::slots::{SlotRange, overlap};
use crate::status::{MoveEnd, MoveId, MoveRecord, MoveState, Place, SlotEntry, Tag};

/// Moves that one transaction records. Each touches two nodes (both their keys, both their hosts) and its
/// record.
pub const MOVES_PER_TXN: usize = 12;

/// A request to move slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The slots; they may have several owners.
    pub range: SlotRange,
    /// The new owner.
    pub target: Address,
}

/// Records moves, and starts those whose ends are not busy.
pub fn plan_begin(
    tree: &Tree,
    name: &ClusterName,
    wishes: &[Wish],
    why: &str,
    request: &str,
    now: u64,
) -> Result<(Draft, Vec<MoveId>), BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    let mut ids = Vec::new();
    for Wish { range, target } in wishes {
        let target = eligible(&edit, name, target)?;
        for (piece, source) in
            pieces(&edit, name, *range)?.into_iter().filter(|(_, from)| from.node != target.node)
        {
            let id = edit.next_move();
            let record = MoveRecord {
                start: piece.first(),
                end: piece.last(),
                source,
                target: target.clone(),
                state: MoveState::Queued,
                epoch: Epoch::NEVER_TOLD,
                why: why.to_owned(),
                request: request.to_owned(),
                asked_at: now,
                extra: Default::default(),
            };
            edit.moves.insert(id, record);
            ids.push(id);
        }
    }
    if ids.is_empty() {
        return Err(BrokerError::Invalid(format!("cluster {name}: the target already owns these slots")));
    }
    if ids.len() > MOVES_PER_TXN {
        let text = format!(
            "cluster {name}: these slots have {} owners; move at most {MOVES_PER_TXN} pieces at once",
            ids.len()
        );
        return Err(BrokerError::Invalid(text));
    }
    for id in &ids {
        start(&mut edit, *id);
    }
    Ok((edit.finish(format!("move slots of cluster {name}"), now), ids))
}

fn eligible(edit: &Edit<'_>, name: &ClusterName, target: &Address) -> Result<Place, BrokerError> {
    let record = edit.node(target)?;
    if record.is_primary() {
        return Ok(Place { proxy: record.proxy_address.clone(), node: target.clone() });
    }
    let why = "a replica cannot be given slots; name its primary".to_owned();
    Err(BrokerError::WrongRole { cluster: name.clone(), node: target.clone(), why })
}

/// The owners of a range, piece by piece. All of it must be stable and not part of another move.
fn pieces(
    edit: &Edit<'_>,
    name: &ClusterName,
    range: SlotRange,
) -> Result<Vec<(SlotRange, Place)>, BrokerError> {
    let refused = |why: String| BrokerError::NotMovable { cluster: name.clone(), range, why };
    let wanted = |other: &&MoveRecord| other.range().is_some_and(|other| overlap(other, range).is_some());
    if let Some((id, _)) = edit.moves.iter().find(|(_, other)| wanted(other)) {
        return Err(refused(format!("move {id} includes some of them")));
    }
    let mut pieces = Vec::new();
    for node in edit.nodes.values() {
        let place = Place { proxy: node.proxy_address.clone(), node: node.address.clone() };
        let stable = node.slots.iter().filter(|entry| entry.tag == Tag::Stable);
        pieces.extend(
            stable.filter_map(|entry| overlap(entry.range, range)).map(|piece| (piece, place.clone())),
        );
    }
    pieces.sort();
    let found: u32 = pieces.iter().map(|(piece, _)| piece.len()).sum();
    if found == range.len() { Ok(pieces) } else { Err(refused("some of them have no owner".to_owned())) }
}

/// Tags both ends of a recorded move, unless one of them is busy with another; false if it cannot be started
/// at all.
fn start(edit: &mut Edit<'_>, id: MoveId) -> bool {
    let Some(record) = edit.moves.get(&id).cloned() else { return false };
    let Some(range) = record.range() else { return false };
    let busy = |other: &MoveRecord| {
        other.state == MoveState::Copying
            && (other.source.node == record.source.node || other.target.node == record.target.node)
    };
    if edit.moves.values().any(busy) {
        return true;
    }
    let can_take = edit.nodes.get(&record.target.node).is_some_and(|node| node.is_primary());
    let Some(source) = edit.nodes.get_mut(&record.source.node) else { return false };
    if !can_take || !cut(&mut source.slots, range) {
        return false;
    }
    join(&mut source.slots, SlotEntry { range, tag: Tag::Migrating(far_end(&record.target, id)) });
    if let Some(target) = edit.nodes.get_mut(&record.target.node) {
        join(&mut target.slots, SlotEntry { range, tag: Tag::Importing(far_end(&record.source, id)) });
    }
    if let Some(record) = edit.moves.get_mut(&id) {
        record.state = MoveState::Copying;
    }
    retag(edit, id);
    true
}

fn far_end(place: &Place, id: MoveId) -> MoveEnd {
    MoveEnd { proxy: place.proxy.clone(), node: place.node.clone(), id, epoch: Epoch::NEVER_TOLD }
}

/// Writes the tags of a move in progress from its record, at the cluster's next epoch: both ends start over.
pub(super) fn retag(edit: &mut Edit<'_>, id: MoveId) {
    let epoch = edit.epoch();
    let Some(record) = edit.moves.get_mut(&id) else { return };
    if record.state != MoveState::Copying {
        return;
    }
    record.epoch = epoch;
    let record = record.clone();
    let end = |place: &Place| MoveEnd { epoch, ..far_end(place, id) };
    for (node, tag) in [
        (&record.source.node, Tag::Migrating(end(&record.target))),
        (&record.target.node, Tag::Importing(end(&record.source))),
    ] {
        let entries = edit.nodes.get_mut(node).map(|node| &mut node.slots);
        for entry in
            entries.into_iter().flatten().filter(|entry| entry.tag.end().is_some_and(|end| end.id == id))
        {
            entry.tag = tag.clone();
        }
    }
}

/// Removes the tags of a move from both of its ends: its slots stay with the source.
pub(super) fn untag(edit: &mut Edit<'_>, id: MoveId) {
    let Some(record) = edit.moves.get(&id).cloned() else { return };
    if let Some(source) = edit.nodes.get_mut(&record.source.node)
        && let Some(entry) = take_move(&mut source.slots, id)
    {
        join(&mut source.slots, SlotEntry::stable(entry.range));
    }
    if let Some(target) = edit.nodes.get_mut(&record.target.node) {
        take_move(&mut target.slots, id);
    }
}

/// Restarts an untagged move with this target, or queues it. Without a target it ends.
pub(super) fn redirect(edit: &mut Edit<'_>, id: MoveId, target: Option<Place>) {
    if let (Some(target), Some(record)) = (target, edit.moves.get_mut(&id)) {
        (record.target, record.state, record.epoch) = (target, MoveState::Queued, Epoch::NEVER_TOLD);
        if start(edit, id) {
            return;
        }
    }
    edit.moves.remove(&id);
}

/// Starts the recorded moves whose ends are free, and drops those that are no longer possible; `None` if
/// there is nothing to do.
#[must_use]
pub fn plan_start(tree: &Tree, name: &ClusterName, now: u64) -> Option<Draft> {
    let mut edit = Edit::of(tree, name).ok()?;
    let queued: Vec<MoveId> = edit
        .moves
        .iter()
        .filter(|(_, record)| record.state == MoveState::Queued)
        .map(|(id, _)| *id)
        .collect();
    let mut changed = 0;
    for id in queued {
        if changed == MOVES_PER_TXN {
            break;
        }
        if !start(&mut edit, id) {
            edit.moves.remove(&id);
        }
        changed += usize::from(edit.moves.get(&id) != edit.before.moves.get(&id).map(|seen| &seen.record));
    }
    (changed > 0).then(|| edit.finish(format!("start moves of cluster {name}"), now))
}

fn under_way<'e>(edit: &'e Edit<'_>, name: &ClusterName, id: MoveId) -> Result<&'e MoveRecord, BrokerError> {
    edit.moves.get(&id).ok_or_else(|| BrokerError::NoMove { cluster: name.clone(), id })
}

/// The transaction that assigns the slots of a move to its target: the source has released them at this epoch
/// of the move. Another epoch is another copy, which may be incomplete.
pub fn plan_commit(
    tree: &Tree,
    name: &ClusterName,
    id: MoveId,
    released_at: Epoch,
    now: u64,
) -> Result<Draft, BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    let record = under_way(&edit, name, id)?.clone();
    if record.state != MoveState::Copying || record.epoch != released_at {
        return Err(BrokerError::NoMove { cluster: name.clone(), id });
    }
    let source = edit.node_mut(&record.source.node)?;
    let moved = take_move(&mut source.slots, id);
    tidy(&mut source.slots);
    let target = edit.node_mut(&record.target.node)?;
    take_move(&mut target.slots, id);
    let range = moved.map(|entry| entry.range).or(record.range());
    if let Some(range) = range {
        join(&mut target.slots, SlotEntry::stable(range));
    }
    edit.moves.remove(&id);
    let MoveRecord { start, end, source, target, .. } = &record;
    edit.note(format!("moved slots {start}-{end} from {} to {} in", source.node, target.node), &*record.why);
    Ok(edit.finish(
        format!("assign slots {}-{} of cluster {name} to {}", record.start, record.end, record.target),
        now,
    ))
}

/// The transaction that cancels a move.
pub fn plan_cancel(tree: &Tree, name: &ClusterName, id: MoveId, now: u64) -> Result<Draft, BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    under_way(&edit, name, id)?;
    untag(&mut edit, id);
    edit.moves.remove(&id);
    edit.note(format!("cancelled move {id} of"), "");
    Ok(edit.finish(format!("cancel move {id} of cluster {name}"), now))
}

/// The transaction that changes the target of a move: the source starts over.
pub fn plan_retarget(
    tree: &Tree,
    name: &ClusterName,
    id: MoveId,
    target: &Address,
    now: u64,
) -> Result<Draft, BrokerError> {
    let mut edit = Edit::of(tree, name)?;
    let place = eligible(&edit, name, target)?;
    let record = under_way(&edit, name, id)?.clone();
    if record.source.node == *target {
        return plan_cancel(tree, name, id, now);
    }
    if record.target.node != *target {
        let entry = edit.nodes.get_mut(&record.target.node).and_then(|old| take_move(&mut old.slots, id));
        if let (Some(entry), Some(new)) = (entry, edit.nodes.get_mut(target)) {
            join(&mut new.slots, entry);
        }
        if let Some(record) = edit.moves.get_mut(&id) {
            record.target = place;
        }
    }
    retag(&mut edit, id);
    Ok(edit.finish(format!("change the target of move {id} of cluster {name} to {target}"), now))
}
