//! What ends a drain? The kernel's own controller: it removes a drain whose services are all healthy again, and
//! orphaned answers.

use std::collections::{BTreeMap, BTreeSet};

use capstan_meta::Txn;
use capstan_meta::record::{Key, Listing, Prefix, Stored};
use capstan_meta::view::{Ranges, Snapshot};

use super::{DrainPhase, DrainStatus, status};
use crate::drain::DrainAnswer;
use crate::keys::{AnswerKey, Answers, AnswersOf, DrainKey, Drains, HostId, HostKey, Hosts, ServiceName};
use crate::reconcile::{Controller, NoMessage, Plan, Situation, Step, Told};

/// Transactions per plan; the rest follows in the next one, on a fresh view.
const STEPS_PER_PLAN: usize = 64;

/// Ends drains. Runs on the leader; its view covers [`DrainKeeper::ranges`].
#[derive(Clone, Copy, Debug, Default)]
pub struct DrainKeeper;

impl DrainKeeper {
    /// The ranges that its view must cover.
    #[must_use]
    pub fn ranges() -> Ranges {
        Ranges::new().with(&Drains {}).with(&Hosts {})
    }
}

/// The status of every drain in a snapshot.
#[must_use]
pub fn statuses(snapshot: &Snapshot) -> Vec<DrainStatus> {
    let drains = snapshot.list(&Drains {});
    let answers = by_host(&snapshot.list(&Answers {}));
    drains.iter().map(|(key, drain)| status_in(snapshot, key, drain, &answers)).collect()
}

type ByHost = BTreeMap<HostId, Vec<(AnswerKey, Stored<DrainAnswer>)>>;

fn by_host(answers: &Listing<AnswerKey>) -> ByHost {
    let mut by_host = ByHost::new();
    for (key, stored) in answers.iter() {
        by_host.entry(key.host.clone()).or_default().push((key.clone(), stored.clone()));
    }
    by_host
}

fn status_in(
    snapshot: &Snapshot,
    key: &DrainKey,
    drain: &Stored<super::DrainRecord>,
    answers: &ByHost,
) -> DrainStatus {
    // An unreadable registration is not a missing one: its host counts as up, without further facts.
    let host = snapshot.get(&HostKey { host: key.host.clone() });
    let record =
        host.map_or_else(|_| Some(Default::default()), |found| found.map(|stored| stored.record.clone()));
    let given: Vec<(ServiceName, &Stored<DrainAnswer>)> = answers
        .get(&key.host)
        .into_iter()
        .flatten()
        .map(|(key, stored)| (key.service.clone(), stored))
        .collect();
    status(&key.host, drain, record.as_ref(), &given)
}

impl Controller for DrainKeeper {
    type Message = NoMessage;

    fn name(&self) -> &str {
        "drains"
    }

    fn plan(&self, situation: &Situation) -> Plan<NoMessage> {
        let snapshot = &situation.snapshot;
        let drains = snapshot.list(&Drains {});
        let answers = by_host(&snapshot.list(&Answers {}));
        let (mut steps, mut waiting) = (Vec::new(), Vec::new());
        for (key, drain) in drains.iter() {
            let status = status_in(snapshot, key, drain, &answers);
            match status.phase {
                DrainPhase::Returned => steps.push(end(snapshot, key, drain, answers.get(&key.host))),
                DrainPhase::Drained => waiting.push(format!("{}: drained, until it is undrained", key.host)),
                DrainPhase::Draining | DrainPhase::Returning => {
                    waiting.push(format!("{} waits for {}", key.host, status.waiting().join("; ")));
                }
            }
        }
        let asked: BTreeSet<&HostId> = drains.iter().map(|(key, _)| &key.host).collect();
        let unreadable: Vec<&str> = drains.bad.iter().map(|bad| bad.key.as_str()).collect();
        for host in answers.keys().filter(|host| !asked.contains(host)) {
            let key = DrainKey { host: host.clone() };
            if !unreadable.contains(&key.path().as_str()) {
                steps.push(sweep(&key));
            }
        }
        waiting.extend(drains.bad.iter().map(ToString::to_string));
        let why = if waiting.is_empty() { "no host is drained".to_owned() } else { waiting.join(", ") };
        steps.truncate(STEPS_PER_PLAN);
        Plan { steps, wake_at: None, why }
    }

    async fn tell(&self, message: NoMessage) -> Told {
        match message {}
    }
}

/// Removes a drain and its answers, guarded by everything the decision was based on.
fn end(
    snapshot: &Snapshot,
    key: &DrainKey,
    drain: &Stored<super::DrainRecord>,
    answers: Option<&Vec<(AnswerKey, Stored<DrainAnswer>)>>,
) -> Step<NoMessage> {
    let host = HostKey { host: key.host.clone() };
    // The whole record: a service that the host has started since must answer too.
    let registered = match snapshot.get(&host) {
        Ok(Some(stored)) => Some(host.unchanged(&stored)),
        Ok(None) => Some(host.absent()),
        Err(_) => None,
    };
    let mut txn = Txn::new().when(key.unchanged(drain)).when_all(registered);
    for (answer, stored) in answers.into_iter().flatten() {
        txn = txn.when(answer.unchanged(stored));
    }
    let txn = txn.then(key.delete()).then(AnswersOf { host: key.host.clone() }.delete_all());
    Step::Commit { what: format!("end the drain of host {}", key.host), txn }
}

/// Removes the answers to a drain that was deleted by hand.
fn sweep(key: &DrainKey) -> Step<NoMessage> {
    let txn = Txn::new().when(key.absent()).then(AnswersOf { host: key.host.clone() }.delete_all());
    Step::Commit { what: format!("remove answers to a drain of host {} that is gone", key.host), txn }
}
