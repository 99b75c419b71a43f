//! What does a follower (or learner) do? Takes what fits, cuts what the primary does not have, says what is durable.

use bytes::Bytes;

use super::message::Message;
use super::{Effect, Moment, Replica, Role};
use crate::config::LogConfig;
use crate::entry::{Entry, History, LogEpoch, Offset};
use crate::keys::HolderId;

/// What a follower knows beside its own log.
#[derive(Clone, Debug)]
pub(super) struct Follower {
    epoch: LogEpoch,
    primary: HolderId,
    /// Up to here the own log is known to be the primary's.
    matched: Offset,
    /// What was last acknowledged.
    acked: Offset,
    /// When the primary was last heard, or told what this copy has.
    heard: Moment,
    /// When it was last told, and up to where this copy went then.
    introduced: (Moment, Offset),
}

impl Replica {
    /// Follows the primary of a configuration; a change within the epoch changes nothing.
    pub(super) fn follow(&mut self, config: &LogConfig, effects: &mut Vec<Effect>) {
        if matches!(&self.role, Role::Follower(follower) if follower.epoch == config.epoch) {
            return;
        }
        self.role = Role::Follower(Follower {
            epoch: config.epoch,
            primary: config.primary.clone(),
            matched: Offset::ZERO,
            acked: Offset::ZERO,
            heard: self.now,
            introduced: (self.now, Offset::ZERO),
        });
        self.introduce(effects);
    }

    /// Tells the primary what this copy has.
    fn introduce(&mut self, effects: &mut Vec<Effect>) {
        let history = self.local.history.clone();
        let Role::Follower(follower) = &mut self.role else { return };
        follower.heard = self.now;
        follower.introduced = (self.now, history.end());
        let behind = Message::Behind { epoch: follower.epoch, history };
        effects.push(Effect::Send(follower.primary.clone(), behind));
    }

    /// Something does not fit. The primary is told once and not for each of the shipments that are on their way: it
    /// answers each time with a whole window of them, and the two would answer each other ever faster.
    fn introduce_once(&mut self, effects: &mut Vec<Effect>) {
        let Role::Follower(follower) = &self.role else { return };
        let (when, end) = follower.introduced;
        let said = end == self.local.history.end() && self.now.saturating_sub(when) < self.timing.heartbeat;
        if !said {
            self.introduce(effects);
        }
    }

    /// A silent primary may never have been told.
    pub(super) fn introduce_again(&mut self, effects: &mut Vec<Effect>) {
        let Role::Follower(follower) = &self.role else { return };
        if self.now.saturating_sub(follower.heard) >= self.timing.resend {
            self.introduce(effects);
        }
    }

    pub(super) fn take(
        &mut self,
        from: &HolderId,
        epoch_before: LogEpoch,
        at: Offset,
        entries: Vec<Entry>,
        committed: Offset,
        effects: &mut Vec<Effect>,
    ) {
        let Role::Follower(follower) = &mut self.role else { return };
        if follower.primary != *from || !follows_on(at, &entries) {
            return;
        }
        follower.heard = self.now;
        if self.local.history.epoch_before(at) != Some(epoch_before) {
            self.introduce_once(effects);
            return;
        }
        let upto = at.plus(entries.len());
        let known = |entry: &Entry| self.local.history.epoch_at(entry.offset) == Some(entry.epoch);
        let fresh: Vec<Entry> = entries.into_iter().skip_while(known).collect();
        if let Some(first) = fresh.first() {
            let conflict = first.offset;
            if conflict < self.local.history.end() && !self.cut(conflict, effects) {
                return;
            }
            fresh.iter().for_each(|entry| self.local.history.extend(entry.epoch, 1));
            effects.push(Effect::Write(self.local.generation, fresh));
        }
        let Role::Follower(follower) = &mut self.role else { return };
        follower.matched = follower.matched.max(upto);
        let agreed = committed.min(follower.matched);
        if agreed > self.committed {
            self.committed = agreed;
            effects.push(Effect::Committed(agreed));
        }
        self.acknowledge(effects);
    }

    /// Forgets the tail that the primary does not have. What is known to be committed is never cut.
    fn cut(&mut self, from: Offset, effects: &mut Vec<Effect>) -> bool {
        if from < self.committed {
            self.role = Role::Halted;
            effects.push(Effect::Diverged(from));
            return false;
        }
        self.local.generation += 1;
        self.local.history.cut(from);
        self.local.durable = self.local.durable.min(from);
        effects.push(Effect::Cut(self.local.generation, from));
        true
    }

    /// The primary has nothing left of what this copy lacks. A copy that counts is complete and needs no such thing.
    pub(super) fn install(
        &mut self,
        from: &HolderId,
        history: History,
        snapshot: Bytes,
        effects: &mut Vec<Effect>,
    ) {
        let counts = self.known.as_ref().is_some_and(|known| known.config.is_in_sync(&self.me));
        let Role::Follower(follower) = &mut self.role else { return };
        if follower.primary != *from || counts || history.end() <= follower.matched {
            return;
        }
        follower.heard = self.now;
        let start = history.end();
        if self.local.history.agreement(&history) >= start {
            return;
        }
        // The snapshot has everything that was committed here: it comes from a primary, and ends at committed entries.
        follower.matched = start;
        self.local.generation += 1;
        self.local.start = start;
        self.local.durable = Offset::ZERO;
        self.local.history = history.clone();
        self.committed = start;
        effects.push(Effect::Reset(self.local.generation, history, snapshot));
    }

    /// Says what is durable, if there is more of it than was said before.
    pub(super) fn acknowledge_progress(&mut self, effects: &mut Vec<Effect>) {
        let Role::Follower(follower) = &self.role else { return };
        if follower.matched.min(self.local.durable) > follower.acked {
            self.acknowledge(effects);
        }
    }

    fn acknowledge(&mut self, effects: &mut Vec<Effect>) {
        let durable = self.local.durable;
        let Role::Follower(follower) = &mut self.role else { return };
        follower.acked = follower.matched.min(durable);
        let ack = Message::Ack { epoch: follower.epoch, durable: follower.acked };
        effects.push(Effect::Send(follower.primary.clone(), ack));
    }
}

/// Whether entries stand at consecutive offsets from this one: what the wire brings is not believed.
fn follows_on(at: Offset, entries: &[Entry]) -> bool {
    entries.iter().enumerate().all(|(index, entry)| entry.offset == at.plus(index))
}
