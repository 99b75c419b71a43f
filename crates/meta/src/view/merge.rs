//! How do several watches become one sequence of snapshots? Pure: messages in, whole states at one revision out.
//!
//! Each range has its own watch (a lane), because a watch over everything between two distant prefixes would bring
//! every change of the store. A lane knows up to which revision it is complete; the view can show the smallest of
//! these. Lanes that lag behind are asked for progress, so a view of several ranges is one round trip later than a
//! view of one. Between two breaks nothing is ever applied out of order, and nothing past what all lanes know.

use std::collections::VecDeque;
use std::sync::Arc;

use super::tree::Tree;
use crate::kv::{KeyValue, Revision};
use crate::request::{Event, WatchMessage};

/// Events that may wait for a lane that lags. Beyond that the watches are opened anew: the store still has them.
const MAX_WAITING: usize = 1 << 16;

/// Why the watches cannot be followed any further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Misfit {
    /// One lane is so far behind that the others' events pile up.
    #[error("one watch lags so far behind that events pile up")]
    TooFarApart,
    /// A lane brought something that it had already declared complete, and that is not shown: what it said is worth
    /// nothing, and only a fresh list helps.
    #[error("a watch brought {key} of revision {revision} after it had declared that revision complete")]
    Contradiction { key: String, revision: Revision },
    /// The store is at a revision before the one that is shown. A member of a cluster may lag; otherwise it went back in
    /// time, and what is shown is history that never was. A list says which.
    #[error("a watch is at revision {claimed}, but {shown} is shown")]
    WentBack { claimed: Revision, shown: Revision },
}

/// The watches of a view, one lane for each range.
#[derive(Debug)]
pub(super) struct Merge {
    lanes: Vec<Lane>,
    applied: Revision,
}

#[derive(Debug)]
struct Lane {
    /// Everything of the lane's range up to here has arrived.
    through: Revision,
    /// What has arrived and cannot be shown yet, in order.
    waiting: VecDeque<Arc<KeyValue>>,
}

impl Merge {
    /// So many lanes, all of them complete up to what the view shows.
    pub(super) fn new(lanes: usize, applied: Revision) -> Merge {
        let lane = || Lane { through: applied, waiting: VecDeque::new() };
        Merge { lanes: std::iter::repeat_with(lane).take(lanes).collect(), applied }
    }

    /// Takes what a lane brought. `shown` is what the view shows.
    pub(super) fn offer(&mut self, lane: usize, message: &WatchMessage, shown: &Tree) -> Result<(), Misfit> {
        let Some(lane) = self.lanes.get_mut(lane) else { return Ok(()) };
        let through = match message {
            WatchMessage::Progress(claimed) if *claimed < self.applied => {
                return Err(Misfit::WentBack { claimed: *claimed, shown: self.applied });
            }
            WatchMessage::Progress(revision) => *revision,
            WatchMessage::Events { revision, events } => {
                lane.take_events(events, shown)?;
                *revision
            }
        };
        lane.through = lane.through.max(through);
        let (through, waiting) = (lane.through, lane.waiting.len());
        if waiting > MAX_WAITING && through > self.complete() {
            return Err(Misfit::TooFarApart);
        }
        Ok(())
    }

    /// What can be shown now, if it is more than before: a revision, and every change up to it.
    pub(super) fn ready(&mut self) -> Option<(Revision, Vec<Arc<KeyValue>>)> {
        let complete = self.complete();
        if complete <= self.applied {
            return None;
        }
        self.applied = complete;
        let mut changes = Vec::new();
        for lane in &mut self.lanes {
            while lane.waiting.front().is_some_and(|kv| kv.mod_revision <= complete) {
                changes.extend(lane.waiting.pop_front());
            }
        }
        Some((complete, changes))
    }

    /// Whether the lane must make progress before the view can show what others have brought, or what is waited for.
    pub(super) fn lags(&self, lane: usize, wanted: Revision) -> bool {
        let newest = self.lanes.iter().map(|lane| lane.through).max().unwrap_or(self.applied);
        self.lanes.get(lane).is_some_and(|lane| lane.through < newest.max(wanted))
    }

    fn complete(&self) -> Revision {
        self.lanes.iter().map(|lane| lane.through).min().unwrap_or(self.applied)
    }
}

