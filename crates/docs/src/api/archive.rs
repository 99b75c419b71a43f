//! Backups that nodes keep, made on request or by a schedule, and restored under new names.
//!
//! A backup is a directory of the node that made it. Its record names the node and says what became of it; a request to
//! restore it is passed on to that node. A node makes or restores one backup at a time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use capstan_control::keys::HostId;
use capstan_control::time::rfc3339;
use capstan_meta::record::{Extra, Key as _};
use capstan_meta::settle::Next;
use capstan_meta::{OwnedTask, Store, Txn, clock};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::backup::{Indexes, Selection, restore_some, save};
use super::catalogue::{Catalogue, collection_name, database_name};
use super::client::Client;
use crate::error::DocsError;
use crate::guarded::change;
use crate::keys::{BackupId, BackupKey, BackupScheduleKey, BackupSchedules, Backups};
use crate::node::{Inner, Node};
use crate::spec::{BackupSchedule, BackupScope, Retention};
use crate::status::{BackupRecord, BackupState};

/// How often schedules and retentions are looked at: often enough to see every minute.
const LOOK: Duration = Duration::from_secs(20);
/// Schedules of a cluster, and backups of a node.
const MAX_SCHEDULES: usize = 256;
const MAX_BACKUPS: usize = 1_024;

/// The backups of a cluster, through one node.
pub(super) struct Archive<'n>(pub(super) &'n Node);

/// Which backup is restored, and how.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) id: Option<String>,
    pub(super) date: Option<String>,
    /// The directory, or the kind of place, `File`.
    pub(super) source: Option<String>,
    pub(super) scope: BackupScope,
    pub(super) indexes: Indexes,
}

impl Wish {
    fn is_met_by(&self, id: &BackupId, record: &BackupRecord) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|text| text == found);
        let covers = |all: &str, one: &str| all == "*" || all == one;
        let source = self.source.clone().filter(|source| source != FILE);
        record.status == BackupState::Complete
            && is(&self.id, id.as_str())
            && is(&self.date, &record.date)
            && is(&source, &record.location)
            && covers(&record.scope.database, &self.scope.database)
            && covers(&record.scope.collection, &self.scope.collection)
    }
}

/// The only destination.
pub(super) const FILE: &str = "File";

