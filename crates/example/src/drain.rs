//! How the service answers a drain: drained when no placement names the host.

use capstan_control::drain::{Answer, Intent, Question};

use crate::facts::Facts;

/// The answer to a drain of a host.
#[must_use]
pub fn answer(facts: &Facts, question: &Question) -> Answer {
    let placed = facts.placements.values().filter(|seen| seen.record.hosts.contains(&question.host)).count();
    match question.intent() {
        Intent::Return => Answer::Healthy,
        Intent::Drain if placed == 0 && facts.unreadable.is_empty() => Answer::Drained,
        Intent::Drain => Answer::Pending { reason: format!("{placed} beacons have no other host yet") },
    }
}
