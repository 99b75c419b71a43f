//! Which copies are made now? The most endangered logs first, within the limits of sending and receiving hosts.

use super::{Pool, Reason, Work};
use crate::facts::LogFact;

/// Why a log needs one more copy. Ordered: most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// One is lost or was never made.
    Repair,
    /// Too few would be left when drained hosts go down.
    Evacuate,
    /// One is on a retiring holder.
    Retire,
}

/// A log that needs one more copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want<'f> {
    pub(super) log: &'f LogFact,
    pub(super) cause: Cause,
    /// Complete copies that are up.
    pub(super) complete: usize,
}

impl<'f> Work<'f> {
    /// Starts copies, most urgent first.
    pub(super) fn repair(&mut self, mut wants: Vec<Want<'f>>) {
        wants.sort_by_key(|want| (want.cause, want.complete));
        let pools = (0..self.facts.services).map(|service| {
            let service = u32::try_from(service).unwrap_or(u32::MAX);
            Pool::of(self.facts, self.policy, service, &self.load)
        });
        let mut pools: Vec<Pool> = if wants.is_empty() { Vec::new() } else { pools.collect() };
        for want in wants {
            if !self.begin(&mut pools, want) {
                self.decision.waiting += 1;
            }
        }
    }

    fn begin(&mut self, pools: &mut [Pool], want: Want<'f>) -> bool {
        let log = want.log;
        let service = log.wanted.as_ref().and_then(|seen| self.facts.service(seen.record.service.as_str()));
        let Some(pool) = service.and_then(|service| pools.get_mut(service as usize)) else { return false };
        if self.is_busy() || !self.is_up(log.primary) || !self.may_send(log.primary) {
            return false;
        }
        let target = loop {
            let Some((load, seat)) = pool.best(self.facts, &log.holders) else { return false };
            if self.may_receive(seat) {
                break (load, seat);
            }
            // Its host is at its limit: other logs need not consider it in this decision.
            pool.remove(load, seat);
        };
        let (load, seat) = target;
        let Ok(mut next) = log.config.record.add_learner(&self.holder(seat).id) else { return false };
        if next.holders.len() >= log.copies() && next.leaving.is_none() {
            next.leaving = self.leaver(want).map(|leaver| self.holder(leaver).id.clone());
        }
        pool.change(seat, load, load + 1);
        self.load[seat as usize] += 1;
        self.count_copy(seat, log.primary);
        let reason = match want.cause {
            Cause::Repair => Reason::Repair,
            Cause::Evacuate => Reason::Evacuate,
            Cause::Retire => Reason::Retire,
        };
        self.reconfigure(log, next, reason);
        true
    }

    /// The holder whose copy the new one replaces.
    fn leaver(&self, want: Want<'f>) -> Option<u32> {
        let seats = || want.log.holders.iter().copied();
        let lost = seats().find(|seat| self.is_lost(*seat));
        let retiring = seats().find(|seat| self.holder(*seat).is_retiring());
        let draining = || seats().find(|seat| self.holder(*seat).draining);
        lost.or(retiring).or_else(|| (want.cause == Cause::Evacuate).then(draining).flatten())
    }
}
