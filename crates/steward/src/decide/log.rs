//! The next step of one log on its own: its primary, its learner, its leaving copy. What needs another holder becomes a
//! [`Want`], because holders are shared by all logs.

use capstan_log::{HolderId, LogConfig};

use super::repair::{Cause, Want};
use super::{Action, Reason, Work};
use crate::facts::{LogFact, Seat};
use crate::spec::Handover;

/// Seconds after which a learner that is down is dropped, so that another holder can begin.
const LEARNER_PATIENCE: u64 = 60;

impl<'f> Work<'f> {
    /// Decides about one log, or adds it to the wants.
    pub(super) fn log(&mut self, log: &'f LogFact, wants: &mut Vec<Want<'f>>) {
        self.clear_handover(log);
        if self.primary(log) || self.learner(log) || self.min_copies(log) || self.excess(log) {
            self.settle(log);
            return;
        }
        if let Some(cause) = self.short(log) {
            let first = self.holder(log.holders[0]).service as usize;
            if let (Cause::Repair, Some(uneasy)) = (cause, self.uneasy.get_mut(first)) {
                *uneasy = true;
            }
            wants.push(Want { log, cause, complete: self.complete(log) });
            self.settle(log);
            return;
        }
        if log.leaving.is_some() && log.learner.is_none() {
            let next = LogConfig { leaving: None, ..log.config.record.clone() };
            self.reconfigure(log, next, Reason::TakeBack);
            self.settle(log);
            return;
        }
        self.lead(log);
    }

    pub(super) fn reconfigure(&mut self, log: &LogFact, next: LogConfig, reason: Reason) {
        let (seen, next) = (log.config.clone(), Box::new(next));
        self.decision.actions.push(Action::Reconfigure { log: log.name.clone(), seen, next, reason });
    }

    /// Complete copies that are up.
    fn complete(&self, log: &LogFact) -> usize {
        log.in_sync.iter().filter(|seat| self.is_up(**seat)).count()
    }

    /// Removes a request of an earlier epoch, which was completed or superseded.
    fn clear_handover(&mut self, log: &LogFact) {
        let Some(seen) = &log.handover else { return };
        if seen.record.epoch != log.config.record.epoch || seen.record.to == log.config.record.primary {
            self.handovers = self.handovers.saturating_sub(1);
            let (log, seen) = (log.name.clone(), seen.clone());
            self.decision.actions.push(Action::ClearHandover { log, seen });
        }
    }

    /// Replaces a primary that is down, or that reaches too few holders.
    fn primary(&mut self, log: &LogFact) -> bool {
        let from = self.holder(log.primary).id.clone();
        if !self.is_up(log.primary) {
            self.disturb(log.primary);
            let candidates = log.in_sync.iter().copied();
            let Some(to) = self.heir(candidates.filter(|seat| *seat != log.primary && self.is_up(*seat)))
            else {
                self.decision.leaderless += 1;
                return true;
            };
            return self.depose(log, to, Reason::FailOver { from });
        }
        match self.reaches_more(log) {
            Some(to) => self.depose(log, to, Reason::CutOff { from }),
            None => false,
        }
    }

    /// An in-sync holder that reaches enough others to commit, if the primary does not.
    fn reaches_more(&self, log: &LogFact) -> Option<Seat> {
        let reach = |seat: Seat| {
            let from = self.holder(seat);
            let others = log.in_sync.iter().filter(|other| {
                **other == seat || self.is_up(**other) && !from.cannot_reach(&self.holder(**other).id)
            });
            others.count()
        };
        let needed = log.min_copies();
        // Without a report there is nothing to compare; if no holder is reachable, the primary is not the cause.
        if needed < 2 || reach(log.primary) >= needed {
            return None;
        }
        let others = log.in_sync.iter().copied().filter(|seat| *seat != log.primary && self.is_up(*seat));
        self.heir(others.filter(|seat| reach(*seat) >= needed))
    }

    /// The best next primary: not on a drained host, not retiring, with the fewest leads.
    pub(super) fn heir(&self, candidates: impl Iterator<Item = Seat>) -> Option<Seat> {
        candidates.min_by_key(|seat| {
            let holder = self.holder(*seat);
            (holder.is_retiring(), holder.draining, self.leads[*seat as usize], *seat)
        })
    }

    /// Elects another primary and, if the old one is down, removes it from the in-sync set in the same change. If too
    /// few would be left to commit, the old one stays: it is complete and may be needed. One that is up stays too: its
    /// successor then acknowledges nothing before the old one has stopped serving reads.
    fn depose(&mut self, log: &LogFact, to: Seat, reason: Reason) -> bool {
        let config = &log.config.record;
        let old = config.primary.clone();
        let Ok(elected) = config.elect(&self.holder(to).id) else { return false };
        let next = if matches!(reason, Reason::FailOver { .. }) {
            elected.shrink(std::slice::from_ref(&old)).unwrap_or(elected)
        } else {
            elected
        };
        self.leads[log.primary as usize] = self.leads[log.primary as usize].saturating_sub(1);
        self.leads[to as usize] += 1;
        self.reconfigure(log, next, reason);
        true
    }

