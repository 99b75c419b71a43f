//! May the proxy serve at this moment? While enough coordinators have lately said so.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::nmctl::LeaseGrant;

/// Most coordinators that are remembered; those that have been silent longest are forgotten first. More than ever run
/// at once, so that an attacker with the admin password cannot fill the memory with names.
const MAX_COORDINATORS: usize = 1000;

/// Who has granted what until when, by the monotonic clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    required: bool,
    grants: BTreeMap<String, Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    needed: u32,
    until: Instant,
}

/// For how long data may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Nobody ever spoke of leases.
    Always,
    /// Until then, unless somebody renews.
    Until(Instant),
    /// Not now.
    NotNow,
}

impl Serving {
    /// Whether data may be served at that time.
    #[must_use]
    #[inline]
    pub fn allows(self, now: Instant) -> bool {
        match self {
            Serving::Always => true,
            Serving::Until(end) => now < end,
            Serving::NotNow => false,
        }
    }
}

impl Lease {
    /// The lease of a proxy that starts; `required` if it was started so, or had one before.
    #[must_use]
    pub fn new(required: bool) -> Lease {
        Lease { required, grants: BTreeMap::new() }
    }

    /// A coordinator renews; `now` is when its message was received. From the first one on, there is no serving
    /// without.
    pub fn grant(&mut self, grant: &LeaseGrant, now: Instant) {
        self.required = true;
        let until = now + Duration::from_millis(grant.ttl_ms);
        let known = self.grants.get(&grant.coordinator).map(|known| known.until);
        // A coordinator may shorten its ttl, but a message never takes back time that was granted.
        let until = known.map_or(until, |known| known.max(until));
        self.grants.retain(|_, grant| grant.until > now);
        if self.grants.len() >= MAX_COORDINATORS && !self.grants.contains_key(&grant.coordinator) {
            let oldest =
                self.grants.iter().min_by_key(|(_, grant)| grant.until).map(|(name, _)| name.clone());
            oldest.map(|oldest| self.grants.remove(&oldest));
        }
        self.grants.insert(grant.coordinator.clone(), Grant { needed: grant.needed, until });
    }

    /// For how long data may be served. Where coordinators differ about how many it takes, the highest number counts:
    /// the one who counts more of them knows of some that the others do not.
    #[must_use]
    pub fn serving(&self, now: Instant) -> Serving {
        if !self.required {
            return Serving::Always;
        }
        let valid: Vec<&Grant> = self.grants.values().filter(|grant| grant.until > now).collect();
        let needed = valid.iter().map(|grant| grant.needed).max().unwrap_or(u32::MAX) as usize;
        let mut ends: Vec<Instant> = valid.iter().map(|grant| grant.until).collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        let last_needed = needed.checked_sub(1).and_then(|index| ends.get(index));
        last_needed.map_or(Serving::NotNow, |end| Serving::Until(*end))
    }

    /// Whether serving takes a lease at all.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// The coordinators whose grants are valid, and how long they still are.
    pub fn coordinators(&self, now: Instant) -> impl Iterator<Item = (&str, Duration)> {
        let left = move |grant: &Grant| grant.until.saturating_duration_since(now);
        self.grants
            .iter()
            .map(move |(name, grant)| (name.as_str(), left(grant)))
            .filter(|(_, left)| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(coordinator: &str, needed: u32, ttl_ms: u64) -> LeaseGrant {
        LeaseGrant { coordinator: coordinator.to_owned(), needed, ttl_ms }
    }

    #[test]
    fn nobody_spoke_of_leases() {
        let now = Instant::now();
        assert_eq!(Lease::new(false).serving(now), Serving::Always);
        assert_eq!(Lease::new(true).serving(now), Serving::NotNow);
    }

    #[test]
    fn serving_ends_with_the_last_grant_that_is_needed() {
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        let mut lease = Lease::new(false);
        lease.grant(&grant("a", 2, 100), now);
        assert_eq!(lease.serving(now), Serving::NotNow);
        lease.grant(&grant("b", 2, 300), now);
        assert_eq!(lease.serving(now), Serving::Until(after(100)));
        lease.grant(&grant("a", 2, 100), after(50));
        assert_eq!(lease.serving(after(50)), Serving::Until(after(150)));
        assert!(lease.serving(after(149)).allows(after(149)));
        assert_eq!(lease.serving(after(150)), Serving::NotNow);
        lease.grant(&grant("c", 2, 500), after(200));
        assert_eq!(lease.serving(after(200)), Serving::Until(after(300)));
        assert_eq!(lease.coordinators(after(200)).count(), 2);
    }

    #[test]
    fn one_coordinator_cannot_stand_for_two_and_the_highest_need_counts() {
        let now = Instant::now();
        let mut lease = Lease::new(false);
        lease.grant(&grant("a", 2, 100), now);
        lease.grant(&grant("a", 2, 100), now);
        assert_eq!(lease.serving(now), Serving::NotNow);
        lease.grant(&grant("b", 1, 100), now);
        assert!(lease.serving(now).allows(now));
        lease.grant(&grant("c", 4, 100), now);
        assert_eq!(lease.serving(now), Serving::NotNow);
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let mut lease = Lease::new(false);
        for index in 0..MAX_COORDINATORS + 100 {
            lease.grant(&grant(&format!("c{index}"), 1, 1000), now);
        }
        assert_eq!(lease.grants.len(), MAX_COORDINATORS);
    }
}