impl Lane {
    fn take_events(&mut self, events: &[Event], shown: &Tree) -> Result<(), Misfit> {
        for event in events {
            if event.kv.mod_revision > self.through {
                self.waiting.push_back(event.kv.clone());
            } else if !self.knows(&event.kv, shown) {
                let key = event.kv.key_text().into_owned();
                return Err(Misfit::Contradiction { key, revision: event.kv.mod_revision });
            }
        }
        Ok(())
    }

    /// Whether a version from the past is one that has been taken in already.
    fn knows(&self, kv: &KeyValue, shown: &Tree) -> bool {
        let waiting =
            self.waiting.iter().rev().find(|other| other.key == kv.key).map(|other| other.mod_revision);
        let known = waiting.or_else(|| shown.get(&kv.key).map(|entry| entry.kv.mod_revision));
        known.map_or(kv.is_tombstone(), |known| known >= kv.mod_revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &'static str, revision: i64) -> Event {
        let mod_revision = Revision(revision);
        let kv = KeyValue { key: key.into(), version: 1, mod_revision, ..KeyValue::default() };
        Event { kv: Arc::new(kv), prev: None }
    }

    fn events(list: &[Event]) -> WatchMessage {
        WatchMessage::Events { revision: list.last().unwrap().kv.mod_revision, events: list.into() }
    }

    fn shown(merge: &mut Merge) -> Option<(i64, Vec<String>)> {
        let (revision, changes) = merge.ready()?;
        Some((revision.0, changes.iter().map(|kv| kv.key_text().into_owned()).collect()))
    }

    #[test]
    fn one_lane_is_shown_at_once() {
        let mut merge = Merge::new(1, Revision(5));
        merge.offer(0, &events(&[put("a", 6), put("b", 7)]), &Tree::default()).unwrap();
        assert_eq!(shown(&mut merge), Some((7, vec!["a".into(), "b".into()])));
        merge.offer(0, &WatchMessage::Progress(Revision(9)), &Tree::default()).unwrap();
        assert_eq!(shown(&mut merge), Some((9, vec![])));
        assert_eq!(shown(&mut merge), None);
    }

    #[test]
    fn two_lanes_are_shown_up_to_what_both_know() {
        let (mut merge, tree) = (Merge::new(2, Revision(5)), Tree::default());
        merge.offer(0, &events(&[put("a", 6), put("b", 8)]), &tree).unwrap();
        assert_eq!(shown(&mut merge), None);
        assert!(
            merge.lags(1, Revision::ZERO) && !merge.lags(0, Revision::ZERO) && merge.lags(0, Revision(9))
        );
        merge.offer(1, &WatchMessage::Progress(Revision(7)), &tree).unwrap();
        assert_eq!(shown(&mut merge), Some((7, vec!["a".into()])));
        merge.offer(1, &events(&[put("z", 9)]), &tree).unwrap();
        assert_eq!(shown(&mut merge), Some((8, vec!["b".into()])));
        merge.offer(0, &WatchMessage::Progress(Revision(9)), &tree).unwrap();
        assert_eq!(shown(&mut merge), Some((9, vec!["z".into()])));
    }

    #[test]
    fn progress_before_what_is_shown_is_no_progress() {
        let mut merge = Merge::new(2, Revision(5));
        let back = merge.offer(1, &WatchMessage::Progress(Revision(4)), &Tree::default());
        assert_eq!(back, Err(Misfit::WentBack { claimed: Revision(4), shown: Revision(5) }));
        merge.offer(1, &WatchMessage::Progress(Revision(5)), &Tree::default()).unwrap();
    }

    #[test]
    fn a_repeated_event_is_dropped_and_a_late_one_is_a_contradiction() {
        let (mut merge, mut tree) = (Merge::new(1, Revision(5)), Tree::default());
        let first = events(&[put("a", 6)]);
        merge.offer(0, &first, &tree).unwrap();
        merge.offer(0, &first, &tree).unwrap();
        let (_, changes) = merge.ready().unwrap();
        assert_eq!(changes.len(), 1);
        tree.apply(changes);
        merge.offer(0, &first, &tree).unwrap();
        merge.offer(0, &WatchMessage::Progress(Revision(9)), &tree).unwrap();
        let late = merge.offer(0, &events(&[put("b", 8)]), &tree);
        assert_eq!(late, Err(Misfit::Contradiction { key: "b".into(), revision: Revision(8) }));
    }
}
