//! The invariants after every event.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use capstan_log::entry::{Entry, EntryKind, LogEpoch};
use capstan_log::keys::HolderId;

use super::disk::{Content, chain};
use super::world::{Bug, World};

/// Everything ever committed, in order, as seen from outside the simulation.
#[derive(Debug, Default)]
pub struct Truth {
    pub entries: Vec<Entry>,
    /// `hashes[n]` is the hash of the first `n` entries.
    hashes: Vec<u64>,
    /// The first committer of each epoch.
    committers: BTreeMap<LogEpoch, HolderId>,
    payloads: BTreeSet<Bytes>,
}

impl Truth {
    fn hash_at(&self, end: u64) -> u64 {
        if end == 0 { Content::default().hash_at(0).unwrap() } else { self.hashes[end as usize - 1] }
    }

    /// Checks a primary's commit of everything before `upto`.
    pub fn commit(&mut self, by: &HolderId, epoch: LogEpoch, upto: u64, log: &Content) {
        let first = self.committers.entry(epoch).or_insert_with(|| by.clone());
        assert_eq!(first, by, "two primaries commit in epoch {epoch}");
        for at in self.entries.len() as u64..upto {
            let entry = log.entry(at).expect("commits what it does not have").clone();
            if entry.kind == EntryKind::Data {
                assert!(self.payloads.insert(entry.data.clone()), "{:?} is committed twice", entry.data);
            }
            self.hashes.push(chain(self.hash_at(at), &entry));
            self.entries.push(entry);
        }
        self.agrees(upto, log, by);
    }

    /// Checks that a copy's log equals the committed entries up to here.
    pub fn agrees(&self, upto: u64, log: &Content, who: &HolderId) {
        assert!(upto <= self.entries.len() as u64, "{who} shows entries that are not committed");
        if upto >= log.start() {
            assert_eq!(log.hash_at(upto), Some(self.hash_at(upto)), "{who} differs from what was committed");
        }
    }
}

/// Every in-sync holder, up or down, has everything committed on its disk; every copy's committed prefix is correct.
pub fn invariants(world: &World) {
    let committed = world.truth.entries.len() as u64;
    for (id, node) in &world.nodes {
        if world.store.config.is_in_sync(id) {
            let durable = &node.disk.durable;
            assert!(durable.end() >= committed, "{id} is in sync and lacks committed entries");
            world.truth.agrees(committed, durable, id);
        }
        let Some(replica) = &node.replica else { continue };
        if world.bug != Bug::SkipCut {
            assert_eq!(*replica.history(), node.disk.seen.history(), "{id} is wrong about its own disk");
        }
        world.truth.agrees(replica.committed().0, &node.disk.seen, id);
        let early = match world.bug {
            Bug::ServeBeforeBegin => replica.is_primary(),
            Bug::ReadWithoutLease => replica.has_begun(),
            _ => false,
        };
        let shown = replica.readable(node.local(world.now)).or(early.then(|| replica.committed()));
        if let Some(readable) = shown {
            world.truth.agrees(readable.0, &node.disk.seen, id);
            // A primary shows everything ever acknowledged, if it is the newest one or was replaced because its lease
            // had expired.
            let epoch = replica.epoch();
            let answers = epoch == world.store.config.epoch || world.replaced.contains(&epoch);
            if replica.is_primary() && answers {
                assert!(readable.0 >= committed, "{id} shows {readable} of {committed} entries");
            }
        }
    }
}
