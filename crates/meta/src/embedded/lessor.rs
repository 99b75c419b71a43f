//! Which leases live, until when, and which keys die with them? Pure: time is handed in.
//!
//! Remaining times are not kept on disk: after a restart every lease has its full time again, as with etcd.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::error::{MetaError, Result};
use crate::kv::LeaseId;
use crate::request::{Event, LeaseInfo};

/// The longest time to live that a lease may have, in seconds.
pub const MAX_TTL_SECONDS: u64 = 9_000_000_000;

/// One lease.
#[derive(Clone, Debug)]
pub struct LeaseEntry {
    /// Time to live as granted.
    pub ttl: Duration,
    expires: Instant,
    keys: BTreeSet<Bytes>,
}

/// All leases.
#[derive(Debug, Default)]
pub struct Lessor {
    leases: HashMap<LeaseId, LeaseEntry>,
    /// The same by time of expiry.
    queue: BTreeSet<(Instant, LeaseId)>,
}

impl Lessor {
    /// Whether a lease lives.
    pub fn contains(&self, id: LeaseId) -> bool {
        self.leases.contains_key(&id)
    }

    /// Begins a lease.
    pub fn grant(&mut self, id: LeaseId, ttl: Duration, now: Instant) -> Result<()> {
        if self.contains(id) {
            return Err(MetaError::LeaseExists);
        }
        self.restore(id, LeaseEntry { ttl, expires: now + ttl, keys: BTreeSet::new() });
        Ok(())
    }

    /// Begins a lease that the log says was granted; one of this id may have been known before.
    pub fn replay_grant(&mut self, id: LeaseId, ttl: Duration, now: Instant) {
        self.remove(id);
        self.restore(id, LeaseEntry { ttl, expires: now + ttl, keys: BTreeSet::new() });
    }

    /// Puts a lease (back) as it was.
    pub fn restore(&mut self, id: LeaseId, entry: LeaseEntry) {
        self.queue.insert((entry.expires, id));
        self.leases.insert(id, entry);
    }

    /// Ends a lease; its keys are the caller's to delete.
    pub fn remove(&mut self, id: LeaseId) -> Option<LeaseEntry> {
        let entry = self.leases.remove(&id)?;
        self.queue.remove(&(entry.expires, id));
        Some(entry)
    }

    /// Gives a lease its full time again.
    pub fn renew(&mut self, id: LeaseId, now: Instant) -> Result<Duration> {
        let entry = self.leases.get_mut(&id).ok_or(MetaError::LeaseNotFound)?;
        self.queue.remove(&(entry.expires, id));
        entry.expires = now + entry.ttl;
        self.queue.insert((entry.expires, id));
        Ok(entry.ttl)
    }

    /// The keys that die with a lease, in key order.
    pub fn keys(&self, id: LeaseId) -> Option<impl Iterator<Item = &Bytes>> {
        self.leases.get(&id).map(|entry| entry.keys.iter())
    }

    /// Follows a change of a key: it belongs to the lease of its newest version.
    pub fn follow(&mut self, event: &Event) {
        if let Some(prev) = &event.prev {
            self.detach(prev.lease, &prev.key);
        }
        self.attach(event.kv.lease, &event.kv.key);
    }

    /// Takes a change back.
    pub fn unfollow(&mut self, event: &Event) {
        self.detach(event.kv.lease, &event.kv.key);
        if let Some(prev) = &event.prev {
            self.attach(prev.lease, &prev.key);
        }
    }

    /// Ties a key to a lease.
    pub fn attach(&mut self, id: LeaseId, key: &Bytes) {
        if let Some(entry) = self.leases.get_mut(&id) {
            entry.keys.insert(key.clone());
        }
    }

    fn detach(&mut self, id: LeaseId, key: &Bytes) {
        if let Some(entry) = self.leases.get_mut(&id) {
            entry.keys.remove(key);
        }
    }

    /// The leases whose time is over, longest overdue first, at most so many.
    pub fn expired(&self, now: Instant, at_most: usize) -> Vec<LeaseId> {
        self.queue
            .iter()
            .take_while(|(expires, _)| *expires <= now)
            .take(at_most)
            .map(|(_, id)| *id)
            .collect()
    }

    /// All leases with their time to live, the one that expires first first.
    pub fn granted(&self) -> Vec<(LeaseId, Duration)> {
        self.queue.iter().filter_map(|(_, id)| Some((*id, self.leases.get(id)?.ttl))).collect()
    }

    /// What is known about a lease.
    pub fn info(&self, id: LeaseId, now: Instant) -> Option<LeaseInfo> {
        let entry = self.leases.get(&id)?;
        let remaining = entry.expires.saturating_duration_since(now);
        Some(LeaseInfo {
            granted_ttl: entry.ttl,
            remaining: Duration::from_secs(remaining.as_secs()),
            keys: entry.keys.iter().cloned().collect(),
        })
    }
}
