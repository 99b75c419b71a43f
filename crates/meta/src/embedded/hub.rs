//! Who wants to hear of a change? Watchers of the same keys form a group; a change is prepared once per group.
//!
//! The hub holds no events for a slow watcher: each group has a short ring of deliveries, and who falls out of it reads
//! on from the history at its own position. So memory does not grow with slowness, and nothing is ever skipped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::broadcast;

use super::history::Change;
use crate::kv::{KeyRange, Revision};
use crate::request::{Event, EventKind, Watch};

/// Deliveries that a group keeps for its slower members; behind that they read from the history.
const RING: usize = 32;

/// Deliveries of a group whose first revision is remembered, for members that fell out of the ring.
const REMEMBERED: usize = 1024;

/// Some whole revisions of what a group watches.
#[derive(Debug)]
pub struct Delivery {
    /// The newest revision among them.
    pub revision: Revision,
    /// Their events.
    pub events: Arc<[Event]>,
    /// How many deliveries of the group there were, this one included.
    pub number: u64,
}

/// What a group watches; `from` is each member's own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interest {
    /// Which keys.
    pub keys: KeyRange,
    prev_kv: bool,
    no_put: bool,
    no_delete: bool,
}

impl Interest {
    /// What a watch is interested in.
    pub fn of(watch: &Watch) -> Interest {
        let Watch { keys, prev_kv, no_put, no_delete, from: _ } = watch.clone();
        Interest { keys, prev_kv, no_put, no_delete }
    }

    /// The event as this group sees it, if it does.
    pub fn select(&self, event: &Event) -> Option<Event> {
        let unwanted = match event.kind() {
            EventKind::Put => self.no_put,
            EventKind::Delete => self.no_delete,
        };
        if unwanted || !self.keys.contains(&event.kv.key) {
            return None;
        }
        let prev = if self.prev_kv { event.prev.clone() } else { None };
        Some(Event { kv: event.kv.clone(), prev })
    }
}

struct Group {
    interest: Interest,
    deliveries: broadcast::Sender<Arc<Delivery>>,
    /// Events of the publication under way.
    pending: Vec<Event>,
    /// How many deliveries there were.
    delivered: u64,
    /// The first revision of each of the last deliveries.
    firsts: VecDeque<Revision>,
}

/// All groups, found by the keys that they watch.
pub struct Hub {
    published: Revision,
    groups: HashMap<u64, Group>,
    ids: HashMap<Interest, u64>,
    next_id: u64,
    exact: HashMap<Bytes, Vec<u64>>,
    prefixes: HashMap<Bytes, Vec<u64>>,
    /// How many groups watch prefixes of each length: a change looks only those up.
    prefix_lengths: BTreeMap<usize, usize>,
    spans: Vec<u64>,
}

impl Hub {
    /// Nobody watches yet; everything up to this revision counts as published.
    pub fn new(published: Revision) -> Hub {
        Hub {
            published,
            groups: HashMap::new(),
            ids: HashMap::new(),
            next_id: 0,
            exact: HashMap::new(),
            prefixes: HashMap::new(),
            prefix_lengths: BTreeMap::new(),
            spans: Vec::new(),
        }
    }

    /// Everything up to here has been handed to the groups.
    pub fn published(&self) -> Revision {
        self.published
    }

    /// Ends every watch: the store has stopped.
    pub fn dissolve(&mut self) {
        *self = Hub::new(self.published);
    }

    /// How many watchers there are.
    pub fn watchers(&self) -> usize {
        self.groups.values().map(|group| group.deliveries.receiver_count()).sum()
    }

    /// Joins (or founds) the group with this interest; deliveries begin after `published()`.
    pub fn join(&mut self, interest: &Interest) -> broadcast::Receiver<Arc<Delivery>> {
        if let Some(group) = self.group(interest) {
            return group.deliveries.subscribe();
        }
        let id = self.next_id;
        self.next_id += 1;
        self.slot(&interest.keys).push(id);
        if interest.keys.is_prefix() {
            *self.prefix_lengths.entry(interest.keys.start.len()).or_default() += 1;
        }
        let (deliveries, receiver) = broadcast::channel(RING);
        let group = Group {
            interest: interest.clone(),
            deliveries,
            pending: Vec::new(),
            delivered: 0,
            firsts: VecDeque::new(),
        };
        self.groups.insert(id, group);
        self.ids.insert(interest.clone(), id);
        receiver
    }

    fn group(&self, interest: &Interest) -> Option<&Group> {
        self.ids.get(interest).and_then(|id| self.groups.get(id))
    }

    /// How many deliveries a group has had.
    pub fn delivered(&self, interest: &Interest) -> u64 {
        self.group(interest).map_or(0, |group| group.delivered)
    }

    /// The first revision of the delivery after this one, if it is remembered: between the two the group's keys did not
    /// change.
    pub fn next_after(&self, interest: &Interest, delivery: u64) -> Option<Revision> {
        let group = self.group(interest)?;
        let back = usize::try_from(group.delivered.checked_sub(delivery)?).ok()?;
        group.firsts.get(group.firsts.len().checked_sub(back)?).copied()
    }

    /// Dissolves the group with this interest if its last member has left.
    pub fn leave(&mut self, interest: &Interest) {
        let Some(id) = self.ids.get(interest).copied() else { return };
        if self.groups.get(&id).is_none_or(|group| group.deliveries.receiver_count() > 0) {
            return;
        }
        self.groups.remove(&id);
        self.ids.remove(interest);
        self.slot(&interest.keys).retain(|other| *other != id);
        self.forget_empty_slot(&interest.keys);
    }

