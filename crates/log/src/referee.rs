//! How is a configuration changed? By transactions that are guarded by the revision at which it was read.

use capstan_meta::record::{Key, Stored};
use capstan_meta::{Compare, Remedy, Revision, Store, Txn};

use crate::config::{LogConfig, Refused};
use crate::error::LogError;
use crate::keys::{HolderId, LogKey, LogName};

/// How often a change is begun anew because somebody else changed the record first.
const ATTEMPTS: usize = 16;

/// What became of a guarded change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was made, at this revision.
    Made(Revision),
    /// The record had changed: nothing was done.
    Stale,
    /// The store surely did nothing.
    NotDone,
    /// Nobody knows; ask again with the same guard.
    Unknown,
}

/// Makes a log known, on these holders, the first of which is the primary. One that is known already is left alone.
pub async fn create(
    store: &Store,
    log: &LogName,
    holders: Vec<HolderId>,
    min_copies: usize,
) -> Result<LogConfig, LogError> {
    let key = LogKey { log: log.clone() };
    let config = LogConfig::new(holders, min_copies)?;
    store.commit(Txn::new().when(key.absent()).then(key.put(&config))).await?;
    Ok(read(store, log).await?.record)
}

/// The configuration as it is now.
pub async fn read(store: &Store, log: &LogName) -> Result<Stored<LogConfig>, LogError> {
    let key = LogKey { log: log.clone() };
    store.read(&key).await?.ok_or_else(|| LogError::NoSuchLog(log.clone()))
}

/// Changes the configuration by a pure function; begins anew if somebody else was faster. For controllers.
pub async fn change(
    store: &Store,
    log: &LogName,
    mut next: impl FnMut(&LogConfig) -> Result<LogConfig, Refused>,
) -> Result<LogConfig, LogError> {
    for _ in 0..ATTEMPTS {
        let seen = read(store, log).await?;
        let config = next(&seen.record)?;
        match propose(store, log, seen.mod_revision, &config).await {
            Outcome::Made(_) => return Ok(config),
            Outcome::Stale | Outcome::NotDone | Outcome::Unknown => {}
        }
    }
    Err(LogError::Contended(log.clone()))
}

/// Writes this configuration if the record is still at this revision.
pub async fn propose(store: &Store, log: &LogName, guard: Revision, config: &LogConfig) -> Outcome {
    let key = LogKey { log: log.clone() };
    let txn = Txn::new().when(Compare::mod_revision(key.bytes(), guard)).then(key.put(config));
    match store.commit(txn).await {
        Ok(result) if result.succeeded => Outcome::Made(result.revision),
        Ok(_) => Outcome::Stale,
        Err(error) if error.remedy() == Remedy::Refresh => Outcome::Unknown,
        Err(_) => Outcome::NotDone,
    }
}
