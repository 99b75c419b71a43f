//! Where is a new copy made? On the holder of the service with the fewest copies whose host has none of this log, in a
//! failure domain with as few copies of it as possible.

use std::collections::BTreeSet;

use capstan_control::keys::ServiceName;
use capstan_log::HolderId;

use crate::facts::{Facts, Seat};
use crate::spec::Policy;

/// Holders that may get copies, emptiest first.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    by_load: BTreeSet<(usize, Seat)>,
}

impl Pool {
    /// The holders of a service that may get copies, with their load.
    #[must_use]
    pub fn of(facts: &Facts, policy: &Policy, service: u32, load: &[usize]) -> Pool {
        let fit = facts
            .holders
            .iter()
            .enumerate()
            .filter(|(_, holder)| holder.service == service && holder.takes_copies(policy));
        Pool { by_load: fit.filter_map(|(at, _)| Some((*load.get(at)?, u32::try_from(at).ok()?))).collect() }
    }

    /// The number of holders.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_load.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_load.is_empty()
    }

    /// The holders, emptiest first.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Seat)> {
        self.by_load.iter().copied()
    }

    /// The emptiest holder.
    #[must_use]
    pub fn first(&self) -> Option<(usize, Seat)> {
        self.by_load.first().copied()
    }

    /// The fullest holder.
    #[must_use]
    pub fn last(&self) -> Option<(usize, Seat)> {
        self.by_load.last().copied()
    }

    /// The best holder besides these.
    #[must_use]
    pub fn best(&self, facts: &Facts, beside: &[Seat]) -> Option<(usize, Seat)> {
        let mut best = None;
        for (load, seat) in self.iter() {
            let holder = facts.holder(seat);
            if beside.iter().any(|other| facts.holder(*other).host == holder.host) {
                continue;
            }
            let shared = beside.iter().filter(|other| facts.holder(**other).domain == holder.domain).count();
            if best.is_none_or(|(least, _, _)| shared < least) {
                best = Some((shared, load, seat));
            }
            if shared == 0 {
                break;
            }
        }
        best.map(|(_, load, seat)| (load, seat))
    }

    /// Removes a holder.
    pub fn remove(&mut self, load: usize, seat: Seat) {
        self.by_load.remove(&(load, seat));
    }

    /// Updates the number of copies of a holder.
    pub fn change(&mut self, seat: Seat, from: usize, to: usize) {
        if self.by_load.remove(&(from, seat)) {
            self.by_load.insert((to, seat));
        }
    }
}

/// The holders of a new log, primary first: the preferred one if possible, then the emptiest ones.
#[must_use]
pub fn choose(
    facts: &Facts,
    policy: &Policy,
    service: &ServiceName,
    copies: usize,
    preferred: Option<&HolderId>,
) -> Vec<HolderId> {
    let Some(number) = facts.service(service.as_str()) else { return Vec::new() };
    let load: Vec<usize> = facts.holders.iter().map(|holder| holder.load).collect();
    let pool = Pool::of(facts, policy, number, &load);
    let preferred = preferred.and_then(|id| facts.seat(id));
    let mut chosen: Vec<Seat> =
        preferred.filter(|seat| pool.iter().any(|(_, fit)| fit == *seat)).into_iter().collect();
    while chosen.len() < copies
        && let Some((_, seat)) = pool.best(facts, &chosen)
    {
        chosen.push(seat);
    }
    // Without a preference the least busy of them leads.
    if preferred.is_none() {
        chosen.sort_by_key(|seat| (facts.holder(*seat).leads, *seat));
    }
    chosen.into_iter().map(|seat| facts.holder(seat).id.clone()).collect()
}
