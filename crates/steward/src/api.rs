//! The operations of services and operators: create, delete, move and elect, each one guarded transaction.

use std::sync::Arc;
use std::time::Duration;

use capstan_log::config::{Grave, Incarnation};
use capstan_log::keys::{GraveKey, LogKey};
use capstan_log::{HolderId, LogConfig, LogName};
use capstan_meta::record::{Key, Stored};
use capstan_meta::settle::{Next, settle};
use capstan_meta::view::{View, ViewOptions};
use capstan_meta::{Store, Txn, clock};

use crate::decide::choose;
use crate::error::StewardError;
use crate::facts::{Facts, Records};
use crate::keys::{AliveKey, HolderKey, WantedKey};
use crate::spec::{HolderRecord, Policy, WantedLog};

/// How long an operation waits until its view has its earlier writes.
const SEE_WITHIN: Duration = Duration::from_secs(10);

/// The logs of the cluster, for the services that own them. Clones share one view.
#[derive(Clone, Debug)]
pub struct Logs {
    store: Store,
    view: Arc<View>,
    policy: Policy,
}

/// The present records of one log.
struct Seen {
    config: Option<Stored<LogConfig>>,
    wanted: Option<Stored<WantedLog>>,
    /// The tombstone of an earlier log of the same name whose copies are not all deleted.
    grave: Option<Stored<Grave>>,
    facts: Facts,
    /// Distinguishes this log from all earlier ones of its name.
    incarnation: Incarnation,
}

impl Logs {
    /// Opens a view of all logs and holders.
    pub async fn open(store: Store, policy: Policy) -> Result<Logs, StewardError> {
        let view = View::open(store.clone(), Records::ranges(), ViewOptions::default()).await?;
        Ok(Logs { store, view: Arc::new(view), policy })
    }

    /// The present facts.
    #[must_use]
    pub fn facts(&self) -> Facts {
        Facts::of(&self.view.snapshot(), clock::since_epoch().as_secs())
    }

    /// The view that the facts are assembled from.
    #[must_use]
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Creates a log: chooses its holders and records them with the spec. An existing log with the same spec is left
    /// alone. With fewer holders than copies it begins on the available ones, as long as they can commit; the steward
    /// adds the others when they join.
    pub async fn create(&self, log: &LogName, wanted: &WantedLog) -> Result<LogConfig, StewardError> {
        if !wanted.is_possible() {
            let (copies, min_copies) = (wanted.copies, wanted.min_copies);
            return Err(StewardError::Impossible { copies, min_copies });
        }
        let what = format!("log {log}");
        let decide = |seen: &Seen, _| self.decide_create(log, wanted, seen);
        settle(&self.store, &what, || self.look(log), decide).await
    }

    fn decide_create(
        &self,
        log: &LogName,
        wanted: &WantedLog,
        seen: &Seen,
    ) -> Result<Next<LogConfig>, StewardError> {
        if let Some(config) = &seen.config {
            let same = seen.wanted.as_ref().is_some_and(|known| is_same(&known.record, wanted));
            return if same {
                Ok(Next::Done(config.record.clone()))
            } else {
                Err(StewardError::Exists(log.clone()))
            };
        }
        let holders =
            choose(&seen.facts, &self.policy, &wanted.service, wanted.copies, wanted.preferred.as_ref());
        if holders.len() < wanted.min_copies {
            return Err(StewardError::TooFewHolders {
                log: log.clone(),
                service: wanted.service.clone(),
                up: holders.len(),
                needed: wanted.min_copies,
            });
        }
        let alive =
            holders.iter().map(|holder| AliveKey { holder: holder.clone() }.present()).collect::<Vec<_>>();
        let config =
            LogConfig { incarnation: seen.incarnation, ..LogConfig::new(holders, wanted.min_copies)? };
        let keys = (LogKey { log: log.clone() }, WantedKey { log: log.clone() });
        let grave = GraveKey { log: log.clone() };
        let txn = Txn::new()
            .when(keys.0.absent())
            .when(grave.as_seen(seen.grave.as_ref()))
            .when(keys.1.as_seen(seen.wanted.as_ref()))
            .when_all(alive)
            .then(keys.0.put(&config))
            .then(keys.1.put(wanted));
        Ok(Next::Last(txn, config))
    }

