//! May the proxy serve at this moment? While enough coordinators have lately said so.
//!
//! A grant counts from before it was given, by the proxy's own clock: the coordinator repeats what that clock said when
//! the proxy last spoke to it. So it does not matter for how long a grant was on its way, or lay unread in the socket of
//! a process that was stopped; only the difference in speed of two clocks does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use capstan_control::epoch::Epoch;

use crate::nmctl::LeaseGrant;

/// Most coordinators that are remembered; those that have been silent longest are forgotten first. More than ever run
/// at once, so that an attacker with the admin password cannot fill the memory with names.
const MAX_COORDINATORS: usize = 1000;

/// The clock of one life of a proxy. What it said in another life means nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    life: u64,
    started: Instant,
}

impl Clock {
    /// The clock of a life that begins; no other life has the same number.
    #[must_use]
    pub fn new(life: u64, started: Instant) -> Clock {
        Clock { life, started }
    }

    /// What it says.
    #[must_use]
    pub fn say(&self, now: Instant) -> String {
        format!("{:x}-{}", self.life, now.saturating_duration_since(self.started).as_millis())
    }

    /// When it said that; nothing if it was not this clock.
    #[must_use]
    pub fn read(&self, said: &str) -> Option<Instant> {
        let (life, millis) = said.split_once('-')?;
        let mine = u64::from_str_radix(life, 16).ok()? == self.life;
        self.started.checked_add(Duration::from_millis(millis.parse().ok()?)).filter(|_| mine)
    }
}

/// Who has granted what until when, by the monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    required: bool,
    clock: Clock,
    grants: BTreeMap<String, Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    needed: u32,
    until: Instant,
    /// What was held at this epoch is meant.
    epoch: Epoch,
}

/// For how long data may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Nobody ever spoke of leases.
    Always,
    /// Until then, unless somebody renews: what is held since this epoch or longer.
    Until {
        /// When it ends.
        end: Instant,
        /// What was gained after this epoch is not served yet.
        backed: Epoch,
    },
    /// Not now.
    NotNow,
}

impl Serving {
    /// Whether data that is held since an epoch may be served at that time.
    #[must_use]
    #[inline]
    pub fn allows(self, now: Instant, since: Epoch) -> bool {
        match self {
            Serving::Always => true,
            Serving::Until { end, backed } => now < end && since <= backed,
            Serving::NotNow => false,
        }
    }
}

impl Lease {
    /// The lease of a proxy that starts; `required` if it was started so, or had one before.
    #[must_use]
    pub fn new(required: bool, clock: Clock) -> Lease {
        Lease { required, clock, grants: BTreeMap::new() }
    }

