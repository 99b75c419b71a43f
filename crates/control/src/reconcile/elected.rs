//! How does a controller run in one place only? Campaign, begin a term, reconcile until fenced, and again.

use std::time::Duration;

use capstan_meta::election::{Election, Leadership};
use capstan_meta::embedded::RESTORE_RAISE;
use capstan_meta::record::Key;
use capstan_meta::{Detail, Range, Remedy, Revision, Store, Txn, clock};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Authority, Controller, LoopEnd, Reconciler};
use crate::epoch::{Bump, Epoch};

/// The time after which a new leader that cannot begin its term steps down and campaigns again.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);

/// Pause between attempts to raise a term above what the receivers have.
const OUTDATED_PAUSE: Duration = Duration::from_millis(100);

/// The election of a leader, and the key that counts its terms.
#[derive(Debug)]
pub struct Elected<K> {
    /// The candidate.
    pub election: Election,
    /// Counts the leaders so far.
    pub term_key: K,
}

/// Runs a controller whenever this process leads. Ends when it is stopped or its session is closed.
pub async fn run_elected<C: Controller, K: Key<Record = Epoch>>(
    reconciler: &Reconciler<C>,
    elected: &mut Elected<K>,
    stop: &CancellationToken,
) {
    while !stop.is_cancelled() {
        let leadership = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            leadership = elected.election.campaign() => leadership,
        };
        let Some(leadership) = leadership else { return };
        let mut skip = 0;
        while let Ok(Some(term)) =
            timeout(BEGIN_WITHIN, begin_term(&reconciler.store, &elected.term_key, &leadership, skip)).await
        {
            let authority = Authority::Leader { leadership: leadership.clone(), term };
            let end = reconciler.run(&authority, stop).await;
            let controller = reconciler.controller.name();
            match end {
                // The store was restored from an older copy, and the terms with it. The receivers' terms are unknown:
                // each attempt goes twice as far, so that a few attempts reach any term.
                LoopEnd::Outdated => {
                    skip = if skip == 0 { 1 } else { skip.saturating_mul(2) };
                    tracing::error!(controller, %term, "receiver has a later term, the store was rolled back; raising the term");
                    sleep(OUTDATED_PAUSE).await;
                    continue;
                }
                LoopEnd::Blind => {
                    resign(leadership).await;
                    return;
                }
                LoopEnd::Stopped | LoopEnd::Fenced => {}
            }
            tracing::info!(controller, %term, ?end, "leadership ended");
            break;
        }
        resign(leadership).await;
    }
    timeout(BEGIN_WITHIN, elected.election.withdraw()).await.ok();
}

/// If this fails, the lease ends the leadership a little later.
async fn resign(leadership: Leadership) {
    if let Ok(Err(error)) = timeout(BEGIN_WITHIN, leadership.resign()).await {
        tracing::debug!(%error, "cannot resign");
    }
}

/// The leader's first transaction: increments its term, skipping terms that may be in use already. `None` if it does
/// not lead any more.
///
/// An unknown outcome costs one more term at worst: terms have gaps, but no two leaders ever share one.
async fn begin_term<K: Key<Record = Epoch>>(
    store: &Store,
    key: &K,
    leadership: &Leadership,
    skip: u64,
) -> Option<Epoch> {
    while leadership.is_valid() {
        match try_begin(store, key, leadership, skip).await {
            Ok(Some(term)) => return Some(term),
            Ok(None) => {
                if let Ok(false) = leadership.confirm().await {
                    return None;
                }
            }
            Err(remedy) => match remedy {
                Remedy::Retry | Remedy::Refresh => {}
                Remedy::Fenced | Remedy::Reject | Remedy::Report => return None,
            },
        }
        sleep(Duration::from_millis(100)).await;
    }
    None
}

/// How many terms may have been counted and lost between the last one that is known and now.
///
/// A restore makes the store go on [`RESTORE_RAISE`] revisions behind its snapshot, and the terms of the time between are
/// lost. Leaders acted in them, and receivers may know them. So the first leader after a restore goes as many terms further
/// as microseconds have passed since 1970: more than there ever were, and more than after an earlier restore of the same
/// snapshot.
fn lost_terms(counted: Revision, now: Revision, since_epoch: Duration) -> u64 {
    if now.0.saturating_sub(counted.0) < RESTORE_RAISE {
        return 0;
    }
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

async fn try_begin<K: Key<Record = Epoch>>(
    store: &Store,
    key: &K,
    leadership: &Leadership,
    skip: u64,
) -> Result<Option<Epoch>, Remedy> {
    let seen = store.read(key).await.map_err(|error| {
        tracing::warn!(%error, "cannot read term");
        error.remedy()
    })?;
    let now = store.range(Range::one(key.path()).detail(Detail::CountOnly)).await;
    let now = now.map_err(|error| error.remedy())?.revision;
    let counted = seen.as_ref().map_or(Revision::ZERO, |seen| seen.mod_revision);
    let skip = skip.max(lost_terms(counted, now, clock::since_epoch()));
    let bump = Bump::of(key, seen.as_ref()).further(key, skip);
    let term = bump.to;
    let begin = bump.within(Txn::new().when(leadership.guard()));
    let result = store.commit(begin).await.map_err(|error| error.remedy())?;
    Ok(result.succeeded.then_some(term))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_skipped_only_after_a_restore_and_each_time_further() {
        let (first, later) = (Duration::from_micros(5), Duration::from_micros(9));
        assert_eq!(lost_terms(Revision(7), Revision(900_000_000), first), 0);
        assert_eq!(lost_terms(Revision(7), Revision(7 + RESTORE_RAISE), first), 5);
        assert_eq!(lost_terms(Revision(7), Revision(7 + RESTORE_RAISE), later), 9);
        assert_eq!(lost_terms(Revision::ZERO, Revision(RESTORE_RAISE + 3), later), 9);
    }
}
