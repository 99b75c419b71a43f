//! How does a controller run in one place only? Campaign, begin a term, reconcile until fenced, and again.

use std::time::Duration;

use capstan_meta::election::{Election, Leadership};
use capstan_meta::record::Key;
use capstan_meta::{Remedy, Store, Txn};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Authority, Controller, LoopEnd, Reconciler};
use crate::epoch::{Bump, Epoch};

/// A new leader that cannot begin its term for so long steps down and stands again.
const BEGIN_WITHIN: Duration = Duration::from_secs(5);

/// Where a leader comes from and where its terms are counted.
#[derive(Debug)]
pub struct Elected<K> {
    /// The candidate.
    pub election: Election,
    /// Counts the leaders that there were.
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
        let begun =
            timeout(BEGIN_WITHIN, begin_term(&reconciler.store, &elected.term_key, &leadership)).await;
        if let Ok(Some(term)) = begun {
            let authority = Authority::Leader { leadership: leadership.clone(), term };
            let end = reconciler.run(&authority, stop).await;
            tracing::info!(controller = reconciler.controller.name(), %term, ?end, "leadership ended");
            if end == LoopEnd::Blind {
                resign(leadership).await;
                return;
            }
        }
        resign(leadership).await;
    }
    timeout(BEGIN_WITHIN, elected.election.withdraw()).await.ok();
}

/// If this fails, the lease ends the leadership a little later.
async fn resign(leadership: Leadership) {
    if let Ok(Err(error)) = timeout(BEGIN_WITHIN, leadership.resign()).await {
        tracing::debug!(%error, "resigning failed");
    }
}

/// The leader's first transaction: counts its term. Nothing if it does not lead (any more).
///
/// An unknown outcome counts once more at worst: terms have gaps, but no two leaders ever share one.
async fn begin_term<K: Key<Record = Epoch>>(
    store: &Store,
    key: &K,
    leadership: &Leadership,
) -> Option<Epoch> {
    while leadership.is_valid() {
        match try_begin(store, key, leadership).await {
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

async fn try_begin<K: Key<Record = Epoch>>(
    store: &Store,
    key: &K,
    leadership: &Leadership,
) -> Result<Option<Epoch>, Remedy> {
    let seen = store.read(key).await.map_err(|error| {
        tracing::warn!(%error, "term cannot be read");
        error.remedy()
    })?;
    let bump = Bump::of(key, seen.as_ref());
    let term = bump.to;
    let begin = bump.within(Txn::new().when(leadership.guard()));
    let result = store.commit(begin).await.map_err(|error| error.remedy())?;
    Ok(result.succeeded.then_some(term))
}