impl Archive<'_> {
    fn store(&self) -> &Store {
        &self.0.inner.router.store
    }

    /// Every backup, the oldest first.
    pub(super) async fn list(&self) -> Result<Vec<(BackupId, BackupRecord)>, DocsError> {
        let listed = self.store().list(&Backups {}).await?;
        let mut all: Vec<_> =
            listed.iter().map(|(key, found)| (key.id.clone(), found.record.clone())).collect();
        all.sort_by(|(a, one), (b, other)| (one.created_at, a).cmp(&(other.created_at, b)));
        Ok(all)
    }

    /// Begins a backup on this node.
    pub(super) async fn begin(
        &self,
        scope: &BackupScope,
        retention: Option<Retention>,
    ) -> Result<(BackupId, BackupRecord), DocsError> {
        self.check(scope).await?;
        self.begin_with(self.permit()?, scope, retention).await
    }

    async fn begin_with(
        &self,
        permit: OwnedSemaphorePermit,
        scope: &BackupScope,
        retention: Option<Retention>,
    ) -> Result<(BackupId, BackupRecord), DocsError> {
        let inner = &self.0.inner;
        let own = self.list().await?.iter().filter(|(_, record)| record.node == inner.id).count();
        if own >= MAX_BACKUPS {
            let text = format!("node {} keeps {MAX_BACKUPS} backups already", inner.id);
            return Err(DocsError::refused(text));
        }
        let created_at = clock::since_epoch().as_secs();
        let (id, date) = (new_id()?, date_of(created_at));
        let dir = inner.backups.join(format!("{date}-{id}"));
        let record = BackupRecord {
            scope: scope.clone(),
            date,
            created_at,
            node: inner.id.clone(),
            location: dir.display().to_string(),
            size: 0,
            status: BackupState::Started,
            error: String::new(),
            retention,
            restore: String::new(),
            extra: Extra::default(),
        };
        let key = BackupKey { id: id.clone() };
        change(self.store(), &key, |seen, _| match seen {
            Some(_) => Ok(Next::Done(())),
            None => Ok(Next::Commit(Txn::new().when(key.absent()).then(key.put(&record)))),
        })
        .await?;
        let (store, scope, closing) = (self.store().clone(), scope.clone(), inner.closing.clone());
        let tls = inner.tls.clone();
        self.run(async move {
            let _one_at_a_time = permit;
            let saving = store.clone();
            let saved = aside(closing, async move {
                make_parent(&dir)?;
                let client = Client::connect(&saving, tls.as_ref()).await?;
                save(&client, &saving, &dir, &scope, |_, _| {}).await.map(|manifest| manifest.size().2)
            });
            let outcome = saved.await;
            let noted = note(&store, &key, |record| match &outcome {
                Ok(size) => BackupRecord { size: *size, status: BackupState::Complete, ..record },
                Err(error) => {
                    BackupRecord { status: BackupState::Failed, error: error.to_string(), ..record }
                }
            });
            if let Err(error) = noted.await {
                tracing::warn!(backup = %key.id, %error, "outcome of a backup was not recorded");
            }
        });
        Ok((id, record))
    }

    /// Begins to restore collections under new names, on the node that keeps the backup. Returns what was begun.
    pub(super) async fn restore(&self, wish: &Wish, asked: &Value) -> Result<String, DocsError> {
        let all = self.list().await?;
        let found = all.into_iter().rev().find(|(id, record)| wish.is_met_by(id, record));
        let none = || DocsError::NotFound("there is no complete backup like this".to_owned());
        let (id, record) = found.ok_or_else(none)?;
        if record.node != self.0.inner.id {
            return self.pass_on(&record.node, &id, asked).await;
        }
        let suffix = format!("-restore{}", record.date);
        let scope = wish.scope.clone();
        if scope.collection != "*" {
            let name = collection_name(&format!("{}{suffix}", scope.collection))?;
            let database = database_name(&scope.database)?;
            if self.0.inner.router.target(&database, &name).await.is_ok() {
                return Err(DocsError::refused(format!("collection {name} is there already")));
            }
        }
        let permit = self.permit()?;
        let text = format!("{}/{}{suffix}", scope.database, scope.collection);
        let (store, closing) = (self.store().clone(), self.0.inner.closing.clone());
        let tls = self.0.inner.tls.clone();
        let selection = Selection { scope, suffix, indexes: wish.indexes };
        let (key, shown) = (BackupKey { id: id.clone() }, text.clone());
        self.run(async move {
            let _one_at_a_time = permit;
            let (from, dir) = (store.clone(), PathBuf::from(&record.location));
            let restored = aside(closing, async move {
                let client = Client::connect(&from, tls.as_ref()).await?;
                restore_some(&client, &dir, &selection, |_, _| {}).await
            });
            let restore = match restored.await {
                Ok(documents) => format!("{shown}: {documents} documents"),
                Err(error) => format!("{shown}: not restored: {error}"),
            };
            let noted = note(&store, &key, |record| BackupRecord { restore: restore.clone(), ..record });
            if let Err(error) = noted.await {
                tracing::warn!(backup = %key.id, %error, "outcome of a restore was not recorded");
            }
        });
        Ok(format!("Started restore of backup {id} as {text}"))
    }

    /// Has the node that keeps a backup restore it.
    async fn pass_on(&self, node: &HostId, id: &BackupId, asked: &Value) -> Result<String, DocsError> {
        let mut asked = asked.clone();
        asked["id"] = Value::String(id.to_string());
        let client = Client::connect_to(self.store(), self.0.inner.tls.as_ref(), node).await?;
        let answer = client.send("POST", "/restore", &[], Some(&asked)).await?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    /// Whether there is something to save.
    async fn check(&self, scope: &BackupScope) -> Result<(), DocsError> {
        if scope.database == "*" {
            return Ok(());
        }
        let known = Catalogue(self.0).collections(&database_name(&scope.database)?).await?;
        if scope.collection == "*" || known.iter().any(|name| name.as_str() == scope.collection) {
            return Ok(());
        }
        Err(DocsError::NotFound(format!("Collection \"{}\" not found", scope.collection)))
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit, DocsError> {
        let busy =
            |_| DocsError::Busy(format!("node {} makes or restores a backup already", self.0.inner.id));
        Arc::clone(&self.0.inner.one_archive).try_acquire_owned().map_err(busy)
    }

    /// Runs the one task of this node's archive. The one before has ended: its permit is free again.
    fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.0.inner.archiving.lock().unwrap_or_else(PoisonError::into_inner);
        *running = Some(OwnedTask::spawn(task));
    }

    /// Every schedule.
    pub(super) async fn schedules(&self) -> Result<Vec<(BackupId, BackupSchedule)>, DocsError> {
        let listed = self.store().list(&BackupSchedules {}).await?;
        Ok(listed.iter().map(|(key, found)| (key.id.clone(), found.record.clone())).collect())
    }

    /// Adds a schedule.
    pub(super) async fn schedule(&self, schedule: &BackupSchedule) -> Result<BackupId, DocsError> {
        self.check(&schedule.scope).await?;
        if self.schedules().await?.len() >= MAX_SCHEDULES {
            return Err(DocsError::refused(format!("there are at most {MAX_SCHEDULES} schedules")));
        }
        let key = BackupScheduleKey { id: new_id()? };
        change(self.store(), &key, |seen, _| match seen {
            Some(_) => Ok(Next::Done(())),
            None => Ok(Next::Commit(Txn::new().when(key.absent()).then(key.put(schedule)))),
        })
        .await?;
        Ok(key.id)
    }

    /// Deletes a schedule; its backups stay.
    pub(super) async fn unschedule(&self, id: &str) -> Result<(), DocsError> {
        let key = BackupScheduleKey { id: BackupId::new(id)? };
        change(self.store(), &key, |seen, progress| match seen {
            None if progress.maybe_ours() => Ok(Next::Done(())),
            None => Err(DocsError::NotFound(format!("there is no backup schedule {id}"))),
            Some(seen) => Ok(Next::Last(Txn::new().when(key.unchanged(seen)).then(key.delete()), ())),
        })
        .await
    }

    /// Begins the backups whose minute it is, unless another node did.
    async fn run_schedules(&self, now: u64) -> Result<(), DocsError> {
        for (id, schedule) in self.schedules().await? {
            if !is_due(&schedule, now) {
                continue;
            }
            let Ok(permit) = self.permit() else { return Ok(()) };
            let key = BackupScheduleKey { id };
            let mine = change(self.store(), &key, |seen, progress| match seen {
                _ if progress.committed > 0 => Ok(Next::Done(true)),
                Some(seen) if is_due(&seen.record, now) => {
                    let next = BackupSchedule { last_run: now, ..seen.record.clone() };
                    Ok(Next::Commit(Txn::new().when(key.unchanged(seen)).then(key.replace(seen, &next))))
                }
                Some(_) | None => Ok(Next::Done(false)),
            });
            if mine.await? {
                self.begin_with(permit, &schedule.scope, schedule.retention).await?;
            }
        }
        Ok(())
    }

    /// Deletes backups of this node whose retention is over, and closes the records of those that were cut off.
    async fn tidy(&self, now: u64) -> Result<(), DocsError> {
        let inner = &self.0.inner;
        let own = self.list().await?.into_iter().filter(|(_, record)| record.node == inner.id);
        for (id, record) in own {
            let key = BackupKey { id };
            // While one is being made its permit is taken.
            if record.status == BackupState::Started && self.permit().is_ok() {
                let error = "the node stopped before it was complete".to_owned();
                note(self.store(), &key, |record| match record.status {
                    BackupState::Started => {
                        BackupRecord { status: BackupState::Failed, error: error.clone(), ..record }
                    }
                    BackupState::Complete | BackupState::Failed => record,
                })
                .await?;
            }
            if is_over(&record, now) {
                remove_files(&inner.backups, Path::new(&record.location)).await?;
                change(self.store(), &key, |seen, _| match seen {
                    None => Ok(Next::Done(())),
                    Some(seen) => Ok(Next::Last(Txn::new().when(key.unchanged(seen)).then(key.delete()), ())),
                })
                .await?;
            }
        }
        Ok(())
    }
}

