//! Which coordinators may grant without the store? Each has a durable record, written before its first grant and removed
//! on a clean stop, or after it was missing for longer than it grants without the store.
//!
//! The record is keyed by the controller's name, so a restarted controller replaces the record of its previous run.
//! Verdicts depend on it (`verdict`): a proxy that no reporter ever reached is dead only if every coordinator that could
//! grant it without the store reports it too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use capstan_control::keys::HostId;
use capstan_meta::backoff::Backoff;
use capstan_meta::record::Key;
use capstan_meta::{MetaError, Remedy, Store, Txn};
use tokio::time::{Instant, sleep, timeout};

use super::watch::Shared;
use crate::facts::Tree;
use crate::keys::{GranterKey, ReportId};

/// How often a record that may not have been written is written again before the start fails.
const TRIES: u32 = 5;
/// Shortest and longest wait between the tries.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Writes the record, in place of that of the controller's previous run. Writing it twice is as good as once.
pub(super) async fn announce(
    store: &Store,
    me: &GranterKey,
    life: &ReportId,
    seed: u64,
) -> Result<(), MetaError> {
    let mut pauses = Backoff::new(PAUSE.0, PAUSE.1, seed);
    loop {
        match store.commit(Txn::new().then(me.put(life))).await {
            Ok(_) => return Ok(()),
            Err(error)
                if matches!(error.remedy(), Remedy::Retry | Remedy::Refresh) && pauses.failures() < TRIES =>
            {
                tracing::debug!(%error, "cannot write the record of a granter yet, will retry");
                sleep(pauses.next_wait()).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Removes the own record. The caller grants nothing any more.
pub(super) async fn leave<P>(shared: &Shared<P>) {
    let tree = shared.newest();
    let Some(seen) = tree.granters.get(&shared.granter.controller) else { return };
    if seen.record != shared.me.report_id {
        return;
    }
    let gone = Txn::new().when(shared.granter.unchanged(seen)).then(shared.granter.delete());
    if let Err(error) = shared.store.commit(gone).await {
        tracing::debug!(%error, "record of a granter stays until it has been missing for long");
    }
}

/// Maintains the own record, and removes the records of coordinators that have been missing for too long to grant.
pub(super) async fn keep<P>(shared: Arc<Shared<P>>) {
    let mut trees = shared.trees.clone();
    let mut missing: BTreeMap<HostId, (ReportId, Instant)> = BTreeMap::new();
    loop {
        let tree = trees.see();
        if shared.is_fresh() {
            observe(&mut missing, &tree, Instant::now());
            let since = |at: &Instant| at.elapsed() >= shared.timing.surely_silent();
            let over = missing.iter().filter(|(_, (_, at))| since(at)).map(|(controller, _)| controller);
            for controller in over {
                remove(&shared.store, &tree, controller).await;
            }
            if !tree.granters.contains_key(&shared.granter.controller) {
                restore(&shared).await;
            }
        }
        // Wakes up on a change, and often enough to notice that a coordinator has been missing for long.
        if let Ok(Err(_)) = timeout(shared.timing.fresh_within, trees.changed()).await {
            return;
        }
    }
}

/// Updates since when the coordinator of each record is not registered.
fn observe(missing: &mut BTreeMap<HostId, (ReportId, Instant)>, tree: &Tree, now: Instant) {
    let alive = tree.alive();
    let is_missing = |controller: &HostId, life: &ReportId| {
        let granter = tree.granters.get(controller);
        granter.is_some_and(|seen| seen.record == *life) && !alive.contains(life)
    };
    missing.retain(|controller, (life, _)| is_missing(controller, life));
    for (controller, seen) in tree.granters.iter().filter(|(_, seen)| !alive.contains(&seen.record)) {
        missing.entry(controller.clone()).or_insert_with(|| (seen.record.clone(), now));
    }
}

async fn remove(store: &Store, tree: &Tree, controller: &HostId) {
    let Some(seen) = tree.granters.get(controller) else { return };
    let key = GranterKey { controller: controller.clone() };
    match store.commit(Txn::new().when(key.unchanged(seen)).then(key.delete())).await {
        Ok(_) => tracing::info!(%controller, "coordinator missing for long; it grants nothing any more"),
        Err(error) => tracing::debug!(%controller, %error, "record of a missing coordinator not removed"),
    }
}

/// Writes the own record again after others removed it during an outage. Grants resume when the view shows it.
async fn restore<P>(shared: &Shared<P>) {
    let txn = Txn::new().when(shared.granter.absent()).then(shared.granter.put(&shared.me.report_id));
    if let Err(error) = shared.store.commit(txn).await {
        tracing::debug!(%error, "own record of a granter not written");
    }
}
