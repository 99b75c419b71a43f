//! What does a service do about drains? It finds the questions that are put to it, and answers each when its answer
//! changes.

use std::sync::Arc;

use capstan_meta::record::{Key, Stored};
use capstan_meta::view::{Ranges, Snapshot};
use capstan_meta::{KeyRange, Txn};

use super::{Answer, DrainAnswer, DrainRecord, Intent, answer};
use crate::keys::{AnswerKey, AnswersOf, DrainKey, Drains, HostId, HostKey, ServiceName};

/// A drain of a host that this service runs on.
#[derive(Clone, Debug)]
pub struct Question {
    /// The host.
    pub host: HostId,
    /// The service that is asked.
    pub service: ServiceName,
    /// What is wanted.
    pub drain: Arc<Stored<DrainRecord>>,
    /// What the service has answered so far.
    pub given: Option<Arc<Stored<DrainAnswer>>>,
}

impl Question {
    /// What is wanted.
    #[must_use]
    pub fn intent(&self) -> Intent {
        self.drain.record.intent
    }

    /// The transaction that gives this answer; nothing if it is given already.
    #[must_use]
    pub fn answer(&self, say: Answer, unix_now: u64) -> Option<Txn> {
        let epoch = self.drain.record.epoch;
        let known = self
            .given
            .as_ref()
            .is_some_and(|given| given.record.epoch == epoch && given.record.answer == say);
        (!known).then(|| answer(&self.host, &self.service, &self.drain, say, unix_now))
    }
}

/// What a host's own daemon must watch to answer drains of that host: nothing of any other.
#[must_use]
pub fn own_ranges(host: &HostId) -> Ranges {
    let drain = DrainKey { host: host.clone() };
    Ranges::new().with_range(KeyRange::one(drain.bytes())).with(&AnswersOf { host: host.clone() })
}

/// The drain of this host, put to one of the services that run on it.
#[must_use]
pub fn own_question(snapshot: &Snapshot, host: &HostId, service: &ServiceName) -> Option<Question> {
    let drain = snapshot.get(&DrainKey { host: host.clone() }).ok().flatten()?;
    Some(question(snapshot, host, service, drain))
}

/// Every drain that this service must answer: it ran on the host when the drain was asked for, or does now.
#[must_use]
pub fn questions(snapshot: &Snapshot, service: &ServiceName) -> Vec<Question> {
    let drains = snapshot.list(&Drains {});
    let concerned =
        drains.entries.iter().filter(|(key, drain)| concerns(snapshot, key, &drain.record, service));
    concerned.map(|(key, drain)| question(snapshot, &key.host, service, drain.clone())).collect()
}

fn question(
    snapshot: &Snapshot,
    host: &HostId,
    service: &ServiceName,
    drain: Arc<Stored<DrainRecord>>,
) -> Question {
    let (host, service) = (host.clone(), service.clone());
    let answer = AnswerKey { host: host.clone(), service: service.clone() };
    Question { host, service, drain, given: snapshot.get(&answer).ok().flatten() }
}

fn concerns(snapshot: &Snapshot, key: &DrainKey, drain: &DrainRecord, service: &ServiceName) -> bool {
    let runs_now = || {
        let host = snapshot.get(&HostKey { host: key.host.clone() }).ok().flatten();
        host.is_some_and(|host| host.record.services.contains(service))
    };
    drain.services.contains(service) || runs_now()
}