/// Keeps schedules and retentions. Every node does it; the records decide which one makes a backup.
pub(crate) async fn follow_schedules(inner: Weak<Inner>) {
    loop {
        {
            let Some(inner) = inner.upgrade() else { return };
            let (node, now) = (Node { inner }, clock::since_epoch().as_secs());
            let archive = Archive(&node);
            if let Err(error) = archive.tidy(now).await {
                tracing::debug!(%error, "old backups were not deleted; trying again");
            }
            if let Err(error) = archive.run_schedules(now).await {
                tracing::warn!(%error, "scheduled backup was not begun");
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether a backup of the schedule begins in the minute of this moment.
fn is_due(schedule: &BackupSchedule, now: u64) -> bool {
    schedule.schedule.matches_utc(now) && schedule.last_run / 60 < now / 60
}

/// Whether a backup need not be kept any longer.
fn is_over(record: &BackupRecord, now: u64) -> bool {
    let kept = record.retention.map(Retention::seconds);
    record.status != BackupState::Started && kept.is_some_and(|kept| record.created_at + kept < now)
}

/// The minute of a time, as backups are named: `YYYYMMDDTHHMM`.
fn date_of(seconds: u64) -> String {
    let text: String = rfc3339(seconds).chars().filter(|c| !"-:".contains(*c)).collect();
    text.get(.."YYYYMMDDTHHMM".len()).unwrap_or(&text).to_owned()
}

fn new_id() -> Result<BackupId, DocsError> {
    Ok(BackupId::new(format!("{:016x}", rand::random::<u64>()))?)
}

fn make_parent(dir: &Path) -> Result<(), DocsError> {
    let parent = dir.parent().unwrap_or(dir);
    std::fs::create_dir_all(parent)
        .map_err(|error| DocsError::Refused(format!("cannot make {}: {error}", parent.display())))
}

/// Runs what reads and writes files on a thread of its own, until the node stops.
async fn aside<T: Send + 'static>(
    closing: CancellationToken,
    work: impl Future<Output = Result<T, DocsError>> + Send + 'static,
) -> Result<T, DocsError> {
    let runtime = tokio::runtime::Handle::current();
    let done = tokio::task::spawn_blocking(move || {
        runtime.block_on(async {
            tokio::select! {
                () = closing.cancelled() => Err(DocsError::Busy("the node stops".to_owned())),
                done = work => done,
            }
        })
    });
    done.await.map_err(|error| DocsError::Broken(error.to_string()))?
}

/// Changes the record of a backup, if it is still there.
async fn note(
    store: &Store,
    key: &BackupKey,
    next: impl Fn(BackupRecord) -> BackupRecord,
) -> Result<(), DocsError> {
    change(store, key, |seen, progress| match seen {
        Some(seen) if progress.committed == 0 => {
            let next = next(seen.record.clone());
            Ok(Next::Commit(Txn::new().when(key.unchanged(seen)).then(key.replace(seen, &next))))
        }
        Some(_) | None => Ok(Next::Done(())),
    })
    .await
}

/// Deletes the directory of a backup: only one that is in the directory of all backups.
async fn remove_files(backups: &Path, dir: &Path) -> Result<(), DocsError> {
    if dir.parent() != Some(backups) {
        return Ok(());
    }
    let dir = dir.to_owned();
    let removed = tokio::task::spawn_blocking(move || match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DocsError::Refused(format!("cannot delete {}: {error}", dir.display())))
        }
        Ok(()) | Err(_) => Ok(()),
    });
    removed.await.map_err(|error| DocsError::Broken(error.to_string()))?
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn record() -> BackupRecord {
        let record = serde_json::json!({
            "dbName": "db", "collName": "*", "date": date_of(NOW), "created_at": NOW, "node": "n1", "location": "/b/1",
            "status": "OK", "retention": "1w",
        });
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn a_backup_is_named_by_its_minute_and_kept_for_its_retention() {
        assert_eq!(date_of(NOW), "20231114T2213");
        let week = 7 * 24 * 60 * 60;
        for (record, later, over) in [
            (record(), week, false),
            (record(), week + 1, true),
            (BackupRecord { retention: None, ..record() }, 100 * week, false),
            (BackupRecord { retention: Some(Retention::Year), ..record() }, 2 * week, false),
            (BackupRecord { status: BackupState::Started, ..record() }, 2 * week, false),
            (BackupRecord { status: BackupState::Failed, ..record() }, 2 * week, true),
        ] {
            assert_eq!(is_over(&record, NOW + later), over, "{record:?}");
        }
    }

    #[test]
    fn a_schedule_runs_once_in_each_of_its_minutes() {
        let schedule = |last_run: u64| BackupSchedule {
            scope: BackupScope::default(),
            schedule: "13,14 22 * * *".parse().unwrap(),
            retention: None,
            last_run,
            extra: Extra::default(),
        };
        // 22:13:20.
        assert!(is_due(&schedule(0), NOW));
        assert!(!is_due(&schedule(NOW), NOW + 30), "the same minute");
        assert!(is_due(&schedule(NOW), NOW + 60), "the next one");
        assert!(!is_due(&schedule(NOW), NOW + 120), "not one of its minutes");
    }

    #[test]
    fn a_backup_is_found_by_what_is_asked_for() {
        let scope = |database: &str, collection: &str| BackupScope {
            database: database.to_owned(),
            collection: collection.to_owned(),
        };
        let id = BackupId::new("1").unwrap();
        let wish =
            Wish { id: None, date: None, source: None, scope: scope("db", "c"), indexes: Indexes::All };
        let text = |text: &str| Some(text.to_owned());
        for (wish, met) in [
            (wish.clone(), true),
            (Wish { id: text("1"), date: text("20231114T2213"), source: text(FILE), ..wish.clone() }, true),
            (Wish { source: text("/b/1"), ..wish.clone() }, true),
            (Wish { source: text("/b/2"), ..wish.clone() }, false),
            (Wish { id: text("2"), ..wish.clone() }, false),
            (Wish { date: text("20231114T2214"), ..wish.clone() }, false),
            (Wish { scope: scope("other", "c"), ..wish.clone() }, false),
            (Wish { scope: scope("db", "*"), ..wish.clone() }, true),
        ] {
            assert_eq!(wish.is_met_by(&id, &record()), met, "{wish:?}");
        }
        let failed = BackupRecord { status: BackupState::Failed, ..record() };
        assert!(!wish.is_met_by(&id, &failed));
    }
}
