//! Which holders keep and lead which log? One pure decision over all facts.
//!
//! The order is by urgency: failed primaries are replaced, moves in progress are finished, lost copies are restored,
//! retiring holders are emptied, and only when nothing of that is left are copies and leads balanced. Every rule keeps
//! logs safe:
//!
//! - A primary is elected from the in-sync set only. A log whose in-sync holders are all down waits for one of them.
//! - A copy is removed only when the requested number of complete copies is up without it.
//! - A copy is made on a host that has no other copy of the log, in another failure domain where there is one.
//! - Hosts send and receive a limited number of copies at a time.

mod action;
mod balance;
mod leads;
mod log;
mod place;
mod repair;

pub use action::{Action, Reason};
pub use place::{Pool, choose};

use crate::facts::{Facts, HolderFact, LogFact, Seat};
use crate::spec::Policy;

/// What to do now, and when to decide again.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// The changes, most urgent first.
    pub actions: Vec<Action>,
    /// When something becomes due without a change, in seconds since 1970.
    pub wake_at: Option<u64>,
    /// Logs with missing copies that are not being made, because hosts are busy or too few.
    pub waiting: usize,
    /// Logs that no holder can lead now.
    pub leaderless: usize,
}

/// The next changes. Pure: the same facts give the same changes.
#[must_use]
pub fn decide(facts: &Facts, policy: &Policy) -> Decision {
    let mut work = Work::new(facts, policy);
    work.holders();
    let mut wants = Vec::new();
    for log in &facts.logs {
        work.log(log, &mut wants);
    }
    work.strays();
    work.repair(wants);
    work.balance_copies();
    work.balance_leads();
    work.decision.actions.truncate(policy.changes);
    work.decision
}

/// A decision in progress.
struct Work<'f> {
    facts: &'f Facts,
    policy: &'f Policy,
    decision: Decision,
    /// The copies of every holder after the changes decided so far.
    load: Vec<usize>,
    leads: Vec<usize>,
    /// Copies in progress, by host.
    into: Vec<usize>,
    out: Vec<usize>,
    in_all: usize,
    handovers: usize,
    /// Logs that were already changed, or must not be touched, by position.
    settled: Vec<bool>,
    /// Services in which a holder is away or a copy is missing, by position: nothing is balanced there.
    uneasy: Vec<bool>,
}

impl<'f> Work<'f> {
    fn new(facts: &'f Facts, policy: &'f Policy) -> Work<'f> {
        let mut work = Work {
            facts,
            policy,
            decision: Decision::default(),
            load: facts.holders.iter().map(|holder| holder.load).collect(),
            leads: facts.holders.iter().map(|holder| holder.leads).collect(),
            into: vec![0; facts.hosts],
            out: vec![0; facts.hosts],
            in_all: 0,
            handovers: 0,
            settled: vec![false; facts.logs.len()],
            uneasy: vec![false; facts.services],
        };
        for log in &facts.logs {
            if let Some(learner) = log.learner {
                work.count_copy(learner, log.primary);
            }
            work.handovers += usize::from(log.handover.is_some());
        }
        work
    }

    fn holder(&self, seat: Seat) -> &'f HolderFact {
        self.facts.holder(seat)
    }

    fn is_up(&self, seat: Seat) -> bool {
        self.holder(seat).is_up()
    }

    fn is_lost(&self, seat: Seat) -> bool {
        self.holder(seat).is_lost(self.policy, self.facts.now)
    }

    /// Whether a copy there can be relied on: it is up, or will be back soon, and stays.
    fn is_keeper(&self, seat: Seat) -> bool {
        !self.is_lost(seat) && !self.holder(seat).is_retiring()
    }

    fn count_copy(&mut self, into: Seat, out_of: Seat) {
        self.into[self.facts.holder(into).host as usize] += 1;
        self.out[self.facts.holder(out_of).host as usize] += 1;
        self.in_all += 1;
    }

    /// Whether a host may send one more copy of a log that this holder leads.
    fn may_send(&self, primary: Seat) -> bool {
        self.out[self.holder(primary).host as usize] < self.policy.copies_out_of_host
    }

    fn may_receive(&self, seat: Seat) -> bool {
        self.into[self.holder(seat).host as usize] < self.policy.copies_into_host
    }

    fn is_busy(&self) -> bool {
        self.in_all >= self.policy.copies_in_all
    }

    fn wake_at(&mut self, time: u64) {
        self.decision.wake_at = Some(self.decision.wake_at.map_or(time, |other| other.min(time)));
    }

    fn disturb(&mut self, seat: Seat) {
        let service = self.holder(seat).service as usize;
        if let Some(uneasy) = self.uneasy.get_mut(service) {
            *uneasy = true;
        }
    }

    /// Records which holders went down or came back, and removes those that have retired.
    fn holders(&mut self) {
        for holder in &self.facts.holders {
            let Some(seen) = &holder.record else { continue };
            let away = !holder.is_up() || holder.draining;
            if away && holder.copies > 0 && !holder.is_lost(self.policy, self.facts.now) {
                self.uneasy[holder.service as usize] = true;
            }
            match (holder.is_up(), seen.record.down_since) {
                // Nothing depends on since when: a holder that is just joining, for example.
                (false, None) if holder.copies + holder.load == 0 && !seen.record.retiring => {}
                (false, None) => self.decision.actions.push(Action::MarkDown {
                    holder: holder.id.clone(),
                    seen: seen.clone(),
                    since: self.facts.now,
                }),
                (true, Some(_)) => self
                    .decision
                    .actions
                    .push(Action::MarkUp { holder: holder.id.clone(), seen: seen.clone() }),
                (false, Some(_)) if holder.copies == 0 && seen.record.retiring => {
                    self.decision
                        .actions
                        .push(Action::Forget { holder: holder.id.clone(), seen: seen.clone() });
                }
                (false, Some(since)) if holder.copies > 0 => {
                    let due = since.saturating_add(self.policy.repair_after);
                    if due > self.facts.now {
                        self.wake_at(due);
                    }
                }
                (false, Some(_)) | (true, None) => {}
            }
        }
    }

    fn strays(&mut self) {
        for (log, seen) in &self.facts.strays {
            self.decision.actions.push(Action::ClearHandover { log: log.clone(), seen: seen.clone() });
        }
    }

    fn settle(&mut self, log: &LogFact) {
        self.settled[log.at] = true;
    }
}
