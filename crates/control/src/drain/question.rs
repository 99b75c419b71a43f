//! How does a service handle drains? It lists the drains that it must answer, and answers each when its answer changes.

use std::sync::Arc;

use capstan_meta::record::{Key, Stored};
use capstan_meta::view::{Ranges, Snapshot};
use capstan_meta::{KeyRange, Txn};

use super::{Answer, DrainAnswer, DrainRecord, FailureUnit, Intent, answer_for};
use crate::keys::{AnswerKey, AnswersOf, DrainKey, Drains, HostId, HostKey, ServiceName};

/// A drain of a host that this service runs on.
#[derive(Clone, Debug)]
pub struct Question {
    /// The host.
    pub host: HostId,
    /// The service that must answer.
    pub service: ServiceName,
    /// The request.
    pub drain: Arc<Stored<DrainRecord>>,
    /// The service's valid answer so far.
    pub given: Option<Arc<Stored<DrainAnswer>>>,
    /// The run of the host's daemon, if the host is up.
    pub boot: Option<String>,
}

impl Question {
    /// What is requested.
    #[must_use]
    pub fn intent(&self) -> Intent {
        self.drain.record.intent
    }

    /// The transaction that writes this answer; `None` if it is already written.
    #[must_use]
    pub fn answer(&self, say: Answer, unix_now: u64) -> Option<Txn> {
        self.answer_holding(say, Vec::new(), unix_now)
    }

    /// The same for a service that keeps copies on the host: `units` (sorted) go down with it.
    #[must_use]
    pub fn answer_holding(&self, say: Answer, units: Vec<FailureUnit>, unix_now: u64) -> Option<Txn> {
        let same = |given: &DrainAnswer| given.answer == say && given.units == units;
        if self.given.as_ref().is_some_and(|given| same(&given.record)) {
            return None;
        }
        let (epoch, boot) = (self.drain.record.epoch, self.boot.clone());
        let record = DrainAnswer { epoch, answer: say, answered_at: unix_now, units, boot };
        Some(answer_for(&self.host, &self.service, &self.drain, record))
    }
}

/// The ranges that a host's own daemon watches to answer drains of that host, and of no other.
#[must_use]
pub fn own_ranges(host: &HostId) -> Ranges {
    let (drain, up) = (DrainKey { host: host.clone() }, HostKey { host: host.clone() });
    let own = Ranges::new().with_range(KeyRange::one(drain.bytes())).with_range(KeyRange::one(up.bytes()));
    own.with(&AnswersOf { host: host.clone() })
}

/// The drain of this host, for one of the services that run on it.
#[must_use]
pub fn own_question(snapshot: &Snapshot, host: &HostId, service: &ServiceName) -> Option<Question> {
    let drain = snapshot.get(&DrainKey { host: host.clone() }).ok().flatten()?;
    Some(question(snapshot, host, service, drain))
}

/// Every drain that this service must answer: it ran on the host at the time of the request, or does now.
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
    let up = snapshot.get(&HostKey { host: host.clone() }).ok().flatten();
    let boot = up.map(|up| up.record.boot.clone());
    let given = snapshot.get(&answer).ok().flatten();
    let given = given.filter(|given| DrainAnswer::counts(given, &drain, boot.as_deref()));
    Question { host, service, drain, given, boot }
}

fn concerns(snapshot: &Snapshot, key: &DrainKey, drain: &DrainRecord, service: &ServiceName) -> bool {
    let runs_now = || {
        let host = snapshot.get(&HostKey { host: key.host.clone() }).ok().flatten();
        host.is_some_and(|host| host.record.services.contains(service))
    };
    drain.services.contains(service) || runs_now()
}