    fn slot(&mut self, keys: &KeyRange) -> &mut Vec<u64> {
        if keys.is_one() {
            self.exact.entry(keys.start.clone()).or_default()
        } else if keys.is_prefix() {
            self.prefixes.entry(keys.start.clone()).or_default()
        } else {
            &mut self.spans
        }
    }

    fn forget_empty_slot(&mut self, keys: &KeyRange) {
        if keys.is_one() {
            if self.exact.get(&keys.start).is_some_and(Vec::is_empty) {
                self.exact.remove(&keys.start);
            }
        } else if keys.is_prefix() {
            if self.prefixes.get(&keys.start).is_some_and(Vec::is_empty) {
                self.prefixes.remove(&keys.start);
            }
            if let Some(count) = self.prefix_lengths.get_mut(&keys.start.len()) {
                *count -= 1;
                if *count == 0 {
                    self.prefix_lengths.remove(&keys.start.len());
                }
            }
        }
    }

    /// Hands consecutive changes to everyone who watches them.
    pub fn publish(&mut self, changes: &[Arc<Change>]) {
        let Some(last) = changes.last() else { return };
        if !self.groups.is_empty() {
            let mut touched = Vec::new();
            for event in changes.iter().flat_map(|change| &change.events) {
                self.collect(event, &mut touched);
            }
            self.deliver(touched);
        }
        self.published = last.revision;
    }

    fn collect(&mut self, event: &Event, touched: &mut Vec<u64>) {
        let key = &event.kv.key;
        let Hub { groups, exact, prefixes, prefix_lengths, spans, .. } = self;
        let mut offer = |ids: &[u64]| {
            for id in ids {
                let Some(group) = groups.get_mut(id) else { continue };
                let Some(event) = group.interest.select(event) else { continue };
                if group.pending.is_empty() {
                    touched.push(*id);
                }
                group.pending.push(event);
            }
        };
        exact.get(key).into_iter().for_each(|ids| offer(ids));
        for length in prefix_lengths.keys().take_while(|length| **length <= key.len()) {
            prefixes.get(&key[..*length]).into_iter().for_each(|ids| offer(ids));
        }
        prefixes.get(&b"\0"[..]).into_iter().filter(|_| !key.starts_with(b"\0")).for_each(|ids| offer(ids));
        offer(spans);
    }

    fn deliver(&mut self, touched: Vec<u64>) {
        for id in touched {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let events: Arc<[Event]> = std::mem::take(&mut group.pending).into();
            let (Some(first), Some(last)) = (events.first(), events.last()) else { continue };
            let revision = last.kv.mod_revision;
            group.delivered += 1;
            if group.firsts.len() == REMEMBERED {
                group.firsts.pop_front();
            }
            group.firsts.push_back(first.kv.mod_revision);
            let delivery = Delivery { revision, events: events.clone(), number: group.delivered };
            // A group without a listener is fine: the last member is about to leave.
            group.deliveries.send(Arc::new(delivery)).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KeyValue;

    fn interest(keys: KeyRange) -> Interest {
        Interest::of(&Watch::from(keys, Revision::ZERO))
    }

    fn change(revision: i64, keys: &[&'static str]) -> Arc<Change> {
        let event = |key: &&'static str| {
            let kv = KeyValue {
                key: (*key).into(),
                mod_revision: Revision(revision),
                version: 1,
                ..KeyValue::default()
            };
            Event { kv: Arc::new(kv), prev: None }
        };
        Arc::new(Change { revision: Revision(revision), events: keys.iter().map(event).collect() })
    }

    #[test]
    fn each_group_hears_of_its_keys_once() {
        let ranges = [
            KeyRange::one("/a/1"),
            KeyRange::prefix("/a/"),
            KeyRange::prefix("/"),
            KeyRange::all(),
            KeyRange::span("/a/2", "/b"),
            KeyRange::from_key("/b"),
        ];
        let heard = [1, 2, 3, 3, 1, 1];
        let mut hub = Hub::new(Revision(1));
        let mut receivers = ranges.clone().map(|keys| hub.join(&interest(keys)));
        hub.publish(&[change(2, &["/a/1", "/a/2"]), change(3, &["/b/1"])]);
        for (n, receiver) in receivers.iter_mut().enumerate() {
            let delivery = receiver.try_recv().unwrap();
            assert_eq!(delivery.events.len(), heard[n], "{:?}", ranges[n]);
            assert!(receiver.try_recv().is_err(), "{:?} heard twice", ranges[n]);
        }
        assert_eq!(hub.published(), Revision(3));
    }

    #[test]
    fn nothing_is_left_of_a_group_when_its_last_member_leaves() {
        let mut hub = Hub::new(Revision(1));
        for keys in [KeyRange::one("/a"), KeyRange::prefix("/a/"), KeyRange::span("/a", "/c")] {
            let (first, second) = (hub.join(&interest(keys.clone())), hub.join(&interest(keys.clone())));
            drop(first);
            hub.leave(&interest(keys.clone()));
            assert_eq!(hub.watchers(), 1);
            drop(second);
            hub.leave(&interest(keys));
            assert_eq!(hub.watchers(), 0);
        }
        assert!(hub.groups.is_empty() && hub.ids.is_empty() && hub.spans.is_empty());
        assert!(hub.exact.is_empty() && hub.prefixes.is_empty() && hub.prefix_lengths.is_empty());
    }
}
