//! Which component records hosts? The kernel's controller: it records every host, and since when it is down.

use std::time::Duration;

use capstan_meta::Txn;
use capstan_meta::record::{Key as _, Stored};
use capstan_meta::view::{Ranges, Snapshot};

use super::{HostRecord, KnownHost};
use crate::events::Event;
use crate::keys::{HostId, HostKey, Hosts, KnownHostKey, KnownHosts};
use crate::reconcile::{NoMessage, Step};

/// Transactions per plan; the rest follows in the next one, on a fresh view.
const STEPS_PER_PLAN: usize = 64;
/// The actor of the events.
const ACTOR: &str = "controller";

/// The ranges that the view must cover.
#[must_use]
pub fn ranges() -> Ranges {
    Ranges::new().with(&Hosts {}).with(&KnownHosts {})
}

/// The steps that update the records of known hosts. Pure.
#[must_use]
pub fn plan(snapshot: &Snapshot, now: u64) -> Vec<Step<NoMessage>> {
    let (up, known) = (snapshot.list(&Hosts {}), snapshot.list(&KnownHosts {}));
    // An unreadable registration is not a missing one: its host is not reported down.
    let unreadable: Vec<&str> = up.bad.iter().chain(&known.bad).map(|bad| bad.key.as_str()).collect();
    let readable = |host: &HostId| {
        !unreadable.contains(&HostKey { host: host.clone() }.path().as_str())
            && !unreadable.contains(&KnownHostKey { host: host.clone() }.path().as_str())
    };
    let mut steps = Vec::new();
    for (key, registered) in up.iter().filter(|(key, _)| readable(&key.host)) {
        let before = known.iter().find(|(other, _)| other.host == key.host).map(|(_, stored)| stored);
        steps.extend(seen_up(&key.host, registered, before, now));
    }
    for (key, before) in known.iter().filter(|(key, _)| readable(&key.host)) {
        let is_up = up.iter().any(|(other, _)| other.host == key.host);
        if !is_up && before.record.down_since.is_none() {
            steps.push(seen_down(key, before, now));
        }
    }
    steps.truncate(STEPS_PER_PLAN);
    steps
}

fn seen_up(
    host: &HostId,
    registered: &Stored<HostRecord>,
    before: Option<&Stored<KnownHost>>,
    now: u64,
) -> Option<Step<NoMessage>> {
    let last = registered.record.clone();
    let record = match before.map(|before| &before.record) {
        Some(known) if known.down_since.is_none() && known.last == last => return None,
        Some(known) => KnownHost { last, down_since: None, ..known.clone() },
        None => KnownHost { first_seen: now, last, down_since: None, extra: Default::default() },
    };
    let action = match before {
        None => "joined",
        Some(before) if before.record.down_since.is_some() => "came back",
        Some(_) => "registered again",
    };
    let (key, up) = (KnownHostKey { host: host.clone() }, HostKey { host: host.clone() });
    let txn = Txn::new()
        .when(key.as_seen(before))
        .when(up.unchanged(registered))
        .then(key.put(&record))
        .then(event(host, action, now).put());
    Some(Step::Commit { what: format!("remember host {host}"), txn })
}

fn seen_down(key: &KnownHostKey, before: &Stored<KnownHost>, now: u64) -> Step<NoMessage> {
    let record = KnownHost { down_since: Some(now), ..before.record.clone() };
    let up = HostKey { host: key.host.clone() };
    let txn = Txn::new()
        .when(key.unchanged(before))
        .when(up.absent())
        .then(key.put(&record))
        .then(event(&key.host, "is down", now).put());
    Step::Commit { what: format!("note that host {} is down", key.host), txn }
}

fn event(host: &HostId, action: &str, now: u64) -> Event {
    Event::new(Duration::from_secs(now), ACTOR, action, format!("host {host}"), "")
}
