//! How logs answer a drain. One answer per service that keeps logs.
//!
//! A host is drained when it leads no log and every log that it holds can commit without it and without the hosts that
//! are already drained. Its copies stay and catch up after its return. So two hosts that hold the same log are never
//! both drained if the log could not commit then: the second one waits for the first.

use std::collections::{BTreeSet, HashSet};

use capstan_control::drain::{Answer, Intent, Question, ServiceState, questions, statuses};
use capstan_control::keys::{HostId, ServiceName};
use capstan_meta::Txn;
use capstan_meta::view::Snapshot;

use crate::facts::{Facts, LogFact, Seat};

/// Logs that are named in a reason; the others are counted.
const NAMED: usize = 3;

/// The answers to every drain of this service, which has only logs on a host.
#[must_use]
pub fn answers(snapshot: &Snapshot, facts: &Facts, service: &ServiceName, unix_now: u64) -> Vec<Txn> {
    let asked = questions(snapshot, service);
    if asked.is_empty() {
        return Vec::new();
    }
    let mut gone = drained(snapshot, service);
    let mut given = Vec::new();
    for question in asked {
        let say = answer(facts, &question, &gone);
        if say == Answer::Drained {
            gone.insert(question.host.clone());
        }
        given.extend(question.answer(say, unix_now));
    }
    given
}

/// Hosts that this service has reported as drained and that may go down at any moment.
#[must_use]
pub fn drained(snapshot: &Snapshot, service: &ServiceName) -> BTreeSet<HostId> {
    let all = statuses(snapshot).into_iter();
    let ours = all.filter(|status| {
        status.services.iter().any(|one| one.service == *service && one.state == ServiceState::Drained)
    });
    ours.map(|status| status.host).collect()
}

/// The answer to one drain, given the hosts that are already drained.
#[must_use]
pub fn answer(facts: &Facts, question: &Question, gone: &BTreeSet<HostId>) -> Answer {
    match question.intent() {
        Intent::Drain => empty(facts, &question.host, &question.service, gone),
        Intent::Return => returned(facts, &question.host, &question.service),
    }
}

/// The holders of a service on a host.
fn on_host(facts: &Facts, host: &HostId, service: &ServiceName) -> HashSet<Seat> {
    let holders = facts.holders.iter().enumerate().filter(|(_, holder)| {
        holder
            .record
            .as_ref()
            .is_some_and(|seen| seen.record.host == *host && seen.record.service == *service)
    });
    holders.filter_map(|(seat, _)| u32::try_from(seat).ok()).collect()
}

fn empty(facts: &Facts, host: &HostId, service: &ServiceName, gone: &BTreeSet<HostId>) -> Answer {
    let here = on_host(facts, host, service);
    let away: HashSet<Seat> = gone.iter().flat_map(|host| on_host(facts, host, service)).collect();
    let (mut led, mut held) = (Vec::new(), Vec::new());
    let retiring = |seat: &Seat| facts.holder(*seat).is_retiring();
    for log in facts.logs.iter().filter(|log| log.members().any(|seat| here.contains(&seat))) {
        if here.contains(&log.primary) && facts.holder(log.primary).is_up() {
            led.push(log);
        } else if here.iter().any(retiring) || !commits_without(facts, log, &here, &away) {
            held.push(log);
        }
    }
    match (led.is_empty(), held.is_empty()) {
        (true, true) => Answer::Drained,
        (false, _) => Answer::Pending { reason: format!("it leads {}", named(&led)) },
        (true, false) => {
            Answer::Pending { reason: format!("too few other copies are in sync of {}", named(&held)) }
        }
    }
}

/// Whether enough complete copies are up elsewhere.
fn commits_without(facts: &Facts, log: &LogFact, here: &HashSet<Seat>, away: &HashSet<Seat>) -> bool {
    let counted = log.in_sync.iter().any(|seat| here.contains(seat));
    let others = log
        .in_sync
        .iter()
        .filter(|seat| !here.contains(seat) && !away.contains(seat) && facts.holder(**seat).is_up());
    // A copy that does not count is not missed.
    !counted || others.count() >= log.min_copies()
}

fn returned(facts: &Facts, host: &HostId, service: &ServiceName) -> Answer {
    let here = on_host(facts, host, service);
    if let Some(down) = here.iter().map(|seat| facts.holder(*seat)).find(|holder| !holder.is_up()) {
        return Answer::Pending { reason: format!("holder {} has not started", down.id) };
    }
    let behind: Vec<&LogFact> = facts
        .logs
        .iter()
        .filter(|log| log.holders.iter().any(|seat| here.contains(seat) && !log.in_sync.contains(seat)))
        .collect();
    match behind.is_empty() {
        true => Answer::Healthy,
        false => Answer::Pending { reason: format!("its copies are catching up: {}", named(&behind)) },
    }
}

fn named(logs: &[&LogFact]) -> String {
    let names: Vec<&str> = logs.iter().take(NAMED).map(|log| log.name.as_str()).collect();
    let more = logs.len() - names.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} {}{more}", if logs.len() == 1 { "log" } else { "logs" }, names.join(", "))
}
