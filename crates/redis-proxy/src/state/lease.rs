//! May the proxy serve at this moment? While enough coordinators have granted it recently, or all of them have.
//!
//! Enough: the coordinators registered in the store that do not grant it are too few to replace the proxy. All: every
//! coordinator that was registered when this proxy last received a grant of a registered one, with or without the store.
//! A coordinator that takes slots away from this proxy is one of them and does not grant any more (ADR redis-0004).
//!
//! A grant counts from before it was given, by the proxy's own clock: the coordinator repeats the clock
//! reading from the proxy's last reply. So it does not matter how long a grant was in transit, or unread in
//! the socket of a stopped process; only the difference in speed of two clocks does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use capstan_control::epoch::Epoch;

use capstan_redis_protocol::nmctl::{LeaseGrant, Standing};

/// Most coordinators that are remembered; the least recent ones are dropped first. More than ever run at
/// once, so that an attacker with the admin password cannot fill the memory with names.
const MAX_COORDINATORS: usize = 1000;

/// The clock of one process of a proxy. A reading of another process is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    life: u64,
    started: Instant,
}

impl Clock {
    /// The clock of a new process; no other one has the same number.
    #[must_use]
    pub fn new(life: u64, started: Instant) -> Clock {
        Clock { life, started }
    }

    /// A reading.
    #[must_use]
    pub fn reading(&self, now: Instant) -> String {
        format!("{:x}-{}", self.life, now.saturating_duration_since(self.started).as_millis())
    }

    /// The time of a reading; `None` if it is not of this clock.
    #[must_use]
    pub fn read(&self, reading: &str) -> Option<Instant> {
        let (life, millis) = reading.split_once('-')?;
        let mine = u64::from_str_radix(life, 16).ok()? == self.life;
        self.started.checked_add(Duration::from_millis(millis.parse().ok()?)).filter(|_| mine)
    }
}

/// The grants and their ends, by the monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    required: bool,
    clock: Clock,
    grants: BTreeMap<String, Grant>,
    /// The coordinators that were registered according to the newest grant of a registered one.
    registered: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Grant {
    needed: u32,
    until: Instant,
    /// It covers what was held at this epoch.
    epoch: Epoch,
    /// The coordinator had no store.
    detached: bool,
}

/// For how long data may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// No lease was ever granted or required.
    Always,
    /// Until then, unless it is renewed: what has been held since this epoch or longer.
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
    /// Whether data held since an epoch may be served at that time.
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

impl Serving {
    /// Returns the one with the later epoch; with equal epochs, the one that ends later.
    fn longer(self, other: Serving) -> Serving {
        let rank = |serving: Serving| match serving {
            Serving::NotNow => None,
            Serving::Until { end, backed } => Some((backed, Some(end))),
            Serving::Always => Some((Epoch(u64::MAX), None)),
        };
        if rank(other) > rank(self) { other } else { self }
    }

    /// What is left of it after the machine was suspended for this long: the clock that it is counted by stood still.
    #[must_use]
    pub fn after_suspension(self, slept: Duration) -> Serving {
        match self {
            Serving::Until { .. } if !slept.is_zero() => Serving::NotNow,
            Serving::Always | Serving::Until { .. } | Serving::NotNow => self,
        }
    }

    /// Whether it can expire.
    #[must_use]
    #[inline]
    pub fn is_under_lease(self) -> bool {
        match self {
            Serving::Always => false,
            Serving::Until { .. } | Serving::NotNow => true,
        }
    }

    /// Whether anything may be served at that time.
    #[must_use]
    #[inline]
    pub fn is_current(self, now: Instant) -> bool {
        match self {
            Serving::Always => true,
            Serving::Until { end, .. } => now < end,
            Serving::NotNow => false,
        }
    }
}

impl Lease {
    /// The lease of a starting proxy; `required` if it was configured, or it had one before.
    #[must_use]
    pub fn new(required: bool, clock: Clock) -> Lease {
        Lease { required, clock, grants: BTreeMap::new(), registered: Vec::new() }
    }

    /// The clock whose readings coordinators repeat in grants.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Applies a grant; `now` is when it was received. After the first one, a lease is required. A grant that
    /// has expired, or that was for another process of this proxy, changes nothing.
    pub fn grant(&mut self, grant: &LeaseGrant, now: Instant) {
        self.required = true;
        let (from, epoch, standing) = match &grant.basis {
            None => (Some(now), Epoch(u64::MAX), &Standing::Unstated),
            Some(basis) => (self.clock.read(&basis.clock), basis.epoch, &basis.standing),
        };
        let Some(from) = from else { return };
        let until = from.min(now) + Duration::from_millis(grant.ttl_ms);
        self.grants.retain(|_, grant| grant.until > now);
        // A message never shortens a grant, and one that was overtaken is ignored.
        if until <= now || self.grants.get(&grant.coordinator).is_some_and(|known| known.until >= until) {
            return;
        }
        if self.grants.len() >= MAX_COORDINATORS && !self.grants.contains_key(&grant.coordinator) {
            let oldest =
                self.grants.iter().min_by_key(|(_, grant)| grant.until).map(|(name, _)| name.clone());
            oldest.map(|oldest| self.grants.remove(&oldest));
        }
        if let Standing::Registered(names) = standing {
            self.registered.clone_from(names);
        }
        let detached = *standing == Standing::Detached;
        self.grants.insert(grant.coordinator.clone(), Grant { needed: grant.needed, until, epoch, detached });
    }

    /// The lease after the machine was suspended: nothing granted before counts, nor does a grant that is based on a
    /// reading from before.
    #[must_use]
    pub fn after_suspension(&self, life: u64, now: Instant) -> Lease {
        Lease { clock: Clock::new(life, now), grants: BTreeMap::new(), ..self.clone() }
    }