    /// Changes the spec; the steward follows.
    pub async fn change(&self, log: &LogName, wanted: &WantedLog) -> Result<(), StewardError> {
        if !wanted.is_possible() {
            let (copies, min_copies) = (wanted.copies, wanted.min_copies);
            return Err(StewardError::Impossible { copies, min_copies });
        }
        let key = WantedKey { log: log.clone() };
        let what = format!("log {log}");
        let read = || async { Ok::<_, StewardError>(self.store.read(&key).await?) };
        settle(&self.store, &what, read, |seen, _| match seen {
            None => Err(StewardError::NoSuchLog(log.clone())),
            Some(seen) if seen.record == *wanted => Ok(Next::Done(())),
            Some(seen) => {
                let txn = Txn::new().when(key.unchanged(seen)).then(key.replace(seen, wanted));
                Ok(Next::Last(txn, ()))
            }
        })
        .await
    }

    /// Deletes a log. Its holders delete their copies when they see it. A missing log counts as deleted.
    pub async fn delete(&self, log: &LogName) -> Result<(), StewardError> {
        let what = format!("log {log}");
        let decide = |seen: &Seen, _| {
            let (key, wanted) = (LogKey { log: log.clone() }, WantedKey { log: log.clone() });
            let mut txn =
                Txn::new().when(key.as_seen(seen.config.as_ref())).when(wanted.as_seen(seen.wanted.as_ref()));
            if seen.wanted.is_some() {
                txn = txn.then(wanted.delete());
            }
            match &seen.config {
                None if seen.wanted.is_none() => return Ok(Next::Done(())),
                None => {}
                Some(found) => {
                    let grave = GraveKey { log: log.clone() };
                    let record = Grave::of(&found.record, seen.grave.as_ref().map(|grave| &grave.record));
                    txn = txn.when(grave.as_seen(seen.grave.as_ref()));
                    txn = txn.then(key.delete()).then(grave.put(&record));
                }
            }
            Ok(Next::Last(txn, ()))
        };
        settle(&self.store, &what, || self.look(log), decide).await
    }

    /// Moves a copy of a log from one holder to another.
    pub async fn relocate(&self, log: &LogName, from: &HolderId, to: &HolderId) -> Result<(), StewardError> {
        let what = format!("log {log}");
        let decide = |seen: &Seen, _| {
            let found = seen.config.as_ref().ok_or_else(|| StewardError::NoSuchLog(log.clone()))?;
            let config = &found.record;
            let copied = config.members().any(|member| member == to);
            let under_way = copied && config.leaving.as_ref() == Some(from);
            let done = config.holders.contains(to) && !config.holders.contains(from);
            if under_way || done {
                return Ok(Next::Done(()));
            }
            self.check_fit(log, seen, to)?;
            let next = config.add_learner(to)?.mark_leaving(from)?;
            let key = LogKey { log: log.clone() };
            Ok(Next::Last(Txn::new().when(key.unchanged(found)).then(key.replace(found, &next)), ()))
        };
        settle(&self.store, &what, || self.look(log), decide).await
    }

    fn check_fit(&self, log: &LogName, seen: &Seen, to: &HolderId) -> Result<(), StewardError> {
        let facts = &seen.facts;
        let seat = facts.seat(to).ok_or_else(|| StewardError::NoSuchHolder(to.clone()))?;
        let holder = facts.holder(seat);
        let service = seen.wanted.as_ref().map(|wanted| wanted.record.service.as_str());
        let unfit = |why: &str| {
            let (holder, log) = (to.clone(), log.clone());
            Err(StewardError::Unfit { holder, log, why: why.to_owned() })
        };
        if service.and_then(|name| facts.service(name)) != Some(holder.service) {
            return unfit("it belongs to another service");
        }
        if !holder.takes_copies(&self.policy) {
            return unfit("it is down, drained, retiring or full");
        }
        Ok(())
    }

