//! How are a node's slots split and merged? Pure functions on the entries of a node.

use std::collections::BTreeSet;

use crate::slots::{SLOTS, SlotRange};
use crate::status::{MoveId, SlotEntry, Tag};

/// Removes a range from the stable entry that contains it; false if there is no such entry.
pub(crate) fn cut(entries: &mut Vec<SlotEntry>, range: SlotRange) -> bool {
    let holds = |entry: &SlotEntry| {
        entry.tag == Tag::Stable && entry.range.first() <= range.first() && range.last() <= entry.range.last()
    };
    let Some(at) = entries.iter().position(holds) else { return false };
    let whole = entries.remove(at).range;
    let left = span(whole.first().into(), u32::from(range.first()).checked_sub(1));
    let right = span(u32::from(range.last()) + 1, Some(whole.last().into()));
    entries.extend(left.into_iter().chain(right).map(SlotEntry::stable));
    tidy(entries);
    true
}

/// Removes slots from the entries that own them; moves that include them lose them.
pub(crate) fn cut_owned(entries: &mut Vec<SlotEntry>, range: SlotRange) {
    let mut kept = Vec::new();
    for entry in entries.drain(..) {
        let before = span(
            entry.range.first().into(),
            u32::from(range.first()).checked_sub(1).map(|last| last.min(entry.range.last().into())),
        );
        let behind = span(
            (u32::from(range.last()) + 1).max(entry.range.first().into()),
            Some(entry.range.last().into()),
        );
        match entry.tag {
            Tag::Importing(_) => kept.push(entry),
            Tag::Stable | Tag::Migrating(_) => {
                let parts = before.into_iter().chain(behind);
                kept.extend(parts.map(|range| SlotEntry { range, tag: entry.tag.clone() }));
            }
        }
    }
    *entries = kept;
    tidy(entries);
}

/// Adds a range.
pub(crate) fn join(entries: &mut Vec<SlotEntry>, entry: SlotEntry) {
    entries.push(entry);
    tidy(entries);
}

/// Removes the entry of a move.
pub(crate) fn take_move(entries: &mut Vec<SlotEntry>, id: MoveId) -> Option<SlotEntry> {
    let at = entries.iter().position(|entry| entry.tag.end().is_some_and(|end| end.id == id))?;
    Some(entries.remove(at))
}

/// Sorts entries, and merges stable neighbours.
pub(crate) fn tidy(entries: &mut Vec<SlotEntry>) {
    entries.sort();
    let mut joined: Vec<SlotEntry> = Vec::with_capacity(entries.len());
    for entry in entries.drain(..) {
        match joined.last_mut() {
            Some(last) if touches(last, &entry) => {
                if let Some(range) = span(last.range.first().into(), Some(entry.range.last().into())) {
                    last.range = range;
                }
            }
            Some(_) | None => joined.push(entry),
        }
    }
    *entries = joined;
}

fn touches(left: &SlotEntry, right: &SlotEntry) -> bool {
    left.tag == Tag::Stable
        && right.tag == Tag::Stable
        && u32::from(left.range.last()) + 1 == u32::from(right.range.first())
}

/// The range between two bounds, both included, if it is not empty.
pub(crate) fn span(first: u32, last: Option<u32>) -> Option<SlotRange> {
    SlotRange::new(first, last?).ok()
}

/// Slots in none of these ranges, as ranges.
pub(crate) fn uncovered(owned: impl IntoIterator<Item = SlotRange>) -> Vec<SlotRange> {
    let owned: BTreeSet<SlotRange> = owned.into_iter().collect();
    let mut free = Vec::new();
    let mut next = 0;
    for range in owned {
        if u32::from(range.first()) > next {
            free.extend(span(next, Some(u32::from(range.first()) - 1)));
        }
        next = next.max(u32::from(range.last()) + 1);
    }
    free.extend(span(next, Some(u32::from(SLOTS) - 1)));
    free
}

/// Takes this many slots from the front of some ranges.
pub(crate) fn take_front(from: &mut Vec<SlotRange>, mut count: u32) -> Vec<SlotRange> {
    let mut taken = Vec::new();
    while count > 0 && !from.is_empty() {
        let range = from.remove(0);
        let last = u32::from(range.first()) + count.min(range.len()) - 1;
        count -= count.min(range.len());
        taken.extend(span(range.first().into(), Some(last)));
        if let Some(rest) = span(last + 1, Some(range.last().into())) {
            from.insert(0, rest);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u32, last: u32) -> SlotRange {
        SlotRange::new(first, last).unwrap()
    }

    #[test]
    fn a_cut_leaves_the_rest() {
        for (piece, rest) in
            [((0, 9), vec![]), ((0, 3), vec![(4, 9)]), ((4, 9), vec![(0, 3)]), ((3, 5), vec![(0, 2), (6, 9)])]
        {
            let mut entries = vec![SlotEntry::stable(range(0, 9))];
            assert!(cut(&mut entries, range(piece.0, piece.1)));
            let left: Vec<_> =
                entries.iter().map(|e| (e.range.first().into(), e.range.last().into())).collect();
            assert_eq!(left, rest);
            join(&mut entries, SlotEntry::stable(range(piece.0, piece.1)));
            assert_eq!(entries, [SlotEntry::stable(range(0, 9))]);
        }
        assert!(!cut(&mut vec![SlotEntry::stable(range(0, 9))], range(9, 10)));
    }

    #[test]
    fn what_nobody_holds_is_found_and_shared_out() {
        assert_eq!(uncovered([]), [range(0, 16383)]);
        assert_eq!(uncovered([range(5, 9), range(0, 2)]), [range(3, 4), range(10, 16383)]);
        assert_eq!(uncovered([range(0, 16383)]), []);
        let mut free = vec![range(0, 1), range(5, 9)];
        assert_eq!(take_front(&mut free, 4), [range(0, 1), range(5, 6)]);
        assert_eq!(free, [range(7, 9)]);
    }
}