    /// For how long data may be served.
    #[must_use]
    pub fn serving(&self, now: Instant) -> Serving {
        if !self.required {
            return Serving::Always;
        }
        match (self.granted_by_enough(now), self.granted_by_all(now)) {
            (Serving::NotNow, by_all) => by_all,
            (by_enough, Serving::NotNow) => by_enough,
            (by_enough, by_all) => by_enough.longer(by_all),
        }
    }

    /// Where coordinators differ about how many it takes, the highest number counts: the one that counts more of them
    /// has seen some that the others have not.
    fn granted_by_enough(&self, now: Instant) -> Serving {
        let valid: Vec<&Grant> =
            self.grants.values().filter(|grant| grant.until > now && !grant.detached).collect();
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

    /// Every registered coordinator has granted it, with or without the store.
    fn granted_by_all(&self, now: Instant) -> Serving {
        let valid = |name: &String| self.grants.get(name).filter(|grant| grant.until > now);
        let grants: Option<Vec<&Grant>> = self.registered.iter().map(valid).collect();
        let grants = grants.unwrap_or_default();
        let end = grants.iter().map(|grant| grant.until).min();
        let backed = grants.iter().map(|grant| grant.epoch).min();
        end.zip(backed).map_or(Serving::NotNow, |(end, backed)| Serving::Until { end, backed })
    }

    /// Whether a lease is required to serve.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// The coordinators with valid grants, and the remaining time of each.
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
    use capstan_redis_protocol::nmctl::Basis;

    fn grant(coordinator: &str, needed: u32, ttl_ms: u64) -> LeaseGrant {
        LeaseGrant { coordinator: coordinator.to_owned(), needed, ttl_ms, basis: None }
    }

    fn basis(epoch: u64, clock: String, standing: Standing) -> Basis {
        Basis { epoch: Epoch(epoch), clock, standing }
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
        let reading = lease.clock().reading(after(10));
        let late = LeaseGrant { basis: Some(basis(3, reading, Standing::Unstated)), ..grant("a", 1, 100) };
        lease.grant(&late, after(60));
        assert_eq!(lease.serving(after(60)), Serving::Until { end: after(110), backed: Epoch(3) });
        lease.grant(&late, after(200));
        assert_eq!(lease.serving(after(200)), Serving::NotNow, "it was over before it was read");
        let mut next_life = Lease::new(true, Clock::new(8, after(20)));
        next_life.grant(&late, after(60));
        assert_eq!(next_life.serving(after(60)), Serving::NotNow, "it was meant for another life");
        let ahead = basis(3, "7-5000".to_owned(), Standing::Unstated);
        lease.grant(&LeaseGrant { basis: Some(ahead), ..grant("a", 1, 100) }, after(300));
        assert_eq!(lease.serving(after(300)), Serving::Until { end: after(400), backed: Epoch(3) });
    }

    #[test]
    fn what_was_gained_is_served_when_enough_coordinators_know_of_it() {
        let now = Instant::now();
        let mut lease = lease(true, now);
        let mut granted = |name: &str, epoch, ttl_ms| {
            let basis = Some(basis(epoch, lease.clock().reading(now), Standing::Unstated));
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
    fn without_the_store_every_registered_coordinator_must_grant() {
        let now = Instant::now();
        let mut lease = lease(true, now);
        let mut granted = |name: &str, at: Instant, standing| {
            let basis = Some(basis(3, lease.clock().reading(at), standing));
            lease.grant(&LeaseGrant { basis, ..grant(name, 1, 100) }, at);
            lease.serving(at)
        };
        let registered = || Standing::Registered(vec!["a".to_owned(), "b".to_owned()]);
        let after = |ms| now + Duration::from_millis(ms);
        let serves_until = |ms| Serving::Until { end: after(ms), backed: Epoch(3) };
        assert_eq!(granted("a", now, Standing::Detached), Serving::NotNow, "nothing is known of others");
        assert_eq!(granted("a", after(10), registered()), serves_until(110));
        assert_eq!(granted("b", after(20), registered()), serves_until(120));
        assert_eq!(granted("a", after(60), Standing::Detached), serves_until(120), "b has the store");
        assert_eq!(granted("b", after(80), Standing::Detached), serves_until(160), "all of them");
        assert_eq!(granted("b", after(170), Standing::Detached), Serving::NotNow, "a is silent");
        assert_eq!(granted("c", after(170), Standing::Detached), Serving::NotNow, "c is not registered");
        assert_eq!(granted("a", after(180), Standing::Detached), serves_until(270));
    }

    #[test]
    fn a_suspended_machine_wakes_without_a_lease() {
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        let mut lease = lease(true, now);
        let reading = lease.clock().reading(now);
        let grant = LeaseGrant { basis: Some(basis(3, reading, Standing::Unstated)), ..grant("a", 1, 1000) };
        lease.grant(&grant, after(10));
        let serving = lease.serving(after(20));
        assert!(serving.is_current(after(20)));
        assert_eq!(serving.after_suspension(Duration::ZERO), serving);
        assert_eq!(serving.after_suspension(Duration::from_secs(9)), Serving::NotNow);
        assert_eq!(Serving::Always.after_suspension(Duration::from_secs(9)), Serving::Always);
        // Its clock stood still: by that clock the grant would be valid.
        let mut lease = lease.after_suspension(8, after(20));
        assert_eq!(lease.serving(after(20)), Serving::NotNow);
        lease.grant(&grant, after(30));
        assert_eq!(lease.serving(after(30)), Serving::NotNow, "it was on its way meanwhile");
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
