//! How does a drain begin, and how is it undone? Pure decisions, and the two calls that commit them.

use capstan_meta::record::{Extra, Key, Prefix as _, Stored};
use capstan_meta::{Remedy, Store, Txn};
use serde::Serialize;

use super::{DrainRecord, Intent};
use crate::epoch::Epoch;
use crate::error::ControlError;
use crate::hosts::HostRecord;
use crate::keys::{AnswersOf, DrainKey, HostId, HostKey, ServiceName};

/// Attempts when other processes change the same drain; each begins with a fresh read.
const ATTEMPTS: usize = 16;

/// The requester, reason and time of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The requester.
    pub asked_by: String,
    /// The reason.
    pub reason: String,
    /// The time, in seconds since 1970.
    pub asked_at: u64,
    /// Services that must answer even if the host is not up to list them.
    pub services: Vec<ServiceName>,
}

/// The effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DrainChange {
    /// The request is recorded.
    Asked,
    /// The same request was already recorded.
    Already,
    /// There is no drain to undo.
    NotDraining,
}

/// The state of a host at the time of a request.
struct Known {
    host: Option<Stored<HostRecord>>,
    drain: Option<Stored<DrainRecord>>,
}

/// Requests the drain of a host. Idempotent.
pub async fn ask(store: &Store, host: &HostId, ask: &Ask) -> Result<DrainChange, ControlError> {
    let decide = |known: &Known| wish_to_drain(host, known.host(), known.drain(), ask);
    change(store, host, decide).await
}

/// Requests the return of a host. The drain ends when all its services are healthy.
pub async fn undrain(store: &Store, host: &HostId, ask: &Ask) -> Result<DrainChange, ControlError> {
    change(store, host, |known| Ok(wish_to_return(known.drain(), ask))).await
}

impl Known {
    fn host(&self) -> Option<&HostRecord> {
        self.host.as_ref().map(|seen| &seen.record)
    }

    fn drain(&self) -> Option<&DrainRecord> {
        self.drain.as_ref().map(|seen| &seen.record)
    }
}

/// The next record for draining a host, or the result if nothing is to be written. Pure, for callers that write it in
/// their own transaction: guard it with the drain that was read.
pub fn wish_to_drain(
    host: &HostId,
    up: Option<&HostRecord>,
    before: Option<&DrainRecord>,
    ask: &Ask,
) -> Result<Result<DrainRecord, DrainChange>, ControlError> {
    if before.is_some_and(|drain| drain.intent == Intent::Drain) {
        return Ok(Err(DrainChange::Already));
    }
    let running = up.map_or(&[][..], |host| &host.services);
    let remembered = before.map_or(&[][..], |drain| &drain.services);
    let mut services: Vec<ServiceName> = [running, remembered, &ask.services].concat();
    services.sort();
    services.dedup();
    if services.is_empty() {
        return Err(match up {
            Some(_) => ControlError::NothingToDrain(host.clone()),
            None => ControlError::UnknownHost(host.clone()),
        });
    }
    Ok(Ok(record(Intent::Drain, before, ask, services)))
}

/// The next record for returning a host, or the result if nothing is to be written. Pure.
pub fn wish_to_return(before: Option<&DrainRecord>, ask: &Ask) -> Result<DrainRecord, DrainChange> {
    let before = before.ok_or(DrainChange::NotDraining)?;
    match before.intent {
        Intent::Return => Err(DrainChange::Already),
        Intent::Drain => Ok(record(Intent::Return, Some(before), ask, before.services.clone())),
    }
}

fn record(
    intent: Intent,
    before: Option<&DrainRecord>,
    ask: &Ask,
    services: Vec<ServiceName>,
) -> DrainRecord {
    DrainRecord {
        intent,
        epoch: before.map_or(Epoch::NEVER_TOLD, |drain| drain.epoch).next(),
        asked_by: ask.asked_by.clone(),
        reason: ask.reason.clone(),
        asked_at: ask.asked_at,
        services,
        extra: before.map_or_else(Extra::default, |drain| drain.extra.clone()),
    }
}

/// Reads, decides, commits; repeats after a conflict or an unknown outcome, because each decision starts from a fresh
/// read.
async fn change(
    store: &Store,
    host: &HostId,
    decide: impl Fn(&Known) -> Result<Result<DrainRecord, DrainChange>, ControlError>,
) -> Result<DrainChange, ControlError> {
    let key = DrainKey { host: host.clone() };
    let mut unsettled = false;
    for _ in 0..ATTEMPTS {
        let known = Known {
            host: store.read(&HostKey { host: host.clone() }).await?,
            drain: store.read(&key).await?,
        };
        let record = match decide(&known)? {
            Ok(record) => record,
            // The present record may be from our own earlier attempt.
            Err(DrainChange::Already) if unsettled => return Ok(DrainChange::Asked),
            Err(nothing_to_do) => return Ok(nothing_to_do),
        };
        // Earlier answers do not count for this request.
        let answers = AnswersOf { host: host.clone() }.delete_all();
        let txn = Txn::new().when(key.as_seen(known.drain.as_ref())).then(key.put(&record)).then(answers);
        match store.commit(txn).await {
            Ok(result) if result.succeeded => return Ok(DrainChange::Asked),
            Ok(_) => {}
            Err(error) if error.remedy() == Remedy::Refresh => unsettled = true,
            Err(error) => return Err(error.into()),
        }
    }
    Err(ControlError::Contended { what: format!("the drain of host {host}") })
}