    /// Elects another primary from the in-sync set, and prefers it from now on.
    pub async fn elect(&self, log: &LogName, to: &HolderId) -> Result<LogConfig, StewardError> {
        let what = format!("log {log}");
        let decide = |seen: &Seen, _| {
            let found = seen.config.as_ref().ok_or_else(|| StewardError::NoSuchLog(log.clone()))?;
            let prefers =
                seen.wanted.as_ref().is_none_or(|wanted| wanted.record.preferred.as_ref() == Some(to));
            if found.record.primary == *to && prefers {
                return Ok(Next::Done(found.record.clone()));
            }
            let key = LogKey { log: log.clone() };
            let mut txn = Txn::new().when(key.unchanged(found));
            let mut config = found.record.clone();
            if config.primary != *to {
                config = config.elect(to)?;
                txn = txn.then(key.replace(found, &config));
            }
            if let Some(wanted) = &seen.wanted {
                let key = WantedKey { log: log.clone() };
                let next = WantedLog { preferred: Some(to.clone()), ..wanted.record.clone() };
                txn = txn.when(key.unchanged(wanted)).then(key.replace(wanted, &next));
            }
            Ok(Next::Last(txn, config))
        };
        settle(&self.store, &what, || self.look(log), decide).await
    }

    /// Retires a holder: its copies are moved elsewhere, permanently.
    pub async fn retire(&self, holder: &HolderId) -> Result<(), StewardError> {
        self.set_retiring(holder, true).await
    }

    /// Has a holder take part that waited for it, or cancels its retirement; copies that have not moved stay.
    pub async fn keep(&self, holder: &HolderId) -> Result<(), StewardError> {
        self.set_retiring(holder, false).await
    }

    async fn set_retiring(&self, holder: &HolderId, retiring: bool) -> Result<(), StewardError> {
        let key = HolderKey { holder: holder.clone() };
        let what = format!("holder {holder}");
        let read = || async { Ok::<_, StewardError>(self.store.read(&key).await?) };
        settle(&self.store, &what, read, |seen, _| match seen {
            None => Err(StewardError::NoSuchHolder(holder.clone())),
            Some(seen) if seen.record.retiring == retiring && !seen.record.waiting => Ok(Next::Done(())),
            Some(seen) => {
                let next = HolderRecord { retiring, waiting: false, ..seen.record.clone() };
                Ok(Next::Last(Txn::new().when(key.unchanged(seen)).then(key.replace(seen, &next)), ()))
            }
        })
        .await
    }

    /// Reads the records of one log, and everything else from a view that is at least as new.
    async fn look(&self, log: &LogName) -> Result<Seen, StewardError> {
        let snapshot = self.view.catch_up(SEE_WITHIN).await?;
        let grave = self.store.read(&GraveKey { log: log.clone() }).await?;
        let now = u64::try_from(snapshot.revision().0).unwrap_or_default();
        let buried = grave.as_ref().map_or(0, |grave| grave.record.incarnation.0 + 1);
        Ok(Seen {
            config: self.store.read(&LogKey { log: log.clone() }).await?,
            wanted: self.store.read(&WantedKey { log: log.clone() }).await?,
            grave,
            facts: Facts::of(&snapshot, clock::since_epoch().as_secs()),
            incarnation: Incarnation(now.max(buried)),
        })
    }
}

/// Whether two specs ask for the same log, ignoring the preferred holder, which an operator may have changed.
fn is_same(known: &WantedLog, wanted: &WantedLog) -> bool {
    known.service == wanted.service && known.copies == wanted.copies && known.min_copies == wanted.min_copies
}
