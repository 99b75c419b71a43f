//! Commits configuration changes: transactions guarded by the revisions at which the records were read.

use std::collections::BTreeMap;
use std::time::Duration;

use capstan_meta::backoff::Backoff;
use capstan_meta::record::{Extra, Key, Stored};
use capstan_meta::settle::{Contended, Next, Progress, settle};
use capstan_meta::{Compare, MetaError, OpResult, Remedy, Revision, Store, Txn};

use crate::config::{Directory, Grave, Incarnation, LogConfig, Refused};
use crate::error::LogError;
use crate::keys::{DirectoryKey, GraveKey, HolderId, LogKey, LogName};

/// Records per transaction. The store accepts 128 operations.
pub const MAX_BATCH: usize = 100;

/// Failed guards and unknown outcomes in a row before a change gives up, and the pauses between them.
const ATTEMPTS: u32 = 24;
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));

/// The outcome of a guarded change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Committed at this revision.
    Made(Revision),
    /// The record had changed; nothing was done.
    Stale,
    /// The store definitely did nothing.
    NotDone,
    /// The outcome is unknown; repeat with the same guard.
    Unknown,
}

/// Creates the record of a log on these holders; the first is the primary. An existing log is left alone.
pub async fn create(
    store: &Store,
    log: &LogName,
    holders: Vec<HolderId>,
    min_copies: usize,
) -> Result<LogConfig, LogError> {
    let config = LogConfig::new(holders, min_copies)?;
    create_all(store, vec![(log.clone(), config)]).await?;
    Ok(read(store, log).await?.record)
}

/// Creates the records of logs, [`MAX_BATCH`] per transaction. Existing logs are left alone.
pub async fn create_all(store: &Store, logs: Vec<(LogName, LogConfig)>) -> Result<(), LogError> {
    for batch in logs.chunks(MAX_BATCH).map(<[_]>::to_vec) {
        let names: Vec<LogName> = batch.iter().map(|(log, _)| log.clone()).collect();
        let read = || async {
            // A later log of the same name is created at a later revision: in between, its record was deleted.
            let revision = store.commit(Txn::new()).await?.revision;
            let known: Vec<LogName> =
                read_all(store, &names).await?.into_iter().map(|(log, _)| log).collect();
            Ok::<_, LogError>((Incarnation(u64::try_from(revision.0).unwrap_or_default()), known))
        };
        let decide = move |(incarnation, known): &(Incarnation, Vec<LogName>), _: Progress| {
            let unknown = batch.iter().filter(|(log, _)| !known.contains(log));
            let txn = unknown.fold(Txn::new(), |txn, (log, config)| {
                let key = LogKey { log: log.clone() };
                let config = LogConfig { incarnation: *incarnation, ..config.clone() };
                txn.when(key.absent()).then(key.put(&config))
            });
            Ok::<_, LogError>(if txn.success.is_empty() { Next::Done(()) } else { Next::Commit(txn) })
        };
        settle(store, "the creation of logs", read, decide).await?;
    }
    Ok(())
}

/// The current configuration.
pub async fn read(store: &Store, log: &LogName) -> Result<Stored<LogConfig>, LogError> {
    let key = LogKey { log: log.clone() };
    store.read(&key).await?.ok_or_else(|| LogError::NoSuchLog(log.clone()))
}

/// Changes the configuration by a pure function; decides again if it changed in between. For controllers.
pub async fn change(
    store: &Store,
    log: &LogName,
    mut next: impl FnMut(&LogConfig) -> Result<LogConfig, Refused>,
) -> Result<LogConfig, LogError> {
    let mut changed = change_all(store, std::slice::from_ref(log), |_, config| next(config)).await?;
    Ok(changed.remove(log).ok_or_else(|| LogError::NoSuchLog(log.clone()))??)
}

/// Changes the configurations of many logs by a pure function, [`MAX_BATCH`] per transaction: all of a batch or none.
/// Returns each log's configuration, or why it did not change. Deleted logs are left out.
pub async fn change_all(
    store: &Store,
    logs: &[LogName],
    mut next: impl FnMut(&LogName, &LogConfig) -> Result<LogConfig, Refused>,
) -> Result<BTreeMap<LogName, Result<LogConfig, Refused>>, LogError> {
    let mut all = BTreeMap::new();
    for batch in logs.chunks(MAX_BATCH) {
        all.extend(change_batch(store, batch, &mut next).await?);
    }
    Ok(all)
}