    /// What a coordinator repeats in its grant.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A coordinator renews; `now` is when its message was received. From the first one on, there is no serving
    /// without. A grant that is over, or was meant for another life of this proxy, changes nothing.
    pub fn grant(&mut self, grant: &LeaseGrant, now: Instant) {
        self.required = true;
        let (from, epoch) = match &grant.basis {
            None => (Some(now), Epoch(u64::MAX)),
            Some(basis) => (self.clock.read(&basis.clock), basis.epoch),
        };
        let Some(from) = from else { return };
        let until = from.min(now) + Duration::from_millis(grant.ttl_ms);
        self.grants.retain(|_, grant| grant.until > now);
        // A message never takes back time that was granted, and one that was overtaken says nothing.
        if until <= now || self.grants.get(&grant.coordinator).is_some_and(|known| known.until >= until) {
            return;
        }
        if self.grants.len() >= MAX_COORDINATORS && !self.grants.contains_key(&grant.coordinator) {
            let oldest =
                self.grants.iter().min_by_key(|(_, grant)| grant.until).map(|(name, _)| name.clone());
            oldest.map(|oldest| self.grants.remove(&oldest));
        }
        self.grants.insert(grant.coordinator.clone(), Grant { needed: grant.needed, until, epoch });
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
        let last_needed = needed.saturating_sub(1);
        let mut epochs: Vec<Epoch> = valid.iter().map(|grant| grant.epoch).collect();
        epochs.sort_unstable_by(|one, other| other.cmp(one));
        let Some(backed) = epochs.get(last_needed).copied() else { return Serving::NotNow };
        let backing = valid.iter().filter(|grant| grant.epoch >= backed);
        let mut ends: Vec<Instant> = backing.map(|grant| grant.until).collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        ends.get(last_needed).map_or(Serving::NotNow, |end| Serving::Until { end: *end, backed })
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
    use crate::nmctl::Basis;

    fn grant(coordinator: &str, needed: u32, ttl_ms: u64) -> LeaseGrant {
        LeaseGrant { coordinator: coordinator.to_owned(), needed, ttl_ms, basis: None }
    }

    fn lease(required: bool, now: Instant) -> Lease {
        Lease::new(required, Clock::new(7, now))
    }

    fn until(end: Instant) -> Serving {
        Serving::Until { end, backed: Epoch(u64::MAX) }
    }

    #[test]
    fn nobody_spoke_of_leases() {
        let now = Instant::now();
        assert_eq!(lease(false, now).serving(now), Serving::Always);
        assert_eq!(lease(true, now).serving(now), Serving::NotNow);
    }

    #[test]
    fn serving_ends_with_the_last_grant_that_is_needed() {
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        let mut lease = lease(false, now);
        lease.grant(&grant("a", 2, 100), now);
        assert_eq!(lease.serving(now), Serving::NotNow);
        lease.grant(&grant("b", 2, 300), now);
        assert_eq!(lease.serving(now), until(after(100)));
        lease.grant(&grant("a", 2, 100), after(50));
        assert_eq!(lease.serving(after(50)), until(after(150)));
        assert!(lease.serving(after(149)).allows(after(149), Epoch(9)));
        assert_eq!(lease.serving(after(150)), Serving::NotNow);
        lease.grant(&grant("c", 2, 500), after(200));
        assert_eq!(lease.serving(after(200)), until(after(300)));
        assert_eq!(lease.coordinators(after(200)).count(), 2);
    }

    #[test]
    fn one_coordinator_cannot_stand_for_two_and_the_highest_need_counts() {
        let now = Instant::now();
        let mut lease = lease(false, now);
        lease.grant(&grant("a", 2, 100), now);
        lease.grant(&grant("a", 2, 100), now);
        assert_eq!(lease.serving(now), Serving::NotNow);
        lease.grant(&grant("b", 1, 100), now);
        assert!(lease.serving(now).allows(now, Epoch(1)));
        lease.grant(&grant("c", 4, 100), now);
        assert_eq!(lease.serving(now), Serving::NotNow);
    }

    #[test]
    fn a_grant_counts_from_when_the_proxy_last_spoke_however_late_it_comes() {
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        let mut lease = lease(true, now);
        let said = lease.clock().say(after(10));
        let late = LeaseGrant { basis: Some(Basis { epoch: Epoch(3), clock: said }), ..grant("a", 1, 100) };
        lease.grant(&late, after(60));
        assert_eq!(lease.serving(after(60)), Serving::Until { end: after(110), backed: Epoch(3) });
        lease.grant(&late, after(200));
        assert_eq!(lease.serving(after(200)), Serving::NotNow, "it was over before it was read");
        let mut next_life = Lease::new(true, Clock::new(8, after(20)));
        next_life.grant(&late, after(60));
        assert_eq!(next_life.serving(after(60)), Serving::NotNow, "it was meant for another life");
        let ahead = Basis { epoch: Epoch(3), clock: "7-5000".to_owned() };
        lease.grant(&LeaseGrant { basis: Some(ahead), ..grant("a", 1, 100) }, after(300));
        assert_eq!(lease.serving(after(300)), Serving::Until { end: after(400), backed: Epoch(3) });
    }

    #[test]
    fn what_was_gained_is_served_when_enough_coordinators_know_of_it() {
        let now = Instant::now();
        let mut lease = lease(true, now);
        let mut granted = |name: &str, epoch, ttl_ms| {
            let basis = Some(Basis { epoch: Epoch(epoch), clock: lease.clock().say(now) });
            lease.grant(&LeaseGrant { basis, ..grant(name, 2, ttl_ms) }, now);
            lease.serving(now)
        };
        assert_eq!(granted("a", 5, 100), Serving::NotNow);
        let serving = granted("b", 4, 200);
        assert!(serving.allows(now, Epoch(4)) && !serving.allows(now, Epoch(5)));
        let serving = granted("c", 5, 50);
        let end = now + Duration::from_millis(50);
        assert_eq!(serving, Serving::Until { end, backed: Epoch(5) });
    }

    #[test]
    fn memory_is_bounded() {
        let now = Instant::now();
        let mut lease = lease(false, now);
        for index in 0..MAX_COORDINATORS + 100 {
            lease.grant(&grant(&format!("c{index}"), 1, 1000), now);
        }
        assert_eq!(lease.grants.len(), MAX_COORDINATORS);
    }
}
