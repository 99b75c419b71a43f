//! What does a follower (or learner) do? Takes entries that continue its log, cuts what the primary does not have,
//! acknowledges what is durable.

use std::time::Duration;

use bytes::Bytes;

use super::message::Message;
use super::{Effect, Moment, Replica, Role};
use crate::config::LogConfig;
use crate::entry::{Entry, History, LogEpoch, Offset};
use crate::keys::HolderId;

/// The state of a follower besides its log.
#[derive(Clone, Debug)]
pub(super) struct Follower {
    epoch: LogEpoch,
    primary: HolderId,
    /// The offset up to which the own log matches the primary's.
    matched: Offset,
    /// The last acknowledged offset.
    acked: Offset,
    /// When the primary last sent something, or this copy last introduced itself.
    heard: Moment,
    /// When this copy last introduced itself, and its end at that time.
    introduced: (Moment, Offset),
    /// When the primary last sent something, and how long after the time before.
    told: (Moment, Duration),
}

impl Follower {
    /// When this copy introduces itself again.
    pub(super) fn impatient_at(&self, patience: Duration) -> Moment {
        self.heard + patience
    }
}

impl Replica {
    /// Follows the primary of a configuration; a change within the epoch has no effect.
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
            told: (self.now, Duration::ZERO),
        });
        self.introduce(effects);
    }

    /// Sends this copy's history to the primary.
    fn introduce(&mut self, effects: &mut Vec<Effect>) {
        let history = self.local.history.clone();
        let Role::Follower(follower) = &mut self.role else { return };
        follower.heard = self.now;
        follower.introduced = (self.now, history.end());
        let behind = Message::Behind { epoch: follower.epoch, life: self.life, history };
        effects.push(Effect::Send(follower.primary.clone(), behind));
    }

    /// Introduces this copy after a mismatch, once and not for each shipment in flight: the primary answers each
    /// introduction with a whole window, so the messages would multiply.
    fn introduce_once(&mut self, effects: &mut Vec<Effect>) {
        let Role::Follower(follower) = &self.role else { return };
        let (when, end) = follower.introduced;
        let said = end == self.local.history.end() && self.now.saturating_sub(when) < self.timing.heartbeat;
        if !said {
            self.introduce(effects);
        }
    }

    /// Introduces this copy again to a silent primary, which may not have received the last one.
    pub(super) fn introduce_again(&mut self, effects: &mut Vec<Effect>) {
        let Role::Follower(follower) = &self.role else { return };
        if self.now >= follower.impatient_at(self.patience(follower)) {
            self.introduce(effects);
        }
    }

    /// How long the primary may be silent: longer if the log is at rest.
    pub(super) fn patience(&self, follower: &Follower) -> Duration {
        let end = self.local.history.end();
        let at_rest = follower.matched == end && self.committed == end && self.local.durable == end;
        self.patience_after(if at_rest { follower.told.1 } else { Duration::ZERO })
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
        follower.told = (self.now, self.now.saturating_sub(follower.told.0));
        if self.local.history.epoch_before(at) != Some(epoch_before) {
            self.introduce_once(effects);
            return;
        }
        let upto = at.plus(entries.len());
        // Dropped entries were committed, so they matched; their epoch is not kept.
        let start = self.local.start;
        let known = |entry: &Entry| {
            entry.offset < start || self.local.history.epoch_at(entry.offset) == Some(entry.epoch)
        };
        let fresh: Vec<Entry> = entries.into_iter().skip_while(known).collect();
        if let Some(first) = fresh.first() {
            let conflict = first.offset;
            if conflict < self.local.history.end() && !self.cut(conflict, effects) {
                return;
            }
            for entry in &fresh {
                self.local.history.extend(entry.epoch, 1);
                self.newest_time = self.newest_time.max(entry.time);
            }
            effects.push(Effect::Write(self.local.generation, fresh));
        }
        let Role::Follower(follower) = &mut self.role else { return };
        follower.matched = follower.matched.max(upto);
        let agreed = committed.min(follower.matched);
        if agreed > self.committed {
            self.committed = agreed;
            effects.push(Effect::Committed(agreed));
            self.apply_floor(effects);
        }
        self.acknowledge(effects);
    }

    /// Drops the tail that the primary does not have. Committed entries are never cut.
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

    /// Whether a snapshot that ends with this history would be installed.
    #[must_use]
    pub fn wants_snapshot(&self, from: &HolderId, epoch: LogEpoch, history: &History) -> bool {
        let counts = self.known.as_ref().is_some_and(|known| known.config.is_in_sync(&self.me));
        let Role::Follower(follower) = &self.role else { return false };
        follower.primary == *from
            && follower.epoch == epoch
            && !counts
            && history.end() > follower.matched
            && self.local.history.agreement(history) < history.end()
    }

    /// Installs a snapshot: the primary has dropped what this copy lacks. An in-sync copy is complete and needs none.
    pub(super) fn install(
        &mut self,
        from: &HolderId,
        history: History,
        snapshot: Bytes,
        effects: &mut Vec<Effect>,
    ) {
        let wanted = self.wants_snapshot(from, self.epoch(), &history);
        let Role::Follower(follower) = &mut self.role else { return };
        if !wanted {
            return;
        }
        follower.heard = self.now;
        let start = history.end();
        // The snapshot has everything committed here: it comes from a primary, and ends at committed entries.
        follower.matched = start;
        self.local.generation += 1;
        self.local.start = start;
        self.local.durable = Offset::ZERO;
        self.local.history = history.clone();
        self.committed = start;
        effects.push(Effect::Reset(self.local.generation, history, snapshot));
    }

    /// Acknowledges what is durable, if it is more than before.
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
        let ack = Message::Ack { epoch: follower.epoch, life: self.life, durable: follower.acked };
        effects.push(Effect::Send(follower.primary.clone(), ack));
    }
}

/// Whether entries have consecutive offsets from this one on; received entries are not trusted.
fn follows_on(at: Offset, entries: &[Entry]) -> bool {
    entries.iter().enumerate().all(|(index, entry)| entry.offset == at.plus(index))
}
