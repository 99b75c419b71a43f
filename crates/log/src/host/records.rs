//! What do the records in the metadata store mean for this host? Open logs receive their configurations, copies of
//! deleted logs are deleted, and a directory that the store does not know has lost everything.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use capstan_meta::Store;
use capstan_meta::record::{Key, Stored};
use capstan_meta::view::{Delta, View};

use super::Shared;
use crate::disk::Disk;
use crate::error::LogError;
use crate::keys::{GraveKey, GraveKeys, HolderId, LogKey, LogName};
use crate::referee;

/// Pause before the deletion of a copy is retried.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Registers this directory as the holder's; returns the number of starts. If the holder had another directory before,
/// its copies are lost, whatever this one holds: each leaves its in-sync set before it does anything else.
pub(super) async fn begin(store: &Store, me: &HolderId, disk: &Disk) -> Result<u64, LogError> {
    let known = referee::directory(store, me).await?;
    if known.is_some_and(|known| known.id != disk.id()) {
        tracing::error!(
            holder = %me,
            "log directory is not the one this holder had before, copies catch up from other holders; check that the disk is mounted"
        );
        disk.distrust().await?;
    }
    referee::start(store, me, disk.id()).await
}

/// Passes changed configurations to open logs, and deletes copies of deleted logs.
pub(super) async fn follow(shared: Arc<Shared>, view: View) {
    let mut changes = view.changes();
    let mut buried = graves(&shared, &view);
    loop {
        let pause = if buried.is_empty() { Duration::MAX } else { TRY_AGAIN };
        bury(&shared, &mut buried).await;
        tokio::select! {
            delta = changes.next() => {
                let Some(delta) = delta else { return };
                tell(&shared, &delta);
                buried = graves(&shared, &view);
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn tell(shared: &Arc<Shared>, delta: &Delta) {
    for change in delta.changes() {
        let Some(either) = change.after.or(change.before) else { continue };
        let Some(key) = LogKey::parse(&either.key_text()) else { continue };
        let Some(kv) = change.after else {
            // Without a record the log is closed; the copy stays on disk until a tombstone exists.
            tracing::warn!(log = %key.log, "log record is gone, log closed");
            shared.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&key.log);
            continue;
        };
        match Stored::decode::<LogKey>(kv) {
            Ok(stored) => {
                let mut open = shared.open.lock().unwrap_or_else(PoisonError::into_inner);
                match open.get(&key.log) {
                    // Deleted and created again: the open copy belongs to the deleted log.
                    Some(opened) if opened.incarnation < stored.record.incarnation => {
                        open.remove(&key.log);
                    }
                    Some(opened) => opened.configure(stored.record, stored.mod_revision),
                    None => {}
                }
            }
            Err(bad) => tracing::error!(log = %key.log, %bad, "cannot parse log configuration"),
        }
    }
}

/// Deleted logs of which this host may have a copy.
fn graves(shared: &Arc<Shared>, view: &View) -> BTreeSet<LogName> {
    let me = &shared.options.me;
    let listing = view.snapshot().list(&GraveKeys {});
    let mine = listing.iter().filter(|(_, grave)| grave.record.holders.contains(me));
    mine.map(|(key, _): (&GraveKey, _)| key.log.clone()).collect()
}

async fn bury(shared: &Arc<Shared>, logs: &mut BTreeSet<LogName>) {
    for log in std::mem::take(logs) {
        let deleted = match shared.delete(&log).await {
            // Created again in the meantime, with a copy here: the earlier copy is gone.
            Err(LogError::Refused(_)) => Ok(()),
            outcome => outcome,
        };
        let noted = match deleted {
            Ok(()) => referee::buried(&shared.store, &log, &shared.options.me).await,
            Err(error) => Err(error),
        };
        if let Err(error) = noted {
            tracing::warn!(%log, %error, "cannot delete copy of deleted log, will retry");
            logs.insert(log);
        }
    }
}
