//! When is a lease renewed, until when may its owner act, and when is it lost? Pure: time is handed in.

use std::time::Duration;

use tokio::time::Instant;

use super::SessionState;
use crate::clock::Moment;
use crate::kv::LeaseId;

/// What is known about the process's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    /// There is none.
    Nothing,
    /// It lives for `ttl` from some moment after `sent_at`.
    Lease { lease: LeaseId, ttl: Duration, sent_at: Moment },
}

/// What the store said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Granted {
        lease: LeaseId,
        ttl: Duration,
        sent_at: Moment,
    },
    Renewed {
        ttl: Duration,
        sent_at: Moment,
    },
    /// There is no such lease.
    Gone,
    /// No answer, or no useful one.
    Nothing,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Grant,
    Renew { lease: LeaseId, at: Instant },
}

impl Keeping {
    pub(super) fn step(self, heard: Heard) -> Keeping {
        match (self, heard) {
            (_, Heard::Granted { lease, ttl, sent_at }) => Keeping::Lease { lease, ttl, sent_at },
            (Keeping::Lease { lease, .. }, Heard::Renewed { ttl, sent_at }) => {
                Keeping::Lease { lease, ttl, sent_at }
            }
            (Keeping::Nothing, Heard::Renewed { .. } | Heard::Gone) | (_, Heard::Gone) => Keeping::Nothing,
            // Silence is not a loss: only the store knows. The owner stops by its deadline meanwhile.
            (kept, Heard::Nothing) => kept,
        }
    }

    pub(super) fn act(self) -> Act {
        match self {
            Keeping::Nothing => Act::Grant,
            Keeping::Lease { lease, ttl, sent_at } => Act::Renew { lease, at: sent_at.at + ttl / 3 },
        }
    }

    pub(super) fn state(self, margin: Duration) -> SessionState {
        match self {
            Keeping::Nothing => SessionState::Lost,
            Keeping::Lease { lease, ttl, sent_at } => {
                let until = sent_at.at + ttl.saturating_sub(margin);
                SessionState::Live { lease, until, suspended: sent_at.suspended }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(9);
    const MARGIN: Duration = Duration::from_secs(2);
    const LEASE: LeaseId = LeaseId(7);

    const SUSPENDED: Duration = Duration::from_secs(50);

    fn sent(at: Instant) -> Moment {
        Moment { at, suspended: SUSPENDED }
    }

    #[test]
    fn every_state_and_answer() {
        let start = sent(Instant::now());
        let later = sent(start.at + Duration::from_secs(3));
        let kept = |sent_at| Keeping::Lease { lease: LEASE, ttl: TTL, sent_at };
        let granted = Heard::Granted { lease: LEASE, ttl: TTL, sent_at: start };
        let renewed = Heard::Renewed { ttl: TTL, sent_at: later };
        for (before, heard, after) in [
            (Keeping::Nothing, granted, kept(start)),
            (Keeping::Nothing, renewed, Keeping::Nothing),
            (Keeping::Nothing, Heard::Gone, Keeping::Nothing),
            (Keeping::Nothing, Heard::Nothing, Keeping::Nothing),
            (kept(later), granted, kept(start)),
            (kept(start), renewed, kept(later)),
            (kept(start), Heard::Gone, Keeping::Nothing),
            (kept(start), Heard::Nothing, kept(start)),
        ] {
            assert_eq!(before.step(heard), after, "{before:?} heard {heard:?}");
        }
    }

    #[test]
    fn the_owner_stops_a_margin_before_the_store_can_end_the_lease() {
        let start = Instant::now();
        let kept = Keeping::Lease { lease: LEASE, ttl: TTL, sent_at: sent(start) };
        assert_eq!(kept.act(), Act::Renew { lease: LEASE, at: start + TTL / 3 });
        let state = kept.state(MARGIN);
        let live = |until| SessionState::Live { lease: LEASE, until, suspended: SUSPENDED };
        assert_eq!(state, live(start + TTL - MARGIN));
        assert_eq!(state.lease_at(start + TTL - MARGIN - Duration::from_millis(1), SUSPENDED), Some(LEASE));
        assert_eq!(state.lease_at(start + TTL - MARGIN, SUSPENDED), None);
        assert_eq!(Keeping::Nothing.state(MARGIN), SessionState::Lost);
        assert_eq!(kept.state(2 * TTL), live(start), "never in the past of it");
    }
}
