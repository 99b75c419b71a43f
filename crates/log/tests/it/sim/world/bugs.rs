//! The planted bugs: what a broken build would do, done to the events and messages of the machine that is not broken.

use super::*;

/// The planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    AcknowledgeBeforeSync,
    /// Some syncs are left out and reported as done.
    SkipSync,
    ElectAnyone,
    /// The controller adds a holder to the in-sync set that may lack entries.
    GrowTooEarly,
    SkipCut,
    /// Nothing is refused because of too few copies.
    IgnoreMinCopies,
    /// A primary commits what it has itself, whatever the others have.
    CountOnlyItself,
    /// A primary uses its lease for too long.
    TrustTheLeaseTooLong,
    /// A primary serves reads whether it has a lease or not.
    ReadWithoutLease,
    /// A primary shows its log before the first entry of its epoch is committed.
    ServeBeforeBegin,
    /// A copy that lost entries does not report it.
    KeepALossSecret,
    /// A copy that lost entries leaves the in-sync set, but its earlier acknowledgments still count.
    BelieveEarlierLives,
    /// Acknowledgments of an earlier epoch count in this one.
    BelieveEarlierEpochs,
    /// A follower takes entries of a primary that was replaced.
    ObeyOldPrimaries,
    /// A follower takes entries that do not continue its log.
    SkipTheMatch,
    /// A follower acknowledges everything it has, whether it matches the primary's log or not.
    AcknowledgeTheUnmatched,
    /// A change that may have happened is reported as one that did not.
    ForgetAProposal,
    /// What was durable before a cut counts for what was written after it.
    IgnoreGenerations,
}

impl World {
    /// An event as a broken build would deliver it.
    pub(super) fn twisted(&self, id: &HolderId, event: Event) -> Event {
        match (self.bug, event) {
            (Bug::IgnoreMinCopies, Event::Configured(config, revision)) => {
                Event::Configured(LogConfig { min_copies: 1, ..config }, revision)
            }
            (Bug::CountOnlyItself, Event::Configured(config, revision)) if config.primary == *id => {
                let in_sync = vec![id.clone()];
                Event::Configured(LogConfig { min_copies: 1, in_sync, ..config }, revision)
            }
            (Bug::TrustTheLeaseTooLong, Event::Leased(until)) => Event::Leased(until + LEASE * 2),
            (_, event) => event,
        }
    }

    /// A message as a broken build would understand it.
    pub(super) fn received(&self, to: &HolderId, from: HolderId, mut message: Message) -> Event {
        let Some(replica) = &self.nodes[to].replica else { return Event::Received(from, message) };
        let present = replica.epoch();
        let old = message.epoch() < present;
        match (self.bug, &mut message) {
            (Bug::BelieveEarlierEpochs, Message::Ack { epoch, .. }) if old => *epoch = present,
            (Bug::ObeyOldPrimaries, Message::Append { epoch, .. }) if old => {
                *epoch = present;
                let config = replica.status(self.now).config;
                return Event::Received(config.map_or(from, |config| config.primary), message);
            }
            (Bug::SkipTheMatch, Message::Append { epoch_before, from: at, .. }) => {
                *epoch_before = replica.history().epoch_before(*at).unwrap_or(*epoch_before);
            }
            _ => {}
        }
        Event::Received(from, message)
    }

    /// A message as a broken build would send it.
    pub(super) fn sent(&self, from: &HolderId, mut message: Message) -> Message {
        if let (Bug::AcknowledgeTheUnmatched, Message::Ack { durable, .. }) = (self.bug, &mut message) {
            *durable = Offset(self.nodes[from].disk.durable.end());
        }
        message
    }

    /// Whether this sync is left out.
    pub(super) fn skips_sync(&mut self) -> bool {
        self.bug == Bug::SkipSync && self.rng.random_bool(0.3)
    }
}
