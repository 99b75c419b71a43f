//! Which copies move for balance? The fewest that bring the holders of a service within the slack of their average, and
//! only while every copy of that service is in place.

use super::{Pool, Reason, Work};
use crate::facts::{LogFact, Seat};

impl<'f> Work<'f> {
    /// Starts moves from the fullest to the emptiest holders.
    pub(super) fn balance_copies(&mut self) {
        for service in 0..self.facts.services {
            if !self.uneasy[service] && self.decision.waiting == 0 && !self.is_busy() {
                self.balance_service(u32::try_from(service).unwrap_or(u32::MAX));
            }
        }
    }

    fn balance_service(&mut self, service: u32) {
        let mut pool = Pool::of(self.facts, self.policy, service, &self.load);
        let (Some((least, _)), Some((most, _))) = (pool.first(), pool.last()) else {
            return;
        };
        let slack = self.slack(pool.iter().map(|(load, _)| load).sum(), pool.len());
        if most.saturating_sub(least) <= slack {
            return;
        }
        let by_holder = self.movable(service, &pool, least + slack);
        let mut sources = pool.clone();
        while !self.is_busy() {
            let (Some((most, from)), Some((least, _))) = (sources.last(), pool.first()) else { return };
            if most.saturating_sub(least) <= slack {
                return;
            }
            let logs = by_holder.get(from as usize).map_or(&[][..], Vec::as_slice);
            match self.move_one(logs, from, most, slack, &mut pool) {
                Some((to, load)) => {
                    sources.change(from, most, most - 1);
                    pool.change(from, most, most - 1);
                    sources.change(to, load, load + 1);
                    pool.change(to, load, load + 1);
                }
                None => sources.remove(most, from),
            }
        }
    }

    /// How far holders may differ: one copy is indivisible.
    pub(super) fn slack(&self, total: usize, holders: usize) -> usize {
        (total * self.policy.slack_percent / 100 / holders.max(1)).max(1)
    }

    /// The movable logs of each holder above its share: those without other pending changes. Logs that the holder does
    /// not lead come first.
    fn movable(&self, service: u32, pool: &Pool, above: usize) -> Vec<Vec<&'f LogFact>> {
        let mut by_holder: Vec<Vec<&LogFact>> = vec![Vec::new(); self.facts.holders.len()];
        let full: Vec<bool> = {
            let mut full = vec![false; self.facts.holders.len()];
            pool.iter().filter(|(load, _)| *load > above).for_each(|(_, seat)| full[seat as usize] = true);
            full
        };
        for log in &self.facts.logs {
            let whole = log.learner.is_none()
                && log.leaving.is_none()
                && log.in_sync.len() == log.holders.len()
                && log.holders.len() == log.copies();
            let ours = log.wanted.as_ref().is_some_and(|_| self.holder(log.primary).service == service);
            if !ours || !whole || self.settled[log.at] {
                continue;
            }
            for seat in log.holders.iter().filter(|seat| full[**seat as usize]) {
                by_holder[*seat as usize].push(log);
            }
        }
        for (at, logs) in by_holder.iter_mut().enumerate() {
            logs.sort_by_key(|log| log.primary as usize == at);
        }
        by_holder
    }

    /// Moves one of these logs from a holder to one that has at least two fewer.
    fn move_one(
        &mut self,
        logs: &[&'f LogFact],
        from: Seat,
        most: usize,
        slack: usize,
        pool: &mut Pool,
    ) -> Option<(Seat, usize)> {
        let full: Vec<(usize, Seat)> = pool.iter().filter(|(_, seat)| !self.may_receive(*seat)).collect();
        full.into_iter().for_each(|(load, seat)| pool.remove(load, seat));
        for log in logs {
            if !self.may_send(log.primary) || self.settled[log.at] {
                continue;
            }
            let others: Vec<Seat> = log.holders.iter().copied().filter(|seat| *seat != from).collect();
            let Some((load, to)) = pool.best(self.facts, &others) else { continue };
            if to == from || most.saturating_sub(load) <= slack || self.crowds(&others, from, to) {
                continue;
            }
            let learning = log.config.record.add_learner(&self.holder(to).id);
            let Ok(next) = learning.and_then(|next| next.mark_leaving(&self.holder(from).id)) else {
                continue;
            };
            self.load[from as usize] -= 1;
            self.load[to as usize] += 1;
            self.count_copy(to, log.primary);
            self.settle(log);
            self.reconfigure(log, next, Reason::Balance);
            return Some((to, load));
        }
        None
    }

    /// Whether the move would put more copies into one failure domain than before.
    fn crowds(&self, others: &[Seat], from: Seat, to: Seat) -> bool {
        let count = |seat: Seat| {
            let domain = self.holder(seat).domain;
            others.iter().filter(|other| self.holder(**other).domain == domain).count()
        };
        count(to) > count(from)
    }
}