/// The loop of [`settle`] for a decision that borrows: futures of `settle` that hold references cannot be spawned.
async fn change_batch(
    store: &Store,
    logs: &[LogName],
    next: &mut impl FnMut(&LogName, &LogConfig) -> Result<LogConfig, Refused>,
) -> Result<BTreeMap<LogName, Result<LogConfig, Refused>>, LogError> {
    let mut pauses = Backoff::new(PAUSES.0, PAUSES.1, u64::from(std::process::id()));
    let mut earlier: BTreeMap<LogName, Result<LogConfig, Refused>> = BTreeMap::new();
    while pauses.failures() < ATTEMPTS {
        let mut answers = BTreeMap::new();
        let mut txn = Txn::new();
        for (log, seen) in read_all(store, logs).await? {
            // A change made by an attempt with an unknown outcome is not made twice.
            let done = earlier.get(&log).and_then(|made| made.as_ref().ok()) == Some(&seen.record);
            let answer = if done { Ok(seen.record.clone()) } else { next(&log, &seen.record) };
            if let Some(config) = answer.as_ref().ok().filter(|config| **config != seen.record) {
                txn = guarded(txn, &log, seen.mod_revision, config);
            }
            answers.insert(log, answer);
        }
        if txn.success.is_empty() {
            return Ok(answers);
        }
        match store.commit(txn).await {
            Ok(result) if result.succeeded => return Ok(answers),
            Ok(_) => {}
            Err(error) if error.remedy() == Remedy::Refresh => earlier = answers,
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(pauses.next_wait()).await;
    }
    let what = match logs {
        [one] => format!("the configuration of log {one}"),
        many => format!("one of the configurations of {} logs", many.len()),
    };
    Err(Contended { what }.into())
}

/// The configurations of these logs at one revision, without deleted logs.
async fn read_all(store: &Store, logs: &[LogName]) -> Result<Vec<(LogName, Stored<LogConfig>)>, LogError> {
    let txn = logs.iter().fold(Txn::new(), |txn, log| txn.then(LogKey { log: log.clone() }.range()));
    let responses = store.commit(txn).await?.responses;
    let mut found = Vec::with_capacity(logs.len());
    for (log, response) in logs.iter().zip(responses) {
        let OpResult::Range(range) = response else { continue };
        if let Some(kv) = range.kvs.first() {
            let stored = Stored::decode::<LogKey>(kv).map_err(|bad| LogError::BadRecord(bad.to_string()))?;
            found.push((log.clone(), stored));
        }
    }
    Ok(found)
}

fn guarded(txn: Txn, log: &LogName, guard: Revision, config: &LogConfig) -> Txn {
    let key = LogKey { log: log.clone() };
    txn.when(Compare::mod_revision(key.bytes(), guard)).then(key.put(config))
}

/// Deletes a log: its record now, its copies once each holder sees the tombstone. A missing log is not an error.
pub async fn delete(store: &Store, log: &LogName) -> Result<(), LogError> {
    let (key, grave) = (LogKey { log: log.clone() }, GraveKey { log: log.clone() });
    let read = || async { Ok::<_, LogError>((store.read(&key).await?, store.read(&grave).await?)) };
    let what = format!("the deletion of log {log}");
    type Found = (Option<Stored<LogConfig>>, Option<Stored<Grave>>);
    settle(store, &what, read, |(found, buried): &Found, _| {
        let Some(found) = found else { return Ok(Next::Done(())) };
        let record = Grave::of(&found.record, buried.as_ref().map(|buried| &buried.record));
        let txn = Txn::new().when(key.unchanged(found)).when(grave.as_seen(buried.as_ref()));
        Ok::<_, LogError>(Next::Last(txn.then(key.delete()).then(grave.put(&record)), ()))
    })
    .await
}

/// The tombstone of a log, if it was deleted and copies remain.
pub async fn grave(store: &Store, log: &LogName) -> Result<Option<Grave>, LogError> {
    Ok(store.read(&GraveKey { log: log.clone() }).await?.map(|stored| stored.record))
}

/// Records that a holder has deleted its copy of a deleted log.
pub async fn buried(store: &Store, log: &LogName, holder: &HolderId) -> Result<(), LogError> {
    let (key, holder) = (GraveKey { log: log.clone() }, holder.clone());
    let read = || async { Ok::<_, LogError>(store.read(&key).await?) };
    let what = format!("the deletion of log {log}");
    settle(store, &what, read, |found: &Option<Stored<Grave>>, _| {
        let Some(found) = found.as_ref().filter(|found| found.record.holders.contains(&holder)) else {
            return Ok(Next::Done(()));
        };
        let mut record = found.record.clone();
        record.holders.retain(|other| *other != holder);
        let txn = Txn::new().when(key.unchanged(found));
        let last = record.holders.is_empty();
        let txn = if last { txn.then(key.delete()) } else { txn.then(key.put(&record)) };
        Ok::<_, LogError>(Next::Commit(txn))
    })
    .await
}

/// The recorded directory of a holder.
pub async fn directory(store: &Store, holder: &HolderId) -> Result<Option<Directory>, LogError> {
    let key = DirectoryKey { holder: holder.clone() };
    Ok(store.read(&key).await?.map(|stored| stored.record))
}

/// Records that a holder starts with this directory. Returns the number of starts, including this one.
pub async fn start(store: &Store, holder: &HolderId, id: &str) -> Result<u64, LogError> {
    let (key, id) = (DirectoryKey { holder: holder.clone() }, id.to_owned());
    let read = || async { Ok::<_, LogError>(store.read(&key).await?) };
    let what = format!("the start of holder {holder}");
    let mut number = None;
    settle(store, &what, read, |found: &Option<Stored<Directory>>, progress| {
        let starts = found.as_ref().map_or(0, |found| found.record.starts);
        if progress.maybe_ours() && number == Some(starts) {
            return Ok(Next::Done(starts));
        }
        number = Some(starts + 1);
        let record = Directory { id: id.clone(), starts: starts + 1, extra: Extra::default() };
        let txn = Txn::new().when(key.as_seen(found.as_ref())).then(key.put(&record));
        Ok::<_, LogError>(Next::Commit(txn))
    })
    .await
}

/// Writes this configuration if the record is still at this revision.
pub async fn propose(store: &Store, log: &LogName, guard: Revision, config: &LogConfig) -> Outcome {
    match store.commit(guarded(Txn::new(), log, guard, config)).await {
        Ok(result) if result.succeeded => Outcome::Made(result.revision),
        Ok(_) => Outcome::Stale,
        Err(error) if surely_nothing(&error) => Outcome::NotDone,
        Err(_) => Outcome::Unknown,
    }
}

/// Whether a failed commit definitely changed nothing. A store whose disk failed may have written it.
fn surely_nothing(error: &MetaError) -> bool {
    match error.remedy() {
        Remedy::Retry | Remedy::Reject | Remedy::Fenced => true,
        Remedy::Refresh => false,
        Remedy::Report => matches!(error, MetaError::NoSpace | MetaError::Denied(_)),
    }
}
