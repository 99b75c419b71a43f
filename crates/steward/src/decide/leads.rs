//! Which holder should lead? Not one that is drained or retiring; the preferred one where there is one; otherwise leads
//! are balanced. Every change is a handover by the present primary.

use super::Work;
use crate::facts::{LogFact, Seat};

impl<'f> Work<'f> {
    /// Moves the lead of one log whose primary must not or should not lead.
    pub(super) fn lead(&mut self, log: &'f LogFact) {
        let primary = self.holder(log.primary);
        if primary.draining || primary.is_retiring() {
            let others = log.in_sync.iter().copied().filter(|seat| self.may_lead(*seat));
            if let Some(to) = self.heir(others) {
                self.ask_handover(log, to);
                self.settle(log);
            }
            return;
        }
        if let Some(seen) = &log.handover
            && seen.record.epoch == log.config.record.epoch
        {
            self.force_handover(log, &seen.record);
            self.settle(log);
        }
    }

    fn may_lead(&self, seat: Seat) -> bool {
        let holder = self.holder(seat);
        holder.is_up() && !holder.draining && !holder.is_retiring()
    }

    /// Hands leads over to preferred holders, and from holders with many leads to those with few.
    pub(super) fn balance_leads(&mut self) {
        let fair = self.fair_leads();
        for at in 0..self.facts.logs.len() {
            if self.handovers >= self.policy.handovers {
                return;
            }
            let log = &self.facts.logs[at];
            if self.settled[at] || log.learner.is_some() || log.in_sync.len() < log.copies() {
                continue;
            }
            if let Some(to) = self.better_lead(log, &fair) {
                self.ask_handover(log, to);
            }
        }
    }

    /// The maximum number of leads for a holder of each service.
    fn fair_leads(&self) -> Vec<usize> {
        let mut sums = vec![(0, 0); self.facts.services];
        for (seat, holder) in self.facts.holders.iter().enumerate() {
            if let Some((leads, holders)) = sums.get_mut(holder.service as usize)
                && holder.is_up()
                && !holder.draining
                && !holder.is_retiring()
            {
                *leads += self.leads[seat];
                *holders += 1;
            }
        }
        let fair =
            |(leads, holders): (usize, usize)| leads.div_ceil(holders.max(1)) + self.slack(leads, holders);
        sums.into_iter().map(fair).collect()
    }

    fn better_lead(&self, log: &LogFact, fair: &[usize]) -> Option<Seat> {
        let preferred = log.wanted.as_ref().and_then(|seen| seen.record.preferred.as_ref());
        if let Some(seat) = preferred.and_then(|id| self.facts.seat(id)) {
            let fit = seat != log.primary && log.in_sync.contains(&seat) && self.may_lead(seat);
            return fit.then_some(seat);
        }
        let service = self.holder(log.primary).service as usize;
        let leads = self.leads[log.primary as usize];
        if self.uneasy.get(service).copied().unwrap_or(true) || leads <= *fair.get(service)? {
            return None;
        }
        let others = log.in_sync.iter().copied().filter(|seat| self.may_lead(*seat));
        self.heir(others.filter(|seat| self.leads[*seat as usize] + 1 < leads))
    }
}
