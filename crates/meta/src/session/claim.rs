//! May a process have a key that another one is registered under? Pure: what the store says is handed in.
//!
//! The other one is alive if it renews its lease, and gone if it has missed a renewal; until one of both is seen, wait.

use std::time::Duration;

use bytes::Bytes;

use crate::kv::{KeyValue, LeaseId};
use crate::request::LeaseInfo;

/// A key that was to be claimed is held by another process, which is alive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{key} is in use by another process, which registered as {holder}; stop that one, or choose another name"
)]
pub struct Taken {
    /// The key.
    pub key: String,
    /// What the other process says about itself.
    pub holder: String,
}

impl Taken {
    pub(super) fn by(key: &Bytes, holder: &KeyValue) -> Taken {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        Taken { key: text(key), holder: text(&holder.value) }
    }
}

/// A look at the lease that another process holds a key by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sight {
    lease: LeaseId,
    ttl: Duration,
    remaining: Duration,
}

impl Sight {
    pub(super) fn new(lease: LeaseId, info: &LeaseInfo) -> Sight {
        Sight { lease, ttl: info.granted_ttl, remaining: info.remaining }
    }
}

/// What two looks say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// It renewed its lease.
    Alive,
    /// It should have renewed its lease and did not.
    Gone,
    /// It may be either.
    Unclear,
}

/// Leases are renewed after a third of their time. One that has lost more than half (and a second, because the store
/// counts whole ones) has missed a renewal.
pub(super) fn judge(before: Option<Sight>, now: Sight) -> Holder {
    let renewed = |before: Sight| before.lease == now.lease && now.remaining > before.remaining;
    if before.is_some_and(renewed) {
        Holder::Alive
    } else if now.remaining + Duration::from_secs(1) < now.ttl / 2 {
        Holder::Gone
    } else {
        Holder::Unclear
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(lease: i64, remaining: u64) -> Sight {
        let (ttl, remaining) = (Duration::from_secs(10), Duration::from_secs(remaining));
        Sight { lease: LeaseId(lease), ttl, remaining }
    }

    #[test]
    fn every_pair_of_looks() {
        for (before, now, holder) in [
            (None, sight(1, 9), Holder::Unclear),
            (None, sight(1, 3), Holder::Gone),
            (Some(sight(1, 9)), sight(1, 7), Holder::Unclear),
            (Some(sight(1, 7)), sight(1, 7), Holder::Unclear),
            (Some(sight(1, 7)), sight(1, 9), Holder::Alive),
            (Some(sight(1, 4)), sight(1, 3), Holder::Gone),
            (Some(sight(1, 4)), sight(2, 9), Holder::Unclear),
        ] {
            assert_eq!(judge(before, now), holder, "{before:?}, then {now:?}");
        }
    }
}