    /// Drops a learner that cannot make progress.
    fn learner(&mut self, log: &LogFact) -> bool {
        let Some(seat) = log.learner else { return false };
        let learner = self.holder(seat);
        let down = learner.is_down_for(LEARNER_PATIENCE, self.facts.now);
        if !down && !learner.is_retiring() {
            if let Some(since) = learner.down_since() {
                self.wake_at(since.saturating_add(LEARNER_PATIENCE));
            }
            return false;
        }
        self.reconfigure(log, log.config.record.drop_learner(), Reason::DropLearner);
        true
    }

    /// Applies the service's `min_copies` once enough copies are complete: earlier it would stop appends.
    fn min_copies(&mut self, log: &LogFact) -> bool {
        let Some(wanted) = log.wanted.as_ref().map(|seen| &seen.record) else { return false };
        let config = &log.config.record;
        if !wanted.is_possible() || wanted.min_copies == config.min_copies {
            return false;
        }
        if log.in_sync.len() < wanted.min_copies {
            return false;
        }
        let next = LogConfig { min_copies: wanted.min_copies, ..config.clone() };
        self.reconfigure(log, next, Reason::MinCopies);
        true
    }

    /// Removes an excess copy, once enough complete ones are up without it.
    fn excess(&mut self, log: &LogFact) -> bool {
        if log.learner.is_some() || log.holders.len() <= log.copies() {
            return false;
        }
        let Some(victim) = self.victim(log) else { return false };
        let without = log.in_sync.iter().filter(|seat| **seat != victim && self.is_up(**seat)).count();
        if without < log.copies() {
            return false;
        }
        if victim == log.primary {
            let others = log.in_sync.iter().copied().filter(|seat| *seat != victim && self.is_up(*seat));
            return self.heir(others).is_some_and(|to| self.ask_handover(log, to));
        }
        let holder = self.holder(victim).id.clone();
        let removed = log.config.record.mark_leaving(&holder).and_then(|marked| marked.remove_leaving());
        match removed {
            Ok(next) => {
                self.reconfigure(log, next, Reason::Remove { holder });
                true
            }
            Err(_) => false,
        }
    }

    /// The holder of the excess copy.
    fn victim(&self, log: &LogFact) -> Option<Seat> {
        let leaving = log.leaving.filter(|seat| log.holders.contains(seat));
        let worst = || {
            log.holders.iter().copied().max_by_key(|seat| {
                let holder = self.holder(*seat);
                let missing = !log.in_sync.contains(seat);
                (
                    self.is_lost(*seat),
                    holder.is_retiring(),
                    !holder.is_up(),
                    missing,
                    self.load[*seat as usize],
                    *seat != log.primary,
                    *seat,
                )
            })
        };
        leaving.or_else(worst)
    }

    /// Whether the log needs one more copy, and why.
    fn short(&self, log: &LogFact) -> Option<Cause> {
        let wanted = log.wanted.as_ref()?;
        if log.learner.is_some() || !wanted.record.is_possible() || log.holders.is_empty() {
            return None;
        }
        let keepers = log.holders.iter().filter(|seat| self.is_keeper(**seat)).count();
        if keepers < log.copies() {
            let lost = log.holders.len() < log.copies() || log.holders.iter().any(|seat| self.is_lost(*seat));
            return Some(if lost { Cause::Repair } else { Cause::Retire });
        }
        // Where one copy fewer is one too few, waiting for another host's return would never end.
        let draining = log.holders.iter().any(|seat| self.holder(*seat).draining);
        (draining && log.copies() <= log.min_copies()).then_some(Cause::Evacuate)
    }

    /// Requests a handover, unless one is in progress. Returns whether the log is settled.
    pub(super) fn ask_handover(&mut self, log: &LogFact, to: Seat) -> bool {
        let epoch = log.config.record.epoch;
        if let Some(seen) = &log.handover {
            // A request of an earlier epoch is cleared first: a new one is written only where there is none.
            return seen.record.epoch != epoch || self.force_handover(log, &seen.record);
        }
        if self.handovers >= self.policy.handovers {
            return false;
        }
        self.handovers += 1;
        self.leads[log.primary as usize] = self.leads[log.primary as usize].saturating_sub(1);
        self.leads[to as usize] += 1;
        let handover = Handover { epoch, to: self.holder(to).id.clone(), asked_at: self.facts.now };
        self.wake_at(self.facts.now.saturating_add(self.policy.handover_within));
        self.decision.actions.push(Action::AskHandover {
            log: log.name.clone(),
            seen: log.config.clone(),
            handover,
        });
        true
    }

    /// Deposes a primary that did not hand over in time; it stays in the in-sync set.
    pub(super) fn force_handover(&mut self, log: &LogFact, asked: &Handover) -> bool {
        let due = asked.asked_at.saturating_add(self.policy.handover_within);
        if self.facts.now < due {
            self.wake_at(due);
            return true;
        }
        let fit = |to: &HolderId| self.facts.seat(to).is_some_and(|seat| self.is_up(seat));
        match log.config.record.elect(&asked.to) {
            Ok(next) if fit(&asked.to) => {
                self.reconfigure(log, next, Reason::ForcedHandover);
                true
            }
            Ok(_) | Err(_) => {
                if let Some(seen) = log.handover.clone() {
                    self.decision.actions.push(Action::ClearHandover { log: log.name.clone(), seen });
                }
                true
            }
        }
    }
}
